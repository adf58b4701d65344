"""What a subject is whose values are in files of the kernel's, or in its records of threads; each has a module of its own.

A subject says what should be there; the writer compares, remembers, writes, and puts back what is not named any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from cri_proxy.config.config import Config
from cri_proxy.isolation.model import IsolatedContainer, Setting
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology


@frozen
class Sight:
    """What subjects see in a round.

    ``cgroups``: of the containers that run, below the hierarchy's mount, by their keys; one that has just started may be
    missing. ``topology``: the machine as it is now, with the CPUs that are online. ``before``: the values before the first
    write of ours, by place, of those that were not put back yet; any other place has its own value. ``usable``: the CPUs
    that containers may have, ``reserved`` those that are reserved; ``others``: where containers run that the node leaves
    alone.
    """

    containers: Sequence[IsolatedContainer]
    cgroups: Mapping[str, str]
    topology: Topology
    config: Config
    before: Mapping[str, str] = field(default_factory=dict)
    usable: frozenset[int] = NO_CPUS
    reserved: frozenset[int] = NO_CPUS
    others: frozenset[int] = NO_CPUS


class Subject(Protocol):
    """``name``: its option is ``isolation.NAME``. All of it is called in the round's thread, and may block."""

    name: str

    def settings(self, sight: Sight) -> Iterable[Setting]:
        """The values that should be there, each round. A place that is not named any more gets its value of before back.

        What the kernel does not have here is left out, with a note.
        """
        ...

    def is_same(self, place: str, seen: str, value: str) -> bool:
        """Whether what a file says is the value, as the kernel may write it in other words."""
        ...

    def notes(self) -> Sequence[str]:
        """Sentences on what of the last ``settings`` cannot be had here, or is not configured."""
        ...


@runtime_checkable
class QuotaFollower(Protocol):
    """A subject with values that a smaller CPU quota must find changed."""

    name: str

    def before_quota(self, path: str, quota_us: int, ours: Collection[str], pod: str = "") -> None:
        """A container or a pod (``path``: its cgroup) is about to get a quota in microseconds; below 1 = none.

        ``pod``: of a container the pod's cgroup, else "". ``ours``: the places that were written. Called in the round's
        thread; it may block.

        :raises OSError: the kernel refuses.
        """
        ...
