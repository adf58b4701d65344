"""A node's ResourceSlices (resource.k8s.io/v1) out of one ``claim-devices`` of its daemon, and the next write to them. Pure.

A pool a node, named as the node: slices of counters, and slices of devices. A counter an L3 keeps its shared device, its
whole device and whole devices that hold it from being allocated beside each other. What is fixed is where a device stands:
with its first L3, so that one L3's change is one slice's.

Consumers go by a pool's highest generation, and pass over a pool of which they have not seen all slices. So the generation
is kept where one write is all that it takes, and is another where there are more, as in Kubernetes' own helper for drivers
(k8s.io/dynamic-resource-allocation/resourceslice).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, Optional

from cluster.kube.requests import Resource

SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"

#: The name of the driver whose attributes are a second vocabulary (kubernetes-sigs/dra-driver-cpu).
DRA_CPU = "dra.cpu"
STANDARD = "resource.kubernetes.io"

# Limits of the API (k8s.io/api/resource/v1, 1.36).
#: Counters of a set, and sets of a slice; sets that a device may consume of.
MOST_COUNTERS, MOST_SETS, MOST_SETS_OF_DEVICE = 32, 8, 2
#: Devices of a slice in which one consumes counters.
MOST_DEVICES = 64
#: Attributes and capacities of a device; the values of its lists among them; letters of a text.
MOST_ATTRIBUTES, MOST_VALUES, MOST_TEXT = 32, 48, 64
MOST_NAME = 253

#: L3s of a slice: each has a shared device, a whole one, and may be the first of a whole NUMA node.
L3S_OF_SLICE = MOST_DEVICES // 3
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
#: Each L3's counter has one to give.
_ONE = {"value": "1"}

#: By the names of slices what is in them: devices, or sets of counters.
Contents = Mapping[str, Mapping[str, Any]]


def contents_of(document: Mapping[str, Any], node: str, *, lists: bool = True) -> dict[str, dict[str, Any]]:
    """The slices that a node should have, {} = none: the daemon gives nothing to claims.

    ``lists``: whether the API server takes attributes that are lists (gate DRAListTypeAttributes).
    """
    if not document.get("enabled"):
        return {}
    driver = str(document["driver"])
    counters = [str(name) for name in document.get("counters") or ()]
    sets = {f"l3s-{number}": names for number, names in enumerate(_pieces(counters, MOST_COUNTERS))}
    set_of = {counter: name for name, names in sets.items() for counter in names}
    rows = [{"name": name, "counters": dict.fromkeys(names, _ONE)} for name, names in sets.items()]
    found: dict[str, dict[str, Any]] = {}
    for number, piece in enumerate(_pieces(rows, MOST_SETS)):
        found[slice_name(node, driver, f"counters-{number}")] = {"sharedCounters": piece}
    # 1. Devices by the L3 that they begin with; shared ones first, since the first that fits is allocated.
    places = {counter: number // L3S_OF_SLICE for number, counter in enumerate(counters)}
    devices: list[list[dict[str, Any]]] = [[] for _ in _pieces(counters, L3S_OF_SLICE)]
    for row in sorted(document.get("devices") or (), key=lambda row: not row.get("shared")):
        consumed = _consumed(row.get("counters") or (), set_of)
        if consumed and int(row.get("cpus") or 0) > 0:
            at = places[row["counters"][0]]
            devices[at].append(_device(row, driver, consumed, lists))
    # 2. A slice stays when its last device has gone: how many there are is part of the pool.
    for number, some in enumerate(devices):
        found[slice_name(node, driver, f"devices-{number}")] = {"devices": some[:MOST_DEVICES]}
    return found


def slice_name(node: str, driver: str, what: str) -> str:
    """The name of an object; of a node with a very long name a hash says which it is."""
    name = f"{node}-{driver}-{what}"
    if len(name) <= MOST_NAME:
        return name
    rest = f"-{sha256(node.encode()).hexdigest()[:16]}-{driver}-{what}"
    return node[: MOST_NAME - len(rest)].rstrip("-.") + rest


def _pieces(rows: Sequence[Any], most: int) -> list[list[Any]]:
    return [list(rows[first : first + most]) for first in range(0, len(rows), most)]


def _consumed(counters: Sequence[str], set_of: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a device consumes; [] = this cannot be said, as of a machine with more than 64 L3s in one NUMA node."""
    by_set: dict[str, dict[str, Any]] = {}
    for counter in counters:
        if counter not in set_of:
            return []
        by_set.setdefault(set_of[counter], {})[counter] = _ONE
    if len(by_set) > MOST_SETS_OF_DEVICE:
        return []
    return [{"counterSet": name, "counters": some} for name, some in by_set.items()]


