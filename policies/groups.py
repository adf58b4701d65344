"""A group of containers that own CPUs together, and what can be said of all of them without asking each.

What a group owns is entered once. A container's own record may say what the group owned before: it is brought up to
date when it is asked for (``Group.current``). That way a balloon of a thousand containers grows at the price of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from policies.machine.cpus import NO_CPUS
from policies.model import Placement, Pod, altered

if TYPE_CHECKING:
    from policies.node import Resident

#: Among the placements of a policy, the one of a whole group has a key that begins with this: no id of a container or of a
#: request does.
PREFIX = "group/"
#: So begin the names of the groups of pods' containers: no balloon's does.
POD_PREFIX = "pod/"


def key_of(group: str) -> str:
    """The key under which a policy names what a group owns from now on."""
    return PREFIX + group


def group_of(key: str) -> str:
    """The group of such a key; "" for that of a container."""
    return key[len(PREFIX) :] if key.startswith(PREFIX) else ""


def pod_group(pod: Pod) -> str:
    """The group of the containers that own CPUs together as their pod's."""
    return POD_PREFIX + pod.id


def is_pod_group(group: str) -> bool:
    """Whether a group is that of a pod's containers."""
    return group.startswith(POD_PREFIX)


def whole(group: str, own: frozenset[int]) -> Placement:
    """The value of such a key: all containers with the group's exclusive CPUs own these CPUs from now on."""
    return Placement(exclusive=own, group=group)


class Group:
    """The containers of one group. ``own``: its exclusive CPUs; ``apart``: by key the CPUs of a container with other ones.

    A container is apart while it is being resized, and while a change goes from one to the next. ``milli``: the sum of
    the requests; ``pods``: how many there are of each pod; ``kinds``: the keys of containers with places that are alike in
    all that a policy compares, but for their CPUs.
    """

    def __init__(self) -> None:
        self.own = NO_CPUS
        self.apart: dict[str, frozenset[int]] = {}
        self.milli = 0
        self.pods: dict[str, int] = {}
        self.kinds: dict[tuple[object, ...], dict[str, None]] = {}
        self._members: dict[str, Resident] = {}
        self._names: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    # ------------------------------------------------------------------ changes

    def add(self, key: str, member: Resident) -> None:
        """Enter a container with its exclusive CPUs."""
        if not self._members:
            self.own = member.exclusive
        elif member.exclusive is not self.own and member.exclusive != self.own:
            self.apart[key] = member.exclusive
        self._members[key] = member
        self.kinds.setdefault(_kind(member), {})[key] = None
        self.milli += member.milli_request
        _count(self._names, _name(member), 1)
        _count(self.pods, member.pod_uid, 1)

    def remove(self, key: str) -> None:
        """Take one out. What most of the others own is the group's where none is left that owned it."""
        member = self._members.pop(key)
        self.apart.pop(key, None)
        kind = self.kinds[_kind(member)]
        del kind[key]
        if not kind:
            del self.kinds[_kind(member)]
        self.milli -= member.milli_request
        _count(self._names, _name(member), -1)
        _count(self.pods, member.pod_uid, -1)
        if self._members and len(self.apart) == len(self._members):
            counts = Counter(self.apart.values())
            self._follow(max(counts, key=lambda own: counts[own]))

    def give(self, own: frozenset[int], resized_too: bool = False) -> int:
        """Have all that own what the group owns, own this; returns how many those are.

        Not, unless ``resized_too``, those that are being resized and would get more: they are told with the answer.
        """
        stay = [] if resized_too or not self.own <= own else [k for k in self.twins() if k not in self.apart]
        count = len(self._members) - len(self.apart) - len(stay)
        self.apart.update(dict.fromkeys(stay, self.own))
        for key in stay:  # their CPUs are not the group's any more
            self._members[key] = _owning(self._members[key], self.own)
        self._follow(own)
        return count

    def _follow(self, own: frozenset[int]) -> None:
        self.own = own
        self.apart = {key: theirs for key, theirs in self.apart.items() if theirs != own}

    # ------------------------------------------------------------------ questions

    @property
    def members(self) -> Mapping[str, Resident]:
        """The containers by key; what each owns is what ``owned`` says."""
        return self._members

    def owned(self, key: str) -> frozenset[int]:
        """A container's exclusive CPUs."""
        return self.apart.get(key, self.own)

    def sets(self) -> Iterable[frozenset[int]]:
        """All that containers of it own."""
        return [self.own, *self.apart.values()]

    def current(self, key: str) -> Resident:
        """A container as it is now."""
        member = self._members[key]
        if member.exclusive is not self.own and key not in self.apart:
            member = self._members[key] = _owning(member, self.own)
        return member

    def twins(self) -> list[str]:
        """Containers with two records, since they are being resized."""
        if len(self._names) == len(self._members):
            return []
        found: dict[object, list[str]] = {}
        for key, member in self._members.items():
            if self._names[_name(member)] > 1:
                container = member.container
                identity = key if container is None else (*_name(member), container.attempt)
                found.setdefault(identity, []).append(key)
        return [key for keys in found.values() if len(keys) > 1 for key in keys]


def _owning(member: Resident, own: frozenset[int]) -> Resident:
    place = member.placement
    now = None if place is None else altered(place, exclusive=own)
    return altered(member, exclusive=own, placement=now)


def _name(member: Resident) -> tuple[object, ...]:
    return member.pod_uid, member.container and member.container.name


def _kind(member: Resident) -> tuple[object, ...]:
    place, container = member.placement, member.container
    assert place is not None  # else it is in no group
    smt = "" if container is None else container.preferences.smt
    return place.cpus, place.home, place.mems, place.hidden, place.one_thread, smt, member.inside


def _count(counts: dict[Any, int], key: object, sign: int) -> None:
    counts[key] = counts.get(key, 0) + sign
    if not counts[key]:
        del counts[key]
