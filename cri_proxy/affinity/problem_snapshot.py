"""What the planner is asked, with what is needed to understand its answer. Frozen, and can be sent to a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.affinity.planner.problem import Problem
from policies.model import Placement


@dataclass(frozen=True)
class StayingContainer:
    """A container that could be moved but stays: ``at``, ``sites`` and ``milli`` as in ``Vertex``, where it has but the
    present site and a demand of nothing. ``until_s``: the end of its cooldown; 0 = it waits for trust."""

    at: int
    sites: tuple[int, ...]
    milli: int
    until_s: float


@dataclass(frozen=True)
class PlanningSnapshot:
    """Made by ``question_of`` at ``at_s`` from the engine's state of ``version``.

    The planner needs ``problem`` alone. ``paths``: namespace/pod/container by the vertices' keys; ``was``: the
    placements of those that may be moved; ``homes``: the CPUs of the sites; ``rates``: bytes a second by pair;
    ``near``: the edges of each vertex, as weight and index of the other end. ``cooling``: the keys of containers that
    stay since a plan has moved them; ``distrusted``: of those that stay since too little of their traffic was seen.
    ``staying``: those of both that there is another site for.
    """

    version: int
    at_s: float
    problem: Problem
    paths: Mapping[str, str] = field(default_factory=dict)
    was: Mapping[str, Placement] = field(default_factory=dict)
    homes: tuple[frozenset[int], ...] = ()
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    move_exclusive: bool = False
    near: Sequence[Sequence[tuple[float, int]]] = ()
    cooling: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    staying: Mapping[str, StayingContainer] = field(default_factory=dict)