def _device(
    row: Mapping[str, Any], driver: str, consumed: Sequence[Mapping[str, Any]], lists: bool
) -> dict[str, Any]:
    cpus, is_shared = int(row["cpus"]), bool(row.get("shared"))
    # Requests are looked up by the capacity's name as it is written: those for the other driver write its domain.
    key = f"{driver}/cpu" if driver == DRA_CPU else "cpu"
    capacity: dict[str, Any] = {"value": str(cpus)}
    if is_shared:
        capacity["requestPolicy"] = _whole_cpus(cpus)
    mapping = {"allocationMultiplier": "1" if is_shared else str(cpus)}
    if is_shared:
        mapping["capacityKey"] = key
    return {
        "name": str(row["name"]),
        "attributes": _attributes(row, driver, lists),
        "capacity": {key: capacity},
        "consumesCounters": list(consumed),
        **({"allowMultipleAllocations": True} if is_shared else {}),
        # Dropped by a server whose gate DRANodeAllocatableResources is off.
        "nodeAllocatableResourceMappings": {"cpu": mapping},
    }


def _whole_cpus(cpus: int) -> dict[str, Any]:
    """CPUs are given whole, one where nothing is said; a range must have room for a step."""
    if cpus == 1:
        return {"default": "1", "validValues": ["1"]}
    return {"default": "1", "validRange": {"min": "1", "step": "1"}}


def _attributes(row: Mapping[str, Any], driver: str, lists: bool) -> dict[str, Any]:
    """Names without a domain are the driver's."""
    given = dict(row.get("attributes") or {})
    names: dict[str, Any] = {"kind": str(row.get("kind", ""))}
    for name, value in given.items():
        names[f"{STANDARD}/{name}" if name in ("numaNode", "pcieRoot") else name] = value
    if driver == DRA_CPU:
        names.update(_as_dra_cpu(row, given))
    found: dict[str, Any] = {}
    values = 0
    for name, value in names.items():
        written = _value(value, lists) if _IDENTIFIER.fullmatch(name.rpartition("/")[2]) else None
        if written is None or len(found) == MOST_ATTRIBUTES - 1:  # one is the capacity
            continue
        size = len(value) if isinstance(value, (list, tuple)) else 1
        if values + size <= MOST_VALUES:
            found[name] = written
            values += size
    return found


def _as_dra_cpu(row: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """In the words of that driver for its groups of CPUs; ``cpuID`` and ``coreID`` are of its devices of one CPU."""
    words = {
        "numaNodeID": given.get("numaNode"),
        "socketID": given.get("socket"),
        "cacheL3ID": given.get("l3"),
        "smtEnabled": given["threadsPerCore"] > 1 if "threadsPerCore" in given else None,
        "numCPUs": int(row["cpus"]),
    }
    return {name: value for name, value in words.items() if value is not None}


def _value(value: Any, lists: bool) -> Optional[dict[str, Any]]:
    if isinstance(value, (list, tuple)):
        if len(value) == 1:
            return _value(value[0], lists)
        if not value or not lists:
            return None
        if all(isinstance(each, str) and len(each) <= MOST_TEXT for each in value):
            return {"strings": list(value)}
        return {"ints": list(value)} if all(type(each) is int for each in value) else None
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str) and 0 < len(value) <= MOST_TEXT:
        return {"string": value}
    return None


