"""`cri-resmgr nri run` as it is started: by whom, with what name, and on which connection."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import click
import pytest
from click.testing import CliRunner

from cri_proxy.cli.main import cli
from cri_proxy.cli.nri import _descriptor, _overrides, nri, nri_text

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "packaging" / "files" / "10-cri-resmgr"
FLAGS: dict[str, Optional[str]] = {"name": None, "index": None, "socket": None}


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ({}, {}, {}),
        ({}, {"NRI_PLUGIN_NAME": "cri-resmgr", "NRI_PLUGIN_IDX": "05"}, {"index": "05"}),
        ({"index": "42"}, {"NRI_PLUGIN_IDX": "05"}, {"index": "42"}),
        ({"socket": "/a.sock"}, {}, {"socket": "/a.sock"}),
    ],
    ids=["nothing", "launched", "the command line counts", "another socket"],
)
def test_the_index_is_the_command_lines_else_the_runtimes(
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


FOO: dict[str, Any] = {
    "name": "foo",
    "index": "10",
    "origin": "external",
    "state": "connected",
    "pid": 77,
    "events": ["CreateContainer", "StopContainer"],
    "by_state_change": ["RunPodSandbox"],
    "calls": 12,
    "failures": {"error": 1, "timeout": 2},
    "mean_ms": 1.26,
    "most_ms": 20.0,
    "last_error": "CreateContainer: no",
}
GONE = {"name": "bar", "index": "20", "origin": "launched", "state": "ended", "last_error": "it ended"}
MISSING = {"name": "baz", "index": "", "origin": "required", "state": "missing"}


def test_plugins_are_a_table_with_what_went_wrong_below() -> None:
    document = {
        "host": "on",
        "why": "the runtime has no NRI",
        "socket": "/run/nri.sock",
        "plugins": [FOO, GONE, MISSING],
        "problems": ["/opt/nri/plugins/x is not launched: it is not executable"],
    }
    assert nri_text(document).split("\n") == [
        "host: on (the runtime has no NRI)",
        "socket: /run/nri.sock",
        "PLUGIN  STATE      ORIGIN    PID  CALLS  FAILED  MEAN    MOST     EVENTS",
        "10-foo  connected  external  77   12     3       1.3 ms  20.0 ms  CreateContainer,StopContainer",
        "20-bar  ended      launched",
        "baz     missing    required",
        "10-foo: last error: CreateContainer: no",
        "10-foo: takes as StateChange: RunPodSandbox",
        "20-bar: last error: it ended",
        "/opt/nri/plugins/x is not launched: it is not executable",
    ]


def test_a_plugin_with_all_events_has_them_in_a_word_and_none_is_said() -> None:
    every = {**FOO, "events": [str(number) for number in range(14)], "last_error": "", "by_state_change": []}
    assert nri_text({"host": "on", "plugins": [every]}).endswith("20.0 ms  all")
    assert nri_text({"host": "off", "plugins": []}) == "host: off\nno plugins"


def test_a_plugin_of_the_runtimes_says_how_it_is_connected() -> None:
    assert nri_text({"plugin": "10-cri-resmgr", "connected": True}) == "plugin: 10-cri-resmgr\nconnected: yes"
