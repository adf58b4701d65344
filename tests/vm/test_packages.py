"""The package of an upgrade, made of another."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.vm.packages import newer

CONTROL = """\
Package: thing
Version: 1.0-1+py3.11
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: a thing
"""


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_an_upgrade_has_the_same_files_and_a_later_version(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(CONTROL)
    (tree / "file").write_text("content")
    first = tmp_path / "thing.deb"
    subprocess.run(["dpkg-deb", "--build", str(tree), str(first)], check=True, stdout=subprocess.DEVNULL)
    second = newer(first, tmp_path)
    assert _listed(second) == _listed(first)
    assert (
        subprocess.run(["dpkg", "--compare-versions", _version(second), "gt", _version(first)]).returncode
        == 0
    )


def _version(deb: Path) -> str:
    return subprocess.check_output(["dpkg-deb", "--field", str(deb), "Version"], text=True).strip()


def _listed(deb: Path) -> list[str]:
    shown = subprocess.check_output(["dpkg-deb", "--fsys-tarfile", str(deb)])
    return subprocess.run(["tar", "-t"], input=shown, capture_output=True, check=True).stdout.decode().split()
