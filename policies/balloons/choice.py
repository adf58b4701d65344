"""The balloon of a container: its type, and the balloon of that type that it joins.

The order is that of nri-plugins: with those of its group, its pod or its namespace, where the type says so; into
a balloon that has room; into one that can grow; into a new one; and where nothing has room, where least is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Callable, Optional

from policies.affinity.pull.expressions import getter_of, matches
from policies.balloons.types import DEFAULT, RESERVED, Balloon, BalloonType
from policies.frozen import dataclass
from policies.model import Container, PlacementRefused
from policies.node import MIN_ORDER_MILLI


class TypeChooser:
    """Finds the type of a container."""

    def __init__(
        self, types: tuple[BalloonType, ...], is_reserved_listed: bool, reserved_namespaces: tuple[str, ...]
    ) -> None:
        self.types = types
        self._by_name = {kind.name: kind for kind in types}
        self._is_reserved_listed = is_reserved_listed
        self._reserved_namespaces = reserved_namespaces

    def find(self, container: Container, has_reserved: bool) -> BalloonType:
        """By annotation; else the first type that matches; else the default one.

        ``has_reserved``: whether there are reserved CPUs; without them reserved namespaces are like others.

        :raises PlacementRefused: the annotation names no type, or the type is banned on this node.
        """
        preferences = container.preferences
        kind = self._by_name.get(preferences.balloon)
        if preferences.balloon and kind is None:
            names = ", ".join(self._by_name)
            raise PlacementRefused(
                f'{container.path} asks by annotation for a balloon of type "{preferences.balloon:.60}"; there are {names}'
            )
        if kind is None and preferences.reserved and has_reserved:
            kind = self._by_name[RESERVED]
        if kind is None:
            found = (kind for kind in self.types if self._is_of(kind, container, has_reserved))
            kind = next(found, self._by_name[DEFAULT])
        if kind.max_cpus < 0:
            raise PlacementRefused(
                f"{container.path} is for balloons of type {kind.name}, which are banned on this node (MaxCPUs is -1)"
            )
        return kind

    def _is_of(self, kind: BalloonType, container: Container, has_reserved: bool) -> bool:
        globs = kind.namespaces
        if kind.name == RESERVED and (has_reserved or self._is_reserved_listed):
            if container.preferences.reserved is False:
                return False
            globs += self._reserved_namespaces
        if any(fnmatchcase(container.pod.namespace, glob) for glob in globs):
            return True
        return any(matches(condition, container) for condition in kind.match)


def group_of(kind: BalloonType, container: Container) -> str:
    """The value of ``GroupBy`` for a container: ``${KEY}`` is its value under KEY, or nothing."""
    return "".join(part if get is None else get(container) or "" for part, get in _template(kind.group_by))


@lru_cache(maxsize=256)
def _template(text: str) -> tuple[tuple[str, Optional[Callable[[Container], Optional[str]]]], ...]:
    """The parts of a text with keys in it: such as they are, or to be looked up."""
    parts = re.split(r"\$\{([^}]*)\}", text)
    return tuple((part, getter_of(part) if index % 2 else None) for index, part in enumerate(parts))


@dataclass(frozen=True)
class BalloonRequest:
    """A container that looks for a balloon.

    ``milli``: its CPU request. ``idle``: the CPUs that balloons may still take; ``waiting``: those of them that are
    set aside for balloons. ``inside``: the CPUs the caller lets it use, None = all. ``leaves``: the CPUs of each
    leaf of the machine.
    """

    container: Container
    milli: int
    idle: frozenset[int]
    waiting: frozenset[int]
    inside: Optional[frozenset[int]]
    leaves: tuple[frozenset[int], ...]


def choose(
    kind: BalloonType,
    balloons: Sequence[Balloon],
    fresh: Optional[Balloon],
    ask: BalloonRequest,
    better_than: Optional[int] = None,
) -> tuple[int, Optional[Balloon]]:
    """The balloon a container joins, and its place in the order of preference; None if no balloon has a CPU it may use, nor
    can get one.

    ``balloons``: those it may join, the ones set aside included; ``fresh``: one more, if that may be made. ``better_than``:
    only one that comes before this place; None = any.
    """
    place = 0
    for place, balloon in enumerate(islice(_by_preference(kind, balloons, fresh, ask), better_than)):
        if balloon is not None:
            return place, balloon
    return place + 1, None


def _by_preference(
    kind: BalloonType, balloons: Sequence[Balloon], fresh: Optional[Balloon], ask: BalloonRequest
) -> Iterator[Optional[Balloon]]:
    """What each rule finds, in the order in which they count."""
    new = [] if fresh is None else [fresh]
    # 1. Containers that GroupBy puts together share one balloon, even if it is too small for them.
    if kind.group_by:
        group = group_of(kind, ask.container)
        kin = [b for b in balloons if _has(b, lambda other: group_of(kind, other) == group)]
        yield _with_room(kind, kin, ask)
        yield _growable(kind, kin, ask)
        yield _least_short(kin, ask)
    # 2. Where it fits, without the CPUs that are set aside, else with them; at last where least is missing.
    yield from _fitting(kind, balloons, new, replace(ask, idle=ask.idle - ask.waiting))
    yield from _fitting(kind, balloons, new, ask)
    yield _least_short([*balloons, *new], ask)


def _fitting(
    kind: BalloonType, balloons: Sequence[Balloon], new: list[Balloon], ask: BalloonRequest
) -> Iterator[Optional[Balloon]]:
    """The balloons that have room for the container, or can be given it."""
    # 1. With its pod, or its namespace.
    for kin in _kin(kind, balloons, ask.container):
        yield _with_room(kind, kin, ask)
        yield _growable(kind, kin, ask)
    # 2. Into the emptiest one, where each domain has its own.
    if kind.one_per:
        yield _emptiest(kind, balloons, ask)
    # 3. Into one of its own, where balloons are not to be filled with strangers.
    if kind.prefer_new_balloons or kind.group_by or kind.prefer_per_namespace_balloon:
        yield _growable(kind, [b for b in balloons if not b.group], ask)
        yield _growable(kind, new, ask)
    # 4. Where there is room, where room can be made, and only then into a new one.
    yield _with_room(kind, balloons, ask)
    yield _growable(kind, balloons, ask)
    yield _growable(kind, new, ask)


def _kin(kind: BalloonType, balloons: Sequence[Balloon], container: Container) -> list[list[Balloon]]:
    """The balloons with containers it belongs to, by each rule of the type that asks for company."""
    found = []
    if not kind.prefer_spreading_pods:
        found.append([b for b in balloons if _shares_pod(b, container)])
    if kind.prefer_per_namespace_balloon:
        namespace = container.pod.namespace
        found.append([b for b in balloons if _has(b, lambda other: other.pod.namespace == namespace)])
    return found


def _has(balloon: Balloon, is_one: Callable[[Container], bool]) -> bool:
    members = () if balloon.group is None else balloon.group.members.values()
    return any(m.container is not None and is_one(m.container) for m in members)


def _shares_pod(balloon: Balloon, container: Container) -> bool:
    return balloon.group is not None and container.pod.uid in balloon.group.pods


def _crowd(kind: BalloonType, balloon: Balloon, ask: BalloonRequest) -> bool:
    """Whether the container had better not go there: the pod's containers are to be in different balloons."""
    return kind.prefer_spreading_pods and _shares_pod(balloon, ask.container)


