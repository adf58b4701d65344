"""ResourceSlices as the API takes them, and the fewest writes that make them so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional

import pytest

from cluster.dra.slices import (
    MOST_COUNTERS,
    MOST_DEVICES,
    MOST_NAME,
    MOST_SETS_OF_DEVICE,
    Step,
    Stored,
    contents_of,
    dropped,
    has_lists,
    next_step,
    object_of,
    slice_name,
)
from tests.cluster.dra.devices import devices, with_cpus

NODE, DRIVER = "node-1", "cpu.cri-resmgr.io"
COUNTERS, FIRST = f"{NODE}-{DRIVER}-counters-0", f"{NODE}-{DRIVER}-devices-0"
SECOND = f"{NODE}-{DRIVER}-devices-1"


def rows_of(document: Mapping[str, Any], **options: Any) -> dict[str, dict[str, Any]]:
    """All devices by name."""
    contents = contents_of(document, NODE, **options)
    return {row["name"]: row for content in contents.values() for row in content.get("devices", ())}


class Server:
    """What is stored after steps, as the API does it."""

    def __init__(self) -> None:
        self.there: dict[str, Stored] = {}
        self.version = 0

    def settle(self, contents: Mapping[str, Mapping[str, Any]], most: int = 20) -> list[Step]:
        """Steps until none is left; they."""
        found = []
        while (step := next_step(contents, self.there, NODE, DRIVER)) is not None:
            found.append(step)
            assert len(found) <= most
            self.do(step)
        return found

    def do(self, step: Step) -> None:
        assert step.before == self.there.get(step.name)
        self.version += 1
        if step.spec is None:
            del self.there[step.name]
        else:
            self.there[step.name] = Stored("uid-" + step.name, str(self.version), step.spec, is_told=True)

    def restart(self, drop: Optional[str] = "nodeAllocatableResourceMappings") -> None:
        """The process is another; the server has dropped what a gate of it does not know."""
        for name, stored in self.there.items():
            spec = json.loads(json.dumps(stored.spec))
            for device in spec.get("devices", ()):
                device.pop(drop, None)
            self.there[name] = Stored(stored.uid, stored.version, spec)

    @property
    def generations(self) -> list[int]:
        return [(stored.spec or {})["pool"]["generation"] for _, stored in sorted(self.there.items())]


# ---------------------------------------------------------------------- what is in them


def test_a_shared_device_gives_cpus_by_number() -> None:
    row = rows_of(devices())["l3-0"]
    assert row["allowMultipleAllocations"] is True
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    assert row["capacity"] == {"cpu": {"value": "8", "requestPolicy": policy}}
    assert row["nodeAllocatableResourceMappings"] == {
        "cpu": {"capacityKey": "cpu", "allocationMultiplier": "1"}
    }


def test_a_whole_device_is_given_once_and_counts_all_its_cpus() -> None:
    row = rows_of(devices())["l3-0-whole"]
    assert "allowMultipleAllocations" not in row
    assert row["capacity"] == {"cpu": {"value": "8"}}
    assert row["nodeAllocatableResourceMappings"] == {"cpu": {"allocationMultiplier": "8"}}


def test_one_cpu_leaves_no_room_for_a_range() -> None:
    row = rows_of(with_cpus(devices(), l3_0=1))["l3-0"]
    assert row["capacity"]["cpu"]["requestPolicy"] == {"default": "1", "validValues": ["1"]}


def test_an_l3_without_cpus_to_give_is_no_device() -> None:
    assert rows_of(with_cpus(devices(), l3_0=0)).keys() == {"l3-1", "l3-1-whole", "node-0-whole"}


def test_shared_and_whole_devices_consume_the_counters_of_their_l3s() -> None:
    contents = contents_of(devices(), NODE)
    one = {"value": "1"}
    assert contents[COUNTERS] == {
        "sharedCounters": [{"name": "l3s-0", "counters": {"l3-0": one, "l3-1": one}}]
    }
    rows = rows_of(devices())
    assert rows["l3-1"]["consumesCounters"] == [{"counterSet": "l3s-0", "counters": {"l3-1": one}}]
    assert rows["l3-1-whole"]["consumesCounters"] == rows["l3-1"]["consumesCounters"]
    assert rows["node-0-whole"]["consumesCounters"][0]["counters"] == {"l3-0": one, "l3-1": one}


def test_shared_devices_come_first_as_the_first_that_fits_is_allocated() -> None:
    names = [row["name"] for row in contents_of(devices(), NODE)[FIRST]["devices"]]
    assert names == ["l3-0", "l3-1", "l3-0-whole", "l3-1-whole", "node-0-whole"]


@pytest.mark.parametrize(
    ("l3s", "numa_nodes"), [(1, 1), (8, 8), (21, 21), (32, 8), (64, 1), (64, 64), (128, 2)]
)
def test_the_apis_limits_are_kept(l3s: int, numa_nodes: int) -> None:
    contents = contents_of(devices(l3s, numa_nodes), NODE)
    for content in contents.values():
        assert content.keys() in ({"devices"}, {"sharedCounters"})
        assert len(content.get("devices", ())) <= MOST_DEVICES
        assert all(len(each["counters"]) <= MOST_COUNTERS for each in content.get("sharedCounters", ()))
    rows = rows_of(devices(l3s, numa_nodes)).values()
    assert len(rows) == 2 * l3s + numa_nodes
    assert all(1 <= len(row["consumesCounters"]) <= MOST_SETS_OF_DEVICE for row in rows)


def test_a_numa_node_of_more_l3s_than_a_device_can_consume_is_not_given_whole() -> None:
    assert "node-0-whole" not in rows_of(devices(l3s=65))
    assert "l3-64" in rows_of(devices(l3s=65))


def test_attributes_are_the_standard_ones_and_the_drivers() -> None:
    attributes = rows_of(devices(isolation="protected", pcieRoot=["pci0000:00"], smt=True))["l3-1"][
        "attributes"
    ]
    assert attributes == {
        "kind": {"string": "l3"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        "socket": {"int": 0},
        "l3": {"int": 1},
        "l3Bytes": {"int": 16 << 20},
        "cores": {"int": 4},
        "threadsPerCore": {"int": 2},
        "coreType": {"string": "standard"},
        "isolation": {"string": "protected"},
        "smt": {"bool": True},
    }


def test_several_roots_are_a_list_where_the_server_takes_lists() -> None:
    document = devices(pcieRoot=["pci0000:00", "pci0000:40"])
    name = "resource.kubernetes.io/pcieRoot"
    assert rows_of(document)["l3-0"]["attributes"][name] == {"strings": ["pci0000:00", "pci0000:40"]}
    assert name not in rows_of(document, lists=False)["l3-0"]["attributes"]
    assert has_lists(contents_of(document, NODE))
    assert not has_lists(contents_of(document, NODE, lists=False))


@pytest.mark.parametrize("value", ["x" * 65, None, "", [], 1.5, {"a": 1}, ["x", 1]])
def test_a_value_that_the_api_would_refuse_is_left_out(value: Any) -> None:
    assert "strange" not in rows_of(devices(strange=value))["l3-0"]["attributes"]


def test_a_name_that_the_api_would_refuse_is_left_out() -> None:
    assert "a-b" not in rows_of(devices(**{"a-b": 1}))["l3-0"]["attributes"]


def test_more_attributes_or_values_than_the_api_takes_are_left_out() -> None:
    many = rows_of(devices(**{f"a{number}": number for number in range(40)}))["l3-0"]
    assert len(many["attributes"]) + len(many["capacity"]) == 32
    lists = {name: [f"{name}{number}" for number in range(20)] for name in ("a", "b", "c")}
    found = rows_of(devices(**lists))["l3-0"]["attributes"]
    assert sum(len(each.get("strings", "x")) for each in found.values()) <= 48


def test_under_the_other_drivers_name_its_words_are_said_too() -> None:
    row = rows_of(devices(driver="dra.cpu"))["l3-1"]
    words = {
        name: row["attributes"][name]
        for name in ("numaNodeID", "socketID", "cacheL3ID", "smtEnabled", "numCPUs")
    }
    assert words == {
        "numaNodeID": {"int": 0},
        "socketID": {"int": 0},
        "cacheL3ID": {"int": 1},
        "smtEnabled": {"bool": True},
        "numCPUs": {"int": 8},
    }
    assert row["capacity"].keys() == {"dra.cpu/cpu"}
    assert row["nodeAllocatableResourceMappings"]["cpu"]["capacityKey"] == "dra.cpu/cpu"


def test_where_nothing_is_given_to_claims_there_is_no_slice() -> None:
    assert contents_of({"enabled": False, "driver": DRIVER}, NODE) == {}
    assert contents_of({}, NODE) == {}


def test_nodes_with_very_long_names_have_slices_of_their_own() -> None:
    one, other = (slice_name("n" * 250 + end, DRIVER, "devices-0") for end in "ab")
    assert one != other
    assert len(one) == len(other) == MOST_NAME
    assert one.endswith(f"-{DRIVER}-devices-0")


def test_a_nodes_slices_stay_small() -> None:
    for l3s, most in ((8, 12_500), (32, 42_000)):
        server = Server()
        server.settle(contents_of(devices(l3s, 8, pcieRoot=["pci0000:00", "pci0000:40"]), NODE))
        size = sum(len(json.dumps(each.spec, separators=(",", ":"))) for each in server.there.values())
        assert size <= most


# ---------------------------------------------------------------------- writes


def test_the_first_time_each_is_created_with_one_generation() -> None:
    server = Server()
    steps = server.settle(contents_of(devices(), NODE))
    assert [(step.name, step.before) for step in steps] == [(COUNTERS, None), (FIRST, None)]
    assert server.generations == [1, 1]
    spec = steps[0].spec or {}
    assert (spec["driver"], spec["nodeName"]) == (DRIVER, NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 2}


def test_the_same_again_is_no_write() -> None:
    server = Server()
    server.settle(contents_of(devices(), NODE))
    assert server.settle(contents_of(devices(), NODE)) == []


def test_a_change_of_one_l3_is_one_write_that_keeps_the_generation() -> None:
    for l3s in (2, 32):
        server = Server()
        server.settle(contents_of(devices(l3s), NODE))
        changed = contents_of(with_cpus(devices(l3s), l3_0=6), NODE)
        assert [step.name for step in server.settle(changed)] == [FIRST]
        assert set(server.generations) == {1}
        assert len(server.settle(contents_of(with_cpus(devices(l3s), l3_0=0), NODE))) == 1
        assert [step.name for step in server.settle(contents_of(devices(l3s), NODE))] == [FIRST]


def test_a_change_of_two_slices_is_another_generation_of_all() -> None:
    server = Server()
    server.settle(contents_of(devices(32), NODE))
    steps = server.settle(contents_of(with_cpus(devices(32), l3_0=6, l3_31=6), NODE))
    assert len(steps) == 3
    assert server.generations == [2, 2, 2]


def test_a_change_in_the_middle_of_another_is_one_generation_more() -> None:
    server = Server()
    server.settle(contents_of(devices(32), NODE))
    first = contents_of(with_cpus(devices(32), l3_0=6, l3_31=6), NODE)
    step = next_step(first, server.there, NODE, DRIVER)
    assert step is not None
    server.do(step)
    server.settle(contents_of(with_cpus(devices(32), l3_0=5, l3_31=5), NODE))
    assert len(set(server.generations)) == 1


def test_a_slice_that_was_deleted_comes_back_as_it_was() -> None:
    server = Server()
    server.settle(contents_of(devices(), NODE))
    before = server.there.pop(FIRST)
    [step] = server.settle(contents_of(devices(), NODE))
    assert (step.name, step.before, step.spec) == (FIRST, None, before.spec)


def test_a_slice_of_the_driver_that_is_not_wanted_goes_first() -> None:
    server = Server()
    server.settle(contents_of(devices(32), NODE))
    steps = server.settle(contents_of(devices(2), NODE))
    assert (steps[0].name, steps[0].spec) == (SECOND, None)
    assert server.generations == [2, 2]


def test_off_deletes_all() -> None:
    server = Server()
    server.settle(contents_of(devices(), NODE))
    assert len(server.settle({})) == 2
    assert server.there == {}


@pytest.mark.parametrize("gone", [None, "nodeAllocatableResourceMappings"])
def test_after_a_restart_nothing_is_written_whatever_a_gate_has_dropped(gone: Optional[str]) -> None:
    server = Server()
    server.settle(contents_of(devices(32), NODE))
    server.restart(gone)
    assert server.settle(contents_of(devices(32), NODE)) == []
    server.restart(gone)
    assert len(server.settle(contents_of(with_cpus(devices(32), l3_0=0), NODE))) == 1
    server.restart(gone)
    assert len(server.settle({})) == 3


def test_after_a_restart_a_change_is_seen_beside_what_a_gate_has_dropped() -> None:
    server = Server()
    server.settle(contents_of(devices(), NODE))
    server.restart()
    [step] = server.settle(contents_of(with_cpus(devices(), l3_0=6), NODE))
    assert step.name == FIRST
    assert server.generations == [1, 1]


def test_a_body_names_its_owner_and_the_object_that_it_replaces() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n"}
    made = object_of(Step(FIRST, {"driver": DRIVER}, None), [owner])
    assert made["metadata"] == {"name": FIRST, "ownerReferences": [owner]}
    replaced = object_of(Step(FIRST, {"driver": DRIVER}, Stored("u", "7", {})), [])
    assert replaced["metadata"] == {"name": FIRST, "uid": "u", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("gone", "gate"),
    [
        ("sharedCounters", "DRAPartitionableDevices"),
        ("consumesCounters", "DRAPartitionableDevices"),
        ("allowMultipleAllocations", "DRAConsumableCapacity"),
        ("nodeAllocatableResourceMappings", ""),
    ],
)
def test_what_cpus_would_be_allocated_twice_without_is_missed(gone: str, gate: str) -> None:
    said = ""
    for content in contents_of(devices(), NODE).values():
        stored = json.loads(json.dumps(content))
        stored.pop(gone, None)
        for device in stored.get("devices", ()):
            device.pop(gone, None)
        assert dropped(content, content) == ""
        said += dropped(content, stored)
    assert gate in said
    assert bool(said) == bool(gate)
