"""How good the planner is: ``python -m bench.affinity``.

1. Against the exact optimum, where that can be found. 2. Against others' ways on all graphs: distance per byte in
steps (0 = same L3, 1 = same NUMA node, 2 = same socket, 4 = across) and overfull leaves. 3. Time. 4. Whether moves come
to an end, in simulated hours, of flows that burst, too.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from time import process_time
from typing import Optional

import click
import networkx

from bench.affinity_baselines import BASELINES, FREE, at_random, distance_per_byte, graph_of, packed
from bench.affinity_graphs import (
    EPYC,
    HYGON,
    KUNPENG,
    MACHINES,
    Case,
    Machine,
    applications,
    full_node,
    heavy_tailed,
    planted,
    small,
    thousand,
)
from bench.affinity_hours import HOUR_S, KINDS, STEADY, simulate
from bench.affinity_optimum import optimum
from bench.figures import machine_line
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings, Problem

SEEDS, REPEATS = 10, 7
#: What is below this part of another cost is none.
_ROUNDING = 1e-9
NODES = {"hygon": HYGON, "epyc": EPYC, "kunpeng": KUNPENG}
#: What a plan of simulated hours may look at: a fifth of the daemon's, as there are 240 plans in four hours.
HOURS_WORK = 8000
TABLES = ("optimum", "full", "partitioners", "others", "time", "hours", "kinds")


def planned(case: Case) -> list[int]:
    """Where the planner puts a case's containers if moves are free, from a packing in random order."""
    problem = replace(case.at(packed(case, 0)), settings=FREE)
    return reached(problem)


def reached(problem: Problem) -> list[int]:
    """The placement after a plan's moves."""
    site_of = {vertex.key: vertex.at for vertex in problem.vertices}
    for move in plan(problem).moves:
        site_of[move.key] = move.target
    return list(site_of.values())


def overfull(case: Case, places: list[int]) -> int:
    """Leaves above their capacity."""
    load = [0] * len(case.problem.tree.leaves)
    for vertex, site in zip(case.problem.vertices, places):
        load[site] += vertex.milli
    return sum([taken > leaf.capacity_milli for taken, leaf in zip(load, case.problem.tree.leaves)])


def against_the_optimum(first: int, number_of_cases: int) -> None:
    """The normalised gap: 0 = the optimum, 1 = random."""
    gaps, broken = [], 0
    for seed in range(first, first + number_of_cases):
        case = small(seed)
        best = optimum(case)
        if best is None:
            continue
        instance = Instance(case.problem)
        chance = sum([instance.cost(at_random(case, number)) for number in range(SEEDS)]) / SEEDS
        places = planned(case)
        broken += overfull(case, places)
        gaps.append((instance.cost(places) - best) / (chance - best))
    print(f"\n## Against the exact optimum ({len(gaps)} cases of 10 to 16 containers on four L3s)\n")
    print("| mean gap | largest gap | optimal | overfull L3s |\n|---|---|---|---|")
    exact = sum([gap < 1e-9 for gap in gaps])
    print(f"| {sum(gaps) / len(gaps):.2%} | {max(gaps):.2%} | {exact} of {len(gaps)} | {broken} |")


def full_nodes(first: int, count: int) -> None:
    """What a plan delivers on full nodes, moves in their order, against the exact optimum; damping is off.

    And how many plans do not reach what their search has found; and, with damping, how many leave an L3 overfull where
    containers were thrown onto L3s that could hold them all."""
    print(f"\n## Delivered on full nodes: containers to half an L3, seeds {first} to {first + count - 1}\n")
    print(
        "| full | cases | mean gap | largest | without exchanges | largest | moves, of them in exchanges | out of reach | "
        "overfull L3s | thrown: stay overfull |"
    )
    print("|---" * 10 + "|")
    for filled in (0.5, 0.75, 0.9, 0.95, 0.98):
        gaps: list[float] = []
        alone: list[float] = []
        moves = exchanged = short = broken = 0
        mended: list[bool] = []
        for seed in range(first, first + count):
            case, places = full_node(seed, filled)
            mended += thrown(case, seed)
            best = optimum(case)
            instance = Instance(case.problem)
            # A gap in parts of an optimum of nothing, or of a rounding error, says nothing.
            if best is None or best < _ROUNDING * instance.cost(places):
                continue
            for overcommit, found in ((FREE.exchange_overcommit, gaps), (0.0, alone)):
                problem = replace(case.at(places), settings=replace(FREE, exchange_overcommit=overcommit))
                answer = plan(problem)
                then = reached(problem)
                found.append((instance.cost(then) - best) / best)
                if overcommit:
                    moves += len(answer.moves)
                    short += answer.out_of_reach > 0
                    exchanged += sum([move.exchange > 0 for move in answer.moves])
                    broken += overfull(case, then)
        print(
            f"| {filled:.0%} | {len(gaps)} | {sum(gaps) / len(gaps):.1%} | {max(gaps):.0%} | "
            f"{sum(alone) / len(alone):.1%} | {max(alone):.0%} | {moves}, {exchanged} | {short} | {broken} | "
            f"{mended.count(False)} of {len(mended)} |",
            flush=True,
        )


