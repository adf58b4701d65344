"""The rpm as a file: what is in it, what it asks for, and that rpmlint finds nothing in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import AARCH64, X86_64
from tests.packaging.expected import PROGRAMS, STATE, UNITS, elsewhere
from tests.packaging.kinds import ask
from tests.packaging.roots import REPOSITORY

pytestmark = pytest.mark.packages


@pytest.fixture(scope="module")
def rpm(package: Callable[..., Path]) -> Path:
    return package("rpm")


def test_it_has_the_program_units_manual_completions_and_samples(rpm: Path) -> None:
    files = ask("rpm", "-qlp", str(rpm)).splitlines()
    wanted = {*PROGRAMS, *UNITS, STATE, "/usr/share/zsh/site-functions/_cri-resmgr"}
    assert wanted <= set(files)
    assert not elsewhere(files)
    assert "/usr/share/licenses/cri-resmgr/VENDORED.md" in files


def test_it_asks_for_its_python_and_takes_the_place_of_intels(rpm: Path) -> None:
    assert {"python(abi) = 3.11", "/usr/bin/python3.11"} <= set(
        ask("rpm", "-qp", "--requires", str(rpm)).splitlines()
    )
    assert ask("rpm", "-qp", "--obsoletes", str(rpm)) == "cri-resource-manager < 1.0\n"
    assert "cri-resource-manager = 1.0" in ask("rpm", "-qp", "--provides", str(rpm)).splitlines()
    assert "(python3-bcc or python3-bpfcc)" in ask("rpm", "-qp", "--recommends", str(rpm)).splitlines()
    assert not [line for line in ask("rpm", "-qp", "--provides", str(rpm)).splitlines() if ".so" in line]


def test_what_is_edited_is_configuration(rpm: Path) -> None:
    files = ask("rpm", "-qp", "--configfiles", str(rpm)).split()
    assert files == ["/etc/cri-resmgr/config.yaml", "/etc/cri-resmgr/fallback.cfg.sample"]


@pytest.mark.parametrize("architecture", [X86_64, AARCH64])
def test_rpmlint_finds_nothing(architecture: str, package: Callable[..., Path]) -> None:
    rpm = package("rpm", architecture=architecture)
    if shutil.which("rpmlint") is None:
        pytest.skip("no rpmlint")
    settings = str(REPOSITORY / "packaging" / "rpm" / "rpmlint.toml")
    done = subprocess.run(["rpmlint", "-c", settings, str(rpm)], capture_output=True, text=True, check=False)
    assert "0 errors, 0 warnings" in done.stdout, done.stdout
