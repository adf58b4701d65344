"""Composite balloons: made of a part for each component, or of the component with the fewest balloons."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import BALANCE, BalloonType, LoadClass
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.model import PlacementRefused
from tests.machines import ALL_MACHINES, EPYC_NPS1_1S, HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.policies.balloons.test_policy import Pools, asks
from tests.scenes import topology

NEAR, FAR = "/sys/devices/system/node/node0", "/sys/devices/system/node/node4"
GPU = BalloonType("gpu", prefer_close_to_devices=(NEAR,))
NIC = BalloonType("nic", prefer_close_to_devices=(FAR,))
PLAIN = BalloonType("plain")
BOTH = BalloonType("both", namespaces=("db",), components=("gpu", "nic"))
EITHER = replace(BOTH, name="either", component_creation=BALANCE, prefer_new_balloons=True)


def split(cpus: BalloonCpus, kind: BalloonType, own: str, number: int = 0) -> dict[str, str]:
    parts = cpus.parts(cpus.composites.kind(kind, number), parse_cpus(own))
    return {part.name: format_cpus(theirs) for part, theirs in parts}


@pytest.fixture
def pools() -> Pools:
    return Pools(HYGON_7285_2S, BOTH, GPU, NIC)


# ---------------------------------------------------------------------- a part for each


def test_a_container_runs_on_cpus_of_each_component(pools) -> None:
    decision = pools.put(asks("a", 4))
    assert format_cpus(decision.placement.cpus) == "0,32,64,96"
    assert decision.placement.group == "both[0]"
    assert "(2 as of gpu, 2 as of nic)" in decision.why


def test_its_parts_are_told_by_their_types_and_no_other_balloon_has_any(pools) -> None:
    of_both = pools.put(asks("a", 4)).placement
    other = pools.put(asks("b", 2, "elsewhere")).placement
    assert {name: format_cpus(cpus) for name, cpus in pools.policy.parts_of(of_both)} == {
        "gpu": "0,64",
        "nic": "32,96",
    }
    assert pools.policy.parts_of(other) == ()


def test_it_grows_and_shrinks_in_all_its_parts(pools) -> None:
    for name, own in (("a", "0,32,64,96"), ("b", "0-1,32-33,64-65,96-97")):
        pools.put(asks(name, 4))
        assert pools.own(name) == own
    pools.remove("a")
    assert pools.own("b") == "0,32,64,96"
    pools.remove("b")
    assert pools.node.exclusive == NO_CPUS


@pytest.mark.parametrize(
    ("kinds", "request_", "sizes"),
    [
        pytest.param((BOTH, GPU, NIC), 0, [2, 2], id="none is empty"),
        pytest.param((BOTH, GPU, NIC), 3, [2, 2], id="each is rounded up"),
        pytest.param((replace(BOTH, min_cpus=8), GPU, NIC), 1, [4, 4], id="MinCPUs is of the whole"),
        pytest.param((BOTH, replace(GPU, min_cpus=4), NIC), 2, [4, 2], id="or of a component"),
        pytest.param((replace(BOTH, max_cpus=4), GPU, NIC), 6, [2, 2], id="MaxCPUs is of the whole"),
        pytest.param((BOTH, replace(GPU, max_cpus=2), NIC), 8, [2, 2], id="and of a component for all, since all are alike"),
        pytest.param((BOTH, replace(GPU, prefer_spread_on_physical_cores=True), NIC), 6, [3, 4], id="cores are whole"),
        pytest.param((replace(BOTH, hide_hyperthreads=True), GPU, NIC), 4, [2, 2], id="threads are hidden in all of it"),
        pytest.param((replace(BOTH, components=("gpu", "gpu", "nic")), GPU, NIC), 6, [2, 2, 2], id="one twice"),
        pytest.param(
            (replace(BOTH, components=("inner", "nic")), BalloonType("inner", components=("gpu", "plain")), GPU, NIC, PLAIN),
            8, [2, 2, 4], id="of a composite one",
        ),
    ],
)  # fmt: skip
def test_its_parts_are_of_one_size_within_their_limits(kinds, request_, sizes) -> None:
    pools = Pools(HYGON_7285_2S, *kinds)
    own = pools.put(asks("a", request_)).placement.exclusive
    cpus = BalloonCpus(pools.node.topology, kinds)
    assert [len(theirs) for _, theirs in cpus.parts(cpus.composites.kind(kinds[0], 0), own)] == sizes


def test_which_cpus_are_of_which_part_follows_from_the_types() -> None:
    cpus = BalloonCpus(topology(HYGON_7285_2S), (BOTH, GPU, NIC))
    assert split(cpus, BOTH, "0-1,32-33") == {"gpu": "0-1", "nic": "32-33"}
    assert split(cpus, replace(BOTH, components=("nic", "gpu")), "0-1,32-33") == {
        "nic": "32-33",
        "gpu": "0-1",
    }


def test_its_parts_avoid_each_others_loads_and_those_of_others() -> None:
    kind = replace(BOTH, components=("busy", "busy"), prefer_new_balloons=True)
    busy = BalloonType("busy", namespaces=("web",), loads=("memory",))
    pools = Pools(HYGON_7285_2S, kind, busy, loads=(LoadClass("memory", "l3cache"),))
    assert [format_cpus(pools.put(asks(name, 4)).placement.cpus) for name in "ab"] == [
        "0,4,64,68",
        "8,12,72,76",
    ]
    assert format_cpus(pools.put(asks("c", 2, "web")).placement.cpus) == "16,80"


def test_loads_of_the_whole_are_those_of_all_parts() -> None:
    kind = replace(BOTH, components=("plain", "plain"), loads=("memory",))
    pools = Pools(HYGON_7285_2S, kind, PLAIN, loads=(LoadClass("memory", "l3cache"),))
    assert format_cpus(pools.put(asks("a", 4)).placement.cpus) == "0,4,64,68"


def test_where_too_few_cpus_are_left_the_parts_have_what_there_is_and_it_says_so() -> None:
    pools = Pools(VM_NO_CACHE_INFO, replace(BOTH, components=("plain", "plain")), PLAIN)
    decision = pools.put(asks("a", 12))
    assert not decision.fits and len(decision.placement.cpus) == 8


def test_one_whose_parts_cannot_have_their_least_cpus_does_not_begin() -> None:
    kinds = (replace(BOTH, components=("least", "least")), BalloonType("least", min_cpus=4))
    pools = Pools(VM_NO_CACHE_INFO, *kinds, replace(PLAIN, namespaces=("plain",)))
    pools.put(asks("other", 1, "plain"))
    decision = pools.put(asks("a", 1))
    assert decision.why.startswith("no balloon of type both has a CPU it may use") and not decision.fits


def test_a_component_is_a_type_of_its_own_besides(pools) -> None:
    pools.put(asks("a", 4))
    annotated = asks("b", 2, "elsewhere")
    decision = pools.put(replace(annotated, preferences=replace(annotated.preferences, balloon="gpu")))
    assert (decision.placement.group, format_cpus(decision.placement.cpus)) == ("gpu[0]", "1,65")


def test_a_type_with_a_banned_component_is_banned() -> None:
    pools = Pools(HYGON_7285_2S, BOTH, replace(GPU, max_cpus=-1), NIC)
    with pytest.raises(PlacementRefused, match="balloons of type both, which are banned on this node"):
        pools.put(asks("a", 1))


def test_balloons_of_the_start_are_composite_too() -> None:
    kinds = (replace(BOTH, min_balloons=1, min_cpus=4), replace(GPU, min_cpus=4), NIC)
    pools = Pools(HYGON_7285_2S, *kinds)
    assert format_cpus(pools.policy._cpus.set_aside(pools.node)["both[0]"]) == "0-1,32,64-65,96"


# ---------------------------------------------------------------------- one of several


def test_balloons_are_balanced_over_the_components() -> None:
    pools = Pools(HYGON_7285_2S, EITHER, GPU, NIC)
    own = [format_cpus(pools.put(asks(f"c{i}", 2)).placement.cpus) for i in range(4)]
    assert own == ["0,64", "32,96", "1,65", "33,97"]
    pools.remove("c1")
    pools.remove("c3")
    assert [format_cpus(pools.put(asks(f"d{i}", 2)).placement.cpus) for i in range(2)] == ["32,96", "33,97"]


def test_balloons_of_a_component_count_wherever_they_are() -> None:
    gpu = replace(GPU, namespaces=("web",), prefer_new_balloons=True)
    pools = Pools(HYGON_7285_2S, EITHER, replace(BOTH, namespaces=("both",), components=("gpu",)), gpu, NIC)
    pools.put(asks("w", 2, "web"))
    pools.put(asks("x", 2, "both"))
    groups = [pools.put(asks(f"c{i}", 2)).placement for i in range(3)]
    assert [place.group for place in groups] == ["either[1]", "either[3]", "either[0]"]
    assert [min(place.cpus) >= 32 for place in groups] == [True, True, False]


def test_one_of_several_may_be_composite_and_be_chosen_inside() -> None:
    inner = BalloonType("inner", components=("nic", "plain"), component_creation=BALANCE)
    kind = replace(EITHER, components=("gpu", "inner"))
    pools = Pools(HYGON_7285_2S, kind, inner, GPU, NIC, PLAIN)
    whys = [pools.put(asks(f"c{i}", 2)).why for i in range(5)]
    chosen = [next(n for n in ("gpu", "nic", "plain") if f"as of {n}" in why) for why in whys]
    assert chosen == [
        "gpu",
        "nic",
        "gpu",
        "gpu",
        "plain",
    ]  # what is inside counts as a balloon, and its part as one more


def test_a_banned_one_of_several_is_left_out() -> None:
    pools = Pools(HYGON_7285_2S, EITHER, replace(GPU, max_cpus=-1), NIC)
    assert [format_cpus(pools.put(asks(name, 2)).placement.cpus) for name in "ab"] == ["32,96", "33,97"]


# ---------------------------------------------------------------------- the law

TYPES = (
    replace(BOTH, components=("spread", "plain"), max_balloons=3, prefer_new_balloons=True),
    replace(EITHER, namespaces=("web",), components=("spread", "deep")),
    BalloonType("deep", components=("plain", "small")),
    BalloonType("spread", prefer_spread_on_physical_cores=True, loads=("avx",)),
    BalloonType("small", max_cpus=3),
    replace(PLAIN, namespaces=("plain",), allocator_topology_balancing=True, loads=("avx",)),
)


@pytest.mark.parametrize("where", ALL_MACHINES)
def test_balloons_are_apart_and_the_parts_of_each_are_all_of_it_and_of_even_sizes(where: str) -> None:
    random = Random(where)
    pools = Pools(where, *TYPES, loads=(LoadClass("avx", "l3cache"),))
    cpus = BalloonCpus(pools.node.topology, TYPES)
    there: list[str] = []
    for number in range(30):
        if there and random.random() < 0.4:
            pools.remove(there.pop(random.randrange(len(there))))
        else:
            there.append(f"c{number}")
            pools.put(asks(there[-1], random.choice((0, 1, 2.5, 6)), random.choice(("db", "web", "plain"))))
        groups: dict[str, set[frozenset[int]]] = {}
        for resident in pools.node.residents.values():
            groups.setdefault(resident.group, set()).add(resident.exclusive)
        assert all(len(sets) == 1 for sets in groups.values())
        owned = {group: next(iter(sets)) for group, sets in groups.items() if group}
        assert len(NO_CPUS.union(*owned.values())) == sum(map(len, owned.values()))
        for group, own in owned.items():
            name, _, rest = group.partition("[")
            kind = cpus.composites.kind(next((t for t in TYPES if t.name == name), PLAIN), int(rest[:-1]))
            parts = cpus.parts(kind, own)
            assert sorted(cpu for _, theirs in parts for cpu in theirs) == sorted(own)
            assert len(own) == kind.within_limit(len(own))
            if kind.parts and not (kind.max_cpus and len(own) >= kind.max_cpus):
                shares = [len(theirs) * part.divisor for part, (_, theirs) in zip(kind.parts, parts)]
                assert max(shares) - min(shares) <= max(part.divisor for part in kind.parts)


def test_the_parts_of_more_cpus_have_no_fewer() -> None:
    cpus = BalloonCpus(topology(EPYC_NPS1_1S), TYPES)
    for kind, number in ((TYPES[0], 0), (TYPES[1], 0), (TYPES[1], 1)):
        whole = cpus.composites.kind(kind, number)
        sizes = [cpus.shares(whole, count) for count in range(whole.within_limit(40) + 1)]
        assert all(sum(size) == count for count, size in enumerate(sizes))
        assert all(a <= b for less, more in zip(sizes, sizes[1:]) for a, b in zip(less, more))
