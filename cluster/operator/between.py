"""Whose the addresses are that nodes exchange bytes with, and what owners of pods so exchange from node to node. Pure.

An address counts where exactly one pod has it that runs on another node than the one that tells of it. Left out, and
counted: addresses of no pod (services, machines, the world), those that several pods have, those of pods in a node's own
network, and pods of no Deployment or StatefulSet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Optional

from cluster.operator.advice import NodeTraffic, Owner, owner_of

_ENDED = ("Succeeded", "Failed")


class PodFacts(NamedTuple):
    """What is needed of one pod."""

    namespace: str
    name: str
    node: str
    #: It runs, and has its address for itself.
    alone: bool
    ended: bool


class Holder(NamedTuple):
    """Whose an address is, and where."""

    owner: Owner
    node: str


class Between(NamedTuple):
    """``rates``: bytes a second by pair of owners. ``left_out``: addresses that are no owner's; ``unknown``: not asked for
    yet."""

    rates: dict[frozenset[Owner], int]
    left_out: int
    unknown: int


def read_pod(pod: Mapping[str, Any]) -> PodFacts:
    """The little that is kept of a pod, as it is read."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return PodFacts(
        metadata.get("namespace", ""),
        metadata["name"],
        spec.get("nodeName", ""),
        not spec.get("hostNetwork", False),
        status.get("phase") in _ENDED,
    )


def holder_of(pods: Iterable[PodFacts]) -> Optional[Holder]:
    """The owner of the one pod that has an address; None = it is left out."""
    living = [pod for pod in pods if not pod.ended]
    if len(living) != 1 or not living[0].alone:
        return None
    owner = owner_of(living[0].namespace, living[0].name)
    return None if owner is None else Holder(owner, living[0].node)


def addresses_wanted(traffic: Iterable[NodeTraffic]) -> list[str]:
    """The addresses that nodes tell of, those with the most bytes first."""
    sums: dict[str, int] = {}
    for node in traffic:
        for _, address, rate in node.remote:
            sums[address] = sums.get(address, 0) + rate
    return sorted(sums, key=lambda address: (-sums[address], address))


def between(traffic: Collection[NodeTraffic], holders: Mapping[str, Optional[Holder]]) -> Between:
    """What owners exchange from node to node. ``holders``: those addresses that were asked for.

    A connection is told of by one node only, and of a datagram one direction, so that all there is may be added up.
    """
    rates: dict[frozenset[Owner], int] = {}
    left_out, unknown = set(), set()
    for node in traffic:
        for owner, address, rate in node.remote:
            if address not in holders:
                unknown.add(address)
                continue
            holder = holders[address]
            if holder is None:
                left_out.add(address)
            elif holder.node != node.node and holder.owner != owner:
                pair = frozenset((owner, holder.owner))
                rates[pair] = rates.get(pair, 0) + rate
    return Between(rates, len(left_out), len(unknown))
