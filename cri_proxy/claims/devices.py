"""What of this node claims of CPUs can be given: its devices, as a driver of Dynamic Resource Allocation tells them.

A device is a zone (engine/model.py), so that its name survives a reboot. An L3 is given to many claims, each with its
number of CPUs; *whole L3* and *whole NUMA node* to one claim each. Every L3 is a counter that all devices with CPUs of
it consume: whole and shared use of it exclude each other. Where L3s are not known NUMA nodes are in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Optional, Union

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Zone, id_at, zones_of
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology

#: Kinds of devices: parts of an L3, or of a NUMA node where L3s are not known; and all of either.
L3, NUMA, WHOLE_L3, WHOLE_NUMA = "l3", "numa", "whole-l3", "whole-numa"
#: What a whole device's name ends with, after that of its zone.
WHOLE = "-whole"

Attribute = Union[int, bool, str, list[str]]


@frozen
class Hardware:
    """What of a machine only devices tell: the size of L3s in bytes by id, the highest frequency in MHz by CPU, PCIe root
    complexes by NUMA node."""

    l3_bytes: Mapping[int, int] = field(default_factory=dict)
    max_mhz: Mapping[int, int] = field(default_factory=dict)
    pcie_roots: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


NO_HARDWARE = Hardware()


@frozen
class ClaimDevice:
    """One device. ``cpus``: those that claims may own there; no container without a claim owns one of them.

    ``bounds``: the CPUs of its zone, whatever they are used for now. ``counters``: the names of its L3s.
    """

    name: str
    kind: str
    zone: Zone
    cpus: frozenset[int]
    counters: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        """Whether more than one claim may have a part of it."""
        return self.kind in (L3, NUMA)

    @property
    def bounds(self) -> frozenset[int]:
        return self.zone.domain.cpus


def devices_of(engine: Engine) -> tuple[ClaimDevice, ...]:
    """The devices that there are now, shared ones first.

    A whole device is left out while it cannot be given whole: CPUs of it are reserved, not available, or owned by a
    container without a claim. One that a claim has stays.
    """
    online, claimed = engine.host.topology.online, claimed_devices(engine)
    return tuple(
        device
        for device in _all_devices(engine)
        if device.is_shared
        or (device.cpus and (device.name in claimed or device.bounds & online == device.cpus & online))
    )


def find_device(engine: Engine, name: str) -> Optional[ClaimDevice]:
    """The device of a name, also while it is not offered; None: this machine has none of that name."""
    return next((device for device in _all_devices(engine) if device.name == name), None)


def _all_devices(engine: Engine) -> Iterator[ClaimDevice]:
    """Every device that this machine can have, shared ones first."""
    zones, ours = zones_of(engine.host.topology), free_for_claims(engine)
    parts = _parts(zones)
    for zone in parts:
        kind = L3 if zone.level == "l3" else NUMA
        yield ClaimDevice(zone.name, kind, zone, zone.domain.cpus & ours, (zone.name,))
    for zone in sorted((z for z in zones if z.level in ("l3", "numa")), key=lambda z: z.level):
        kind = WHOLE_L3 if zone.level == "l3" else WHOLE_NUMA
        counters = tuple(part.name for part in parts if part.domain.cpus & zone.domain.cpus)
        yield ClaimDevice(zone.name + WHOLE, kind, zone, zone.domain.cpus & ours, counters)


def _parts(zones: Iterable[Zone]) -> tuple[Zone, ...]:
    listed = tuple(zones)
    level = "l3" if any(zone.level == "l3" for zone in listed) else "numa"
    return tuple(zone for zone in listed if zone.level == level)


def free_for_claims(engine: Engine) -> frozenset[int]:
    """The CPUs of the node that claims own or may be given."""
    node = engine.node
    return node.usable - node.reserved - node.isolated - owned_without_claims(engine)


def owned_without_claims(engine: Engine) -> frozenset[int]:
    """The CPUs that containers own without a claim, with those kubelet has given to one."""
    return NO_CPUS.union(*[grant.exclusive for grant in engine.grants.values() if not grant.is_claim])


def claimed_devices(engine: Engine) -> frozenset[str]:
    """The names of the devices that claims have."""
    parts = (grant.part for grant in engine.grants.values() if grant.is_claim)
    return frozenset(name for part in parts if part is not None for name in part.devices)


# ---------------------------------------------------------------------- as a document


def device_row(engine: Engine, device: ClaimDevice, hardware: Hardware, isolation: str) -> dict[str, Any]:
    """A device for JSON. ``isolation``: the class that claims are offered, "" = nothing is kept apart here."""
    return {
        "name": device.name,
        "kind": device.kind,
        "cpus": len(device.cpus),
        "shared": device.is_shared,
        "counters": list(device.counters),
        "attributes": attributes_of(engine.host.topology, device, hardware, isolation),
    }


def attributes_of(
    topology: Topology, device: ClaimDevice, hardware: Hardware, isolation: str = ""
) -> dict[str, Attribute]:
    """What a claim may select a device by. What is not known, or not one thing for all of its CPUs, is left out."""
    domain, cpus = device.zone.domain, device.bounds
    found: dict[str, Attribute] = {"socket": domain.socket}
    if len(domain.nodes) == 1:
        (node,) = domain.nodes
        found["numaNode"] = node
        if node in hardware.pcie_roots:
            found["pcieRoot"] = list(hardware.pcie_roots[node])
    if device.zone.level == "l3":
        found["l3"] = id_at(domain, "l3")
        if size := hardware.l3_bytes.get(id_at(domain, "l3"), 0):
            found["l3Bytes"] = size
    else:
        found["l3s"] = sum(1 for l3 in topology.at("l3") if l3.cpus & cpus)
    cores = [core for core in topology.cores if core & cpus]
    found["cores"] = len(cores)
    if len(threads := {len(core & cpus) for core in cores}) == 1:
        found["threadsPerCore"] = threads.pop()
    types = [name for name, of_type in topology.data.core_types.items() if of_type & cpus]
    if len(types) == 1 and cpus <= topology.data.core_types[types[0]]:
        found["coreType"] = types[0]
    if cpus <= hardware.max_mhz.keys():
        found["maxMHz"] = min(hardware.max_mhz[cpu] for cpu in cpus)
    clusters = {topology.cpus[cpu].cluster for cpu in cpus} - {None}
    if clusters:
        found["clusters"] = len(clusters)
    if isolation:
        found["isolation"] = isolation
    return found
