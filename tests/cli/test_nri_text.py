"""What an operator reads of plugins."""

from __future__ import annotations

from typing import Any

from cri_proxy.cli.nri_text import nri_text

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
