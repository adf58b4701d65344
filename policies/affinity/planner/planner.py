"""The planner: moves after which containers with much traffic are near each other; and whether they pay.

Where asked for (``repel_ns``), the same cost has the lines that the containers of an L3 fetch past it beyond saturation;
and where there are classes what protected containers lose to batch in their L3s.

The problem is graph mapping with capacities on a tree, which holds minimum bisection and multiple knapsack and is
NP-hard; the methods used instead of an exact one, and their sources, stand in ``assign``, ``multilevel``,
``refine``, ``repair``, ``relabel`` and ``search``.

A plan is accepted

* if no leaf holds more above its capacity afterwards than now, no declared pair (``HeldPair``) is kept worse, and it
  saves more than the hysteresis (a part of all cost) *and* than the price of its moves: cache that is filled again,
  memory that follows to another NUMA node, and ``kappa`` of a mean container's traffic for each, all over the horizon; or
* if a leaf is overfull now, or what is declared is not kept, and it makes that less. Then it need not pay; if the better
  placement does not pay as a whole, only the repair is done, or all of it where that leaves less to repair.

So every plan makes (CPUs above the capacities, what is not kept, cost) less, in this order, and the cost by the hysteresis
at least:
with frozen weights plans come to an end, after ln(C0 / Cmin) / -ln(1 - hysteresis) at most, and never come back.
The same problem gives the same plan, to the bit: no clock, no chance, no order of sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.affinity.planner.arrangement import Arrangement
from policies.affinity.planner.assign import best_site, least_overfull
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.order import Step, ordered
from policies.affinity.planner.problem import NOTHING_BETTER, BlockedMove, Problem, Proposal, ProposedMove
from policies.affinity.planner.refine import Refinement
from policies.affinity.planner.repair import repair_or_pack, restore
from policies.affinity.planner.search import Search
from policies.reasons import with_figures

#: Repairs one after the other: each makes the next one possible.
_MOST_REPAIRS = 4


def plan(problem: Problem) -> Proposal:
    """Propose moves, or say why none. Raises ValueError, with the place, if the problem contradicts itself.

    Containers that are nowhere are given a place in any case; their moves have the source -1 and come first.
    """
    instance = Instance(problem)
    present, placed = _settled(instance)
    bias = _prices(instance, present)
    before = instance.cost(present)
    search = Search(instance, present, bias, before)
    if instance.meets:
        # Classes are about what traffic leaves open: a better placement for traffic is looked for without them.
        plain = instance.without_meetings()
        traffic = Search(plain, present, bias, plain.cost(present))
        traffic.run()
        search.improve(traffic)
    else:
        search.run()
    # 1. All of it, if it pays; 2. else, and if it is not enough, what repairs overfull leaves, whatever it costs.
    paying, held, blocked, why = _accepted(instance, present, search, before)
    steps, said = _with_repairs(instance, present, bias, paying, why)
    # 3. Repairs go leaf by leaf: where they end short of what the search has found, that is the repair.
    if held and _faults(instance, present, held) < _faults(instance, present, steps):
        repair = _repair_text(instance, present, held)
        steps, said = _with_repairs(instance, present, bias, held, f"{repair}; beside that, {why}")
        held = []
    reached = _reached(present, steps)
    after = instance.cost(reached)
    made = [*placed, *steps]
    return Proposal(
        accepted=bool(made),
        moves=_proposed(instance, made),
        cost_before=before,
        cost_after=after,
        move_cost=_price(instance, steps),
        overfull_before=len(Arrangement(instance, present).overfull()),
        overfull_after=len(Arrangement(instance, reached).overfull()),
        why=f"{len(placed)} containers that were nowhere get a place; {said}" if placed else said,
        out_of_reach=max(0.0, after - instance.cost(search.best)) if blocked else 0.0,
        blocked=blocked,
        held=_proposed(instance, held),
    )


def _proposed(instance: Instance, steps: Sequence[Step]) -> tuple[ProposedMove, ...]:
    vertices = instance.problem.vertices
    return tuple([ProposedMove(vertices[step.vertex].key, *step[1:]) for step in steps])


def _settled(instance: Instance) -> tuple[list[int], list[Step]]:
    """A place for each: unplaced vertices come where their neighbours pull them, the heaviest first."""
    arrangement = Arrangement(instance, [vertex.at for vertex in instance.problem.vertices])
    nowhere = [u for u, site in enumerate(arrangement.at) if site < 0]
    steps: list[Step] = []
    for vertex in sorted(nowhere, key=lambda u: (-sum([abs(weight) for _, weight in instance.near[u]]), u)):
        site = best_site(arrangement, [vertex], instance.sizes[vertex], instance.sites[vertex])
        if site < 0:
            site = least_overfull(arrangement, vertex)
        arrangement.move(vertex, site)
        steps.append(Step(vertex, -1, site, 0.0))
    return arrangement.at, steps


def _prices(instance: Instance, present: Sequence[int]) -> list[list[float]]:
    """For every vertex and site: what to be there costs beside communication, as CPU-seconds a second of the horizon."""
    worth, horizon_s = instance.least_worth(), instance.problem.settings.horizon_s
    known: dict[tuple[int, int], list[float]] = {}
    rows = []
    for u, vertex in enumerate(instance.problem.vertices):
        # Without memory to move, vertices of one site have the same prices. An unplaced vertex has none.
        key = (vertex.at, vertex.memory_bytes)
        if key not in known:
            known[key] = [
                0.0
                if vertex.at < 0 or site == vertex.at
                else worth + instance.move_cost(u, vertex.at, site) / horizon_s
                for site in range(len(instance.rows))
            ]
        rows.append(known[key])
    return rows


def _accepted(
    instance: Instance, present: list[int], search: Search, before: float
) -> tuple[list[Step], list[Step], tuple[BlockedMove, ...], str]:
    """The moves to the best found if they pay, or else as held ones; the blocked rest, and why.

    A blocked move counts only if it would pay: then a better placement is out of reach.
    """
    settings = instance.problem.settings
    least = settings.least_saved
    if search.best == present:
        return [], [], (), f"{NOTHING_BETTER}; it costs {before:.3g} CPUs"
    steps, missing = ordered(instance, present, search.best)
    reached = _reached(present, steps)
    after = instance.cost(reached)
    saved, price = before - after, _price(instance, steps) / settings.horizon_s
    share = saved / before if before else 0.0
    more = after - instance.cost(search.best)
    blocked = tuple(missing) if saved + more > least * before and more > 0 else ()
    beyond = f"; {more:.3g} CPUs more are out of reach: {_blocked_text(blocked)}" if blocked else ""
    moves = "1 move saves" if len(steps) == 1 else f"{len(steps)} moves save"
    what = (
        "traffic out of an L3 and batch in L3s of protected containers cost"
        if instance.meets
        else "traffic out of an L3 costs"
    )
    gain = f"{moves} {saved:.3g} of the {before:.3g} CPUs that {what} ({share:.1%})"
    excess, excess_after = _excess(instance, present, ()), _excess(instance, present, steps)
    if excess_after > excess:
        fault = f"would leave {excess_after / 1e6:.3g} CPUs above capacity, now {excess / 1e6:.3g}"
    elif share <= least:
        often = f", {settings.unrest:.1f} times as much as at rest" if settings.unrest > 1.0 else ""
        fault = f"at least {least:.0%} are needed{often}"
    elif saved <= price:
        fault = f"cost {price:.3g} CPUs over {settings.horizon_s:.0f} s"
    else:
        cost = "less than 0.01 CPUs" if price < 0.01 else f"{price:.2f} CPUs"
        paid = f"; to make them costs {cost} over {settings.horizon_s:.0f} s"
        return steps, [], blocked, with_figures(f"{gain}{paid}{beyond}", f"found from {search.start}")
    return [], steps, blocked, f"{gain}, but {fault}{beyond}"


def _blocked_text(blocked: Sequence[BlockedMove]) -> str:
    count, first = len(blocked), blocked[0]
    reason = f" for places of others, and {first.why}" if first.behind else f": {first.why}"
    return f"{count} container{'s wait' if count > 1 else ' waits'}{reason}"


def _with_repairs(
    instance: Instance, present: list[int], bias: list[list[float]], steps: list[Step], why: str
) -> tuple[list[Step], str]:
    """The moves, and after them those for leaves that are overfull still: places are free then that were taken."""
    for _ in range(_MOST_REPAIRS):
        reached = _reached(present, steps)
        if _faults(instance, reached, ()) == (0, 0):
            break
        more, why = _repaired(instance, reached, bias, steps, why)
        if not more:
            break
        known = max([step.exchange for step in steps], default=0)
        steps = [
            *steps,
            *[step._replace(exchange=step.exchange + known) if step.exchange else step for step in more],
        ]
    return steps, why


def _repaired(
    instance: Instance, present: list[int], bias: list[list[float]], made: list[Step], why: str
) -> tuple[list[Step], str]:
    refinement = Refinement(Arrangement(instance, present), bias, 0.0)
    before = _faults(instance, present, ())
    repair_or_pack(refinement)
    restore(refinement)
    refinement.run([vertex for vertex, _ in refinement.journal], instance.problem.settings.work)
    steps, _ = ordered(instance, present, refinement.arrangement.at, made)
    if _faults(instance, present, steps) >= before:
        if not before[0]:
            return [], why
        return [], f"{before[0] / 1e6:.3g} CPUs are above capacity and no move makes it less; {why}"
    return steps, f"{_repair_text(instance, present, steps)}; beside that, {why}"


def _repair_text(instance: Instance, present: Sequence[int], steps: Sequence[Step]) -> str:
    before, after = _excess(instance, present, ()), _excess(instance, present, steps)
    moves = "1 move" if len(steps) == 1 else f"{len(steps)} moves"
    if before == after:
        return f"{moves}, without hysteresis, for what is to be apart or near"
    gain = f"{len(steps)} moves take {(before - after) / 1e6:.3g} of {before / 1e6:.3g} CPUs"
    return f"repair, without hysteresis: {gain} above capacity away"


def _excess(instance: Instance, present: Sequence[int], steps: Sequence[Step]) -> int:
    """The load of leaves above their capacities once the moves are made, in micro-CPUs."""
    return _faults(instance, present, steps)[0]


def _faults(instance: Instance, present: Sequence[int], steps: Sequence[Step]) -> tuple[int, int]:
    """The same, and how badly what is declared is kept then."""
    arrangement = Arrangement(instance, _reached(present, steps))
    return arrangement.excess(), arrangement.broken()


def _reached(present: Sequence[int], steps: Sequence[Step]) -> list[int]:
    at = list(present)
    for step in steps:
        at[step.vertex] = step.target
    return at


def _price(instance: Instance, steps: Sequence[Step]) -> float:
    """CPU-seconds of the moves as they are made, third places included."""
    return sum([instance.move_cost(step.vertex, step.source, step.target) for step in steps])
