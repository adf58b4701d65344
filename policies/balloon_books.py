"""The balloons as the node's books have them: who is in which, what they own, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Optional

from policies.balloon_types import Balloon, BalloonType, parse_name
from policies.node import Node, Resident


@dataclass(frozen=True)
class Found:
    """What was found in the books.

    ``balloons``: by name; their CPUs are disjoint, and may be theirs. ``foreign``: CPUs that others own. ``idle``:
    those that balloons may take; of them ``kept_idle`` must stay, for containers that are in no balloon.
    """

    balloons: Mapping[str, Balloon]
    foreign: frozenset[int]
    idle: frozenset[int]
    kept_idle: int

    @property
    def spare(self) -> frozenset[int]:
        """The idle CPUs without those that must stay idle."""
        return self.idle - set(sorted(self.idle)[len(self.idle) - self.kept_idle :])

    def without(self, cpus: frozenset[int]) -> Found:
        """As if some of the idle CPUs were somebody else's: those of the balloon that a container is to leave."""
        return replace(self, foreign=self.foreign | (cpus & self.idle), idle=self.idle - cpus)

    def others(self, name: str) -> Iterable[frozenset[int]]:
        """The CPUs of all balloons but one."""
        return [balloon.cpus for other, balloon in self.balloons.items() if other != name]


def balloons_in(node: Node, types: Mapping[str, BalloonType]) -> Found:
    """Read the books of a node. A group of a type there is none of (any more) is somebody else's."""
    # 1. Who is in which.
    members: dict[str, dict[str, Resident]] = {}
    owned: list[frozenset[int]] = []
    shares = False
    strangers: set[str] = set()
    for key, resident in node.residents.items():
        place = resident.placement
        group = "" if place is None else place.group
        if group and group not in members and group not in strangers:
            if _type_of(group, types) is None:
                strangers.add(group)
            else:
                members[group] = {}
        if group in members:
            members[group][key] = resident
        elif resident.exclusive:
            owned.append(resident.exclusive)
        elif place is not None and place.cpus and place.level != "reserved":
            shares = True
    # 2. What they own: what their containers own, unless others do or it may not be used now.
    foreign = frozenset().union(*owned)
    left = node.usable - node.reserved - foreign
    balloons: dict[str, Balloon] = {}
    for name, inside in sorted(members.items()):
        kind = _type_of(name, types)
        if kind is not None:
            sets = {member.exclusive for member in inside.values()}
            cpus = frozenset().union(*sets) & left
            left -= cpus
            number = (parse_name(name) or ("", 0))[1]
            balloons[name] = Balloon(kind, number, cpus, inside, *_requested(inside))
    return Found(balloons, foreign, left, int(shares))


def _type_of(group: str, types: Mapping[str, BalloonType]) -> Optional[BalloonType]:
    named = parse_name(group)
    return None if named is None else types.get(named[0])


def _requested(members: Mapping[str, Resident]) -> tuple[int, frozenset[str]]:
    """The sum of the requests, and the keys of containers that are there twice: they are being resized.

    Such a container counts with the larger request, until the runtime has answered.
    """
    names = {(m.pod_uid, m.container and m.container.name) for m in members.values()}
    if len(names) == len(members):
        return sum([m.milli_request for m in members.values()]), frozenset()
    by_container: dict[object, list[str]] = {}
    for key, member in members.items():
        container = member.container
        who = key if container is None else (container.pod.uid, container.name, container.attempt)
        by_container.setdefault(who, []).append(key)
    total = sum(max(members[key].milli_request for key in keys) for keys in by_container.values())
    return total, frozenset(key for keys in by_container.values() if len(keys) > 1 for key in keys)


def must_stay(balloon: Balloon) -> frozenset[int]:
    """One CPU for each container that may not use all of its balloon's, since its caller does not let it."""
    found = set()
    for member in balloon.members.values():
        place = member.placement
        if place is not None and not place.exclusive - place.hidden <= place.cpus:
            found.update(sorted(place.exclusive & place.cpus & balloon.cpus)[:1])
    return frozenset(found)
