"""The deb as a file: what is in it, what it asks for, and that the tools of Debian find nothing in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.expected import PROGRAMS, STATE, UNITS, elsewhere
from tests.packaging.kinds import ask
from tests.packaging.roots import PYTHONS

pytestmark = pytest.mark.packages


@pytest.fixture(scope="module")
def deb(package: Callable[..., Path]) -> Path:
    return package("deb")


def listed(deb: Path) -> dict[str, str]:
    """Mode and owner of each file, by name."""
    lines = [line.split(maxsplit=5) for line in ask("dpkg-deb", "--contents", str(deb)).splitlines()]
    return {line[5].split(" -> ")[0].lstrip(".").rstrip("/"): f"{line[0]} {line[1]}" for line in lines}


def test_it_has_the_program_units_manual_completions_and_samples(deb: Path) -> None:
    files = listed(deb)
    assert not [
        name
        for name in (*PROGRAMS, *UNITS, "/usr/share/zsh/vendor-completions/_cri-resmgr")
        if name not in files
    ]


def test_nothing_lies_outside_its_folders_and_all_is_roots(deb: Path) -> None:
    files = listed(deb)
    assert not elsewhere(files)
    assert {mode.split()[1] for mode in files.values()} == {"root/root"}
    assert files[STATE].startswith("drwx------")
    writable = [name for name, mode in files.items() if mode[5] == "w" or mode[8] == "w"]
    assert not [name for name in writable if not files[name].startswith("l")]


def test_tests_sources_and_bytecode_of_others_are_not_in_it(deb: Path) -> None:
    private = [name for name in listed(deb) if "/site-packages/" in name]
    assert not [
        name for name in private if "/tests/" in name or name.endswith((".pyc", ".pyx", ".pyi", ".pth"))
    ]
    assert [name for name in private if name.endswith("/cri_api/runtime_v1_pb2.py")]


def test_it_takes_the_place_of_intels_package_and_recommends_bcc(deb: Path) -> None:
    fields = dict(
        line.split(": ", 1) for line in ask("dpkg-deb", "--field", str(deb)).splitlines() if ": " in line
    )
    assert fields["Provides"] == fields["Conflicts"] == fields["Replaces"] == "cri-resource-manager"
    assert fields["Depends"].startswith("python3.11,")
    assert "python3-bpfcc" in fields["Recommends"]


def test_what_is_edited_is_a_conffile(deb: Path) -> None:
    conffiles = ask("dpkg-deb", "--info", str(deb), "conffiles").split()
    assert conffiles == ["/etc/cri-resmgr/config.yaml", "/etc/cri-resmgr/fallback.cfg.sample"]


@pytest.mark.parametrize("suite", PYTHONS)
def test_lintian_finds_nothing(suite: str, package: Callable[..., Path]) -> None:
    """In the package of each release: what is compiled for another Python is linked by that one's rules."""
    if shutil.which("lintian") is None:
        pytest.skip("no lintian")
    command = ["lintian", "--allow-root", str(package("deb", python=PYTHONS[suite]))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not [line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")], done.stdout
