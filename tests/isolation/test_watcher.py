"""A round of monitoring leaves a kernel's monitoring groups as they are wanted, and nothing of others touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest

from cri_proxy.isolation.io.monitoring_groups import remove_ours
from cri_proxy.isolation.io.watcher import LISTED_AGAIN, Watcher
from cri_proxy.isolation.model import CacheDomain
from cri_proxy.isolation.monitoring import (
    FIRST_READS,
    LEAST_READS,
    OCCUPANCY,
    TOTAL,
    VALUES,
    Counted,
    Plan,
    Watch,
    group_name,
)
from tests.isolation.monitored import MonitoredKernel

L3S = tuple(CacheDomain(number, frozenset(range(4 * number, 4 * number + 4))) for number in range(4))
BATCH = "cri-resmgr.batch"


class Node:
    """A kernel, containers with threads in it, and a watcher."""

    def __init__(self, rmids: int = 32) -> None:
        self.kernel = MonitoredKernel(rmids)
        self.threads: dict[str, set[int]] = {}
        self.now_s = self.cpu_s = 0.0
        #: What a value costs, seconds of a CPU.
        self.cost_s = 0.0
        self.listed: list[str] = []
        self.watcher = self.new_watcher()

    def new_watcher(self) -> Watcher:
        return Watcher(self.kernel, self.threads_of, lambda: self.now_s, self.cpu_clock)

    def cpu_clock(self) -> float:
        return self.cost_s * len(self.kernel.reads)

    def threads_of(self, cgroup: str) -> Collection[int]:
        self.listed.append(cgroup)
        return set(self.threads.get(cgroup, ()))

    def begin(self, key: str, *threads: int, group: str = "") -> None:
        self.threads[key] = set(threads)
        for thread in threads:
            self.kernel.threads[thread] = (group, "")

    def inside(self, key: str, group: str = "") -> set[int]:
        at = (group, group_name(key))
        return {thread for thread, where in self.kernel.threads.items() if where == at}


def plan(*watches: Watch, domains: tuple[CacheDomain, ...] = L3S) -> Plan:
    return Plan(watches, domains)


def watch(key: str, *domains: int, group: str = "") -> Watch:
    return Watch(key, group, key, domains or (0,))


def test_all_threads_of_a_container_are_in_its_group_whatever_they_begin_meanwhile() -> None:
    node = Node()
    node.begin("a", 1, 2)
    lists = node.threads_of

    def storm(cgroup: str) -> Collection[int]:
        found = lists(cgroup)
        # A thread that is not in the group yet begins another one after each of the first three lists.
        if len(node.listed) <= 3:
            child = 100 + len(node.listed)
            node.kernel.fork(1, child)
            node.threads["a"].add(child)
        return found

    watcher = Watcher(node.kernel, storm, lambda: 0.0, lambda: 0.0)
    watcher.round(plan(watch("a")))
    assert node.inside("a") == {1, 2, 101, 102, 103}


def test_a_container_that_changes_its_control_group_has_its_group_there_and_counts_on() -> None:
    node = Node()
    node.begin("a", 1)
    node.kernel.make_group(BATCH)
    at = ("", group_name("a"), 0, TOTAL)
    node.kernel.values[at] = "1000"
    node.watcher.round(plan(watch("a")))
    node.now_s, node.kernel.values[at] = 10.0, "5000"
    node.watcher.round(plan(watch("a")))
    # 1. The thread has not been moved yet: its group waits for it.
    node.now_s = 20.0
    node.watcher.round(plan(watch("a", group=BATCH)))
    assert node.kernel.there == {"": set(), BATCH: {group_name("a")}}
    assert node.inside("a", BATCH) == set()
    # 2. It has.
    node.kernel.move(1, BATCH)
    node.kernel.values[BATCH, group_name("a"), 0, TOTAL] = "300"
    node.now_s = 30.0
    seen = node.watcher.round(plan(watch("a", group=BATCH)))
    assert node.inside("a", BATCH) == {1}
    assert seen.meters["a", 0].total == Counted(300, 30.0, bytes=4300, per_s=30.0)


def test_a_container_that_is_gone_gives_its_rmid_back_before_the_next_one_takes_it() -> None:
    node = Node(rmids=2)
    node.begin("a", 1)
    node.begin("b", 2)
    node.watcher.round(plan(watch("a")))
    seen = node.watcher.round(plan(watch("b")))
    assert (seen.watched, seen.note) == ({"b"}, "")
    assert node.kernel.written == [
        f"mkdir /{group_name('a')}",
        f"1 > /{group_name('a')}",
        f"rmdir /{group_name('a')}",
        f"mkdir /{group_name('b')}",
        f"2 > /{group_name('b')}",
    ]


def test_without_an_rmid_left_the_most_important_are_watched_and_it_is_said() -> None:
    node = Node(rmids=3)
    seen = node.watcher.round(plan(watch("first"), watch("second"), watch("third")))
    assert seen.watched == {"first", "second"}
    assert seen.note == "2 of 3 containers are watched: no monitoring group (RMID) is left"


def test_groups_of_others_are_counted_and_left_alone() -> None:
    node = Node()
    node.kernel.make_group("theirs")
    for group, name in (("", "kepler"), ("theirs", "pod1"), ("theirs", "pod2")):
        node.kernel.make_foreign(group, name)
    node.kernel.make_monitor("theirs", "cri-resmgr.old")
    before = {"": {"kepler"}, "theirs": {"pod1", "pod2"}}
    seen = node.watcher.round(plan(watch("a")))
    assert seen.foreign == 3
    assert node.kernel.there == {**before, "": {"kepler", group_name("a")}}
    assert remove_ours(node.kernel) == 1
    assert node.kernel.there == before


def test_a_container_in_a_group_of_another_program_is_left_to_that_one() -> None:
    node = Node()
    node.begin("a", 1)
    node.begin("b", 2)
    # 1. One that is there before ours.
    node.kernel.make_foreign("", "pod1")
    node.kernel.threads[1] = ("", "pod1")
    both = plan(watch("a"), watch("b"))
    assert node.watcher.round(both).watched == {"b"}
    # 2. One that comes later, and takes the threads out of ours.
    node.kernel.make_foreign("", "pod2")
    node.kernel.threads[2] = ("", "pod2")
    node.watcher.round(both)
    assert node.watcher.round(both).watched == set()
    assert node.kernel.there[""] == {"pod1", "pod2"}
    assert node.kernel.threads == {1: ("", "pod1"), 2: ("", "pod2")}
    # 3. It goes.
    node.kernel.remove_monitor("", "pod2")
    node.watcher.round(both)
    assert node.watcher.round(both).watched == {"b"}
    assert node.inside("b") == {2}


def test_a_round_after_a_restart_takes_over_the_groups_that_are_there() -> None:
    node = Node()
    node.begin("a", 1)
    node.watcher.round(plan(watch("a")))
    node.kernel.written.clear()
    node.new_watcher().round(plan(watch("a")))
    assert node.kernel.written == []


def test_nothing_is_written_while_nothing_changes() -> None:
    node = Node()
    for number in range(6):
        node.begin(f"c{number}", number)
    watches = plan(*(watch(f"c{number}") for number in range(6)))
    node.watcher.round(watches)
    node.kernel.written.clear()
    for _ in range(3):
        node.watcher.round(watches)
    assert node.kernel.written == []


def test_a_process_that_is_brought_into_a_container_is_found_in_its_turn() -> None:
    node = Node(rmids=64)
    keys = [f"c{number:02d}" for number in range(2 * LISTED_AGAIN)]
    for number, key in enumerate(keys):
        node.begin(key, number)
    watches = plan(*map(watch, keys))
    node.watcher.round(watches)
    node.threads["c15"].add(99)
    node.kernel.threads[99] = ("", "")
    node.listed.clear()
    node.watcher.round(watches)
    assert len(node.listed) == LISTED_AGAIN
    node.watcher.round(watches)
    assert node.inside("c15") == {15, 99}


def test_only_the_l3s_of_a_container_are_read_and_those_of_groups_as_a_whole() -> None:
    node = Node()
    node.watcher.round(plan(watch("a", 1, 2)))
    read = {(name, domain) for _, name, domain, _ in node.kernel.reads}
    assert read == {("", 0), ("", 1), ("", 2), ("", 3), (group_name("a"), 1), (group_name("a"), 2)}
    assert {value for *_, value in node.kernel.reads} == set(VALUES)


def test_a_word_of_the_kernel_is_not_known_and_said() -> None:
    node = Node()
    node.kernel.values["", group_name("a"), 0, OCCUPANCY] = "Unavailable"
    meter = node.watcher.round(plan(watch("a"))).meters["a", 0]
    assert (meter.occupancy, meter.problem) == (None, "llc_occupancy: Unavailable")


def test_reads_that_cost_more_are_fewer_a_round_and_all_have_their_turn() -> None:
    node = Node(rmids=400)
    node.cost_s = 0.001
    watches = plan(*(watch(f"c{number}", 0, 1, 2, 3) for number in range(100)))
    counts = [node.watcher.round(watches).reads for _ in range(3)]
    assert counts == [FIRST_READS, LEAST_READS, LEAST_READS]
    for _ in range(30):
        seen = node.watcher.round(watches)
    assert len(seen.meters) == 400


def test_a_group_that_goes_in_the_middle_of_a_round_is_not_known_and_made_again() -> None:
    node = Node()
    node.kernel.make_group(BATCH)
    node.watcher.round(plan(watch("a", group=BATCH)))
    node.kernel.remove_group(BATCH)
    seen = node.watcher.round(plan(watch("a", group=BATCH)))
    assert (seen.watched, seen.meters) == (set(), {})
    node.kernel.make_group(BATCH)
    assert node.watcher.round(plan(watch("a", group=BATCH))).watched == {"a"}


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_the_groups_are_those_that_are_wanted_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    node = Node(rmids=chance.choice((4, 12, 40)))
    node.kernel.make_foreign("", "kepler")
    keys, where, threads = [f"c{number}" for number in range(12)], {}, iter(range(1000))

    def begin() -> None:
        if not (free := [key for key in keys if key not in where]):
            return
        key = chance.choice(free)
        where[key] = chance.choice(sorted(node.kernel.there))
        node.begin(key, *(next(threads) for _ in range(chance.randint(1, 3))), group=where[key])

    def end() -> None:
        if where:
            key = chance.choice(sorted(where))
            del where[key]
            for thread in node.threads.pop(key):
                del node.kernel.threads[thread]

    def change() -> None:
        if where:
            key = chance.choice(sorted(where))
            where[key] = chance.choice(sorted(node.kernel.there))
            for thread in node.threads[key]:
                node.kernel.move(thread, where[key])

    def regroup() -> None:
        if BATCH in node.kernel.there:
            node.kernel.remove_group(BATCH)
            where.update({key: "" for key, group in where.items() if group == BATCH})
        else:
            try:
                node.kernel.make_group(BATCH)
            except OSError:
                return

    def restart() -> None:
        node.watcher = node.new_watcher()

    steps: list[Callable[[], None]] = [begin, begin, begin, end, change, regroup, restart]
    for _ in range(60):
        chance.choice(steps)()
        if chance.random() < 0.6:
            node.watcher.round(plan(*(watch(key, group=group) for key, group in where.items())))
    for _ in range(2):
        seen = node.watcher.round(plan(*(watch(key, group=group) for key, group in where.items())))
    room = node.kernel.rmids - len(node.kernel.there) - 1
    assert len(seen.watched) == min(room, len(where))
    for key in seen.watched:
        assert node.inside(key, where[key]) == node.threads[key]
    assert remove_ours(node.kernel) == len(seen.watched)
    assert node.kernel.there[""] == {"kepler"}
