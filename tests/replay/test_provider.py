"""A recording is played as it was made, and what is wrong with it is one sentence with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.sources.samples import Flow, ProviderLost, RemoteFlow
from tests.replay.provider import ReplayProvider, identity_of_name, read_recording

RECORDING = """\
# two samples
{"seconds": 10, "flows": [{"a": "web", "b": "db", "bytes_ab": 5e6, "messages": 20}]}

{"at": 30, "flows": [{"a": "web", "b": "db", "kind": "unix", "messages": 7}]}
{"endpoints": {"web": {"namespace": "shop", "pod": "web-0", "container": "nginx", "labels": {"apps.kubernetes.io/pod-index": "0"}}}}
"""  # noqa: E501


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "replay.jsonl"
    path.write_text(RECORDING)
    return path


def test_samples_are_played_when_their_time_has_come(path: Path) -> None:
    provider = ReplayProvider(str(path), 100.0)
    assert provider.sample(105.0).flows == ()
    first = provider.sample(110.0)
    assert (first.flows, first.seconds) == ((Flow("web", "db", "tcp", 5_000_000, 0, 20),), 5.0)
    assert provider.sample(129.0).flows == ()
    assert provider.sample(131.0).flows == (Flow("web", "db", "unix", messages=7),)
    assert provider.sample(1000.0).flows == ()


def test_speed_brings_them_sooner(path: Path) -> None:
    provider = ReplayProvider(str(path), 0.0, speed=10.0)
    assert len(provider.sample(3.0).flows) == 2


def test_a_recording_can_start_again(path: Path) -> None:
    path.write_text(RECORDING + '{"repeat": true}\n')
    provider = ReplayProvider(str(path), 0.0)
    assert len(provider.sample(60.0).flows) == 4
    assert provider.sample(60.0).counters == {"replayed": 4}


def test_a_line_may_have_traffic_with_other_nodes_only(path: Path) -> None:
    path.write_text('{"remotes": [{"a": "web", "address": "10.244.7.3", "bytes": 5}]}')
    sample = ReplayProvider(str(path), 0.0).sample(10.0)
    assert (sample.flows, sample.remotes) == ((), (RemoteFlow("web", "10.244.7.3", 5),))


def test_endpoints_are_named_with_their_owners(path: Path) -> None:
    assert read_recording(str(path)).endpoints["web"].owner == "shop/web/nginx"


def test_a_name_of_three_parts_tells_who_it_is() -> None:
    found = identity_of_name("shop/web-0/nginx")
    assert found is not None
    assert (found.namespace, found.pod, found.container) == ("shop", "web-0", "nginx")
    assert identity_of_name("0123abcd") is None


BAD = {
    "no JSON": ("{", "line 1: not JSON"),
    "no object": ("[]", "expected an object with at, endpoints, flows, remotes, repeat, seconds only"),
    "unknown key": ('{"flow": []}', "expected an object with"),
    "no list": ('{"flows": 5}', "line 1, flows: expected a list"),
    "no end": ('{"flows": [{"a": "x"}]}', "line 1, flow 1, b: None is not the name of an endpoint"),
    "no kind": ('{"flows": [{"a": "x", "b": "y", "kind": "pigeon"}]}', "'pigeon' is not one of tcp"),
    "no number": (
        '{"flows": [{"a": "x", "b": "y", "bytes_ab": "5"}]}',
        'bytes_ab: "5" is not a number of 0 or more',
    ),
    "negative": ('{"flows": [], "seconds": -1}', "seconds: -1 is not a number of 0 or more"),
    "endless": ('{"flows": [], "seconds": 1e999}', "is not a number of 0 or more"),
    "back in time": ('{"at": 9, "flows": []}\n{"at": 5, "flows": []}', "line 2, at: 5 is before"),
    "no remote list": ('{"remotes": 5}', "line 1, remotes: expected a list"),
    "no address": ('{"remotes": [{"a": "x"}]}', "line 1, remote 1: expected a, address and bytes"),
    "no remote number": (
        '{"remotes": [{"a": "x", "address": "10.0.0.1", "bytes": -1}]}',
        "remote 1, bytes: -1 is not a number of 0 or more",
    ),
    "unknown amount": ('{"flows": [{"a": "x", "b": "y", "bytes": 5}]}', "'bytes' is not known"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ProviderLost) as refused:
        ReplayProvider(str(path), 0.0)
    assert sentence in str(refused.value)
