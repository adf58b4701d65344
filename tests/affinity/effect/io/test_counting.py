"""What a machine counts, by its files; and counters of L3s as a whole, of events that any kernel has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cri_proxy.affinity.effect.comparison import Subject
from cri_proxy.affinity.effect.events import HYGON_1, TYPE_SOFTWARE, ZEN_3
from cri_proxy.affinity.effect.io.counting import Countable, Counting, L3Counts, read_countable
from tests.affinity.effect.io.counted_cgroup import SOFTWARE, counted_root

IS_COUNTED = os.getuid() == 0 and counted_root() is not None
CPU = min(os.sched_getaffinity(0))

HYGON_CPUINFO = """processor\t: 0
vendor_id\t: HygonGenuine
cpu family\t: 24
model\t\t: 1
model name\t: Hygon C86 7285 32-core Processor

processor\t: 1
vendor_id\t: GenuineIntel
"""


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def test_a_hygon_counts_its_cores_and_its_l3s(tmp_path: Path) -> None:
    devices = "bus/event_source/devices"
    write(
        tmp_path,
        {
            "cpuinfo": HYGON_CPUINFO,
            f"{devices}/cpu/type": 4,
            f"{devices}/amd_l3/type": 12,
            f"{devices}/amd_l3/cpumask": "0,4,8-9",
        },
    )
    assert read_countable(tmp_path, tmp_path) == Countable(HYGON_1, "", 12, (0, 4, 8, 9))


def test_without_its_l3_pmu_it_counts_its_cores(tmp_path: Path) -> None:
    write(tmp_path, {"cpuinfo": HYGON_CPUINFO, "bus/event_source/devices/cpu/type": 4})
    assert read_countable(tmp_path, tmp_path) == Countable(HYGON_1)


def test_a_virtual_machine_without_a_pmu_counts_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"cpuinfo": HYGON_CPUINFO, "bus/event_source/devices/software/type": 1})
    assert "virtual machine without a PMU" in read_countable(tmp_path, tmp_path).why


# ---------------------------------------------------------------------- resctrl


def resctrl(root: Path, total: int, own: int) -> None:
    """Two L3s (ids 0 and 1), and a control group beside the root's."""
    for folder, times in (("", 1), ("gold/", 10)):
        for l3 in (0, 1):
            mon = f"fs/resctrl/{folder}mon_data/mon_L3_{l3:02d}"
            write(
                root,
                {
                    f"{mon}/mbm_total_bytes": total * times * (l3 + 1),
                    f"{mon}/mbm_local_bytes": own * times * (l3 + 1),
                    f"{mon}/llc_occupancy": 4096,
                },
            )
    (root / "fs/resctrl/info").mkdir(exist_ok=True)
    for cpu, l3 in ((0, 0), (1, 1)):
        write(root, {f"devices/system/cpu/cpu{cpu}/cache/index3/id": l3})


def looks(root: Path, cpus: frozenset[int]) -> Counting:
    counting = Counting(Countable(ZEN_3), root / "cgroup", root)
    counting.open((), cpus, 512)
    return counting


def test_memory_traffic_of_the_plans_l3s_is_that_of_all_control_groups(tmp_path: Path) -> None:
    resctrl(tmp_path, 100, 60)
    one, both = looks(tmp_path, frozenset({1})), looks(tmp_path, frozenset({0, 1}))
    assert one.look().l3 == L3Counts(None, None, 2200.0, 1320.0)
    before = both.look().l3
    assert before == L3Counts(None, None, 3300.0, 1980.0)
    resctrl(tmp_path, 200, 60)
    assert both.look().l3.since(before) == L3Counts(None, None, 3300.0, 0.0)


def test_an_l3_that_says_nothing_makes_the_traffic_unknown(tmp_path: Path) -> None:
    resctrl(tmp_path, 100, 60)
    write(tmp_path, {"fs/resctrl/mon_data/mon_L3_01/mbm_total_bytes": "Unavailable"})
    assert looks(tmp_path, frozenset({1})).look().l3 == L3Counts()
    assert looks(tmp_path, frozenset({0})).look().l3 == L3Counts(None, None, 1100.0, 660.0)


def test_without_resctrl_no_traffic_is_known(tmp_path: Path) -> None:
    assert looks(tmp_path, frozenset({0})).look().l3 == L3Counts()


# ---------------------------------------------------------------------- counted


@pytest.mark.skipif(not IS_COUNTED, reason="needs root")
def test_the_l3s_of_the_plan_are_counted_as_a_whole(tmp_path: Path) -> None:
    """With page faults and context switches of a CPU, in the place of misses and lookups of an L3."""
    events = replace(SOFTWARE, l3_misses=2, l3_lookups=3)
    shared = "devices/system/cpu/cpu{}/cache/index3/shared_cpu_list"
    write(tmp_path, {shared.format(CPU): CPU, shared.format(CPU + 1): CPU + 1})
    countable = Countable(events, "", TYPE_SOFTWARE, (CPU, CPU + 1))
    counting = Counting(countable, tmp_path, tmp_path)
    counting.open((), frozenset({CPU}), 512)
    try:
        assert len(counting._l3_groups) == 1, "the other L3 is not the plan's"
        before = counting.look().l3
        while not (counting.look().l3.since(before).lookups or 0) > 3:
            os.sched_yield()
        assert counting.look().l3.memory_bytes is None
    finally:
        counting.close()
    assert counting.look().l3 == L3Counts()


@pytest.mark.skipif(not IS_COUNTED, reason="needs root")
def test_an_l3_whose_counters_cannot_be_had_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {f"devices/system/cpu/cpu{CPU}/cache/index3/shared_cpu_list": CPU})
    counting = Counting(
        Countable(replace(SOFTWARE, l3_misses=999, l3_lookups=999), "", TYPE_SOFTWARE, (CPU,)),
        tmp_path,
        tmp_path,
    )
    counting.open((), frozenset({CPU}), 512)
    assert counting.look().l3 == L3Counts()
    counting.close()


def test_a_container_whose_cgroup_is_gone_is_said_and_the_next_one_counted(tmp_path: Path) -> None:
    counting = Counting(Countable(SOFTWARE), tmp_path, tmp_path)
    counting.open((Subject("a", "/gone", frozenset({CPU})),), frozenset({CPU}), 512)
    assert counting.problem == "a container could not be counted: /gone: no such cgroup"
    assert counting.keys == frozenset()


@pytest.mark.skipif(not IS_COUNTED, reason="needs root")
def test_what_is_opened_after_the_end_is_given_back(tmp_path: Path) -> None:
    root = counted_root()
    assert root is not None
    counting = Counting(Countable(SOFTWARE), root, tmp_path)
    counting.close()
    before = len(os.listdir("/proc/self/fd"))
    counting.open((Subject("a", "/", frozenset({CPU})),), frozenset({CPU}), 512)
    assert counting.keys == frozenset()
    assert len(os.listdir("/proc/self/fd")) == before
