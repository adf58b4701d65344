"""A node's NodeResourceTopology, held against what the scheduler's plugin does with it (scheduler.py here)."""

from __future__ import annotations

import json
import random
from typing import Any, Optional

import pytest

from cluster.topology.resource_topology import (
    WITHHELD,
    TopologyManager,
    node_resource_topology,
    why_not_single_numa_node,
)
from cri_proxy.engine.engine import Engine
from policies.balloons.policy import Balloons
from policies.balloons.types import BalloonSettings, BalloonType
from policies.model import PlacementPreferences, PlacementRefused, Qos
from policies.settings import PlacementSettings
from tests import machines
from tests.cluster.topology.crd import SCHEMA, problems
from tests.cluster.topology.reports import report_of
from tests.cluster.topology.scheduler import (
    OverReserve,
    Pod,
    amounts,
    filtered,
    least_numa_score,
    numa_nodes,
    quantity,
    settings,
)
from tests.scenes import HYGON, TOPOLOGY_AWARE, engine_on, make_container, make_pod, run, topology

HYGON_TREE = topology(machines.HYGON_7285_2S)
REQUIRE = PlacementPreferences(numa="require")
SINGLE = TopologyManager("single-numa-node", "container")
SINGLE_POD = TopologyManager("single-numa-node", "pod")


def nrt_of(engine: Engine, kubelet: Optional[TopologyManager] = SINGLE, **options: Any) -> dict[str, Any]:
    made = node_resource_topology("n1", report_of(engine), kubelet, **options)
    assert made is not None
    return made


def attributes(nrt: dict[str, Any]) -> dict[str, str]:
    return {attribute["name"]: attribute["value"] for attribute in nrt["attributes"]}


def guaranteed(name: str, cpus: float, gib: int = 1, preferences: PlacementPreferences = REQUIRE) -> Any:
    pod = make_pod(name)
    return make_container("app", limit=cpus, qos=Qos.GUARANTEED, memory=gib, preferences=preferences, pod=pod)


