"""tools/prepare-venv: what it says while pip works, and where pip's own words are. The environment's Python plays pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.roots import REPOSITORY

#: $@: -m pip install ...
PIP = """#!/bin/sh
for number in $(seq 1 25); do echo "Collecting package$number"; echo "  Downloading package$number.whl (1 MB)"; done
{}
"""
INSTALLS = "echo 'Installing collected packages: package1, package2'; echo 'Successfully installed package1 package2'"
FAILS = "echo 'ERROR: No matching distribution found for package26' >&2; exit 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "venv/bin").mkdir(parents=True)
    return tmp_path / "venv"


def prepared(folder: Path, does: str, extras: str = "demo") -> subprocess.CompletedProcess[str]:
    python = folder / "bin/python"
    python.write_text(PIP.format(does))
    python.chmod(0o755)
    command = [str(REPOSITORY / "tools/prepare-venv"), sys.executable, str(folder), extras]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_says_what_it_does_how_much_how_long_and_how_far_it_is(folder: Path) -> None:
    done = prepared(folder, INSTALLS)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert "some 75 MB; up to two minutes, once" in first
    assert first.endswith(f"pip's own output: {folder}/pip.log")
    assert lines == [
        f"{folder}: 10 packages fetched",
        f"{folder}: 20 packages fetched",
        f"{folder}: all fetched; pip unpacks them, about half of the time",
    ]
    assert "  Downloading package25.whl (1 MB)\n" in (folder / "pip.log").read_text()


def test_where_pip_fails_its_sentence_and_its_log_are_named(folder: Path) -> None:
    done = prepared(folder, FAILS, "test,lint")
    assert done.returncode == 1
    assert "some 500 MB" in done.stdout
    assert done.stderr == (
        "prepare-venv: pip failed: ERROR: No matching distribution found for package26;"
        f" all that it said: {folder}/pip.log\n"
    )
