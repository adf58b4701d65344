"""Which CPUs are reserved: whole cores of one CCX for a quantity, exactly the set for a set."""

from __future__ import annotations

from typing import Optional

import pytest

from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.reserved import Reservation, Reserved, reserve
from tests.machines import (
    ALL_MACHINES,
    CACHE_IDS_ODD,
    EPYC_NPS1_1S,
    HYGON_7285_2S,
    OFFLINE_CPUS,
    ONE_CPU,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
)
from tests.scenes import topology


def quantity(name: str, milli: int, usable: Optional[str] = None, kubelet: str = "") -> Reserved:
    tree = topology(name)
    cpus = tree.online if usable is None else parse_cpus(usable)
    return reserve(tree, cpus, Reservation(milli=milli), parse_cpus(kubelet))


def given_set(name: str, cpus: str, usable: Optional[str] = None) -> Reserved:
    tree = topology(name)
    allowed = tree.online if usable is None else parse_cpus(usable)
    return reserve(tree, allowed, Reservation(cpus=parse_cpus(cpus)))


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_by_default_nothing_is_reserved(name: str) -> None:
    assert reserve(topology(name), topology(name).online, Reservation()) == Reserved()


# ---------------------------------------------------------------------- a quantity

QUANTITIES = [
    # machine, milli-CPUs, reserved
    (HYGON_7285_2S, 1, "0,64"),
    (HYGON_7285_2S, 750, "0,64"),
    (HYGON_7285_2S, 1000, "0,64"),
    (HYGON_7285_2S, 2000, "0,64"),
    (HYGON_7285_2S, 2001, "0-1,64-65"),
    (HYGON_7285_2S, 8000, "0-3,64-67"),
    # What its CCX lacks comes from the other one of its node, then from the socket.
    (HYGON_7285_2S, 9000, "0-4,64-68"),
    (HYGON_7285_2S, 17000, "0-8,64-72"),
    (EPYC_NPS1_1S, 1000, "0"),
    (EPYC_NPS1_1S, 1500, "0-1"),
    (CACHE_IDS_ODD, 1000, "0-1"),
    (UNEVEN_CCX, 7000, "0-3,14-17"),
    (VM_NO_CACHE_INFO, 5000, "0-4"),
]


@pytest.mark.parametrize(("name", "milli", "cpus"), QUANTITIES)
def test_a_quantity_is_rounded_up_to_whole_cores_of_one_ccx(name: str, milli: int, cpus: str) -> None:
    assert quantity(name, milli) == Reserved(parse_cpus(cpus))


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_a_quantity_never_cuts_a_core(name: str) -> None:
    tree = topology(name)
    for milli in (1, 500, 1000, 2500, 5000):
        taken = quantity(name, milli).cpus
        assert len(taken) * 1000 >= min(milli, len(tree.online) * 1000)
        assert all(tree.core_mates(c) & tree.online <= taken for c in taken)


def test_the_ccx_is_the_one_with_kubelets_reserved_cpus_and_those_come_first() -> None:
    assert format_cpus(quantity(HYGON_7285_2S, 1000, kubelet="42").cpus) == "42,106"
    assert format_cpus(quantity(HYGON_7285_2S, 4000, kubelet="42-43").cpus) == "42-43,106-107"
    assert format_cpus(quantity(HYGON_7285_2S, 6000, kubelet="42-43").cpus) == "40,42-43,104,106-107"


def test_kubelets_reserved_cpus_count_only_as_far_as_they_are_usable() -> None:
    assert format_cpus(quantity(HYGON_7285_2S, 1000, usable="8-15,72-79", kubelet="0,9").cpus) == "9,73"
    assert format_cpus(quantity(HYGON_7285_2S, 1000, usable="8-15,72-79", kubelet="0").cpus) == "8,72"


def test_a_quantity_starts_at_the_lowest_usable_cpu() -> None:
    assert format_cpus(quantity(HYGON_7285_2S, 2000, usable="5-127").cpus) == "5,69"


def test_an_offline_sibling_does_not_count() -> None:
    # CPU 8 of core 8,40 is offline; CPU 40 is online alone.
    assert format_cpus(quantity(OFFLINE_CPUS, 2000, usable="8-15,40-47").cpus) == "9,41"


@pytest.mark.parametrize(
    ("name", "milli"), [(ONE_CPU, 1000), (VM_NO_CACHE_INFO, 8000), (VM_NO_CACHE_INFO, 99000)]
)
def test_reserving_everything_is_possible_and_warned_of(name: str, milli: int) -> None:
    reserved = quantity(name, milli)
    assert reserved.cpus == topology(name).online
    assert reserved.warnings == ("every usable CPU is reserved; others will use them too",)


def test_nothing_usable_reserves_nothing() -> None:
    assert reserve(topology(ONE_CPU), NO_CPUS, Reservation(milli=1000)) == Reserved()


# ---------------------------------------------------------------------- a set


@pytest.mark.parametrize("cpus", ["0,64", "0-3,64-67", "63,127", ""])
def test_a_set_of_whole_cores_is_taken_as_it_is(cpus: str) -> None:
    assert given_set(HYGON_7285_2S, cpus) == Reserved(parse_cpus(cpus))


def test_a_set_that_cuts_a_core_is_taken_with_a_warning() -> None:
    reserved = given_set(HYGON_7285_2S, "0-1,64")
    assert format_cpus(reserved.cpus) == "0-1,64"
    assert reserved.warnings == (
        "the reserved cpuset 0-1,64 cuts physical cores: CPUs 65 share a core with it",
    )


def test_a_core_whose_other_thread_is_not_usable_is_not_cut() -> None:
    assert given_set(HYGON_7285_2S, "0", usable="0-63").warnings == ()


def test_cpus_that_are_not_usable_are_left_out_with_a_warning() -> None:
    reserved = given_set(HYGON_7285_2S, "0,64,500", usable="0-127")
    assert format_cpus(reserved.cpus) == "0,64"
    assert reserved.warnings == ("reserved CPUs 500 are not usable here (usable: 0-127)",)
