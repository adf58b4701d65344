"""Which CPU has which class, what a clock domain has of what its CPUs want, and how that is on hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_proxy.isolation.clocks import (
    ClockInfo,
    ClockPolicy,
    CpuClass,
    CpuSection,
    IdleState,
    Planning,
    Usage,
    assign,
    is_same,
    rounded,
)
from cri_proxy.isolation.model import IsolatedContainer
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import PlacementPreferences
from tests.machines import HYGON_7285_2S
from tests.scenes import make_container, make_pod, topology

MACHINE = topology(HYGON_7285_2S)
ALL = format_cpus(MACHINE.online)
CLASSES = {
    "fast": CpuClass("base", "turbo", "performance", "", ("C2",), True, 10),
    "slow": CpuClass("min", 1_200_000, "powersave", "power", (), False),
    "plain": CpuClass("min", "turbo"),
}
SECTION = CpuSection(CLASSES)


def container(
    key: str, cpus: str, owned: str = "", cls: str = "", balloon: str = "", kind: str = "standard"
) -> IsolatedContainer:
    preferences = PlacementPreferences(cpu_class=cls)
    made = make_container(key, 1, pod=make_pod(key), preferences=preferences)
    all_of, own = parse_cpus(cpus) | parse_cpus(owned), parse_cpus(owned)
    return IsolatedContainer(key, f"ns/{key}", kind, "", all_of, own, balloon=balloon, container=made)


def usage(*containers: IsolatedContainer, ours: str = ALL, **more: Any) -> Usage:
    return Usage(containers, parse_cpus(ours), **more)


def names(section: CpuSection, used: Usage) -> dict[int, str]:
    return {cpu: each.name for cpu, each in assign(section, used)[0].items()}


# ---------------------------------------------------------------------- which CPU has which class


def test_an_owned_cpu_has_its_owners_class_and_shared_ones_that_of_all_who_may_run_there() -> None:
    used = usage(
        container("a", "", "0-1", "fast"),
        container("b", "2-5", cls="slow"),
        container("c", "4-7", cls="slow"),
        container("d", "6-9", cls="plain"),
        container("e", "12"),
    )
    found, unnamed = assign(SECTION, used)
    assert {cpu: each.name for cpu, each in found.items()} == {
        **dict.fromkeys((0, 1), "fast"),
        **dict.fromkeys((2, 3, 4, 5), "slow"),
        **dict.fromkeys((8, 9), "plain"),
    }
    assert unnamed == {6, 7, 12}
    assert found[4].keys == ("b", "c")


def test_a_part_of_a_composite_balloon_has_the_class_of_its_own_type() -> None:
    parts = (("gpu", parse_cpus("0-1")), ("nic", parse_cpus("2")), ("unnamed", parse_cpus("3")))
    classes = {"gpu": "fast", "nic": "slow"}
    found = replace(container("a", "4-5", "0-3", balloon="both"), parts=parts)
    assert names(SECTION, usage(found, balloon_class=classes)) == {0: "fast", 1: "fast", 2: "slow"}
    # An annotation is about all of it.
    asks = replace(container("a", "4-5", "0-3", "plain", "both"), parts=parts)
    assert set(names(SECTION, usage(asks, balloon_class=classes)).values()) == {"plain"}


def test_cpus_that_nothing_uses_are_idle_and_reserved_ones_have_their_own_class() -> None:
    section = replace(SECTION, idle="slow", reserved="plain")
    used = usage(container("a", "0-1"), ours="0-7", reserved=parse_cpus("0,3"), others=parse_cpus("4"))
    assert names(section, used) == {0: "plain", 3: "plain", 2: "slow", 5: "slow", 6: "slow", 7: "slow"}


def test_the_class_of_the_shared_pool_is_had_where_containers_mix_or_have_none_or_nothing_runs() -> None:
    section = replace(SECTION, shared="plain")
    used = usage(
        container("a", "0-1", cls="slow"), container("b", "1-2"), container("c", "3", cls="slow"), ours="0-4"
    )
    assert names(section, used) == {0: "slow", 1: "plain", 2: "plain", 3: "slow", 4: "plain"}


@pytest.mark.parametrize(
    ("each", "more", "name"),
    [
        (container("a", "", "0", "fast", "db"), {"balloon_class": {"db": "slow"}}, "fast"),
        (container("a", "", "0", "no such", "db"), {"balloon_class": {"db": "slow"}}, "slow"),
        (container("a", "", "0", "", "web"), {"balloon_class": {"db": "slow"}, "default": "plain"}, "plain"),
        (container("a", "", "0"), {"default": "plain"}, "slow"),
        (container("a", "0"), {}, None),
        (container("a", "0", kind="batch"), {}, "batch"),
    ],
    ids=[
        "annotation",
        "unknown annotation",
        "default of balloons",
        "exclusive",
        "none",
        "what it is to others",
    ],
)
def test_a_containers_class_is_what_counts_first(
    each: IsolatedContainer, more: Mapping[str, Any], name: Optional[str]
) -> None:
    section = replace(SECTION, classes={**CLASSES, "batch": CpuClass()}, exclusive="slow")
    assert names(section, usage(each, ours="0", **more)).get(0) == name


# ---------------------------------------------------------------------- on hardware


def policy(cpus: str, **values: Any) -> ClockPolicy:
    there = parse_cpus(cpus)
    made: dict[str, Any] = {
        "least": 1_200_000,
        "most": 3_300_000,
        "base": 2_000_000,
        "limits": (1_200_000, 3_300_000),
        "governor": "powersave",
        "governors": ("performance", "powersave"),
        "preferences": ("performance", "power"),
        **values,
    }
    return ClockPolicy(f"/p{min(there)}", there, there, **made)


def planned(
    info: ClockInfo, *containers: IsolatedContainer, section: CpuSection = SECTION, **more: Any
) -> Any:
    before = more.pop("before", {})
    planning = Planning(info, section, usage(*containers, **more), MACHINE, before)
    found = [(each.place.removeprefix("file:"), each.value) for each in planning.settings()]
    return found, planning.notes


def one(*names: str, cpu: int = 0) -> tuple[IsolatedContainer, ...]:
    """A container of each class on a CPU of its own."""
    return tuple(container(f"c{n}", "", str(cpu + n), name) for n, name in enumerate(names))


def test_a_policy_has_what_its_class_says_and_its_limits_in_an_order_that_is_always_valid() -> None:
    found, notes = planned(ClockInfo((policy("0", limits=(3_000_000, 3_300_000)),)), *one("slow"))
    assert found == [
        ("/p0/scaling_governor", "powersave"),
        ("/p0/scaling_min_freq", "1200000"),
        ("/p0/scaling_max_freq", "1200000"),
        ("/p0/energy_performance_preference", "power"),
    ]
    found, _ = planned(ClockInfo((policy("0", limits=(1_200_000, 1_500_000)),)), *one("fast"))
    assert found[2:] == [("/p0/scaling_max_freq", "3300000"), ("/p0/scaling_min_freq", "2000000")]


@pytest.mark.parametrize("is_one_policy", [True, False], ids=["one policy", "threads of a core"])
def test_cpus_that_share_a_clock_have_the_highest_of_what_they_want(is_one_policy: bool) -> None:
    thread = max(MACHINE.cores[MACHINE.core_of[0]])
    pair = (container("a", "", "0", "fast"), container("b", "", str(thread), "slow"))
    policies = (policy(f"0,{thread}"),) if is_one_policy else (policy("0"), policy(str(thread)))
    found, _ = planned(ClockInfo(policies), *pair, ours=f"0,{thread}")
    assert found == [
        each
        for one_of in policies
        for each in (
            (f"{one_of.path}/energy_performance_preference", "performance"),
            (f"{one_of.path}/scaling_governor", "performance"),
            (f"{one_of.path}/scaling_max_freq", "3300000"),
            (f"{one_of.path}/scaling_min_freq", "2000000"),
        )
    ]


def test_a_cpu_that_runs_something_of_no_class_keeps_its_domain_from_being_lowered() -> None:
    info = ClockInfo((policy("0-3"),))
    assert planned(info, *one("slow"), container("b", "1"))[0] == [("/p0/scaling_min_freq", "1200000")]
    # One that nothing uses wants nothing; one that is not ours may be used by what is not known.
    assert ("/p0/scaling_max_freq", "1200000") in planned(info, *one("slow"))[0]
    assert ("/p0/scaling_max_freq", "1200000") not in planned(info, *one("slow"), ours="0-2")[0]
    assert ("/p0/scaling_min_freq", "2000000") in planned(info, *one("fast"), container("b", "1"))[0]


def test_of_the_classes_in_use_only_those_of_the_highest_priority_have_turbo() -> None:
    far = min(cpu for cpu, where in MACHINE.cpus.items() if where.socket == 1)
    info = ClockInfo((policy("0"), policy("2"), policy(str(far))))
    used = (
        container("a", "", "0", "fast"),
        container("b", "", "2", "plain"),
        container("c", "", str(far), "plain"),
    )

    def maxima(section: CpuSection) -> dict[str, str]:
        found, _ = planned(info, *used, section=section)
        return {path[1:-17]: value for path, value in found if path.endswith("max_freq")}

    assert maxima(SECTION) == {"p0": "3300000", "p2": "2000000", f"p{far}": "3300000"}
    assert maxima(replace(SECTION, turbo_domain="system"))[f"p{far}"] == "2000000"
    assert {*maxima(replace(SECTION, classes={**CLASSES, "fast": CpuClass("base", "turbo")})).values()} == {
        "3300000"
    }


@pytest.mark.parametrize(
    ("values", "name", "note"),
    [
        (
            {"most": 1_800_000, "least": 1_500_000},
            "slow",
            "maxFreq of the CPU class slow is 1200000 kHz, the hardware has 1500000 to 1800000: it is 1500000",
        ),
        ({"base": 0}, "fast", "the frequency without boost is not known here: base is the highest one"),
        (
            {"governors": ("schedutil", "powersave")},
            "fast",
            "there is no cpufreq governor performance here, but schedutil, powersave",
        ),
        (
            {"preferences": ()},
            "slow",
            "the cpufreq driver has no energy performance preference here",
        ),
    ],
)
def test_what_the_hardware_has_not_is_noted_with_what_there_is(
    values: Mapping[str, Any], name: str, note: str
) -> None:
    _, notes = planned(ClockInfo((policy("0-1", **values),)), *one(name))
    assert note in [each.partition(" (CPUs 0")[0] for each in notes]


def test_a_preference_that_the_governor_forbids_is_not_written() -> None:
    section = replace(SECTION, classes={"fast": CpuClass(governor="performance", preference="power")})
    found, notes = planned(ClockInfo((policy("0"),)), *one("fast"), section=section)
    assert found == [
        ("/p0/energy_performance_preference", "performance"),
        ("/p0/scaling_governor", "performance"),
    ]
    assert notes[0].startswith(
        "the energy performance preference power does not go with the governor performance ("
    )


def test_a_limit_of_ours_that_is_in_the_way_is_put_back_before_the_other_is_written() -> None:
    section = replace(SECTION, classes={"fast": CpuClass(min_freq="base")})
    info = ClockInfo((policy("0", limits=(1_200_000, 1_500_000)),))
    found, notes = planned(
        info, *one("fast"), section=section, before={"file:/p0/scaling_max_freq": "3300000"}
    )
    assert found == [("/p0/scaling_max_freq", "3300000"), ("/p0/scaling_min_freq", "2000000")] and not notes


def test_a_maximum_takes_a_minimum_along_that_is_above_it() -> None:
    section = replace(SECTION, classes={"low": CpuClass(max_freq=1_500_000)})
    info = ClockInfo((policy("0", limits=(2_000_000, 3_300_000)),))
    assert planned(info, *one("low"), section=section)[0] == [
        ("/p0/scaling_min_freq", "1500000"),
        ("/p0/scaling_max_freq", "1500000"),
    ]


@pytest.mark.parametrize("is_own", [True, False], ids=["of each policy", "of the machine"])
def test_boost_is_had_as_soon_as_one_wants_it_and_off_where_all_do(is_own: bool) -> None:
    info = ClockInfo((policy(ALL, boost="boost" if is_own else ""),), boost="/b", is_inverse=True)
    place, on, off = ("/p0/boost", "1", "0") if is_own else ("/b", "0", "1")
    assert (place, on) in planned(info, *one("fast", "slow"))[0]
    assert place not in dict(planned(info, *one("slow"), container("b", "1"))[0])
    everywhere = container("a", "", ALL, "slow")
    assert (place, off) in planned(info, everywhere)[0]


def test_idle_states_are_disabled_for_both_threads_of_a_core_and_what_is_not_there_is_noted() -> None:
    thread = max(MACHINE.cores[MACHINE.core_of[0]])
    states = {
        cpu: tuple(IdleState(name, f"/c{cpu}/{name}") for name in ("POLL", "C1", "C2_ACPI"))
        for cpu in (0, 2, thread)
    }
    section = replace(SECTION, classes={**CLASSES, "awake": CpuClass(disabled=("c2", "C6"))})
    pair = (
        container("a", "", "0", "awake"),
        container("b", "", f"{thread}", "plain"),
        container("c", "", "2", "plain"),
    )
    found, notes = planned(ClockInfo((), states), *pair, section=section, ours=f"0,2,{thread}")
    assert found == [("/c0/C2_ACPI", "1"), (f"/c{thread}/C2_ACPI", "1")]
    assert notes == (f"there is no idle state C6 here, but POLL, C1, C2_ACPI (CPUs 0,{thread})",)


def test_classes_that_are_asked_for_and_not_there_are_noted() -> None:
    used = container("a", "0", cls="no such"), container("b", "1", balloon="db")
    _, notes = planned(ClockInfo((policy("0"),)), *used, balloon_class={"db": "nor this"})
    assert [note.partition(" is not configured")[0] for note in notes] == [
        'the CPU class "no such"',
        'the CPU class "nor this"',
    ]


@pytest.mark.parametrize(
    ("low", "high", "there"),
    [
        (None, 2_200_000, (None, 2_000_000)),
        (2_200_000, None, (2_500_000, None)),
        (2_200_000, 2_200_000, (2_500_000, 2_500_000)),
        (100, 100, (1_200_000, 1_200_000)),
        (9_000_000, 9_000_000, (3_000_000, 3_000_000)),
    ],
)
def test_limits_of_a_table_are_rounded_as_the_kernel_does(
    low: Optional[int], high: Optional[int], there: tuple[Optional[int], Optional[int]]
) -> None:
    assert rounded((1_200_000, 2_000_000, 2_500_000, 3_000_000), low, high) == there


@pytest.mark.parametrize(
    ("file", "seen", "value", "same"),
    [
        ("energy_performance_preference", "balance_power", "192", True),
        ("energy_performance_preference", "balance_power", "power", False),
        ("energy_performance_preference", "", "77", False),
        ("scaling_max_freq", "2000000", "2000000", True),
        ("scaling_governor", "performance", "powersave", False),
    ],
)
def test_names_and_numbers_of_one_preference_are_the_same(
    file: str, seen: str, value: str, same: bool
) -> None:
    assert is_same(f"file:/p/{file}", seen, value) is same