# ---------------------------------------------------------------------- the object


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_the_object_of_any_machine_is_one_that_an_api_server_takes(name: str) -> None:
    nrt = nrt_of(engine_on(name), owners=[{"kind": "NodePlacement", "name": "n1", "uid": "u"}])
    assert problems(nrt, SCHEMA) == []
    assert (nrt["apiVersion"], nrt["kind"]) == ("topology.node.k8s.io/v1alpha2", "NodeResourceTopology")
    assert nrt["metadata"]["name"] == "n1" and nrt["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert json.loads(json.dumps(nrt)) == nrt


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_zones_that_schedulers_index_by_their_number_are_in_order_and_have_every_amount(name: str) -> None:
    nodes = numa_nodes(nrt_of(engine_on(name)))
    assert [node.id for node in nodes] == list(range(len(nodes)))
    assert nodes and all("cpu" in node.resources for node in nodes)


@pytest.mark.parametrize("name", machines.ALL_MACHINES)
def test_for_each_amount_available_is_within_allocatable_and_that_within_capacity(name: str) -> None:
    engine = engine_on(name)
    run(engine, make_container("app", limit=1, request=0.5, memory=1), "aa1")
    for zone in nrt_of(engine)["zones"]:
        for row in zone.get("resources", []):
            sizes = [quantity(row[size]) for size in ("available", "allocatable", "capacity")]
            assert sizes == sorted(sizes), (zone["name"], row)


def test_costs_are_the_kernels_distances_to_every_numa_node() -> None:
    nodes = numa_nodes(nrt_of(engine_on(machines.HYGON_7285_2S)))
    assert nodes[0].costs == {0: 10, 1: 16, 2: 16, 3: 16, 4: 28, 5: 28, 6: 28, 7: 28}
    assert all(set(node.costs) == set(range(8)) for node in nodes)


def test_balloons_whose_types_ask_for_it_are_zones_with_their_containers() -> None:
    types = (
        BalloonType("db", namespaces=("db",), show_containers_in_nrt=True, share_idle_cpus_in_same="l3cache"),
        BalloonType("web", namespaces=("web",)),
    )
    settings = PlacementSettings(balloons=BalloonSettings(types))
    engine = engine_on(HYGON_TREE, policy=Balloons(HYGON_TREE, settings))
    for name, namespace, limit in (("a", "db", 3), ("b", "db", None), ("c", "web", 2)):
        pod = make_pod(name, namespace=namespace)
        run(engine, make_container("app", request=1, limit=limit, memory=1, pod=pod), name)
    nrt = nrt_of(engine)
    assert problems(nrt, SCHEMA) == []
    zones = {zone["name"]: zone for zone in nrt["zones"] if zone["type"] not in ("Node", "L3")}
    assert list(zones) == ["db[0]", "db/a/app", "db/b/app"]
    assert {a["name"]: a["value"] for a in zones["db[0]"]["attributes"]} == {
        "cpuset": "0,64",
        "shared cpuset": "2-3,66-67",
        "excess cpus": "0",
    }
    of = zones["db/a/app"]
    assert (of["type"], of["parent"]) == ("allocation for container", "db[0]")
    assert {a["name"]: a["value"] for a in of["attributes"]} == {
        "cpuset": "0,2-3,64,66-67",
        "memory set": "0",
    }
    amounts_of = ("capacity", "allocatable", "available")
    assert [of["resources"][0][size] for size in amounts_of] == ["3", "1", "0"]
    assert [zones["db/b/app"]["resources"][0][size] for size in amounts_of] == ["6", "1", "0"]


def test_a_composite_balloon_tells_the_cpus_of_its_parts_in_their_words() -> None:
    kinds = (
        BalloonType("both", namespaces=("db",), components=("a", "b"), show_containers_in_nrt=True),
        BalloonType("a", prefer_close_to_devices=("/sys/devices/system/node/node0",)),
        BalloonType("b", prefer_close_to_devices=("/sys/devices/system/node/node4",)),
    )
    settings = PlacementSettings(balloons=BalloonSettings(kinds))
    engine = engine_on(HYGON_TREE, policy=Balloons(HYGON_TREE, settings))
    run(engine, make_container("app", request=4, pod=make_pod("a", namespace="db")), "aa1")
    zone = next(zone for zone in nrt_of(engine)["zones"] if zone["name"] == "both[0]")
    values = {a["name"]: a["value"] for a in zone["attributes"]}
    assert values["component cpusets"] == "{{0,64}, {32,96}}"


def test_the_zones_of_balloons_are_those_of_a_bounded_number_of_containers() -> None:
    report = report_of(engine_on(machines.HYGON_7285_2S))
    row = {"namespace": "n", "container": "c", "cpus": "0", "mems": "0", "milli_cpus": 1, "milli_limit": 0}
    row |= {"qos": "burstable", "balloon": "db[0]", "balloon_cpus": "0"}
    report["placements"] = [{**row, "pod": f"p{number}"} for number in range(5000)]
    made = node_resource_topology("n1", report)
    assert made is not None and len(json.dumps(made)) < 1_000_000


def test_l3s_are_zones_inside_of_their_node_that_a_scheduler_passes_over() -> None:
    engine = engine_on(machines.HYGON_7285_2S, settings=TOPOLOGY_AWARE)
    run(engine, guaranteed("own", 2), "aa1")
    nrt = nrt_of(engine)
    first = next(zone for zone in nrt["zones"] if zone["name"] == "l3-0")
    assert first["parent"] == "node-0" and "resources" not in first
    assert {a["name"]: a["value"] for a in first["attributes"]} == {
        "cpuset": "0-3,64-67",
        "free": "6",
        "shared": "1-3,65-67",
    }
    assert len(numa_nodes(nrt)) == 8


def test_a_memory_only_node_and_an_absent_one_are_zones_with_nothing_allocatable() -> None:
    report = report_of(engine_on(machines.CPULESS_MEMORY_NODE))
    machine = report["machine"]["numa_nodes"]
    assert not machine[-1]["cpus"], "the last NUMA node of this machine has memory alone"
    machine[-1]["id"] += 1  # and the number before it is nobody's
    made = node_resource_topology("n1", report, SINGLE)
    assert made is not None
    *_, absent, memory_only = numa_nodes(made)
    assert absent.resources == amounts(cpu="0", memory="0") == memory_only.resources
    small = Pod("small", (amounts(cpu="1", memory="1Gi"),))
    assert filtered(small, made) == "" and least_numa_score(small, made) > 0


def test_of_more_nodes_than_a_mask_has_bits_the_first_64_are_told_of() -> None:
    report = report_of(engine_on(machines.HYGON_7285_2S))
    row = report["machine"]["numa_nodes"][0]
    report["machine"]["numa_nodes"] = [
        {**row, "id": i, "distances": {str(j): 10 for j in range(70)}} for i in range(70)
    ]
    made = node_resource_topology("n1", report)
    assert made is not None
    nodes = numa_nodes(made)
    assert [node.id for node in nodes] == list(range(64)) and set(nodes[0].costs) == set(range(64))
    assert settings(made).most_numa_nodes == 64


def test_without_a_machine_there_is_no_object() -> None:
    assert node_resource_topology("n1", {"machine": None, "zones": [], "placements": []}) is None


def test_noise_in_what_containers_hold_is_no_change() -> None:
    report = report_of(engine_on(machines.HYGON_7285_2S))
    for zone in report["zones"]:
        if zone["type"] == "Node":
            zone["memory_free_bytes"] = 10 * machines.GIB + 5_000_000
    before = node_resource_topology("n1", report)
    report["zones"][2]["memory_free_bytes"] += 12_345_678
    assert node_resource_topology("n1", report) == before


# ---------------------------------------------------------------------- what kubelet is set to


@pytest.mark.parametrize(
    ("kubelet", "policy", "scope"),
    [
        (TopologyManager(), "none", "container"),
        (TopologyManager("restricted", "pod"), "restricted", "pod"),
        (SINGLE_POD, "single-numa-node", "pod"),
    ],
)
def test_what_kubelet_is_set_to_is_said_in_its_words(
    kubelet: TopologyManager, policy: str, scope: str
) -> None:
    found = attributes(nrt_of(engine_on(machines.HYGON_7285_2S), kubelet))
    assert (found["topologyManagerPolicy"], found["topologyManagerScope"]) == (policy, scope)


def test_of_a_kubelet_that_is_not_known_nothing_is_said() -> None:
    assert "topologyManagerPolicy" not in attributes(nrt_of(engine_on(machines.HYGON_7285_2S), None))


@pytest.mark.parametrize("kubelet", [None, TopologyManager(), TopologyManager("restricted")])
def test_only_single_numa_node_keeps_a_pod_away(kubelet: Optional[TopologyManager]) -> None:
    huge = Pod("huge", (amounts(cpu="100", memory="900Gi"),))
    engine = engine_on(machines.HYGON_7285_2S)
    assert filtered(huge, nrt_of(engine, kubelet)) == ""
    assert filtered(huge, nrt_of(engine, SINGLE)) == "cannot align container"


# ---------------------------------------------------------------------- which pods are kept away


#: On a two-socket Hygon (8 NUMA nodes of 16 CPUs and 64 GiB) with 12 CPUs of each node taken.
CASES = [
    ("fits one NUMA node", Pod("p", (amounts(cpu="4", memory="8Gi"),)), "", ""),
    ("a thousandth too much", Pod("p", (amounts(cpu="4001m", memory="8Gi"),)), "container", "pod"),
    ("memory of two nodes", Pod("p", (amounts(cpu="1", memory="65Gi"),)), "container", "pod"),
    ("containers in a node each", Pod("p", (amounts(cpu="3", memory="1Gi"),) * 3), "", "pod"),
    ("more containers than fit", Pod("p", (amounts(cpu="3", memory="1Gi"),) * 9), "container", "pod"),
    ("an init container too large", Pod("p", (amounts(cpu="1"),), (amounts(cpu="5"),)), "init", "pod"),
    ("init containers run in turn", Pod("p", (amounts(cpu="4"),), (amounts(cpu="4"),) * 3), "", ""),
    ("BestEffort", Pod("p", ({},), qos="BestEffort"), "", ""),
    ("Burstable is not compared", Pod("p", (amounts(cpu="60", memory="300Gi"),), qos="Burstable"), "", ""),
    ("nothing of a resource", Pod("p", (amounts(cpu="1", hugepages_1Gi="0"),)), "", ""),
    ("storage has no NUMA node", Pod("p", (amounts(cpu="1", ephemeral_storage="1Gi"),)), "", ""),
    ("huge pages are in no zone", Pod("p", (amounts(cpu="1", hugepages_1Gi="1Gi"),)), "container", "pod"),
]


@pytest.mark.parametrize(("pod", "by_container", "by_pod"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_pod_is_kept_away_where_no_numa_node_has_what_it_asks_for(
    pod: Pod, by_container: str, by_pod: str
) -> None:
    engine = engine_on(machines.HYGON_7285_2S)
    for number in range(8):
        run(engine, guaranteed(f"taken-{number}", 12), f"a{number}")
    reasons = {"container": "cannot align container", "init": "cannot align init container", "": ""}
    assert filtered(pod, nrt_of(engine, SINGLE)) == reasons[by_container]
    assert filtered(pod, nrt_of(engine, SINGLE_POD)) == (f"cannot align {by_pod}" if by_pod else "")


@pytest.mark.parametrize("ownership", [HYGON, TOPOLOGY_AWARE], ids=["hygon", "topology-aware"])
@pytest.mark.parametrize(
    "name", [machines.HYGON_7285_2S, machines.MONOLITHIC_2S, machines.SNC_2S, machines.EPYC_NPS1_1S]
)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_scheduler_lets_through_the_daemon_places_in_one_numa_node(
    name: str, ownership: PlacementSettings, seed: int
) -> None:
    some = random.Random(seed)
    engine = engine_on(name, settings=ownership)
    let_through = kept_away = 0
    for number in range(60):
        cpus, gib = some.choice((0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)), some.choice((1, 2, 4, 8, 16))
        pod = Pod(f"p{number}", (amounts(cpu=str(cpus), memory=f"{gib}Gi"),))
        if filtered(pod, nrt_of(engine)):
            kept_away += 1
            continue
        let_through += 1
        run(engine, guaranteed(pod.name, cpus, gib), f"a{number}")  # raises where it is refused
        row = next(row for row in report_of(engine)["placements"] if row["pod"] == pod.name)
        assert row["zone"].startswith(("node-", "l3-"))
    assert let_through and kept_away


def test_a_container_that_fits_nowhere_is_refused_by_the_daemon_too() -> None:
    engine = engine_on(machines.HYGON_7285_2S)
    assert filtered(Pod("wide", (amounts(cpu="17", memory="1Gi"),)), nrt_of(engine))
    with pytest.raises(PlacementRefused):
        run(engine, guaranteed("wide", 17), "aa1")


def test_fewer_numa_nodes_score_higher_and_more_than_eight_keep_scores_above_zero() -> None:
    nrt = nrt_of(engine_on(machines.HYGON_7285_2S), None)
    narrow, wide = Pod("n", (amounts(cpu="8", memory="1Gi"),)), Pod("w", (amounts(cpu="100", memory="1Gi"),))
    assert least_numa_score(narrow, nrt) > least_numa_score(wide, nrt) >= 0
    report = report_of(engine_on(machines.HYGON_7285_2S))
    nodes, zones = report["machine"]["numa_nodes"], report["zones"]
    nodes += [{**nodes[0], "id": i} for i in range(8, 10)]
    node_0 = next(zone for zone in zones if zone["name"] == "node-0")
    zones += [{**node_0, "name": f"node-{i}"} for i in range(8, 10)]
    made = node_resource_topology("n1", report)
    assert made is not None and settings(made).most_numa_nodes == 10
    assert least_numa_score(Pod("all", (amounts(cpu="160", memory="1Gi"),)), made) >= 0


# ---------------------------------------------------------------------- single-numa-node by option


def test_single_numa_node_is_published_where_every_guaranteed_container_demands_one() -> None:
    engine = engine_on(machines.HYGON_7285_2S)
    run(engine, guaranteed("web", 2), "aa1")
    run(engine, guaranteed("db", 2, preferences=PlacementPreferences(l3="require")), "ab2")
    run(engine, make_container("log", limit=1, request=0.1), "ac3")
    found = attributes(nrt_of(engine, TopologyManager("none", "pod"), single_numa_node=True))
    assert (found["topologyManagerPolicy"], found["topologyManagerScope"]) == (
        "single-numa-node",
        "container",
    )
    assert WITHHELD not in found


def _unknown_memory(report: dict[str, Any]) -> None:
    next(zone for zone in report["zones"] if zone["name"] == "node-1")["memory_free_bytes"] = None


AGAINST = [
    (lambda r: r.update(mode="observe"), "the daemon's mode is observe, not enforce"),
    (lambda r: r.update(mode_wanted="off"), "the daemon's mode is off, not enforce"),
    (
        lambda r: r.update(policy="balloons"),
        "the policy balloons refuses no container that does not fit into one NUMA node",
    ),
    (lambda r: r.update(degraded={"runtime": "away"}), "the daemon is degraded: runtime"),
    (_unknown_memory, "the memory of numa-1 is not known"),
    (
        lambda r: r["placements"][0].update(state="adopted"),
        "default/web/app is not placed by the daemon: adopted",
    ),
    (lambda r: r["placements"][0].update(demand=""), "default/web/app is placed without numa: require"),
    (lambda r: r["placements"][0].update(zone="socket-0"), "default/web/app is in more than one NUMA node"),
]


@pytest.mark.parametrize(("change", "why"), AGAINST, ids=[why for _, why in AGAINST])
def test_what_is_against_single_numa_node_is_said_and_kubelets_word_stays(change: Any, why: str) -> None:
    engine = engine_on(machines.HYGON_7285_2S)
    run(engine, guaranteed("web", 2), "aa1")
    report = report_of(engine)
    assert why_not_single_numa_node(report) == ""
    change(report)
    made = node_resource_topology("n1", report, TopologyManager(), single_numa_node=True)
    assert made is not None
    assert attributes(made)["topologyManagerPolicy"] == "none"
    assert attributes(made)[WITHHELD] == why


# ---------------------------------------------------------------------- the scheduler's books


def test_a_scheduler_takes_an_object_over_once_it_counts_the_pods_that_run_there() -> None:
    engine = engine_on(machines.MONOLITHIC_2S)
    books = OverReserve(nrt_of(engine))
    free = numa_nodes(books.nrt)[0].resources["cpu"]
    large = str(free - 2)
    sent = Pod("first", (amounts(cpu=large, memory="1Gi"),))
    books.assumed.append(sent)
    second = Pod("second", (amounts(cpu=large, memory="1Gi"),))
    # 1. It is not known which NUMA node the pod will be in, so it is taken off both.
    assert filtered(second, books.seen()) == "cannot align container"
    # 2. The pod runs for the API server; an object from before it does not count it, and is not taken over.
    assert not books.resync(nrt_of(engine), [sent])
    # 3. One that counts it is, and the other NUMA node turns out to be free.
    run(engine, guaranteed("first", float(large)), "aa1")
    assert books.resync(nrt_of(engine), [sent])
    assert filtered(second, books.seen()) == ""


def test_containers_of_one_pod_count_it_once_and_containers_of_no_pod_do_not() -> None:
    engine = engine_on(machines.HYGON_7285_2S)
    run(engine, make_container("app", limit=1, pod=make_pod("web")), "aa1")
    run(engine, make_container("sidecar", limit=1, pod=make_pod("web")), "ab2")
    report = report_of(engine)
    report["placements"].append({**report["placements"][0], "namespace": "", "pod": ""})
    made = node_resource_topology("n1", report)
    assert made is not None
    assert OverReserve(made).resync(made, [Pod("web", ())])
