"""Every container's memory is in the books: its limit where it runs, or what it holds; and so none is promised twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.cli.placement_text import explain_text
from cri_proxy.engine.build import Machine, make_host
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host, ListedContainer, Management, zones_of
from cri_proxy.engine.report import explain, placement_row, zone_rows
from cri_proxy.engine.resync import Listing
from cri_proxy.engine.snapshot import everything, read_record, write_record
from cri_proxy.engine.state import SAME_BYTES, is_other_amount
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Topology
from policies.memory import MemoryCharge
from policies.model import Constraint, Container
from policies.reserved import reserve_memory
from policies.settings import PlacementSettings
from tests.config.configs import read
from tests.machines import CPULESS_MEMORY_NODE, GIB, HYGON_7285_2S, machine
from tests.scenes import constraint, engine_on, host_of, make_container, make_pod, run
from tests.told_at_once import resync

MIB = 1024**2


def seen(
    key: str, container: Container, mems: Optional[str] = None, held_mib: Optional[dict[int, int]] = None
) -> ListedContainer:
    held: Optional[MemoryCharge] = None
    if held_mib is not None:
        held = tuple((node, size * MIB) for node, size in held_mib.items())
    cpus = None if mems is None else parse_cpus("0-127")
    nodes = None if mems is None else parse_cpus(mems)
    return ListedContainer(key, container.pod.id, container.pod.uid, container.name, container.attempt, running=True,
                exited=False, cpus=cpus, mems=nodes, held=held)  # fmt: skip


def look(engine: Engine, *items: ListedContainer, **details: Container) -> None:
    resync(engine, Listing({s.id: s for s in items}, 100.0, details), 100.0)


def charged(engine: Engine) -> dict[int, float]:
    """GiB by node, without the nodes that are charged nothing."""
    sizes = {n: engine.node.memory_charged(n) / GIB for n in engine.node.topology.node_ids}
    return {n: size for n, size in sizes.items() if size}


BIG = make_container("big", limit=2, memory=16)
EVERYWHERE = dict.fromkeys(range(8), 2.0)


# ---------------------------------------------------------------------- containers with a limit


def test_a_container_that_is_found_is_charged_its_limit_where_it_runs(engine) -> None:
    look(engine, seen("big", BIG, "3"), big=BIG)
    assert engine.grants["big"].stance is Management.ADOPTED
    assert charged(engine) == {3: 16}


@pytest.mark.parametrize("mems", ["", "0-7"])
def test_without_memory_nodes_of_its_own_it_is_charged_on_all(engine, mems) -> None:
    look(engine, seen("big", BIG, mems), big=BIG)
    assert charged(engine) == EVERYWHERE


def test_what_was_pinned_is_charged_again_after_the_state_was_lost() -> None:
    before, after = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    large = make_container("large", limit=2, memory=50)
    mems = format_cpus(run(before, large, "large").placement.mems)
    look(after, seen("large", large, mems), large=large)
    assert charged(after) == charged(before) == {0: 50}
    # So the next one is not pinned to the node that is full.
    next_one = make_container("next", limit=2, memory=20)
    assert run(after, next_one, "next").placement.mems != {0}


STANCES = ["released", "opted out", "kubelet-exclusive", "untouched", "foreign"]


@pytest.mark.parametrize("stance", STANCES)
def test_whatever_its_stance_it_is_charged(stance) -> None:
    engine, container, within = engine_on(HYGON_7285_2S), BIG, Constraint()
    if stance == "opted out":
        container = replace(BIG, annotations={"cri-resmgr.io/manage": "false"})
    elif stance == "kubelet-exclusive":
        engine = engine_on(
            host_of(HYGON_7285_2S, kubelet_exclusive={(BIG.pod.uid, BIG.name): frozenset([4])})
        )
        within = constraint("4")
    elif stance == "untouched":
        within = constraint("900")
    run(engine, container, "big", within=within)
    if stance == "released":
        engine.release("big")
    elif stance == "foreign":
        grant = engine.grants["big"]
        engine.amend(replace(grant, stance=Management.FOREIGN, runs_on=grant.cpus))
    assert engine.grants["big"].stance.value == stance
    # At once on all nodes, and where it is found at the next comparison.
    assert charged(engine) == EVERYWHERE
    look(engine, seen("big", container, "5-6"))
    assert charged(engine) == {5: 8, 6: 8}
    assert engine.grants["big"].runs_on_mems == {5, 6}
    look(engine, seen("big", container, "6"))
    assert charged(engine) == {6: 16}
    engine.remove("big")
    assert charged(engine) == {}


def test_the_callers_memory_nodes_are_charged_before_the_first_comparison(engine) -> None:
    opted_out = replace(BIG, annotations={"cri-resmgr.io/manage": "false"})
    run(engine, opted_out, "big", within=constraint(mems="2"))
    assert charged(engine) == {2: 16}


def test_a_placed_container_is_charged_what_its_placement_says(engine) -> None:
    run(engine, BIG, "big")
    version = engine.version
    look(engine, seen("big", BIG, "0", {0: 100}))
    assert charged(engine) == {0: 16}
    assert engine.version > version  # its cpuset had been changed
    engine.drain()
    look(engine, seen("big", BIG, None, {0: 300}))
    assert not engine.drain()


def test_the_limit_of_a_resized_container_is_charged_anew(engine) -> None:
    look(engine, seen("big", BIG, "3"), big=BIG)
    now = engine.resize("big", replace(BIG.resources, memory_limit_bytes=24 * GIB), Constraint(), 101.0)
    assert now is not None
    engine.commit(now.ticket, 101.0)
    assert charged(engine) == {3: 24}


# ---------------------------------------------------------------------- containers without one

LOOSE = make_container("loose", limit=2)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_container_without_a_limit_is_charged_what_it_holds(engine, is_ours) -> None:
    if is_ours:
        run(engine, LOOSE, "loose")
    look(engine, seen("loose", LOOSE, "", {0: 1024, 4: 512}), loose=LOOSE)
    assert charged(engine) == {0: 1, 4: 0.5}
    look(engine, seen("loose", LOOSE, "", {0: 8192}))
    assert charged(engine) == {0: 8}
    look(engine, seen("loose", LOOSE, ""))  # it could not be read this time
    assert charged(engine) == {0: 8}
    engine.exited("loose", 1, 200.0)
    assert charged(engine) == {}


def test_a_limited_container_is_not_pinned_beside_one_that_holds_the_node(engine) -> None:
    look(engine, seen("loose", LOOSE, "", {0: 50 * 1024}), loose=LOOSE)
    assert run(engine, BIG, "big").placement.mems == {0, 1}


AMOUNTS = [
    # before and now in MiB by node, whether that is written down
    ({}, {}, False),
    ({}, {0: 1}, True),
    ({0: 100}, {0: 116}, False),
    ({0: 100}, {0: 117}, True),
    ({0: 100}, {0: 83}, True),
    ({0: 10_000}, {0: 10_499}, False),
    ({0: 10_000}, {0: 10_501}, True),
    ({0: 100}, {0: 100, 1: 16}, False),
    ({0: 100}, {0: 100, 1: 17}, True),
    ({0: 16}, {}, False),
]


@pytest.mark.parametrize(("before", "now", "is_other"), AMOUNTS)
def test_small_changes_of_what_is_held_are_none(before, now, is_other) -> None:
    assert SAME_BYTES == 16 * MIB
    was, is_now = (tuple((n, size * MIB) for n, size in sizes.items()) for sizes in (before, now))
    assert is_other_amount(was, is_now) is is_other


def test_a_comparison_that_finds_nothing_new_writes_nothing(engine) -> None:
    for held_mib, is_news in ((1000, True), (1020, False), (980, False), (1100, True), (1100, False)):
        look(engine, seen("loose", LOOSE, "0-7", {0: held_mib}), loose=LOOSE)
        assert bool(engine.drain()) is is_news, held_mib


# ---------------------------------------------------------------------- settings, restarts, what is shown


def test_where_memory_is_not_placed_nothing_is_charged() -> None:
    engine = engine_on(HYGON_7285_2S, PlacementSettings(memory="off"))
    look(engine, seen("big", BIG, "3"), seen("loose", LOOSE, "", {0: 1024}), big=BIG, loose=LOOSE)
    assert charged(engine) == {}
    # After a reload with it the next comparison finds what there is.
    here = engine_on(HYGON_7285_2S)
    engine.rehost(engine.host, here.policy)
    look(engine, seen("big", BIG, "3"), seen("loose", LOOSE, "", {0: 1024}))
    assert charged(engine) == {0: 1, 3: 16}


def test_a_restart_charges_the_same_and_moves_nothing() -> None:
    before = engine_on(HYGON_7285_2S)
    run(before, make_container("mine", limit=2, memory=40), "mine")
    look(
        before,
        seen("mine", BIG),
        seen("big", BIG, "3"),
        seen("loose", LOOSE, "", {0: 1024}),
        big=BIG,
        loose=LOOSE,
    )
    texts = [(kind, write_record(value)) for (kind, _), value in everything(before).items()]
    grants = [read_record(kind, text) for kind, text in texts if kind == "grant"]
    # Little is free now: what is placed stays where it is all the same.
    free = dict.fromkeys(range(8), 0)
    after = engine_on(replace(host_of(HYGON_7285_2S), free_memory=free))
    assert after.restore(grants, (), (), (), {}) == ()
    assert charged(after) == charged(before) == {0: 41, 3: 16}
    assert after.rehost(replace(after.host, free_memory={0: 1})) == ()
    assert charged(after) == charged(before)


def test_grants_of_an_older_daemon_are_charged_when_they_are_restored() -> None:
    before, after = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    look(before, seen("big", BIG, "3"), big=BIG)
    older = replace(before.grants["big"], runs_on_mems=NO_CPUS, memory_charge=())
    after.restore([older], (), (), (), {})
    assert charged(after) == EVERYWHERE


def test_free_memory_counts_from_when_it_is_told(engine) -> None:
    engine.note_free_memory({0: GIB})
    assert run(engine, BIG, "big").placement.mems == {1}
    engine.rehost(replace(host_of(HYGON_7285_2S), free_memory={0: 20 * GIB}))
    assert run(engine, make_container("b", limit=2, memory=16), "b").placement.mems == {0}


def test_placements_and_explain_tell_charge_and_room() -> None:
    data = replace(machine(HYGON_7285_2S), hugepages={3: {2 * MIB: 5 * 512}})
    engine = engine_on(replace(host_of(Topology(data)), free_memory={3: 7 * GIB}))
    look(engine, seen("big", BIG, "3"), big=BIG)
    assert placement_row(engine.host.topology, engine.grants["big"])["mems"] == "3"
    document = explain(engine, "big")
    assert document is not None
    [row] = document["containers"][0]["memory"]
    assert row == {
        "node": 3,
        "charged_bytes": 16 * GIB,
        "total_bytes": 64 * GIB,
        "hugepage_bytes": 5 * GIB,
        "room_bytes": 59 * GIB * 9 // 10 - 16 * GIB,
        "free_bytes": 7 * GIB,
    }
    text = explain_text(document)
    assert "  memory allocated: 16.0 GiB on NUMA node 3\n" in text
    line = "  memory of NUMA node 3: 16.0 of 64.0 GiB allocated, room for 37.1 GiB, 5.0 GiB are huge pages; 7.0 GiB free now"
    assert line in text.splitlines()


# ---------------------------------------------------------------------- limits of pods


def test_a_pods_limit_in_each_of_its_containers_is_charged_once_also_where_they_are_found(engine) -> None:
    pod = replace(make_pod("shared"), memory_limit_bytes=16 * GIB)
    a, b = make_container("a", limit=2, memory=16, pod=pod), make_container("b", limit=2, memory=16, pod=pod)
    look(engine, seen("a", a, "3"), seen("b", b, "3"), a=a, b=b)
    assert charged(engine) == {3: 16}
    engine.remove("a")
    assert charged(engine) == {3: 16}


def test_a_pods_new_limit_is_that_of_its_containers(engine) -> None:
    pod = replace(make_pod("shared"), memory_limit_bytes=16 * GIB)
    engine.add_pod(pod)
    for name in ("a", "b"):
        run(engine, make_container(name, limit=2, memory=16, pod=pod), name)
    assert charged(engine) == {0: 16}
    engine.resize_pod(pod.id, None, 20 * GIB, 0.0)
    for name in ("a", "b"):
        resources = replace(engine.grants[name].container.resources, memory_limit_bytes=20 * GIB)
        admission = engine.resize(name, resources, Constraint(), 5.0)
        assert admission is not None
        engine.commit(admission.ticket, 5.0)
    assert charged(engine) == {0: 20}
    assert engine.pods[pod.id].memory_limit_bytes == 20 * GIB


# ---------------------------------------------------------------------- memory kept for the system


def host_with(size: str, where: str = HYGON_7285_2S) -> Host:
    config = read(f"policy.ReservedResources.Memory: {size}").config
    return make_host(config, Machine(Topology(machine(where))))[0]


def test_reserved_memory_is_no_room_for_limits_and_each_node_gives_its_part() -> None:
    engine = engine_on(host_with("80Gi"))
    # Of 64 GiB each node keeps 10 free of limits, and limits fill 90 % of the rest: 48.6 GiB.
    assert run(engine, make_container("most", limit=2, memory=48), "a").placement.mems == {0}
    assert run(engine, make_container("more", limit=2, memory=49), "b").placement.mems == {0, 1}
    assert sum(charged(engine).values()) == 48 + 49 and charged(engine)[0] <= 48.6
    rows = zone_rows(engine.node, zones_of(engine.host.topology))
    told = {row["name"]: row["memory_allocatable_bytes"] for row in rows if row["type"] == "Node"}
    assert told["node-0"] == 54 * GIB * 9 // 10


def test_reserved_memory_comes_from_nodes_with_cpus_by_their_size() -> None:
    data = replace(machine(CPULESS_MEMORY_NODE), memory={0: 30 * GIB, 1: 10 * GIB, 2: 90 * GIB})
    assert reserve_memory(Topology(data), 4 * GIB) == {0: 3 * GIB, 1: GIB}
    assert reserve_memory(Topology(data), 999 * GIB) == {0: 30 * GIB, 1: 10 * GIB}
    assert reserve_memory(Topology(data), 0) == reserve_memory(Topology(replace(data, memory={})), GIB) == {}


def test_memory_that_is_all_reserved_is_told_and_limits_still_get_nodes() -> None:
    config = read("policy.ReservedResources.Memory: 512Gi").config
    host, warnings = make_host(config, Machine(Topology(machine(HYGON_7285_2S))))
    assert warnings[-1].startswith("policy.ReservedResources.Memory is all of the machine's memory or more")
    assert run(engine_on(host), make_container("any", limit=2, memory=1), "a").placement.mems


def test_a_reload_that_reserves_memory_leaves_what_is_charged_and_makes_less_room() -> None:
    engine = engine_on(HYGON_7285_2S)
    run(engine, make_container("a", limit=2, memory=50), "a")
    assert engine.rehost(host_with("80Gi")) == ()
    assert charged(engine) == {0: 50}
    assert run(engine, make_container("b", limit=2, memory=1), "b").placement.mems == {0, 1}
    assert charged(engine) == {0: 50, 1: 1}
