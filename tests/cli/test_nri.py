"""`cri-resmgr nri run` as it is started: by whom, with what name, and on which connection."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import click
import pytest
from click.testing import CliRunner

from cri_proxy.cli.main import cli
from cri_proxy.cli.nri import _descriptor, _overrides, nri

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "packaging" / "files" / "10-cri-resmgr"
FLAGS: dict[str, Optional[str]] = {"name": None, "index": None, "socket": None}


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ({}, {}, {}),
        (
            {},
            {"NRI_PLUGIN_NAME": "cri-resmgr", "NRI_PLUGIN_IDX": "05"},
            {"name": "cri-resmgr", "index": "05"},
        ),
        ({"index": "42"}, {"NRI_PLUGIN_IDX": "05"}, {"index": "42"}),
        ({"socket": "/a.sock"}, {}, {"socket": "/a.sock"}),
    ],
    ids=["nothing", "launched", "the command line counts", "another socket"],
)
def test_name_and_index_are_the_command_lines_else_the_runtimes(
    flags: dict[str, str], environment: Mapping[str, str], expected: dict[str, str]
) -> None:
    with click.Context(nri):
        found = _overrides({**FLAGS, **flags}, environment)
    assert found == {f"nri.plugin.{key}": value for key, value in expected.items()}


def test_the_commands_control_socket_is_taken() -> None:
    with click.Context(cli, obj=Path("/a/c.sock")):
        assert _overrides(FLAGS, {}) == {"control.socket": "/a/c.sock"}
        assert _overrides({"control_socket": "/b.sock"}, {}) == {"control.socket": "/b.sock"}


def test_the_descriptor_is_the_runtimes() -> None:
    assert _descriptor({}) is None
    assert _descriptor({"NRI_PLUGIN_SOCKET": "3"}) == 3


def test_a_descriptor_that_is_no_number_is_a_sentence_and_a_failure(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["nri", "run"], env={"NRI_PLUGIN_SOCKET": "three"})
    assert result.exit_code == 1
    assert "NRI_PLUGIN_SOCKET=three is not the number of a descriptor" in result.output


def test_a_descriptor_that_is_no_socket_is_a_sentence_and_a_failure(tmp_path: Path) -> None:
    folders = ["--state-dir", str(tmp_path / "state"), "--control-socket", str(tmp_path / "c.sock")]
    command = [
        sys.executable,
        "-m",
        "cri_proxy",
        "nri",
        "run",
        *folders,
        "--runtime-socket",
        "/nonexistent.sock",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"NRI_PLUGIN_SOCKET": "77"}, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 1
    assert (
        "NRI_PLUGIN_SOCKET=77, the connection of a launched plugin: descriptor 77 is no socket" in done.stderr
    )


def test_what_a_runtime_launches_needs_no_path() -> None:
    words = [line.split() for line in SCRIPT.read_text().splitlines() if not line.startswith("#")]
    assert words[0] == ["/usr/bin/cri-resmgr", "nri", "run", "&"]
    assert {each[0] for each in words[1:]} <= {"plugin=$!", "exec", "trap", "wait"}  # the shell's own
    assert SCRIPT.stat().st_mode & 0o111 == 0o111