def thrown(case: Case, seed: int) -> list[bool]:
    """Whether a plan as shipped mends a random placement; none where no L3 is overfull in it."""
    random = Random(f"thrown {seed}")
    places = [random.randrange(len(case.problem.tree.leaves)) for _ in case.problem.vertices]
    if not overfull(case, places):
        return []
    answer = plan(replace(case.at(places), settings=PlanSettings()))
    return [not answer.overfull_after]


def against_others() -> None:
    """Distance per byte, and overfull leaves in brackets."""
    print("\n## Against others: distance per byte (overfull L3s)\n")
    print(f"| graph | containers, edges | {' | '.join(BASELINES)} | **planner** | best |")
    print("|---" * (len(BASELINES) + 4) + "|")
    for case in cases():
        figures, best = [], ""
        least = float("inf")
        for make in BASELINES.values():
            runs = [make(case, seed) for seed in range(SEEDS)]
            mean = sum([distance_per_byte(case, places) for places in runs]) / SEEDS
            broken = sum([overfull(case, places) for places in runs]) / SEEDS
            figures.append(f"{mean:.3f}" + (f" ({broken:.1f})" if broken else ""))
            least = min(least, mean)
        places = planned(case)
        mine, broken = distance_per_byte(case, places), overfull(case, places)
        best = "planner" if mine < least and not broken else "NOT the planner"
        size = f"{len(case.app)}, {len(case.problem.edges)}"
        print(
            f"| {case.name} | {size} | {' | '.join(figures)} | **{mine:.3f}** ({broken}) | {best} |",
            flush=True,
        )


def against_partitioners(first: int, count: int) -> None:
    """How far each is above the best placement that any of them has found, moves free; and the time of one."""
    from bench.affinity_partitioners import PARTITIONERS

    ways = {"planner": lambda case, _: planned(case), **PARTITIONERS}
    gaps: dict[str, list[float]] = {name: [] for name in ways}
    seconds = dict.fromkeys(ways, 0.0)
    broken = dict.fromkeys(ways, 0)
    for seed in range(first, first + count):
        case = larger(seed)
        instance, costs = Instance(case.problem), {}
        for name, make in ways.items():
            start = process_time()
            places = make(case, seed)
            seconds[name] += process_time() - start
            broken[name] += overfull(case, places) > 0
            costs[name] = instance.cost(places)
        best = min(costs.values())
        for name, cost in costs.items():
            gaps[name].append(cost / best - 1 if best else float(cost > 0))
    print(f"\n## Larger cases beside partitioners with refinement (seeds {first} to {first + count - 1})\n")
    print("| way | above the best found: mean | worst | best in | CPU ms a case | cases with overfull L3s |")
    print("|---" * 6 + "|")
    for name, found in gaps.items():
        wins = sum([gap < 1e-9 for gap in found])
        spent = seconds[name] / count * 1000
        print(
            f"| {name} | {sum(found) / count:.1%} | {max(found):.0%} | {wins} of {count} | {spent:.0f} | {broken[name]} |"
        )


def larger(seed: int) -> Case:
    """Cases of 64 to 600 containers: the machines and kinds of graph in turn."""
    machine = MACHINES[seed % len(MACHINES)]
    kind = seed // len(MACHINES) % 5
    if kind < 2:
        return applications(machine, (1, 3)[kind], seed)
    if kind < 4:
        return heavy_tailed(machine, (80, 250)[kind - 2], kind, seed)
    return planted(machine, seed)[0]


def cases() -> list[Case]:
    """All graphs."""
    return [
        *[applications(machine, replicas, 0) for machine in MACHINES for replicas in (1, 3)],
        heavy_tailed(HYGON, 200, 2, 0),
        heavy_tailed(HYGON, 300, 3, 1),
        heavy_tailed(EPYC, 600, 3, 2),
        *[planted(machine, 0)[0] for machine in MACHINES],
        thousand(),
    ]


def timing() -> None:
    """Milliseconds of one plan, and what the same graph costs as a networkx one."""
    print(f"\n## CPU time of one plan, ms (best and median of {REPEATS})\n")
    print("| graph | from a random packing | when nothing is to be done |\n|---|---|---|")
    for case in (applications(HYGON, 1, 0), heavy_tailed(EPYC, 600, 3, 2), thousand()):
        first = replace(case.at(packed(case, 0)), settings=PlanSettings())
        settled = replace(case.at(reached(first)), settings=PlanSettings())
        figures = [_times(problem) for problem in (first, settled)]
        listed = " | ".join([f"{times[0]:.0f}, {times[len(times) // 2]:.0f}" for times in figures])
        print(f"| {case.name} | {listed} |")
    case = thousand()
    build = _best_ms(lambda: graph_of(case))
    graph, instance = graph_of(case), Instance(case.problem)
    walk = _best_ms(lambda: [sum([d["weight"] for d in graph[u].values()]) for u in graph])
    lists = _best_ms(lambda: [sum([weight for _, weight in near]) for near in instance.near])
    made = _best_ms(lambda: Instance(case.problem))
    print(
        f"\nThe last graph in networkx: built in {build:.1f} ms, every edge read in {walk:.2f} ms; as the planner has it:"
    )
    print(f"{made:.1f} ms (with distances and all else), {lists:.2f} ms.")


