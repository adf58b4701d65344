"""Where Intel's cri-resource-manager was, ours takes its place and reads its configuration."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.expected import KUBELET_BY_HAND, SOCKET_AND_SERVICE
from tests.packaging.kinds import DEB, Kind
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages

CONTROL = """Package: cri-resource-manager
Version: 0.9.2
Architecture: amd64
Maintainer: nobody <nobody@example.org>
Description: stands for Intel's
"""
#: As debhelper has it: on a removal the unit, which has the name of ours, is masked.
POSTRM = """#!/bin/sh
if [ "$1" = remove ]; then deb-systemd-helper mask cri-resource-manager.service >/dev/null; fi
"""
#: It has no scriptlets: its daemon goes on running. What is in sysconfig it does not call configuration.
SPEC = """Name: cri-resource-manager
Version: 0.9.2
Release: 0
Summary: stands for Intel's
License: Apache-2.0
%description
None.
%install
cp -a SOURCE/. %{buildroot}
%files
%config(noreplace) /etc/cri-resmgr/fallback.cfg
%config(noreplace) /etc/cri-resmgr/fallback.cfg.sample
/etc/sysconfig/cri-resource-manager
/usr
"""
UNIT = "/usr/lib/systemd/system/cri-resource-manager.service"
#: Where the service's options are.
OPTIONS = {"deb": "/etc/default/cri-resource-manager", "rpm": "/etc/sysconfig/cri-resource-manager"}
SHIPPED = {
    "/etc/cri-resmgr/fallback.cfg": "policy:\n  Active: topology-aware\n",
    "/etc/cri-resmgr/fallback.cfg.sample": "policy:\n  Active: topology-aware\n",
    "/usr/bin/cri-resmgr": "#!/bin/sh\necho intel\n",
    "/usr/share/doc/cri-resource-manager/README.md": "Intel's\n",
    UNIT: "[Service]\nExecStart=/usr/bin/cri-resmgr\n",
}
OPTIONS_SHIPPED = 'CONFIG_OPTIONS="--fallback-config /etc/cri-resmgr/fallback.cfg"\n'
#: Files that packagers set aside.
ASIDE = (".rpmsave", ".rpmorig", ".rpmnew", ".dpkg-old", ".dpkg-dist", ".dpkg-new")
#: What a user has made of it.
FALLBACK = "policy:\n  Active: balloons\n  ReservedResources:\n    CPU: 750m\n"
OPTIONS_EDITED = OPTIONS_SHIPPED + 'POLICY_OPTIONS="--metrics-interval 10s"\n'


@pytest.fixture
def intels(kind: Kind, tmp_path: Path) -> Path:
    """A package with the files of theirs that meet ours."""
    source = tmp_path / "intel"
    for name, text in {**SHIPPED, OPTIONS[kind.name]: OPTIONS_SHIPPED}.items():
        path = source / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (source / "usr/bin/cri-resmgr").chmod(0o755)
    if kind is DEB:
        conffiles = [name for name in (*SHIPPED, OPTIONS[kind.name]) if name.startswith("/etc/")]
        (source / "DEBIAN").mkdir()
        (source / "DEBIAN/control").write_text(CONTROL)
        (source / "DEBIAN/conffiles").write_text("".join(f"{name}\n" for name in conffiles))
        (source / "DEBIAN/postrm").write_text(POSTRM)
        (source / "DEBIAN/postrm").chmod(0o755)
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(source), str(tmp_path)]
    else:
        (tmp_path / "intel.spec").write_text(SPEC.replace("SOURCE", str(source)))
        command = ["rpmbuild", "-bb", "--target=x86_64", f"--define=_topdir {tmp_path}/top"]
        command += [f"--define=_rpmdir {tmp_path}", str(tmp_path / "intel.spec")]
    subprocess.run(command, check=True, capture_output=True)
    (package,) = tmp_path.rglob(f"*.{kind.name}")
    return package


def test_it_takes_its_place_and_the_users_configuration_is_read(
    root: Root, kind: Kind, install: Callable[..., str], intels: Path
) -> None:
    root.pretend_systemd()
    root.write(*KUBELET_BY_HAND)
    root.run(*kind.install, root.give(intels))
    edited = {"/etc/cri-resmgr/fallback.cfg": FALLBACK, OPTIONS[kind.name]: OPTIONS_EDITED}
    for name, text in edited.items():
        root.write(name, text)
    said = install()
    # What is theirs is gone, what is the user's is there.
    assert not [name for name in root.files() if "cri-resource-manager/" in name or name.endswith(ASIDE)], (
        said
    )
    assert "intel" not in root.run("cri-resmgr", "--version")
    assert "Type=notify" in root.read(UNIT)
    assert {name: root.read(name) for name in edited} == edited
    root.run("cri-resmgr", "config", "check", "/etc/cri-resmgr/fallback.cfg")
    # Their daemon may still run in the unit that is ours now, which their removal may have masked; and kubelet waits.
    assert not os.path.lexists(root.path / "etc/systemd/system/cri-resource-manager.service")
    assert "kubelet points at its socket already" in said
    assert root.asked_of_systemd()[-5:] == [
        f"--no-reload preset {SOCKET_AND_SERVICE}",
        f"--no-reload enable {SOCKET_AND_SERVICE}",
        "daemon-reload",
        "stop cri-resource-manager.service",
        f"start {SOCKET_AND_SERVICE}",
    ]
