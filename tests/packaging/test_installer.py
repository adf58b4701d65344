"""The cluster's installer with the real deb and the real dpkg, on a Debian 12 in a folder; only systemctl is pretended."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.installer.io.host import InstallationHost, packages_in
from cluster.installer.io.installer import ExitCode, Installer
from cluster.installer.plan import HostState
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages

#: Units are what is in this file; all else that is asked of systemd is answered with yes.
SYSTEMCTL = """#!/bin/sh
state=/tmp/units; touch $state-enabled $state-running
verb=$1; shift
for unit in "$@"; do
    case $verb in
    is-enabled) grep -qx "$unit" $state-enabled && echo enabled || echo disabled ;;
    is-active) grep -qx "$unit" $state-running && echo active || echo inactive ;;
    enable) echo "$unit" >> $state-enabled ;;
    start) echo "$unit" >> $state-running ;;
    disable) sed -i "/^$unit\\$/d" $state-enabled ;;
    stop) sed -i "/^$unit\\$/d" $state-running ;;
    esac
done
exit 0
"""


@pytest.fixture
def host(
    root: Root, package: Callable[..., Path], tmp_path: Path
) -> Callable[[], tuple[InstallationHost, Installer]]:
    """The root as a host; the image carries the deb."""
    root.pretend_systemd()
    root.write("/usr/bin/systemctl", SYSTEMCTL, 0o755)
    shutil.copyfile(package("deb"), tmp_path / package("deb").name)

    def make() -> tuple[InstallationHost, Installer]:
        found = InstallationHost(root.path, root.command())
        found.pause = lambda seconds: None
        return found, Installer(found, print, tmp_path)

    return make


def changed(root: Root, before: set[str]) -> set[str]:
    return {name for name in root.files() ^ before if not name.startswith(("run/", "tmp/"))}


def test_a_node_whose_kubelet_cannot_be_switched_is_as_it_was(
    root: Root, host: Callable[[], tuple[InstallationHost, Installer]]
) -> None:
    before = root.files()
    machine, installer = host()
    # The package is really installed; no daemon is started by this systemctl, so kubelet is not switched.
    outcome, sentence = installer.install()
    assert outcome is ExitCode.TAKEN_BACK
    assert "kubelet enable --restart failed" in sentence and sentence.endswith("the node is as it was")
    assert changed(root, before) == set()
    assert machine.state("deb", None) == HostState()


def test_what_was_installed_by_a_killed_installer_is_taken_back_by_the_next(
    root: Root, host: Callable[[], tuple[InstallationHost, Installer]], tmp_path: Path
) -> None:
    before = root.files()
    machine, installer = host()

    class Killed(BaseException):
        pass

    steps = iter(range(10))

    def die() -> bool:
        # Asked before each step: after the package and the units.
        if next(steps) == 3:
            raise Killed
        return False

    with pytest.raises(Killed):
        Installer(machine, print, tmp_path, die).install()
    (package,) = packages_in(tmp_path)
    assert machine.state("deb", machine.load()).version == package.version
    assert installer.uninstall()[0] is ExitCode.DONE
    assert changed(root, before) == set()
