"""``kubectl cri_resmgr claims``: the cluster's claims of CPUs, as ResourceClaims tell of them. Values in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

from cluster.api.reader import Fields

#: ``dra.driver_name`` of a node that has no other.
DRIVER = "cpu.cri-resmgr.io"
#: Of a device: under our driver's name, and in the vocabulary of dra.cpu.
CAPACITIES = ("cpu", "dra.cpu/cpu")
Document = Mapping[str, Any]

_CPUS = re.compile(r"([0-9]{1,9})(m?)")


def claim_row(found: Document, driver: str = DRIVER) -> Optional[dict[str, Any]]:
    """One claim; None if nothing of it is the driver's. ``cpus``: None where whole devices are among what it has.

    A claim that waits has no node. It is the driver's if a request names a class of it: ``driver`` or ``NAME.driver``.

    :raises Unreadable: as all that read an object here.
    """
    whole = Fields(found)
    metadata, status = whole.fields("metadata"), whole.fields("status")
    results = [
        each
        for each in status.fields("allocation").fields("devices").rows("results")
        if each.text("driver") == driver
    ]
    if not results and ("allocation" in status or not _asks(whole.fields("spec"), driver)):
        return None
    cpus = [_cpus(each) for each in results]
    pods = [each.text("name") for each in status.rows("reservedFor") if each.text("resource", "") == "pods"]
    return {
        "namespace": metadata.text("namespace", ""),
        "claim": metadata.text("name"),
        "node": results[0].text("pool") if results else "",
        "devices": sorted({each.text("device") for each in results}),
        "cpus": None if None in cpus else sum(filter(None, cpus)),
        "pods": sorted(pods),
    }


def _asks(spec: Fields, driver: str) -> bool:
    """Whether a request is of one of the driver's classes."""
    for request in spec.fields("devices").rows("requests"):
        for asked in (request.fields("exactly"), *request.rows("firstAvailable")):
            name = asked.text("deviceClassName", "")
            if name == driver or name.endswith(f".{driver}"):
                return True
    return False


def _cpus(result: Fields) -> Optional[int]:
    """The CPUs of one device that a claim has; None: all of them."""
    consumed = result.fields("consumedCapacity")
    key = next((key for key in CAPACITIES if key in consumed), None)
    if key is None:
        return None
    said = consumed.found[key]
    parts = _CPUS.fullmatch(str(said))
    if parts is None or (parts[2] and int(parts[1]) % 1000):
        raise consumed.wrong(key, said, "a whole number of CPUs")
    return int(parts[1]) // (1000 if parts[2] else 1)


def claims_text(rows: Iterable[Document], table: Callable[[Sequence[Sequence[str]]], str]) -> str:
    """Claims that wait first, then by node."""
    head = ("NAMESPACE", "CLAIM", "NODE", "DEVICES", "CPUS", "PODS")
    ordered = sorted(rows, key=lambda row: (row["node"], row["namespace"], row["claim"]))
    return table([head, *map(_cells, ordered)])


def _cells(row: Document) -> tuple[str, ...]:
    cpus = "whole" if row["cpus"] is None else str(row["cpus"])
    return (
        row["namespace"],
        row["claim"],
        row["node"] or "waits",
        ",".join(row["devices"]) or "-",
        cpus if row["node"] else "-",
        ",".join(row["pods"]) or "-",
    )
