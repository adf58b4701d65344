"""What the observer is told is checked, and what is wrong is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bpf.service.options import BadOptions, Options, parse_options, read_options
from policies.affinity.graph.graph import GraphSettings


def test_without_any_they_are_the_configurations_defaults() -> None:
    assert read_options("{}") == Options()
    assert Options().graph == GraphSettings()


def test_they_can_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text('{"interval_s": 5, "runtime_sockets": ["/run/x.sock"]}')
    options = read_options(f"@{path}")
    assert (options.interval_s, options.runtime_sockets) == (5.0, ("/run/x.sock",))


def test_what_needs_a_restart_stays_as_it_is() -> None:
    newer = Options(socket="/new.sock", interval_s=1.0, least_weight=5.0)
    live = Options().live_part_of(newer)
    assert (live.socket, live.interval_s, live.least_weight) == (Options().socket, 1.0, 5.0)


BAD: dict[str, tuple[Any, str]] = {
    "no object": ([], "expected a JSON object"),
    "unknown": ({"half_life": 1}, "there is no option 'half_life'"),
    "no number": ({"interval_s": "10"}, 'interval_s: "10" is not a number'),
    "true is no number": ({"interval_s": True}, "interval_s: true is not a number"),
    "no interval": ({"interval_s": 0}, "interval_s: 0 is not more than 0"),
    "no string": ({"socket": 5}, "socket: 5 is not a string"),
    "no list": ({"runtime_sockets": "x"}, 'runtime_sockets: "x" is not a list of strings'),
    "no socket": ({"socket": ""}, "socket: a path is needed"),
    "no scope": ({"within": "world"}, "within: 'world' is not one of node, namespace, owner"),
    "no port": ({"listen": "localhost"}, "listen: 'localhost' is not HOST:PORT"),
    "no key": ({"listen": "[::1]:7001", "tls_certificate": "c.pem"}, "tls_key: serving [::1]:7001 needs it"),
}


@pytest.mark.parametrize(("document", "sentence"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_named(document: Any, sentence: str) -> None:
    with pytest.raises(BadOptions) as refused:
        parse_options(json.dumps(document), "here")
    assert str(refused.value).startswith("here")
    assert sentence in str(refused.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(BadOptions, match="/no/such/file cannot be read: No such file"):
        read_options("@/no/such/file")
