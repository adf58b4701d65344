"""The bench beside other relays: the calls of a round, and that Intel's is told paths of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from bench import peers
from bench.peers import GRPC_GO, INTELS, INTELS_AWARE, KINDS, OURS, OURS_AWARE, Caller, Way
from bench.turns import DIRECT
from cri_api import runtime_v1_pb2 as cri

SECONDS = {DIRECT: 1.0, GRPC_GO: 3.0, INTELS: 5.0, INTELS_AWARE: 9.0, OURS: 2.0, OURS_AWARE: 3.0}


class Calls(Caller):
    """Answers as a runtime does; a call takes as long as its way says."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.there: set[str] = set()
        self._ids = itertools.count()

    def calls(
        self, way: Way, method: str, requests: Sequence[bytes], wants_replies: bool = False
    ) -> tuple[Sequence[float], list[bytes]]:
        self.made.append((way.name, method))
        replies = [self._reply(method, request) for request in requests] if wants_replies else []
        if method in ("RemoveContainer", "RemovePodSandbox"):
            for request in requests:
                self._remove(method, request)
        return [SECONDS[way.name]] * len(requests), replies

    def _reply(self, method: str, request: bytes) -> bytes:
        new = f"id-{next(self._ids)}"
        self.there.add(new)
        if method == "RunPodSandbox":
            return cri.RunPodSandboxResponse(pod_sandbox_id=new).SerializeToString()
        assert cri.CreateContainerRequest.FromString(request).pod_sandbox_id in self.there
        return cri.CreateContainerResponse(container_id=new).SerializeToString()

    def _remove(self, method: str, request: bytes) -> None:
        if method == "RemoveContainer":
            self.there.remove(cri.RemoveContainerRequest.FromString(request).container_id)
        else:
            self.there.remove(cri.RemovePodSandboxRequest.FromString(request).pod_sandbox_id)


def ways() -> list[Way]:
    return [Way(name, "") for name in SECONDS]


def test_each_round_has_each_kind_of_call_each_way_and_the_first_only_gets_warm() -> None:
    calls = Calls()
    found = peers.measure(calls, ways(), rounds=2)
    assert {(kind, way) for kind in found for way in found[kind]} == {
        (kind, way.name) for kind in KINDS for way in ways()
    }
    assert all(len(turns.seconds) == 2 for by_way in found.values() for turns in by_way.values())
    assert [way for way, method in calls.made if method == "Version"] == [
        OURS_AWARE, DIRECT, GRPC_GO, INTELS, INTELS_AWARE, OURS,
        DIRECT, GRPC_GO, INTELS, INTELS_AWARE, OURS, OURS_AWARE,
        GRPC_GO, INTELS, INTELS_AWARE, OURS, OURS_AWARE, DIRECT,
    ]  # fmt: skip


def test_a_round_leaves_the_containers_that_were_there_before_it() -> None:
    calls, [way, *_] = Calls(), ways()
    peers.populate(calls, way, 30)
    before = set(calls.there)
    peers.measure(calls, [way], rounds=1)
    assert (len(before), calls.there) == (60, before)


def test_there_is_a_row_for_each_kind_and_way_and_one_for_each_pair() -> None:
    found = peers.measure(Calls(), ways(), rounds=1)
    for by_way in found.values():
        for turns in by_way.values():
            turns.cpu_s = [1.0]
    assert len(list(peers.rows(found))) == 2 + len(KINDS) * len(ways())
    ratios = list(peers.ratio_rows(found))
    assert len(ratios) == 2 + len(KINDS) * len(peers.PAIRS)
    assert (
        "Version",
        "ours / grpc-go",
        "0.500 (0.500 to 0.500)",
        "0.500",
        "1.000 (1.000 to 1.000)",
    ) in ratios
    assert (
        "Version",
        "ours / Intel's, none",
        "0.250 (0.250 to 0.250)",
        "0.250",
        "1.000 (1.000 to 1.000)",
    ) in ratios


def test_intels_is_told_no_path_outside_its_folder(tmp_path: Path) -> None:
    command = peers.intels_command(Path("/bin/intels"), tmp_path, f"{tmp_path}/r.sock")
    paths = [word.partition("=")[2] for word in command if "=" in word]
    assert len(paths) == 7
    assert all(path.startswith(f"{tmp_path}/") for path in paths)
