"""Twenty simulated minutes of traffic with bursts and a change of what is popular: how good, and how many moves.

A container moves at most when a plan says so; the plans see rates smoothed as the graph smooths them. Beside it: a
planner that believes each sample and knows no cost of moves (naive), and no planner. The noise is invented; it is
the same for all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from typing import Optional

from bench.affinity_baselines import packed_by_app
from bench.affinity_graphs import HYGON, STEP_NS, Case, applications
from policies.affinity.planner.instance import NANOSECOND, Instance
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings

INTERVAL_S, MINUTES, HALF_LIFE_S = 10, 20, 66.0
#: Lognormal noise of a sample; the part of the time an edge is busy; how often that changes, per sample.
SIGMA, BUSY, CHANGES = 0.8, 0.5, 0.3
#: Rates that no placement cost is derived from.
FREE = PlanSettings(hysteresis=0.0, kappa=0.0, least_gain=0.0, horizon_s=1e12)


@dataclass(frozen=True)
class Way:
    """How plans are made: every so many seconds, with these settings, from smoothed rates or from the last sample."""

    name: str
    period_s: int
    settings: Optional[PlanSettings]
    is_smoothed: bool = True


WAYS = (
    Way("no planner", 60, None),
    Way("naive: each sample, every 30 s, no costs", 30, FREE, is_smoothed=False),
    Way("smoothed, every 60 s, no costs", 60, FREE),
    Way("smoothed, every 60 s, as shipped", 60, PlanSettings()),
)


@dataclass(frozen=True)
class Run:
    """Distance per byte (in steps) from minute 5 to 10 and from 15 on; moves in all and by minute; plans accepted."""

    steady: float
    shifted: float
    moves: tuple[int, ...]
    plans: int


def simulate(way: Way, seed: int) -> Run:
    """One run."""
    case = applications(HYGON, 1, seed)
    places = packed_by_app(case, seed)
    keep = exp(-log(2) * INTERVAL_S / HALF_LIFE_S)
    smooth: list[float] = []
    moves, plans = [0] * MINUTES, 0
    distances: dict[int, list[float]] = {}
    for number, (true, sample) in enumerate(_samples(case, seed)):
        now = number * INTERVAL_S
        smooth = [keep * old + (1 - keep) * new for old, new in zip(smooth or sample, sample)]
        if way.settings is not None and number and now % way.period_s == 0:
            seen = _weighted(case, smooth if way.is_smoothed else sample)
            proposal = plan(replace(seen.at(places), settings=way.settings))
            site_of = {f"c{u}": site for u, site in enumerate(places)}
            for move in proposal.moves:
                site_of[move.key] = move.target
            places = list(site_of.values())
            moves[now // 60] += len(proposal.moves)
            plans += proposal.accepted
        distances.setdefault(now // 60, []).append(distance_per_byte(_weighted(case, true), places))
    return Run(_mean(distances, range(5, 10)), _mean(distances, range(15, 20)), tuple(moves), plans)


def distance_per_byte(case: Case, places: list[int]) -> float:
    """In steps: 0 = all in one leaf, 1 = another leaf of the node, 2 = of the socket, 4 = across."""
    total = sum([weight for _, _, weight in case.problem.edges])
    return Instance(case.problem).cost(places) / (total * STEP_NS * NANOSECOND)


def _samples(case: Case, seed: int) -> Iterator[tuple[list[float], list[float]]]:
    """(the true rates, what is seen of them) for each interval."""
    random = Random(seed)
    true = [weight for _, _, weight in case.problem.edges]
    busy = [random.random() < BUSY for _ in true]
    for number in range(MINUTES * 60 // INTERVAL_S):
        if number == MINUTES * 60 // INTERVAL_S // 2:
            # What is popular changes: every edge has the rate of another one.
            random.shuffle(true)
        busy = [random.random() < BUSY if random.random() < CHANGES else was for was in busy]
        noise = [random.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) / BUSY for _ in true]
        yield true, [rate * loud if on else 0.0 for rate, loud, on in zip(true, noise, busy)]


def _weighted(case: Case, weights: list[float]) -> Case:
    edges = tuple([(a, b, weight) for (a, b, _), weight in zip(case.problem.edges, weights) if weight > 0])
    return replace(case, problem=replace(case.problem, edges=edges))


def _mean(distances: dict[int, list[float]], minutes: range) -> float:
    values = [value for minute in minutes for value in distances[minute]]
    return sum(values) / len(values)
