"""A group of containers that own CPUs together, and what can be said of all of them without asking each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from policies.machine.cpus import NO_CPUS
from policies.model import Pod

if TYPE_CHECKING:
    from policies.model import Resident

#: So begin the names of the groups of pods' containers: no balloon's does.
POD_PREFIX = "pod/"


def pod_group(pod: Pod) -> str:
    """The group of the containers that own CPUs together as their pod's."""
    return POD_PREFIX + pod.id


def is_pod_group(group: str) -> bool:
    """Whether a group is that of a pod's containers."""
    return group.startswith(POD_PREFIX)


class Group:
    """The containers of one group, which own the same CPUs but while one of them is being resized.

    ``milli``: the sum of the requests; ``without_request``: how many have none; ``pods``: how many there are of each pod;
    ``kinds``: the keys of containers with places that are alike in all that a policy compares.
    """

    def __init__(self) -> None:
        self.milli = 0
        self.without_request = 0
        self.pods: dict[str, int] = {}
        self.kinds: dict[tuple[object, ...], dict[str, None]] = {}
        self._members: dict[str, Resident] = {}
        self._names: dict[object, int] = {}
        self._owned: dict[frozenset[int], int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def add(self, key: str, member: Resident) -> None:
        """Enter a container with its exclusive CPUs."""
        self._enter(member, 1)
        self._members[key] = member
        self.kinds.setdefault(_kind(member), {})[key] = None

    def remove(self, key: str) -> None:
        """Take one out."""
        member = self._members.pop(key)
        self._enter(member, -1)
        self._leave_kind(key, member)

    def change(self, members: Mapping[str, Resident]) -> None:
        """Enter containers as they are now, which owned the same and do; they request what they did."""
        was = now = None
        for key, now in members.items():
            was, self._members[key] = self._members[key], now
            self._leave_kind(key, was)
            self.kinds.setdefault(_kind(now), {})[key] = None
        if was is not None and now is not None:
            _count(self._owned, was.exclusive, -len(members))
            _count(self._owned, now.exclusive, len(members))

    def _leave_kind(self, key: str, member: Resident) -> None:
        kind = self.kinds[_kind(member)]
        del kind[key]
        if not kind:
            del self.kinds[_kind(member)]

    def _enter(self, member: Resident, sign: int) -> None:
        self.milli += sign * member.milli_request
        self.without_request += 0 if member.milli_request else sign
        _count(self._owned, member.exclusive, sign)
        _count(self._names, _name(member), sign)
        _count(self.pods, member.pod_uid, sign)

    @property
    def members(self) -> Mapping[str, Resident]:
        """The containers by key."""
        return self._members

    @property
    def own(self) -> frozenset[int]:
        """What most of them own; none of a group without containers."""
        return max(self._owned, key=lambda own: self._owned[own], default=NO_CPUS)

    def sets(self) -> Iterable[frozenset[int]]:
        """All that containers of it own."""
        return self._owned.keys()

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


def _name(member: Resident) -> tuple[object, ...]:
    return member.pod_uid, member.container and member.container.name


def _kind(member: Resident) -> tuple[object, ...]:
    place, container = member.placement, member.container
    assert place is not None  # else it is in no group
    smt = "" if container is None else container.preferences.smt
    return (
        place.cpus,
        place.exclusive,
        place.home,
        place.mems,
        place.hidden,
        place.one_thread,
        smt,
        member.inside,
    )


def _count(counts: dict[Any, int], key: object, sign: int) -> None:
    counts[key] = counts.get(key, 0) + sign
    if not counts[key]:
        del counts[key]