def _with_room(kind: BalloonType, balloons: Iterable[Balloon], ask: BalloonRequest) -> Optional[Balloon]:
    """The balloon with most room that need not grow; of such the one with the fewest containers.

    A container without a request needs no room. It goes where least of a balloon is in use, also into one that is there
    and has no CPUs yet.
    """
    found = [b for b in balloons if b.cpus and _free_milli(b) >= ask.milli]
    if not ask.milli:
        found += [b for b in balloons if not b.cpus and _reach(b, ask)]

    def key(b: Balloon) -> tuple[bool, int, int, int]:
        used = _used_milli(b)
        measure = used - len(b.cpus) * 1000 if ask.milli else used * 1000 // max(1, len(b.cpus))
        return (_crowd(kind, b, ask), measure, 0 if b.group is None else len(b.group), b.number)

    return min(found, key=key, default=None)


def _emptiest(kind: BalloonType, balloons: Iterable[Balloon], ask: BalloonRequest) -> Optional[Balloon]:
    """Of the balloons that have room for the container, or can be given it, the one in which least is in use."""
    found = [b for b in balloons if _reach(b, ask) * 1000 >= max(b.milli + ask.milli, 1)]

    def key(b: Balloon) -> tuple[bool, int, int, int]:
        return (_crowd(kind, b, ask), _used_milli(b), 0 if b.group is None else len(b.group), b.number)

    return min(found, key=key, default=None)


def _growable(kind: BalloonType, balloons: Iterable[Balloon], ask: BalloonRequest) -> Optional[Balloon]:
    """One that can grow until it holds the container: inside its L3s rather than out of them, by few CPUs."""
    found = [b for b in balloons if _reach(b, ask) * 1000 >= max(b.milli + ask.milli, 1)]

    def key(b: Balloon) -> tuple[bool, bool, int, int]:
        missing = b.kind.size_for(b.milli + ask.milli) - len(b.cpus)
        near = frozenset().union(*[leaf for leaf in ask.leaves if not leaf.isdisjoint(b.cpus)]) & ask.idle
        return (_crowd(kind, b, ask), len(near - b.cpus) < missing if b.cpus else True, missing, b.number)

    return min(found, key=key, default=None)


def _least_short(balloons: Iterable[Balloon], ask: BalloonRequest) -> Optional[Balloon]:
    """The one in which, for its size, the fewest requested CPUs are missing."""
    found = [(b, _reach(b, ask)) for b in balloons]
    short = [((b.milli + ask.milli) * 1000 // reach, b.number, b) for b, reach in found if reach]
    return min(short, key=lambda item: item[:2])[2] if short else None


def _free_milli(balloon: Balloon) -> int:
    return len(balloon.cpus) * 1000 - balloon.milli


def _used_milli(balloon: Balloon) -> int:
    """What is in use in a balloon, where every container counts for something."""
    return balloon.milli + (0 if balloon.group is None else balloon.group.without_request * MIN_ORDER_MILLI)


def _reach(balloon: Balloon, ask: BalloonRequest) -> int:
    """The CPUs a balloon could have."""
    idle = ask.idle if ask.inside is None or balloon.cpus else ask.idle & ask.inside
    idle = idle if balloon.region is None else idle & balloon.region
    return balloon.kind.within_limit(len(balloon.cpus | idle))
