"""The devices of a node: zones by name, what claims may own there, and what they exclude."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cri_api.claims import claim_key, part_name
from cri_proxy.claims.devices import (
    L3,
    NUMA,
    WHOLE_L3,
    WHOLE_NUMA,
    Hardware,
    attributes_of,
    devices_of,
    find_device,
)
from cri_proxy.engine.model import ClaimPart
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Topology, remember
from policies.model import PlacementPreferences, Qos
from tests.machines import (
    E_CORES_1S,
    EPYC_NPS4_1S,
    HYGON_7285_2S,
    KUNPENG_64_2S,
    MONOLITHIC_2S,
    VM_NO_CACHE_INFO,
    machine,
    take_offline,
)
from tests.scenes import engine_on, host_of, make_container, run

OWNING = PlacementPreferences(ownership="exclusive")


def cpus_of(engine: Any) -> dict[str, str]:
    return {device.name: format_cpus(device.cpus) for device in devices_of(engine)}


def test_each_l3_is_a_device_in_parts_and_as_a_whole_and_each_numa_node_as_a_whole() -> None:
    engine = engine_on(EPYC_NPS4_1S)
    tree = engine.host.topology
    devices = devices_of(engine)
    l3s, nodes = len(tree.at("l3")), len(tree.at("numa"))
    names = [f"l3-{n}" for n in range(l3s)]
    assert [d.name for d in devices] == [
        *names, *(f"{name}-whole" for name in names), *(f"node-{n}-whole" for n in range(nodes)),
    ]  # fmt: skip
    assert {d.kind for d in devices} == {L3, WHOLE_L3, WHOLE_NUMA}
    assert [d.name for d in devices if d.is_shared] == names
    for device in devices:
        # A device consumes the counter of each L3 that it has CPUs of.
        zones = {f"l3-{n}": domain.cpus for n, domain in enumerate(tree.at("l3"))}
        assert device.counters == tuple(name for name, cpus in zones.items() if cpus & device.bounds)
        assert device.cpus == device.bounds


@pytest.mark.parametrize("where", [HYGON_7285_2S, MONOLITHIC_2S, KUNPENG_64_2S, E_CORES_1S, VM_NO_CACHE_INFO])
def test_no_name_stands_twice_and_parts_have_every_cpu_once(where: str) -> None:
    engine = engine_on(where)
    devices = devices_of(engine)
    assert len({d.name for d in devices}) == len(devices)
    parts = [d.cpus for d in devices if d.is_shared]
    assert sum(map(len, parts)) == len(frozenset().union(*parts)) == len(engine.host.usable)


def test_without_caches_numa_nodes_are_in_the_place_of_l3s() -> None:
    devices = devices_of(engine_on(VM_NO_CACHE_INFO))
    assert {(d.kind, d.is_shared) for d in devices} == {(NUMA, True), (WHOLE_NUMA, False)}
    assert all(d.counters == (d.zone.name,) for d in devices)


def without(where: str, *cpus: int) -> Topology:
    """The machine after these CPUs have gone offline."""
    data = machine(where)
    return Topology(remember(Topology(data), take_offline(data, cpus)))


def test_reserved_offline_and_unavailable_cpus_are_off_and_where_others_run_nothing_is_whole() -> None:
    l3 = [domain.cpus for domain in Topology(machine(EPYC_NPS4_1S)).at("l3")]
    reserved, unavailable, offline = (min(cpus) for cpus in l3[:3])
    tree = without(EPYC_NPS4_1S, offline)
    host = host_of(tree, usable=format_cpus(tree.online - {unavailable}), reserved=str(reserved))
    found = {device.name: device for device in devices_of(engine_on(host))}
    assert found["l3-0"].cpus == l3[0] - {reserved}
    assert found["l3-1"].cpus == l3[1] - {unavailable}
    assert found["l3-2"].cpus == found["l3-2-whole"].cpus == l3[2] - {offline}
    # On a CPU that is offline nothing else runs: what is left is still all of it.
    assert found["l3-2"].bounds == l3[2]
    assert {"l3-0-whole", "l3-1-whole", "node-0-whole"}.isdisjoint(found)


def test_cpus_that_containers_own_without_a_claim_are_off() -> None:
    engine = engine_on(EPYC_NPS4_1S)
    container = make_container("own", 2, 2, qos=Qos.GUARANTEED, preferences=OWNING)
    own = run(engine, container, "id").exclusive
    before, now = cpus_of(engine_on(EPYC_NPS4_1S)), cpus_of(engine)
    (l3,) = [name for name, cpus in now.items() if name.count("-") == 1 and cpus != before[name]]
    assert parse_cpus(now[l3]) == parse_cpus(before[l3]) - own
    assert f"{l3}-whole" in before and f"{l3}-whole" not in now


def prepare(engine: Any, device: str, count: int) -> None:
    bounds = find_device(engine, device)
    assert bounds is not None
    engine.prepare("u", "default", "c", [ClaimPart("r", count, bounds.bounds, OWNING, (device,))], 0.0)


def test_a_claims_own_cpus_stay_in_its_device_and_a_whole_device_that_is_claimed_stays() -> None:
    engine = engine_on(EPYC_NPS4_1S)
    before = cpus_of(engine)
    prepare(engine, "l3-0-whole", len(parse_cpus(before["l3-0"])))
    assert cpus_of(engine) == before
    # Reserved now, and the claim is there all the same.
    host = replace(engine.host, reserved=frozenset({min(parse_cpus(before["l3-0"]))}))
    engine.rehost(host)
    assert "l3-0-whole" in cpus_of(engine)
    engine.unprepare("u", 1.0)
    assert "l3-0-whole" not in cpus_of(engine)
    # It is found by its name, for a claim that was allocated it a moment before.
    assert find_device(engine, "l3-0-whole") is not None
    assert claim_key(part_name("u", "r")) not in engine.grants


@pytest.mark.parametrize(
    "name", ["l3-99", "l3-99-whole", "socket-0", "socket-0-whole", "", "-whole", "node-0"]
)
def test_a_device_that_this_machine_has_not_is_not_found(name: str) -> None:
    assert find_device(engine_on(EPYC_NPS4_1S), name) is None


def test_names_do_not_depend_on_which_cpus_are_online_nor_attributes_on_which_have_gone_since() -> None:
    whole = Topology(machine(EPYC_NPS4_1S))
    gone, never_seen = (
        without(EPYC_NPS4_1S, 0, 1, 5),
        Topology(take_offline(machine(EPYC_NPS4_1S), {0, 1, 5})),
    )
    of = {
        tree: {d.name: attributes_of(tree, d, Hardware()) for d in devices_of(engine_on(host_of(tree)))}
        for tree in (whole, gone, never_seen)
    }
    assert of[gone] == of[whole]
    assert of[never_seen].keys() == of[whole].keys()


@pytest.mark.parametrize(
    ("where", "name", "attributes"),
    [
        (HYGON_7285_2S, "l3-0", {"socket": 0, "numaNode": 0, "l3": 0, "cores": 4, "threadsPerCore": 2}),
        (
            HYGON_7285_2S,
            "node-1-whole",
            {"socket": 0, "numaNode": 1, "l3s": 2, "cores": 8, "threadsPerCore": 2},
        ),
        (VM_NO_CACHE_INFO, "node-0", {"l3s": 0, "numaNode": 0}),
        (KUNPENG_64_2S, "node-0-whole", {"numaNode": 0, "clusters": 8, "threadsPerCore": 1}),
    ],
)
def test_attributes_say_where_a_device_is_and_what_it_is_made_of(
    where: str, name: str, attributes: dict[str, Any]
) -> None:
    engine = engine_on(where)
    device = find_device(engine, name)
    assert device is not None
    found = attributes_of(engine.host.topology, device, Hardware())
    assert {key: found.get(key) for key in attributes} == attributes


def test_what_only_hardware_tells_and_the_class_that_is_offered_are_attributes_where_they_are_known() -> None:
    engine = engine_on(EPYC_NPS4_1S)
    device = find_device(engine, "l3-0")
    assert device is not None
    slowest, *others = sorted(device.bounds)
    hardware = Hardware(
        {0: 16 << 20}, {slowest: 3500, **dict.fromkeys(others, 3600)}, {0: ("pci0000:00", "pci0000:40")}
    )
    found = attributes_of(engine.host.topology, device, hardware, "protected")
    assert (found["l3Bytes"], found["maxMHz"], found["pcieRoot"], found["isolation"]) == (
        16 << 20, 3500, ["pci0000:00", "pci0000:40"], "protected",
    )  # fmt: skip
    # What one CPU does not tell is not known of the device.
    bare = attributes_of(engine.host.topology, device, Hardware({}, dict.fromkeys(others, 3600)))
    assert not {"l3Bytes", "maxMHz", "pcieRoot", "isolation"} & bare.keys()
