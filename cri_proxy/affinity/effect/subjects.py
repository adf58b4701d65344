"""Which containers are counted around a plan: those that it moves, and those they talk to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Subject:
    """A container to count: its cgroup's path from the hierarchy's root, and its CPUs."""

    key: str
    path: str
    cpus: frozenset[int]


def in_order(
    keys: Sequence[str], moved: Collection[str], near: Sequence[Sequence[tuple[float, int]]]
) -> tuple[str, ...]:
    """The moved containers and their peers, most important first: what moves before what stays, then by weight.

    ``near``: the edges of each container of ``keys``, as weight and index of the other end. A peer's weight is that of its
    edges to moved containers.
    """
    weights = {
        key: sum(weight for weight, _ in edges if weight > 0)
        for key, edges in zip(keys, near)
        if key in moved
    }
    peers: dict[str, float] = {}
    for key, edges in zip(keys, near):
        for weight, other in edges if key in moved else ():
            if weight > 0 and keys[other] not in moved:
                peers[keys[other]] = peers.get(keys[other], 0.0) + weight
    return (*_heaviest_first(weights), *_heaviest_first(peers))


def _heaviest_first(weights: dict[str, float]) -> list[str]:
    return sorted(weights, key=lambda key: (-weights[key], key))


def fitting(subjects: Iterable[Subject], per_cpu: int, descriptors: int) -> tuple[Subject, ...]:
    """The first ones whose descriptors, ``per_cpu`` for each of their CPUs, are at most ``descriptors`` in all.

    One that is too wide for what is left is passed over, and the next one looked at.
    """
    chosen: list[Subject] = []
    left = descriptors
    for subject in subjects:
        needed = per_cpu * len(subject.cpus)
        if 0 < needed <= left:
            chosen.append(subject)
            left -= needed
    return tuple(chosen)
