"""The simulated node of ``bench.demand``: its scheduler against what can be worked out, its loads, the ways of sizing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any, Optional

import numpy as np
import pytest

from bench.demand.scheduler import CpuRow, Scheduler, Shortage, build_scheduler
from bench.demand.simulation import SimulatedNode, rows_of
from bench.demand.traces import KINDS, REQUESTED, USED, Block, Load, Trace, loads
from bench.demand.ways import ByDemand, ByLimit, NoManager, Oracle, Way
from bench.placement import MACHINES
from cri_proxy.affinity.demand.estimate import DemandSettings

#: Two nodes of two L3s of four CPUs each.
SMALL = [CpuRow(cpu // 4, cpu // 8, cpu) for cpu in range(16)]
FIRST_L3, ALL = range(4), range(16)
MACHINE = MACHINES[0]
Make = Callable[..., Scheduler]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return build_scheduler(tmp_path_factory.mktemp("scheduler"))


@pytest.fixture
def make(library: Any) -> Iterator[Make]:
    made: list[Scheduler] = []

    def new(containers: int = 1, **options: Any) -> Scheduler:
        made.append(Scheduler(library, SMALL, containers, **options))
        return made[-1]

    yield new
    for scheduler in made:
        scheduler.close()


def run(scheduler: Scheduler, *offered: list[int]) -> None:
    """Ticks, each with the threads of each container; none of them looks ahead."""
    rows = np.array(offered, dtype=np.uint8)
    done, fired = scheduler.run(rows, np.zeros(rows.shape, dtype=np.float32))
    assert (done, fired) == (len(rows), [])


# ---------------------------------------------------------------------- the scheduler


def test_on_idle_cpus_everything_runs_in_its_tick(make):
    scheduler = make()
    scheduler.begin(0, ALL, threads=16)
    run(scheduler, *[[3], [5], [0], [4]] * 25)
    found = scheduler.of(0)
    assert found.offered_s == found.used_s == pytest.approx(3.0)
    assert found.backlog_s == found.late_shrunk_s == found.late_node_s == 0


def test_what_does_not_fit_into_a_set_runs_later_as_in_a_queue_with_so_many_servers(make):
    random = np.random.default_rng(5)
    arrivals = random.poisson(3.4, size=5000)
    scheduler = make(sleep=0.0)
    scheduler.begin(0, FIRST_L3, threads=100)
    late = backlog = waited = 0.0
    for come in arrivals.tolist():
        ran = min(backlog + come, 4)
        late += max(0, come - ran)
        backlog += come - ran
        waited += backlog
    run(scheduler, *[[come] for come in arrivals.tolist()])
    found = scheduler.of(0)
    assert found.backlog_s == pytest.approx(backlog / 100)
    assert found.late_whole_s + found.late_lag_s == pytest.approx(late / 100, rel=0.01)
    # A thread that shares its CPU with another waits for half of a tick while that runs, and the other for it.
    assert found.waited_set_s + found.waited_lag_s == pytest.approx(waited / 100, rel=0.01)


@pytest.mark.parametrize(
    ("is_whole", "others", "reason"),
    [(False, 0, "late_shrunk_s"), (True, 0, "late_whole_s"), (False, 14, "late_node_s")],
)
def test_lateness_has_a_reason(make, is_whole, others, reason):
    scheduler = make(2)
    scheduler.begin(0, range(2), threads=8)
    scheduler.set(0, range(2), is_whole)
    scheduler.begin(1, range(2, 16), threads=16)
    run(scheduler, *[[3, others]] * 50)
    found = scheduler.of(0)
    assert found.used_s == pytest.approx(1.0)
    # All of them but the first tick's, in which threads look for their CPUs.
    assert getattr(found, reason) == pytest.approx(0.5, abs=0.02)
    assert found.late_shrunk_s + found.late_whole_s + found.late_node_s == pytest.approx(0.5, abs=0.02)
    assert found.some_s == pytest.approx(0.5)


def test_a_cpu_is_divided_by_weight(make):
    scheduler = make(2)
    for container, weight in ((0, 1000), (1, 3000)):
        scheduler.begin(container, [0], threads=1, weight=weight)
    run(scheduler, *[[1, 1]] * 100)
    assert (scheduler.of(0).used_s, scheduler.of(1).used_s) == (pytest.approx(0.25), pytest.approx(0.75))


def test_a_container_at_its_quota_is_throttled_and_that_is_no_fault_of_its_set(make):
    scheduler = make()
    scheduler.begin(0, ALL, threads=8, quota=2)
    run(scheduler, *[[4]] * 100)
    found = scheduler.of(0)
    assert found.used_s == pytest.approx(2.0, rel=0.05)
    assert found.throttled_s > 1.0
    assert found.some_s > 0.4
    assert found.waited_set_s == found.waited_node_s == found.late_whole_s == 0


def test_an_idle_cpu_of_the_set_pulls_a_thread_from_another_l3_a_tick_later(make):
    scheduler = make(wander=0.0, sleep=0.0)
    scheduler.begin(0, range(4), threads=8)
    run(scheduler, [4])
    scheduler.set(0, (0, 8), True)
    run(scheduler, *[[2]] * 10)
    found = scheduler.of(0)
    assert found.waited_lag_s + found.waited_set_s <= 0.02
    assert found.backlog_s == 0


def test_a_container_spans_no_more_l3s_than_its_set_has_and_wanders_over_those(make):
    scheduler = make(3)
    for container, cpus in enumerate((FIRST_L3, range(8), ALL)):
        scheduler.begin(container, cpus, threads=2)
    run(scheduler, *[[2, 2, 2]] * 1000)
    spans = [scheduler.of(container).spans / 10 for container in range(3)]
    assert spans[0] == 1
    assert 1 < spans[1] <= 2 < spans[2] <= 4


def test_a_trigger_fires_when_its_part_of_a_window_was_waited_and_once_a_window(make):
    scheduler = make()
    scheduler.begin(0, [0], threads=4)
    scheduler.set(0, [0], False)
    scheduler.trigger(0, 0.5, 0.5)
    rows = np.array([[1]] * 30 + [[2]] * 170, dtype=np.uint8)
    ahead = np.zeros(rows.shape, dtype=np.float32)
    times = []
    at = 0
    while at < len(rows):
        done, fired = scheduler.run(rows[at:], ahead[at:])
        at += done
        times += [at] * len(fired)
    # Waiting begins with tick 30; half of a window is 25 ticks, and the kernel looks every five.
    assert times[0] in (55, 60)
    assert all(later - earlier >= 50 for earlier, later in zip(times, times[1:]))
    assert len(times) >= 3


def test_a_shortage_lasts_until_the_set_grows_or_until_it_has_passed(make):
    scheduler = make()
    scheduler.begin(0, ALL, threads=16)
    scheduler.set(0, range(2), False)
    high, low = np.full((40, 1), 4, dtype=np.uint8), np.full((40, 1), 1, dtype=np.uint8)
    scheduler.run(low, low.astype(np.float32))
    scheduler.run(high, high.astype(np.float32))
    scheduler.run(low, low.astype(np.float32))
    scheduler.run(high[:30], high[:30].astype(np.float32))
    scheduler.set(0, range(4), False)
    scheduler.run(high, high.astype(np.float32))
    assert scheduler.shortages() == [Shortage(0, False, 40, 80), Shortage(0, True, 120, 150)]
    assert scheduler.shortages() == []


def test_threads_leave_cpus_that_their_set_has_lost(make):
    scheduler = make(sleep=0.0)
    scheduler.begin(0, ALL, threads=4)
    run(scheduler, *[[4]] * 100)
    scheduler.set(0, FIRST_L3, True)
    before = scheduler.of(0).spans
    run(scheduler, *[[4]] * 100)
    assert scheduler.of(0).spans - before == 1


def test_a_machine_that_is_too_large_is_refused(library):
    with pytest.raises(ValueError, match="no room for 257 CPUs"):
        Scheduler(library, [CpuRow(0, 0, 0)] * 257, 1)


# ---------------------------------------------------------------------- the loads


@pytest.mark.parametrize("kind", KINDS)
def test_loads_use_what_they_are_to_below_half_of_their_limits(kind):
    chosen = loads(kind, 40, 128, 0.3, seed=1)
    assert sum(load.cpus for load in chosen) == pytest.approx(0.3 * 128, rel=0.01)
    for load in chosen:
        assert load.cpus <= USED[1] * load.milli_limit / 1000 + 1e-9
        assert load.milli_request <= REQUESTED[1] * load.cpus * 1000 + 10
    trace = Trace(chosen, 1800, seed=1)
    offered = [block.offered.sum() / len(block.offered) for block in trace.blocks()]
    # Half an hour is half a day, and few batches.
    assert np.mean(offered) == pytest.approx(0.3 * 128, rel=0.45)


def test_a_trace_is_the_same_for_all_and_looks_a_second_ahead():
    chosen = loads("mixed", 10, 128, 0.1, seed=3)
    one, other = (list(Trace(chosen, 180, seed=2).blocks()) for _ in range(2))
    assert len(one) == 3
    for a, b in zip(one, other):
        assert a.start == b.start
        assert (a.offered == b.offered).all()
    caps = np.array([load.milli_limit / 1000 for load in chosen])
    ticks = np.minimum(np.concatenate([one[0].offered, one[1].offered]), caps)
    assert np.allclose(one[0].ahead[5950], ticks[5950:6050].mean(axis=0), atol=1e-3)


def test_an_oracle_knows_the_most_of_each_window():
    trace = Trace(loads("bursts", 5, 128, 0.1, seed=3), 240, seed=2)
    peaks = trace.peaks(60.0)
    assert peaks.shape == (4, 5)
    for window, block in enumerate(trace.blocks()):
        assert (peaks[window] >= block.offered[:100].mean(axis=0) - 1e-3).all() or window == 0


# ---------------------------------------------------------------------- the ways


class Jump(Trace):
    """One container that uses little, and from a minute on much."""

    def __init__(self, low: int, high: int, minutes: int, jumps_at: int) -> None:
        load = Load("steady", 1000, 32_000, float(low), 0.05)
        super().__init__([load], minutes * 60.0, 1)
        self._levels = [high if minute >= jumps_at else low for minute in range(minutes)]

    def blocks(self) -> Iterator[Block]:
        for minute, level in enumerate(self._levels):
            offered = np.full((6000, 1), level, dtype=np.uint8)
            yield Block(minute * 6000, offered, offered.astype(np.float32), ())


def outcome(library: Any, way: Way, jumps_at: int = 12, settled_s: Optional[float] = None) -> Any:
    node = SimulatedNode(library, MACHINE.topology(), Jump(2, 12, 14, jumps_at), way)
    return node.run(jumps_at * 60.0 if settled_s is None else settled_s)


def test_a_set_by_demand_shrinks_to_one_l3_and_grows_within_a_second(library):
    topology = MACHINE.topology()
    way = ByDemand(topology, DemandSettings(window_s=60.0))
    assert outcome(library, way, settled_s=660.0).l3s > 1  # it has grown in the last of these minutes
    settled = outcome(library, ByDemand(topology, DemandSettings(window_s=60.0)))
    assert len(settled.grown_s) >= 1
    assert max(settled.grown_s) <= 1.0
    assert settled.actions["grow"] >= 1
    assert len(way.sets()[0]) >= 12
    quiet = ByDemand(topology, DemandSettings(window_s=60.0))
    assert outcome(library, quiet, jumps_at=14, settled_s=720.0).l3s == 1
    assert len(quiet.sets()[0]) == 8


@pytest.mark.parametrize("psi", ["counters", "none"])
def test_without_triggers_it_grows_by_samples(library, psi):
    settled = outcome(library, ByDemand(MACHINE.topology(), DemandSettings(window_s=60.0), psi))
    assert len(settled.grown_s) >= 1
    assert max(settled.grown_s) <= 1.1


def test_the_oracle_is_there_before_the_load(library):
    topology = MACHINE.topology()
    peaks = Jump(2, 12, 14, 12).peaks(Oracle.KNOWN_S)
    settled = outcome(library, Oracle(topology, peaks))
    assert settled.late("late_shrunk") == 0
    assert settled.l3s <= 2


def test_by_limit_and_without_a_manager_nothing_changes(library):
    topology = MACHINE.topology()
    by_limit, none = (outcome(library, way(topology)) for way in (ByLimit, NoManager))
    assert by_limit.changed == none.changed == 0
    assert 1 < by_limit.l3s <= 4 < none.l3s


def test_machines_are_as_the_topology_has_them():
    for machine in MACHINES[:4]:
        topology = machine.topology()
        rows = rows_of(topology)
        assert len({row.l3 for row in rows}) == machine.l3s
        assert len({row.node for row in rows}) == machine.nodes
        assert all(rows[row.mate].mate == cpu and rows[row.mate].l3 == row.l3 for cpu, row in enumerate(rows))
