"""Which CPUs a balloon has: what is set aside, what is taken last, what lies near a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.balloons.cpus import BalloonCpus
from policies.balloons.types import BalloonType
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import RESOURCES, Container, Hint, PlacementPreferences
from tests.machines import (
    CPULESS_MEMORY_NODE,
    HYGON_7285_2S,
    OFFLINE_CPUS,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
    machine,
)
from tests.policies.balloons.test_policy import Pools, asks
from tests.scenes import node_of, topology

DB = BalloonType("db", namespaces=("db",))
WEB = BalloonType("web", namespaces=("web",))


def cpus_on(name: str, *types: BalloonType) -> BalloonCpus:
    return BalloonCpus(topology(name), types)


# ---------------------------------------------------------------------- set aside


def test_balloons_of_the_start_have_cpus_by_priority_then_by_the_order_of_the_list() -> None:
    first = replace(WEB, min_balloons=1, min_cpus=8, allocator_priority=1)
    second = replace(DB, min_balloons=2, min_cpus=4)
    aside = cpus_on(HYGON_7285_2S, first, second).set_aside(node_of(HYGON_7285_2S, reserved="0,64"))
    assert {name: format_cpus(cpus) for name, cpus in aside.items()} == {
        "db[0]": "1-2,65-66",
        "db[1]": "4-5,68-69",
        "web[0]": "8-11,72-75",
    }


def test_what_is_set_aside_is_taken_by_others_only_when_nothing_else_is_left() -> None:
    pools = Pools(VM_NO_CACHE_INFO, replace(DB, min_balloons=1, min_cpus=2), WEB)
    assert format_cpus(pools.put(asks("w", 2, "web")).placement.cpus) == "2-3"
    assert format_cpus(pools.put(asks("v", 4, "web")).placement.cpus) == "2-7"
    assert pools.put(asks("u", 1, "web")).placement.cpus > parse_cpus("2-7")


def test_a_balloon_of_the_start_begins_on_its_cpus_and_goes_back_to_nothing() -> None:
    pools = Pools(HYGON_7285_2S, replace(DB, min_balloons=1, min_cpus=4), WEB)
    pools.put(asks("w", 2, "web"))
    assert format_cpus(pools.put(asks("a", 1)).placement.cpus) == "0-1,64-65"
    pools.remove("a")
    assert pools.own("w") == format_cpus(pools.node.exclusive)


# ---------------------------------------------------------------------- growing


@pytest.mark.parametrize(
    ("have", "count", "cpus"),
    [
        pytest.param("", 8, "0-3,64-67", id="one CCX"),
        pytest.param("8-9", 4, "8-9,72-73", id="the siblings first"),
        pytest.param("8-11,72-75", 10, "8-12,72-76", id="the other CCX of its node"),
        pytest.param("0-7,64-71", 18, "0-8,64-72", id="the next node of its socket"),
        pytest.param("0-3", 2, "0-3", id="never fewer than it has"),
    ],
)
def test_growing(have: str, count: int, cpus: str) -> None:
    where = cpus_on(HYGON_7285_2S, DB)
    free = topology(HYGON_7285_2S).online
    assert format_cpus(where.grown(DB, parse_cpus(have), count, free)) == cpus


def test_a_balloon_gets_what_there_is_where_that_is_less_than_wanted() -> None:
    assert format_cpus(cpus_on(UNEVEN_CCX, DB).grown(DB, NO_CPUS, 9, parse_cpus("1,5-6"))) == "1,5-6"


def test_one_thread_of_many_cores() -> None:
    kind = replace(DB, prefer_spread_on_physical_cores=True)
    grown = cpus_on(HYGON_7285_2S, kind).grown(kind, NO_CPUS, 4, topology(HYGON_7285_2S).online)
    assert len({topology(HYGON_7285_2S).core_of[cpu] for cpu in grown}) == 4


def test_isolated_cpus_are_taken_last_by_types_that_do_not_prefer_them() -> None:
    where, online = cpus_on(OFFLINE_CPUS, DB), topology(OFFLINE_CPUS).online
    assert where.grown(DB, NO_CPUS, len(online) - 2, online) == online - {3, 35}
    assert where.grown(DB, NO_CPUS, len(online), online) == online


def test_isolated_cpus_and_others_where_the_isolated_ones_are_too_few() -> None:
    kind = replace(DB, prefer_isolated_cpus=True)
    grown = cpus_on(OFFLINE_CPUS, kind).grown(kind, NO_CPUS, 4, topology(OFFLINE_CPUS).online)
    assert grown > {3, 35}


def test_shrinking_keeps_whole_ccxs() -> None:
    where = cpus_on(HYGON_7285_2S, DB)
    assert format_cpus(where.shrunk(DB, parse_cpus("0-4,64-68"), 8)) == "0-3,64-67"


def test_shrinking_keeps_what_must_stay() -> None:
    where = cpus_on(HYGON_7285_2S, DB)
    assert where.shrunk(DB, parse_cpus("0-4,64-68"), 2, parse_cpus("68")) > {68}


# ---------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("device", "node"),
    [
        pytest.param("0000:41:00.0", 3, id="a PCI address"),
        pytest.param("/sys/bus/pci/devices/0000:a1:00.0", 6, id="its path"),
        pytest.param("/sys/devices/system/node/node5", 5, id="a NUMA node"),
        pytest.param("/sys/devices/system/cpu/cpu17/cache/index3", 2, id="a cache"),
    ],
)
def test_a_balloon_is_near_its_device_and_others_are_far_from_it(device: str, node: int) -> None:
    pools = Pools(HYGON_7285_2S, replace(DB, prefer_close_to_devices=(device,)), WEB)
    tree = pools.node.topology
    assert tree.nodes_of(pools.put(asks("a", 2)).placement.cpus) == {node}
    others = pools.put(asks("w", 112, "web")).placement.cpus
    assert node not in tree.nodes_of(others)


def test_a_device_that_is_not_there_is_as_if_not_named() -> None:
    pools = Pools(HYGON_7285_2S, replace(DB, prefer_close_to_devices=("0000:ff:00.0",)), WEB)
    assert format_cpus(pools.put(asks("a", 2)).placement.cpus) == "0,64"
    assert format_cpus(pools.put(asks("w", 2, "web")).placement.cpus) == "1,65"


def test_the_first_device_counts_more_than_the_second() -> None:
    kind = replace(DB, prefer_close_to_devices=("0000:41:00.0", "0000:03:00.0"))
    pools = Pools(HYGON_7285_2S, kind)
    assert pools.node.topology.nodes_of(pools.put(asks("a", 16)).placement.cpus) == {3}


GPU = replace(DB, prefer_new_balloons=True, prefer_close_to_devices=("podresourceapi:nvidia.com/gpu",))


def with_devices(container: Container, **nodes: int) -> Container:
    """``nodes``: by name of the vendor, whose device is a gpu."""
    hints = [Hint(RESOURCES, f"{vendor}.com/gpu", frozenset([node])) for vendor, node in nodes.items()]
    return replace(container, hints=tuple(hints))


@pytest.mark.parametrize(
    ("devices", "node"),
    [
        pytest.param(("podresourceapi:nvidia.com/gpu",), 5, id="a resource"),
        pytest.param(("podresourceapi:nvidia.com/*",), 5, id="a glob"),
        pytest.param(("podresourceapi:*/gpu", "0000:03:00.0"), 5, id="before a device"),
        pytest.param(("0000:41:00.0", "podresourceapi:*/gpu"), 3, id="after a device"),
        pytest.param(("podresourceapi:amd.com/gpu", "0000:41:00.0"), 3, id="of which it has no device"),
        pytest.param(("podresourceapi:amd.com/gpu",), 0, id="only such"),
    ],
)
def test_a_new_balloon_is_near_the_device_that_its_container_was_given(
    devices: tuple[str, ...], node: int
) -> None:
    pools = Pools(HYGON_7285_2S, replace(GPU, prefer_close_to_devices=devices))
    tree = pools.node.topology
    placed = pools.put(with_devices(asks("a", 2), nvidia=5)).placement.cpus
    assert tree.nodes_of(placed) == {node}
    # It is the container's device, not the type's: another has another.
    assert tree.nodes_of(pools.put(with_devices(asks("b", 2), nvidia=2)).placement.cpus) == {
        2 if node == 5 else node
    }


def test_a_device_near_a_node_that_there_is_not_or_without_cpus_is_near_the_next_best() -> None:
    pools = Pools(HYGON_7285_2S, GPU)
    assert pools.put(with_devices(asks("a", 2), nvidia=99)).placement.cpus
    data = replace(machine(CPULESS_MEMORY_NODE), distance=((10, 21, 24), (21, 10, 14), (24, 14, 10)))
    tree = Topology(data)
    near = BalloonCpus(tree, (GPU,)).grown(
        GPU, NO_CPUS, 2, tree.online, container=with_devices(asks("a", 2), nvidia=2)
    )
    assert tree.nodes_of(near) == {1}


def test_only_containers_of_types_that_name_resources_have_kubelet_asked() -> None:
    both = BalloonType("both", namespaces=("both",), components=("db", "web"))
    pools = Pools(HYGON_7285_2S, GPU, WEB, both)
    asked = {
        of: pools.policy.asks_kubelet(pools.node, asks("a", 1, of)) for of in ("db", "web", "both", "other")
    }
    assert asked == {"db": True, "web": False, "both": True, "other": False}
    # And the part that names it is near the device.
    placed = pools.put(with_devices(asks("c", 4, "both"), nvidia=5)).placement.cpus
    assert 5 in pools.node.topology.nodes_of(placed)
    unknown = asks("a", 1, preferences=PlacementPreferences(balloon="none"))
    assert not pools.policy.asks_kubelet(pools.node, unknown)


# ---------------------------------------------------------------------- types of cores

#: As of a laptop: four fast cores with two threads each, eight slow ones with one.
FAST_CORES, SLOW_CORES = parse_cpus("0-7"), parse_cpus("8-15")
HYBRID = Topology(
    TopologyData(
        cpus=tuple(Cpu(cpu, cpu // 2 * 2 if cpu < 8 else cpu, 0, 0, 0, 0) for cpu in range(16)),
        core_types={"performance": FAST_CORES, "efficient": SLOW_CORES},
    )
)
FAST = replace(DB, prefer_core_type="performance")
SLOW = replace(WEB, prefer_core_type="efficient")


@pytest.mark.parametrize(
    ("kind", "count", "cpus"),
    [
        pytest.param(FAST, 4, "0-3", id="fast ones"),
        pytest.param(SLOW, 4, "8-11", id="slow ones"),
        pytest.param(FAST, 10, "0-9", id="all fast ones, and others"),
        pytest.param(SLOW, 12, "0-3,8-15", id="all slow ones, and others"),
        pytest.param(replace(FAST, hide_hyperthreads=True), 12, "0-11", id="where threads are hidden"),
        pytest.param(replace(FAST, name="plain", prefer_core_type=""), 6, "0-5", id="as ever, of any"),
    ],
)
def test_cores_of_the_preferred_type_come_first(kind: BalloonType, count: int, cpus: str) -> None:
    where = BalloonCpus(HYBRID, (kind,))
    assert format_cpus(where.grown(kind, NO_CPUS, count, HYBRID.online)) == cpus


def test_balloons_of_other_types_leave_preferred_cores_to_those_that_prefer_them() -> None:
    plain = BalloonType("plain")
    assert BalloonCpus(HYBRID, (FAST, plain)).grown(plain, NO_CPUS, 4, HYBRID.online) <= SLOW_CORES
    assert BalloonCpus(HYBRID, (SLOW, plain)).grown(plain, NO_CPUS, 4, HYBRID.online) <= FAST_CORES
    assert len(BalloonCpus(HYBRID, (FAST, plain)).grown(plain, NO_CPUS, 12, HYBRID.online)) == 12


def test_a_balloon_gives_back_the_cores_that_it_does_not_prefer() -> None:
    where = BalloonCpus(HYBRID, (SLOW, FAST))
    assert where.shrunk(FAST, parse_cpus("4-11"), 4) == parse_cpus("4-7")
    assert where.shrunk(SLOW, parse_cpus("4-11"), 4) == parse_cpus("8-11")
    assert where.shrunk(SLOW, parse_cpus("4-11"), 6) > parse_cpus("8-11")


@given(have=st.frozensets(st.sampled_from(sorted(HYBRID.online))), free=st.frozensets(st.integers(0, 15)),
       count=st.integers(1, 16), kind=st.sampled_from([FAST, SLOW]), hides=st.booleans())  # fmt: skip
def test_whatever_is_free_a_preference_for_cores_gives_no_fewer_cpus(
    have: frozenset[int], free: frozenset[int], count: int, kind: BalloonType, hides: bool
) -> None:
    kind = replace(kind, hide_hyperthreads=hides)
    plain = replace(kind, prefer_core_type="")
    found = BalloonCpus(HYBRID, (kind,)).grown(kind, have, count, free - have)
    assert have <= found <= have | free
    assert len(found) == len(BalloonCpus(HYBRID, (plain,)).grown(plain, have, count, free - have))
    if not hides and count > len(have):
        mine = HYBRID.data.core_types[kind.prefer_core_type]
        assert found - have <= mine or free & mine <= found


@pytest.mark.parametrize("name", [HYGON_7285_2S, UNEVEN_CCX, OFFLINE_CPUS])
def test_on_a_machine_whose_cores_are_alike_a_preference_for_some_changes_nothing(name: str) -> None:
    assert not topology(name).data.core_types
    for count in (2, 5, 12):
        grown = [
            cpus_on(name, kind).grown(kind, NO_CPUS, count, topology(name).online) for kind in (FAST, DB)
        ]
        assert grown[0] == grown[1]


# ---------------------------------------------------------------------- idle CPUs around a balloon


@pytest.mark.parametrize(
    ("level", "home"),
    [
        pytest.param("", "0", id="off"),
        pytest.param("core", "0,64", id="core"),
        pytest.param("l3cache", "0-3,64-67", id="l3cache"),
        pytest.param("numa", "0-7,64-71", id="numa"),
        pytest.param("die", "0-7,64-71", id="die"),
        pytest.param("package", "0-31,64-95", id="package"),
        pytest.param("system", "0-127", id="system"),
    ],
)
def test_where_idle_cpus_are_shared(level: str, home: str) -> None:
    kind = replace(DB, share_idle_cpus_in_same=level)
    where = cpus_on(HYGON_7285_2S, kind)
    assert format_cpus(where.home(node_of(HYGON_7285_2S), kind, parse_cpus("0"))) == home


def test_without_cache_information_the_numa_node_stands_for_the_l3() -> None:
    kind = replace(DB, share_idle_cpus_in_same="l3cache")
    where = cpus_on(VM_NO_CACHE_INFO, kind)
    assert format_cpus(where.home(node_of(VM_NO_CACHE_INFO), kind, parse_cpus("0"))) == "0-3"


def test_reserved_and_set_aside_cpus_are_not_idle() -> None:
    kind = replace(DB, share_idle_cpus_in_same="system")
    where = cpus_on(VM_NO_CACHE_INFO, kind, replace(WEB, min_balloons=1, min_cpus=2))
    node = node_of(VM_NO_CACHE_INFO, reserved="7")
    assert format_cpus(where.set_aside(node)["web[0]"]) == "4-5"
    assert format_cpus(where.home(node, kind, parse_cpus("0"))) == "0-3,6"
