"""Which claims end and which are prepared again, by what the daemon, kubelet and the API know of them."""

from __future__ import annotations

import json
import zlib
from typing import Any, Optional

import pytest

from cluster.dra.claims import ClaimName
from cluster.dra.recovery import (
    ASK_S,
    LOST_S,
    YOUNG_S,
    KubeletClaims,
    Recovery,
    is_allocated_here,
    read_kubelet,
)
from tests.cluster.dra.kubelet_state import kubelet_state

DRIVER = "cpu.cri-resmgr.io"
A = ClaimName("ns", "a", "u-a")


def row(claim: ClaimName = A, *containers: str) -> dict[str, Any]:
    return {**claim._asdict(), "request": "cpus", "containers": list(containers)}


def kubelet(*claims: ClaimName) -> KubeletClaims:
    return KubeletClaims(frozenset(claim.uid for claim in claims), {claim.uid: claim for claim in claims})


class At:
    """Looks of one process at times."""

    def __init__(self) -> None:
        self.recovery = Recovery()

    def doubtful(
        self, now_s: float, rows: list[dict[str, Any]], known: Optional[KubeletClaims]
    ) -> list[ClaimName]:
        return list(self.recovery.look(rows, known, now_s).doubtful)

    def lost(
        self, now_s: float, rows: list[dict[str, Any]], known: Optional[KubeletClaims]
    ) -> list[ClaimName]:
        return list(self.recovery.look(rows, known, now_s).lost)


# ---------------------------------------------------------------------- kubelet's file


def test_kubelets_state_tells_of_claims_with_devices_of_the_driver() -> None:
    found = read_kubelet(kubelet_state((A, DRIVER), (ClaimName("ns", "b", "u-b"), "gpu.example.com")), DRIVER)
    assert found.known == {"u-a", "u-b"}
    assert found.prepared == {"u-a": A}


def test_a_claim_that_is_being_prepared_is_known_and_not_prepared() -> None:
    found = read_kubelet(kubelet_state((A, "")), DRIVER)
    assert (found.known, found.prepared) == ({"u-a"}, {})


def test_a_state_without_claims_is_understood() -> None:
    assert read_kubelet(kubelet_state(), DRIVER).known == frozenset()


def damaged(**changes: Any) -> str:
    return json.dumps({**json.loads(kubelet_state((A, DRIVER))), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "7",
        damaged(Checksum=1),
        damaged(Data=7),
        damaged(Data="x"),
        damaged(Data="{}", Checksum=zlib.crc32(b"{}")),
        damaged(Data='{"ClaimInfoStateList":[7]}', Checksum=zlib.crc32(b'{"ClaimInfoStateList":[7]}')),
        "[" * 100_000,
    ],
)
def test_a_state_that_is_damaged_is_an_error_of_one_kind(text: str) -> None:
    with pytest.raises(ValueError):
        read_kubelet(text, DRIVER)


# ---------------------------------------------------------------------- what ends


def test_a_claim_that_kubelet_has_is_not_asked_for() -> None:
    at = At()
    for now_s in (0.0, 1000.0):
        assert at.doubtful(now_s, [row()], kubelet(A)) == []


def test_a_claim_that_kubelet_has_not_is_asked_for_when_it_is_no_longer_young() -> None:
    at = At()
    assert at.doubtful(0.0, [row()], kubelet()) == []
    assert at.doubtful(YOUNG_S - 1, [row()], kubelet()) == []
    assert at.doubtful(YOUNG_S, [row()], kubelet()) == [A]


def test_a_claim_that_came_again_is_young_again() -> None:
    at = At()
    at.doubtful(0.0, [row()], kubelet())
    at.doubtful(50.0, [], kubelet())
    assert at.doubtful(YOUNG_S, [row()], kubelet()) == []


def test_a_claim_whose_containers_run_stays() -> None:
    at = At()
    for now_s in (0.0, 1000.0):
        assert at.doubtful(now_s, [row(A, "ns/pod/c"), row(A)], kubelet()) == []


def test_without_kubelets_state_the_api_is_asked() -> None:
    at = At()
    at.doubtful(0.0, [row()], None)
    assert at.doubtful(YOUNG_S, [row()], None) == [A]


def test_a_claim_is_asked_for_rarely() -> None:
    at = At()
    at.doubtful(0.0, [row()], kubelet())
    at.recovery.asked(A, 100.0)
    assert at.doubtful(101.0, [row()], kubelet()) == []
    assert at.doubtful(100.0 + ASK_S, [row()], kubelet()) == [A]


# ---------------------------------------------------------------------- what is prepared again


def test_a_claim_is_lost_if_it_is_missing_in_two_looks() -> None:
    at = At()
    assert at.lost(0.0, [], kubelet(A)) == []
    assert at.lost(1.0, [], kubelet(A)) == []
    assert at.lost(LOST_S, [], kubelet(A)) == [A]


def test_a_claim_that_was_prepared_between_two_looks_is_not_lost() -> None:
    at = At()
    at.lost(0.0, [], kubelet(A))
    assert at.lost(LOST_S, [row()], kubelet(A)) == []
    assert at.lost(LOST_S + 1, [], kubelet(A)) == []


def test_a_claim_that_was_refused_is_tried_again_later() -> None:
    at = At()
    at.lost(0.0, [], kubelet(A))
    assert at.lost(5.0, [], kubelet(A)) == [A]
    at.recovery.asked(A, 5.0)
    assert at.lost(10.0, [], kubelet(A)) == []
    assert at.lost(5.0 + ASK_S, [], kubelet(A)) == [A]


# ---------------------------------------------------------------------- the API's object


def claim_of(uid: str = "u-a", driver: str = DRIVER, pool: str = "node-1") -> dict[str, Any]:
    results = [{"driver": "gpu.example.com", "pool": "node-1"}, {"driver": driver, "pool": pool}]
    return {"metadata": {"uid": uid}, "status": {"allocation": {"devices": {"results": results}}}}


@pytest.mark.parametrize(
    ("found", "is_here"),
    [
        (claim_of(), True),
        (claim_of(uid="u-new"), False),
        (claim_of(driver="dra.cpu"), False),
        (claim_of(pool="node-2"), False),
        ({"metadata": {"uid": "u-a"}}, False),
        ({"metadata": {"uid": "u-a"}, "status": {"allocation": {}}}, False),
    ],
)
def test_a_claim_is_here_by_its_uid_and_its_allocation(found: dict[str, Any], is_here: bool) -> None:
    assert is_allocated_here(found, "u-a", DRIVER, "node-1") is is_here