def _times(problem: Problem) -> list[float]:
    times = []
    for _ in range(REPEATS):
        start = process_time()
        plan(problem)
        times.append((process_time() - start) * 1000)
    return sorted(times)


def _best_ms(work) -> float:  # type: ignore[no-untyped-def]
    times = []
    for _ in range(REPEATS):
        start = process_time()
        work()
        times.append((process_time() - start) * 1000)
    return min(times)


def hours(machine: Machine, first: int, count: int, length: float, work: int) -> None:
    """Moves, and what they lead to, in hours of steady rates with noise and one change of pattern in the middle."""
    print(
        f"\n## {length:g} simulated hours, another pattern in the middle (seeds {first} to {first + count - 1}, "
        f"a plan may look at {work:,})\n"
    )
    print(
        "| machine | full | churn | moves | a minute, after an hour (worst) | moved again within 10 min | above the best | "
        "missed of what knowing saves (worst) | plans until a change is answered |"
    )
    print("|---" * 10 + "|")
    for filled in (0.5, 0.75, 0.9):
        for churn in (False, True):
            runs = [
                simulate(machine, filled, churn, first + number, length, work=work) for number in range(count)
            ]
            moves = sum([run.moves for run in runs])
            again = sum([run.again for run in runs]) / moves if moves else 0.0
            paces = [run.moves_a_minute for run in runs]
            missed = [run.missed for run in runs]
            figures = [
                f"{moves / count:.0f}",
                f"{sum(paces) / count:.2f} ({max(paces):.2f})",
                f"{again:.0%}",
                f"{sum([run.regret for run in runs]) / count:.0%}",
                f"{sum(missed) / count:.1%} ({max(missed):.1%})",
                ", ".join([str(run.plans) for run in runs]),
            ]
            said = "yes" if churn else "no"
            print(f"| {machine.name} | {filled:.0%} | {said} | {' | '.join(figures)} |", flush=True)


def kinds(machine: Machine, first: int, count: int, length: float, work: int) -> None:
    """What bursts, waves and flips of rates cost, in the second half of hours in which they keep their pattern."""
    print(
        f"\n## {length:g} simulated hours of flows of all kinds, the second half (seeds {first} to {first + count - 1}, "
        f"a plan may look at {work:,})\n"
    )
    print(
        "| machine | full | flows | moves in all | a minute (worst) | missed of what knowing the means saves (worst) |"
    )
    print("|---" * 6 + "|")
    for filled in (0.75, 0.9):
        for kind in KINDS:
            if kind == STEADY:
                continue
            runs = [
                simulate(machine, filled, False, first + number, length, length * HOUR_S / 2, work, kind)
                for number in range(count)
            ]
            paces, missed = [run.moves_a_minute for run in runs], [run.missed for run in runs]
            figures = [
                f"{sum([run.moves for run in runs]) / count:.0f}",
                f"{sum(paces) / count:.2f} ({max(paces):.2f})",
                f"{sum(missed) / count:.1%} ({max(missed):.1%})",
            ]
            print(f"| {machine.name} | {filled:.0%} | {kind} | {' | '.join(figures)} |", flush=True)


@click.command()
@click.option(
    "--seeds",
    default="9000:30",
    help="First seed and number of the small cases, those on full nodes, the larger ones and, with --only hours or "
    "kinds, the hours; the search was tuned on small ones from 0 to 29 and larger ones from 2000 to 2029.",
    show_default=True,
)
@click.option("--hours", "length", default=4.0, help="How long the simulated time is.", show_default=True)
@click.option(
    "--work",
    default=HOURS_WORK,
    help=f"How much a plan of those hours may look at; the daemon's looks at {PlanSettings.work}.",
    show_default=True,
)
@click.option(
    "--machine", default="hygon", type=click.Choice(list(NODES)), help="That of the hours.", show_default=True
)
@click.option("--only", type=click.Choice(TABLES), help="One table.")
def main(seeds: str, length: float, work: int, machine: str, only: Optional[str]) -> None:
    """All tables, of hours those of one seed; or one table."""
    print(f"{machine_line()}, networkx {networkx.__version__}")
    first, count = [int(number) for number in seeds.split(":")]
    tables = (
        lambda: against_the_optimum(first, count),
        lambda: full_nodes(first, count),
        lambda: against_partitioners(first, count),
        against_others,
        timing,
        lambda: hours(NODES[machine], first, count if only else 1, length, work),
        lambda: kinds(NODES[machine], first, count if only else 1, length, work),
    )
    for name, table in zip(TABLES, tables):
        if only in (None, name):
            table()


if __name__ == "__main__":
    main()
