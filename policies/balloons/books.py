"""The balloons in the node's books: their containers, their CPUs, and the idle CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Optional

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import Balloon, BalloonType, parse_name
from policies.frozen import dataclass
from policies.groups import Group
from policies.machine.cpus import NO_CPUS
from policies.node import Node


@dataclass(frozen=True)
class FoundBalloons:
    """The balloons found in the books.

    ``balloons``: by name; their CPUs are disjoint, and may be theirs. ``foreign``: CPUs that others own. ``idle``:
    CPUs that balloons may take; of them ``kept_idle`` must stay, for containers that are in no balloon. ``given_up``: what
    balloons could spare and are to give up, by name.
    """

    balloons: Mapping[str, Balloon]
    foreign: frozenset[int]
    idle: frozenset[int]
    kept_idle: int
    given_up: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def spare(self) -> frozenset[int]:
        """The idle CPUs that need not stay idle."""
        return self.idle - set(sorted(self.idle)[len(self.idle) - self.kept_idle :])

    def without(self, cpus: frozenset[int]) -> FoundBalloons:
        """As if some of the idle CPUs were another's: those of the balloon that a container is to leave."""
        return replace(self, foreign=self.foreign | (cpus & self.idle), idle=self.idle - cpus)

    def giving_up(self, cpus: Mapping[str, frozenset[int]]) -> FoundBalloons:
        """As if some of the balloons had given these up."""
        left = {name: replace(balloon, cpus=balloon.cpus - cpus[name]) if name in cpus else balloon
                for name, balloon in self.balloons.items()}  # fmt: skip
        return replace(self, balloons=left, idle=self.idle.union(*cpus.values()), given_up=cpus)

    def others(self, name: str) -> Iterable[frozenset[int]]:
        """The CPUs of all balloons but one."""
        return [balloon.cpus for other, balloon in self.balloons.items() if other != name]


class BalloonReader:
    """Reads the books of one node after another; what has not changed since it was read is not read again."""

    def __init__(self, types: Mapping[str, BalloonType], cpus: BalloonCpus) -> None:
        self._types = types
        self._cpus = cpus
        self._node: Optional[Node] = None
        self._version = -1
        self._found = FoundBalloons({}, NO_CPUS, NO_CPUS, 0)
        #: By group: the version of its containers, all that they own, the sum of their requests and those there twice.
        self._known: dict[str, tuple[int, frozenset[int], int, frozenset[str]]] = {}

    def read(self, node: Node) -> FoundBalloons:
        """The balloons in the books. A group of a type there is none of (any more) is another policy's."""
        if node is not self._node:
            self._node, self._known, self._version = node, {}, -1
        if node.version != self._version:
            self._version, self._found = node.version, self._read(node)
        return self._found

    def _read(self, node: Node) -> FoundBalloons:
        # 1. What belongs to others.
        owned = [resident.exclusive for resident in node.owners.values()]
        own: list[str] = []
        for group in sorted(node.groups):
            if _type_of(group, self._types) is not None:
                own.append(group)
            else:
                owned += node.groups[group].sets()
        foreign = frozenset().union(*owned)
        left = node.usable - node.reserved - foreign
        # 2. What the balloons own: what their containers own, unless others do or it may not be used now.
        balloons: dict[str, Balloon] = {}
        for group in own:
            kind, number = _type_of(group, self._types), (parse_name(group) or ("", 0))[1]
            _, cpus, milli, twice = self._group(node, group)
            if kind is not None:
                region = self._cpus.region(kind, number)
                if kind.components:
                    kind = self._cpus.composites.kind(kind, number)
                balloons[group] = Balloon(kind, number, cpus & left, node.groups[group], milli, twice, region)
                left -= cpus
        return FoundBalloons(balloons, foreign, left, int(node.sharers > 0))

    def _group(self, node: Node, group: str) -> tuple[int, frozenset[int], int, frozenset[str]]:
        version = node.group_versions[group]
        known = self._known.get(group)
        if known is None or known[0] != version:
            books = node.groups[group]
            cpus = frozenset().union(*books.sets())
            known = self._known[group] = (version, cpus, *_requested(books))
        return known


def _type_of(group: str, types: Mapping[str, BalloonType]) -> Optional[BalloonType]:
    named = parse_name(group)
    return None if named is None else types.get(named[0])


def _requested(group: Group) -> tuple[int, frozenset[str]]:
    """The sum of the requests, and the keys of containers that are there twice: they are being resized.

    Such a container counts with the larger request, until the runtime has answered.
    """
    twins = group.twins()
    if not twins:
        return group.milli, frozenset()
    requests: dict[object, list[int]] = {}
    for key in twins:
        member = group.members[key]
        identity = member.container and (member.pod_uid, member.container.name, member.container.attempt)
        requests.setdefault(identity, []).append(member.milli_request)
    more = sum(sum(theirs) - max(theirs) for theirs in requests.values())
    return group.milli - more, frozenset(twins)


def must_stay(balloon: Balloon) -> frozenset[int]:
    """One CPU for each container that may not use all of its balloon's, since its caller does not let it."""
    found: set[int] = set()
    group = balloon.group or Group()
    for keys in group.kinds.values():
        place = group.members[next(iter(keys))].placement
        if place is not None and not place.exclusive - place.hidden <= place.cpus:
            found.update(sorted(place.exclusive & place.cpus & balloon.cpus)[:1])
    return frozenset(found)
