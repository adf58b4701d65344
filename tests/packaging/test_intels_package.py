"""Where Intel's cri-resource-manager was, ours takes its place and reads its configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.roots import Root

pytestmark = pytest.mark.packages

CONTROL = """Package: cri-resource-manager
Version: 0.9.2
Architecture: amd64
Maintainer: nobody <nobody@example.org>
Description: stands for Intel's
"""
FILES = {
    "DEBIAN/control": CONTROL,
    "DEBIAN/conffiles": "/etc/default/cri-resource-manager\n/etc/cri-resmgr/fallback.cfg.sample\n",
    "usr/bin/cri-resmgr": "#!/bin/sh\necho intel\n",
    "usr/lib/systemd/system/cri-resource-manager.service": "[Service]\nExecStart=/usr/bin/cri-resmgr\n",
    "etc/default/cri-resource-manager": 'CONFIG_OPTIONS="--fallback-config /etc/cri-resmgr/fallback.cfg"\n',
    "etc/cri-resmgr/fallback.cfg.sample": "policy:\n  Active: topology-aware\n",
}


@pytest.fixture
def intels(tmp_path: Path) -> Path:
    """A package with the files of theirs that meet ours."""
    for name, text in FILES.items():
        path = tmp_path / "intel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "intel/usr/bin/cri-resmgr").chmod(0o755)
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(tmp_path / "intel")]
    subprocess.run([*command, str(tmp_path / "intel.deb")], check=True, stdout=subprocess.DEVNULL)
    return tmp_path / "intel.deb"


def test_the_deb_takes_its_place_and_its_configuration_stays(
    new_root: Callable[[str], Root], package: Callable[..., Path], intels: Path
) -> None:
    root = new_root("bookworm")
    root.run("dpkg", "--force-unsafe-io", "--install", root.give(intels))
    root.write("/etc/cri-resmgr/fallback.cfg", "policy:\n  Active: none\n")
    root.run("dpkg", "--force-unsafe-io", "--install", root.give(package("deb")))
    assert "intel" not in root.run("cri-resmgr", "--version")
    assert (root.path / "etc/cri-resmgr/fallback.cfg").read_text() == "policy:\n  Active: none\n"
    options = (root.path / "etc/default/cri-resource-manager").read_text()
    assert options == FILES["etc/default/cri-resource-manager"]
    root.run("cri-resmgr", "config", "check", "/etc/cri-resmgr/fallback.cfg")
    unit = (root.path / "usr/lib/systemd/system/cri-resource-manager.service").read_text()
    assert "Type=notify" in unit
    installed = root.run(
        "dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Abbrev}\n", "cri-res*"
    )
    assert "cri-resmgr ii" in installed
    assert "cri-resource-manager ii" not in installed
