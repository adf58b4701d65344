"""Load classes: the cores, caches and larger domains that balloons with the same load do not share."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from policies.balloons.loads import Loads
from policies.balloons.types import LOAD_LEVELS, BalloonType, LoadClass
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from tests.machines import (
    ALL_MACHINES,
    ALTRA_1S,
    CACHE_IDS_ODD,
    E_CORES_1S,
    EPYC_NPS1_1S,
    HYGON_7285_2S,
    KUNPENG_64_2S,
    SNC_2S,
    VM_NO_CACHE_INFO,
)
from tests.policies.balloons.test_policy import Pools, asks
from tests.scenes import topology

BUSY = BalloonType("busy", namespaces=("db",), prefer_new_balloons=True, loads=("avx",))
QUIET = BalloonType("quiet", namespaces=("web",), prefer_new_balloons=True)


def avx(level: str, overloads: bool = False) -> tuple[LoadClass, ...]:
    return (LoadClass("avx", level, overloads),)


def owns(pools: Pools, count: int, request: int = 2, namespace: str = "db") -> list[str]:
    """The CPUs of as many new containers, each in a balloon of its own."""
    return [
        format_cpus(pools.put(asks(f"{namespace}{number}", request, namespace)).placement.exclusive)
        for number in range(count)
    ]


# ---------------------------------------------------------------------- which domains


@pytest.mark.parametrize(
    ("level", "overloads", "sets"),
    [
        ("core", False, ["0,64", "1,65", "2,66"]),
        ("core", True, ["0-1", "2-3", "4-5"]),
        ("l3cache", False, ["0,64", "4,68", "8,72"]),
        ("l3cache", True, ["0,4", "8,12", "16,20"]),
        ("numa", False, ["0,64", "8,72", "16,80"]),
        ("die", False, ["0,64", "8,72", "16,80"]),
        ("package", False, ["0,64", "32,96", "1,65"]),
    ],
)
def test_balloons_of_one_load_are_in_domains_of_their_own(
    level: str, overloads: bool, sets: list[str]
) -> None:
    assert owns(Pools(HYGON_7285_2S, BUSY, loads=avx(level, overloads)), 3) == sets


@pytest.mark.parametrize(
    ("where", "around"),
    [
        pytest.param(E_CORES_1S, "0-3", id="x86 tells L2s as clusters"),
        pytest.param(KUNPENG_64_2S, "0", id="Arm's clusters share no L2"),
        pytest.param(ALTRA_1S, "0", id="without an L3 neither"),
        pytest.param(HYGON_7285_2S, "0,64", id="the L2 is a core's"),
    ],
)
def test_an_l2_is_what_the_kernel_tells_of_it_or_a_cores(where: str, around: str) -> None:
    loads = Loads(topology(where), avx("l2cache"))
    assert format_cpus(loads.around("avx", parse_cpus("0"))) == around


def test_an_l3_that_holds_several_numa_nodes_is_one_and_without_l3s_the_node_is() -> None:
    for where, level in ((SNC_2S, "package"), (VM_NO_CACHE_INFO, "numa")):
        l3, wide = (
            Loads(topology(where), avx(name)).around("avx", parse_cpus("0")) for name in ("l3cache", level)
        )
        assert l3 == wide


def test_a_load_at_one_place_is_none_to_balloons_without_it() -> None:
    pools = Pools(HYGON_7285_2S, BUSY, QUIET, loads=avx("l3cache"))
    owns(pools, 1)
    assert owns(pools, 2, namespace="web") == ["1,65", "2,66"]


def test_two_loads_of_one_level_may_meet() -> None:
    light = BalloonType("light", namespaces=("web",), prefer_new_balloons=True, loads=("light",))
    classes = (*avx("core", overloads=True), LoadClass("light", "core", overloads=True))
    pools = Pools(EPYC_NPS1_1S, BUSY, light, loads=classes)
    (heavy,), (second,) = owns(pools, 1, request=4), owns(pools, 1, request=4, namespace="web")
    tree = pools.node.topology
    cores = [{tree.core_of[cpu] for cpu in parse_cpus(own)} for own in (heavy, second)]
    assert [len(each) for each in cores] == [4, 4]


def test_of_two_loads_the_first_counts_most() -> None:
    kind = replace(BUSY, loads=("memory", "avx"))
    memory = BalloonType("memory", namespaces=("memory",), prefer_new_balloons=True, loads=("memory",))
    classes = (LoadClass("memory", "package"), *avx("l3cache"))
    pools = Pools(
        HYGON_7285_2S, kind, memory, BalloonType("avx", namespaces=("avx",), loads=("avx",)), loads=classes
    )
    owns(pools, 1, namespace="memory")
    pools.put(asks("big", 60, "avx"))
    (own,) = owns(pools, 1)
    assert parse_cpus(own) <= topology(HYGON_7285_2S).at("socket")[1].cpus


def test_it_is_near_its_device_rather_than_apart_from_a_load_and_apart_there() -> None:
    device = "/sys/devices/system/node/node0"
    other = BalloonType("other", namespaces=("web",), prefer_close_to_devices=(device,), loads=("avx",))
    near = replace(BUSY, prefer_close_to_devices=(device,))
    pools = Pools(HYGON_7285_2S, near, other, loads=avx("l3cache"))
    assert owns(pools, 1, namespace="web") == ["0,64"]
    # Of the two L3s of the node first the other one, then those of the node all the same.
    assert owns(pools, 3) == ["4,68", "1,65", "5,69"]


def test_of_a_domain_that_it_has_one_cpu_of_that_is_one_without_its_other_loads() -> None:
    kind = replace(BUSY, loads=("memory", "avx"))
    other = BalloonType("other", namespaces=("web",), loads=("avx",), prefer_spread_on_physical_cores=True)
    classes = (LoadClass("memory", "package", overloads=True), *avx("core"))
    pools = Pools(CACHE_IDS_ODD, kind, other, loads=classes)
    (loading,), (own,) = owns(pools, 1, request=1, namespace="web"), owns(pools, 1, request=1)
    assert (loading, own) == ("0", "2")


# ---------------------------------------------------------------------- where that is not to be had


def test_where_every_domain_is_loaded_those_come_first_that_the_fewest_balloons_load() -> None:
    pools = Pools(EPYC_NPS1_1S, BUSY, loads=avx("l3cache"))
    l3s = pools.node.topology.at("l3")
    owns(pools, 2 * len(l3s))
    used = [len(domain.cpus & pools.node.exclusive) for domain in l3s]
    assert used == [4] * len(l3s)


def test_it_is_told_how_many_cpus_are_beside_the_load_of_others() -> None:
    pools = Pools(VM_NO_CACHE_INFO, BUSY, loads=avx("numa"))
    whys = [pools.put(asks(name, 2)).why for name in "abc"]
    assert ["beside" in why for why in whys] == [False, False, True]
    assert whys[-1].endswith("2 CPUs of NUMA node 0, 2 of them beside the load avx of others")


def test_a_balloon_that_is_too_large_for_what_is_not_loaded_takes_that_and_as_little_else_as_it_can() -> None:
    pools = Pools(VM_NO_CACHE_INFO, replace(BUSY, prefer_spread_on_physical_cores=True), loads=avx("core"))
    tree = pools.node.topology
    (first, second) = owns(pools, 2, request=3)
    beside = frozenset().union(*[tree.core_mates(cpu) for cpu in parse_cpus(first)])
    left = tree.online - parse_cpus(first)
    assert len(parse_cpus(second) & beside) == max(0, 3 - len(left - beside))


def test_what_is_set_aside_has_its_load_and_is_laid_out_by_it() -> None:
    waiting = BalloonType("waiting", min_balloons=2, min_cpus=2, loads=("avx",))
    pools = Pools(HYGON_7285_2S, BUSY, waiting, loads=avx("l3cache"))
    assert owns(pools, 1) == ["8,72"]


def test_a_balloon_grows_beside_itself_unless_it_overloads() -> None:
    for overloads, own in ((False, "0-1,64-65"), (True, "0-3")):
        pools = Pools(HYGON_7285_2S, replace(BUSY, prefer_new_balloons=False), loads=avx("core", overloads))
        assert owns(pools, 2)[-1] == own


def test_a_balloon_that_shrinks_leaves_the_domains_that_others_load() -> None:
    pools = Pools(HYGON_7285_2S, replace(BUSY, prefer_new_balloons=False), QUIET, loads=avx("l3cache", True))
    owns(pools, 3, request=8)
    whole = parse_cpus(pools.own("db0"))
    pools.remove("db0")
    l3s = [domain.cpus & parse_cpus(pools.own("db1")) for domain in pools.node.topology.at("l3")]
    assert len(whole) == 24 and max(map(len, l3s)) == 1


@pytest.mark.parametrize(
    ("level", "hides", "size"),
    [("core", False, 3), ("core", True, 4), ("l3cache", False, 3), ("l3cache", True, 4)],
)
def test_one_that_overloads_grows_by_cpus_unless_threads_are_hidden(
    level: str, hides: bool, size: int
) -> None:
    pools = Pools(HYGON_7285_2S, replace(BUSY, hide_hyperthreads=hides), loads=avx(level, overloads=True))
    own = pools.put(asks("a", 3)).placement.exclusive
    cores = {pools.node.topology.core_of[cpu] for cpu in own}
    assert (len(own), len(cores)) == (size, 2 if hides else 3)


def test_hidden_threads_load_no_core() -> None:
    pools = Pools(HYGON_7285_2S, replace(BUSY, hide_hyperthreads=True), loads=avx("core", True))
    decision = pools.put(asks("a", 4))
    assert format_cpus(decision.placement.exclusive) == "0-1,64-65"
    assert format_cpus(decision.placement.cpus) == "0-1"


def test_a_load_without_a_class_is_none() -> None:
    assert owns(Pools(HYGON_7285_2S, BUSY), 2) == ["0,64", "1,65"]


# ---------------------------------------------------------------------- the law


@pytest.mark.parametrize("where", ALL_MACHINES)
def test_on_nodes_as_containers_leave_them_no_more_cpus_are_beside_the_same_load_than_must_be(
    where: str,
) -> None:
    random = Random(where)
    for level in LOAD_LEVELS:
        pools = Pools(where, BUSY, QUIET, loads=avx(level))
        there: list[str] = []
        for number in range(12):
            if there and random.random() < 0.35:
                pools.remove(there.pop(random.randrange(len(there))))
                continue
            name, is_busy = f"c{number}", random.random() < 0.6
            container = asks(name, random.randint(1, 4), "db" if is_busy else "web")
            loads, node = Loads(pools.node.topology, avx(level)), pools.node
            before = {resident.group: resident.exclusive for resident in node.residents.values()}
            loaded = loads.around(
                "avx", NO_CPUS.union(*[c for g, c in before.items() if g.startswith("busy")])
            )
            idle = node.usable - NO_CPUS.union(*before.values())
            own = pools.put(container).placement.exclusive
            there.append(name)
            new = own - before.get(node.residents[name].group, NO_CPUS)
            if is_busy and node.residents[name].group not in before:
                assert len(new & loaded) == max(0, len(new) - len(idle - loaded)), (level, name)
