"""Addresses become owners: each pod that has one for itself, on another node than the one that tells of it."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from cluster.operator.advice import Holder, NodeTraffic, Owner, addresses_wanted, between, holder_of, read_pod

WEB, DB = Owner("Deployment", "shop", "web"), Owner("StatefulSet", "data", "db")
WEB_POD = "web-6d4cf56db6-bcdfg"


def pod(name: str = WEB_POD, namespace: str = "shop", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": "n2", **spec},
        "status": {"phase": phase, "podIP": "10.244.2.7"},
    }


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod()], Holder(WEB, "n2")),
        ([pod("db-0", "data")], Holder(DB, "n2")),
        ([pod("web-6d4cf56db6-xxxxx", phase="Succeeded"), pod(phase="Failed"), pod()], Holder(WEB, "n2")),
        ([], None),
        ([pod(phase="Succeeded")], None),
        ([pod(), pod("db-0", "data")], None),
        ([pod(hostNetwork=True)], None),
        ([pod("node-exporter-x7k2p")], None),
    ],
    ids=["a Deployment's", "a StatefulSet's", "its former pods have ended", "no pod's", "an ended pod's",
         "two pods'", "a node's own", "a DaemonSet's"],
)  # fmt: skip
def test_whose_an_address_is(pods: list[dict[str, Any]], expected: Optional[Holder]) -> None:
    assert holder_of(read_pod(each) for each in pods) == expected


def test_the_heaviest_addresses_of_all_nodes_together_are_looked_up_first() -> None:
    traffic = [
        NodeTraffic("n1", remote=((WEB, "10.0.0.1", 50), (WEB, "10.0.0.2", 60))),
        NodeTraffic("n2", remote=((DB, "10.0.0.1", 20), (DB, "10.0.0.3", 60))),
    ]
    assert addresses_wanted(traffic) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_what_two_nodes_tell_of_two_owners_is_added_up() -> None:
    holders = {"10.0.1.1": Holder(WEB, "n1"), "10.0.2.1": Holder(DB, "n2")}
    traffic = [
        NodeTraffic("n1", remote=((WEB, "10.0.2.1", 3_000_000),)),
        NodeTraffic("n2", remote=((DB, "10.0.1.1", 4_000_000),)),
    ]
    assert between(traffic, holders) == ({frozenset((WEB, DB)): 7_000_000}, 0, 0)


def test_what_is_on_one_node_after_all_or_between_replicas_is_no_traffic_between_owners() -> None:
    holders = {"10.0.1.1": Holder(DB, "n1"), "10.0.2.1": Holder(WEB, "n2")}
    traffic = [NodeTraffic("n1", remote=((WEB, "10.0.1.1", 9), (WEB, "10.0.2.1", 9)))]
    assert between(traffic, holders) == ({}, 0, 0)


def test_addresses_that_are_left_out_or_not_looked_up_yet_are_counted_once() -> None:
    remote = ((WEB, "10.96.0.1", 9), (DB, "10.96.0.1", 9), (WEB, "10.0.2.1", 9))
    assert between([NodeTraffic("n1", remote=remote)], {"10.96.0.1": None}) == ({}, 1, 1)
