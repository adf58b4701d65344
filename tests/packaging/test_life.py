"""A package's life on a Debian 12 whose systemd only writes down what it is asked: the same for the deb and the rpm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.version import VERSION
from tests.packaging.expected import FRESH, KUBELET_BY_HAND, SOCKET_AND_SERVICE
from tests.packaging.installed import served, simulated
from tests.packaging.kinds import Kind
from tests.packaging.roots import FAKE_SYSTEMCTL, Root

pytestmark = pytest.mark.packages

#: A process that a runtime may have launched as a plugin, and the lock of which it is said to be the owner.
PLUGIN = """
NRI_PLUGIN_SOCKET=3 sh -c 'trap "echo ended >/var/tmp/plugin; exit" TERM; sleep 20 & wait' sh /usr/bin/cri-resmgr nri run &
mkdir -p /run/cri-resmgr
echo "{\\"pid\\": $!, \\"front_end\\": \\"nri-plugin\\"}" >/run/cri-resmgr/owner.lock
/usr/lib/cri-resmgr/maintain WHAT
"""


async def test_a_first_install_starts_nothing_and_a_removal_gives_containers_their_cpus_back(
    root: Root, kind: Kind, install: Callable[..., str]
) -> None:
    before = root.files()
    root.pretend_systemd()
    said = await asyncio.to_thread(install)
    assert not [line for line in said.splitlines() if not line.startswith(kind.says)]
    assert root.asked_of_systemd() == FRESH
    assert (await asyncio.to_thread(root.run, "cri-resmgr", "--version")).split()[-1] == VERSION
    assert await asyncio.to_thread(simulated, root) == "0-3,64-67"
    async with served(root) as (client, runtime):
        assert (await client.call("Version", cri.VersionRequest())).runtime_name == "containerd"
        pod = await client.run_pod("web")
        container = await client.create(pod, "app", cpu_limit=8000)
        await client.start(container)
        assert runtime.cpuset(container) == "0-3,64-67"
        assert "enforce" in await asyncio.to_thread(root.run, "cri-resmgr", "status")
        await asyncio.to_thread(root.run, *kind.remove, "cri-resmgr")
        assert runtime.cpuset(container) == "0-127"
    left = {name for name in root.files() - before if name.startswith(("usr", "run/cri"))}
    # These folders are the distribution's, but not on a Debian without systemd.
    assert left - {"usr/bin/systemctl"} <= {"usr/share/licenses", "usr/lib/sysusers.d"}


def test_units_call_only_programs_that_a_small_system_has(root: Root, install: Callable[..., str]) -> None:
    install()
    units = "".join(path.read_text() for path in root.path.glob("usr/lib/systemd/system/cri-res*"))
    programs = set(re.findall(r"^Exec\w+=[-@:+!]*(\S+)", units, re.MULTILINE))
    assert programs == {"/usr/bin/cri-resmgr", "/bin/sh", "/bin/mkdir"}
    assert [program for program in programs if not (root.path / program.lstrip("/")).exists()] == []


def test_upgrade_and_downgrade_restart_it_and_keep_state_and_configuration(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    install()
    kept = {
        "/etc/cri-resmgr/config.yaml": "relay:\n  mode: observe\n",
        "/etc/cri-resmgr/fallback.cfg": "policy:\n  Active: none\n",
        "/var/lib/cri-resmgr/state.db": "state",
    }
    for name, text in kept.items():
        root.write(name, text)
    for release in ("2", "1"):
        root.asked_of_systemd()
        install(release)
        assert root.asked_of_systemd() == [
            "daemon-reload",
            "try-restart cri-resource-manager.service",
            "try-restart cri-resmgr-observer.service",
            "try-restart cri-resmgr-agent.service",
            "try-restart cri-resmgr-nri.service",
            "try-restart cri-resmgr-web.service",
        ]
        assert {name: root.read(name) for name in kept} == kept


def test_removal_is_refused_while_kubelet_points_at_us_by_hand(
    root: Root, kind: Kind, install: Callable[..., str]
) -> None:
    root.write(*KUBELET_BY_HAND)
    install()
    before = root.files()
    said = root.run(*kind.remove, "cri-resmgr", fails=True)
    file, text = KUBELET_BY_HAND
    assert f"{file}:2" in said, said
    assert "cri-resmgr: not removed" in said
    assert root.files() == before
    assert root.read(file) == text
    root.run("cri-resmgr", "--version")


def test_in_an_image_whose_kubelet_points_at_us_the_units_are_enabled(
    root: Root, install: Callable[..., str]
) -> None:
    root.write("/usr/bin/systemctl", FAKE_SYSTEMCTL, 0o755)  # and no systemd runs
    root.write(*KUBELET_BY_HAND)
    said = install()
    assert "cri-resmgr:" not in said
    verbs = ("preset", "enable")
    assert root.asked_of_systemd() == [f"--no-reload {verb} {SOCKET_AND_SERVICE}" for verb in verbs]


def test_where_kubelet_points_is_not_known_is_said(root: Root, install: Callable[..., str]) -> None:
    root.pretend_systemd()
    start = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n"
    root.write("/usr/lib/systemd/system/kubelet.service", start)
    root.write("/var/lib/kubelet/config.yaml", "kind: [\n")
    assert "cri-resmgr: /var/lib/kubelet/config.yaml" in install()
    assert root.asked_of_systemd() == FRESH


def test_a_program_that_cannot_run_stays_while_kubelet_points_at_it(
    root: Root, kind: Kind, install: Callable[..., str]
) -> None:
    file, text = KUBELET_BY_HAND
    install()
    (click,) = root.path.glob("usr/lib/cri-resmgr/lib/python3*/site-packages/click/__init__.py")
    click.unlink()
    root.write(file, text)
    before = root.files()
    said = root.run(*kind.remove, "cri-resmgr", fails=True)
    assert "cri-resmgr: it cannot run: AttributeError: module 'click' has no attribute" in said
    assert f"has no runtime; see:\n  {file}\n" in said
    assert "cri-resmgr: not removed" in said
    assert root.files() == before
    # It says how to have it gone all the same.
    command = next(line.split(": ", 1)[1] for line in said.splitlines() if "remove it all the same" in line)
    root.run("sh", "-c", command)
    root.run(*kind.remove, "cri-resmgr")
    assert not (root.path / "usr/bin/cri-resmgr").exists()
    assert not (root.path / "run/cri-resmgr").exists()


def test_a_plugin_that_a_runtime_has_launched_ends_with_the_package_and_outlives_an_upgrade(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    install()
    said = root.run("sh", "-c", PLUGIN.replace("WHAT", "installed upgrade"))
    assert said == "cri-resmgr: the container runtime runs the old plugin until it is restarted\n"
    assert not (root.path / "var/tmp/plugin").exists()
    root.run("sh", "-c", PLUGIN.replace("WHAT", "removing; wait"))
    assert root.read("/var/tmp/plugin") == "ended\n"


def test_a_folder_that_was_installed_by_hand_is_left_as_it_is(
    root: Root, kind: Kind, package: Callable[..., Path]
) -> None:
    root.write("/usr/lib/cri-resmgr/bin/python", "by hand")
    given = root.give(package(kind.name))
    before = {name for name in root.files() if "cri-res" in name}
    said = root.run(*kind.install, given, fails=True)
    assert "/usr/lib/cri-resmgr/bin/python is of no package" in said
    assert {name for name in root.files() if "cri-res" in name} == before
    assert root.read("/usr/lib/cri-resmgr/bin/python") == "by hand"
    root.run("mv", "/usr/lib/cri-resmgr", "/opt/cri-resmgr")
    root.run(*kind.install, given)