def has_lists(contents: Contents) -> bool:
    """Whether an attribute is a list, so that a refusal may be about that."""
    return any(
        key in attribute
        for content in contents.values()
        for device in content.get("devices", ())
        for attribute in device["attributes"].values()
        for key in ("strings", "ints")
    )


# ---------------------------------------------------------------------- what to write


class Stored(NamedTuple):
    """An object of the API. ``spec`` None: it has changed, and was not read since. ``is_told``: this process wrote the
    spec, which is then as it was sent."""

    uid: str
    version: str
    spec: Optional[Mapping[str, Any]]
    is_told: bool = False


class Step(NamedTuple):
    """One request. ``spec`` None: delete it; ``before`` None: create it; else replace what is there."""

    name: str
    spec: Optional[dict[str, Any]]
    before: Optional[Stored]


def next_step(contents: Contents, there: Mapping[str, Stored], node: str, driver: str) -> Optional[Step]:
    """The next write, None = all is as it should be. All specs of ``there`` have been read."""
    # 1. What the pool no longer has.
    for name, stored in sorted(there.items()):
        if name not in contents:
            return Step(name, None, stored)
    if not contents:
        return None
    # 2. The generation: it is kept if all that is wrong in it is one slice, or slices that are not in it.
    kept = {name: _generation(stored) for name, stored in there.items()}
    generation = max(kept.values(), default=0)
    missing = [name for name in contents if kept.get(name) != generation]
    specs = _specs(contents, node, driver, generation)
    other = [name for name in specs if name not in missing and not _is_same(specs[name], there[name])]
    if other and len(other) + len(missing) > 1:
        generation += 1
        missing, other = list(contents), []
    generation = max(1, generation)
    specs = _specs(contents, node, driver, generation)
    for name in (*missing, *other):
        return Step(name, specs[name], there.get(name))
    return None


def _specs(contents: Contents, node: str, driver: str, generation: int) -> dict[str, dict[str, Any]]:
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(contents)}
    return {
        name: {"driver": driver, "pool": pool, "nodeName": node, **content}
        for name, content in contents.items()
    }


def _generation(stored: Stored) -> int:
    return int(((stored.spec or {}).get("pool") or {}).get("generation") or 0)


def _is_same(spec: Mapping[str, Any], stored: Stored) -> bool:
    """But for fields that a server drops: an empty list, and what its gates do not know. Sent again, they would be a write
    for the server each time; once they are known, the next change brings them."""
    if stored.is_told or stored.spec == spec:
        return stored.spec == spec
    return _plain(spec) == _plain(stored.spec or {})


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    devices = [
        {key: value for key, value in device.items() if key != "nodeAllocatableResourceMappings"}
        for device in spec.get("devices") or ()
    ]
    return {**spec, "devices": devices}


def dropped(spec: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """A sentence where the server has dropped fields without which CPUs would be allocated twice; "" = it has not."""
    if spec.get("sharedCounters") and not stored.get("sharedCounters"):
        return _gates("DRAPartitionableDevices")
    devices = {device.get("name"): device for device in stored.get("devices") or ()}
    for device in spec.get("devices") or ():
        there = devices.get(device["name"], {})
        if not there.get("consumesCounters"):
            return _gates("DRAPartitionableDevices")
        if device.get("allowMultipleAllocations") and not there.get("allowMultipleAllocations"):
            return _gates("DRAConsumableCapacity")
    return ""


def _gates(gate: str) -> str:
    return f"the API server's feature gate {gate} is off: no devices are published, as CPUs would be allocated twice"


def object_of(step: Step, owner: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of a step that writes. ``owner``: references to the Node, with which the slice goes."""
    metadata: dict[str, Any] = {"name": step.name}
    if step.before is not None:
        metadata.update(uid=step.before.uid, resourceVersion=step.before.version)
    if references := [dict(each) for each in owner]:
        metadata["ownerReferences"] = references
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": step.spec}
