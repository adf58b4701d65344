"""A ResourceClaim of the API, as the daemon is asked to prepare it, and what kubelet is told of it then. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from cluster.api.reader import Fields, Unreadable
from cluster.api.schema import shown
from cluster.kube.requests import Resource

CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)
#: The capacity of which a claim has a part; a qualified name is read too, which drivers called dra.cpu have.
CPU = "cpu"
#: Where an allocation has a device's settings from, in the order in which one goes before the other.
_SOURCES = ("FromClass", "FromClaim")
_QUANTITY = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_UNITS = {
    **{unit: Decimal(1000) ** power for power, unit in enumerate("num", -3)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
#: No machine has more CPUs.
_MOST_CPUS = 1 << 16


class ClaimUnusable(ValueError):
    """One sentence: why a claim cannot be prepared here. It goes into the Events of its pod."""


class ClaimName(NamedTuple):
    """Which claim kubelet speaks of."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PreparedDevice(NamedTuple):
    """One device of a claim. ``cdi``: names for the runtime; ``share``: "" where the device is given whole."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]
    share: str


def main_request(request: str) -> str:
    """The request that a reference names, which may be to one of the request's alternatives: ``REQUEST/ALTERNATIVE``."""
    return request.partition("/")[0]


def check_uid(claim: Mapping[str, Any], asked: ClaimName) -> None:
    """:raises ClaimUnusable: the API has another claim by that name than kubelet asks for."""
    metadata = claim.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    if uid != asked.uid:
        raise ClaimUnusable(
            f"the claim {asked} was deleted and made anew: it has the UID {shown(uid)}, "
            f"and the pod was given {asked.uid}; delete the pod, so that it is scheduled again"
        )


def prepare_arguments(claim: Mapping[str, Any], driver: str, node: str) -> dict[str, Any]:
    """The arguments of the daemon's ``claim-prepare``, out of a ResourceClaim.

    ``parameters``: in the order in which a later one goes before an earlier one, each with the requests in ``results`` that
    it is for, [] = all.

    :raises ClaimUnusable: nothing of it can be prepared on this node, and why.
    """
    try:
        fields = Fields(claim)
        metadata, status = fields.fields("metadata"), fields.fields("status")
        name = ClaimName(metadata.text("namespace"), metadata.text("name"), metadata.text("uid"))
        if "allocation" not in status:
            raise ClaimUnusable(f"the claim {name} has no allocation: the scheduler has not given it devices")
        devices = status.fields("allocation").fields("devices")
        results = list(_results(devices, name, driver, node))
        if not results:
            raise ClaimUnusable(f"the claim {name} was given no device of {driver}")
        requests = {result["request"] for result in results}
        return {
            "uid": name.uid,
            "namespace": name.namespace,
            "name": name.name,
            "results": results,
            "parameters": list(_parameters(devices, driver, requests)),
            "pods": list(_pods(status)),
        }
    except Unreadable as error:
        raise ClaimUnusable(f"the claim cannot be read: {error}") from None


def _results(devices: Fields, name: ClaimName, driver: str, node: str) -> Iterator[dict[str, Any]]:
    for result in devices.rows("results"):
        if result.text("driver") != driver:
            continue
        request, device, pool = result.text("request"), result.text("device"), result.text("pool")
        if pool != node:
            raise ClaimUnusable(f"the claim {name} was given {device} of the node {pool}, and this is {node}")
        if result.flag("adminAccess", False):
            raise ClaimUnusable(
                f"request {request} of the claim {name} asks for admin access, which CPUs do not have"
            )
        cpus = _consumed(result, name, driver)
        yield {"request": request, "device": device, "cpus": cpus, "share": result.text("shareID", "")}


def _consumed(result: Fields, name: ClaimName, driver: str) -> Any:
    """CPUs that the result has of its device; None: all."""
    consumed = result.fields("consumedCapacity")
    known = (CPU, f"{driver}/{CPU}")
    strange = sorted(key for key in consumed.found if key not in known)
    if strange:
        raise ClaimUnusable(
            f"request {result.text('request')} of the claim {name} has a part of the capacity {shown(strange[0])}; "
            f"devices of {driver} have the capacity {CPU} only"
        )
    for key in known:
        if key in consumed:
            return read_cpus(consumed.found[key], f"request {result.text('request')} of the claim {name}")
    return None


def read_cpus(quantity: Any, place: str) -> int:
    """Whole CPUs of a quantity, such as "4" or "4000m".

    :raises ClaimUnusable: it is none, or not of whole CPUs.
    """
    found = _QUANTITY.fullmatch(str(quantity)) if isinstance(quantity, (str, int)) else None
    if found is None or isinstance(quantity, bool):
        raise ClaimUnusable(f"{place} has {shown(quantity)} CPUs, expected a quantity such as 4 or 4000m")
    number, unit, exponent = found.groups()
    amount = Decimal(number) * (_UNITS[unit] if unit else Decimal(10) ** int(exponent or 0))
    if not 1 <= amount <= _MOST_CPUS or amount != int(amount):
        raise ClaimUnusable(f"{place} has {shown(quantity)} CPUs, expected a whole number of at least 1")
    return int(amount)


def _parameters(devices: Fields, driver: str, requests: set[str]) -> Iterator[dict[str, Any]]:
    rows = [row for row in devices.rows("config") if row.fields("opaque").found.get("driver") == driver]
    for row in sorted(rows, key=_rank):
        named = row.texts("requests")
        # A main request's name is for each of its alternatives.
        meant = sorted(each for each in requests if each in named or main_request(each) in named)
        if meant or not named:
            yield {"requests": meant, "value": row.fields("opaque").document("parameters")}


def _rank(row: Fields) -> int:
    source = row.text("source")
    if source not in _SOURCES:
        raise row.wrong("source", source, " or ".join(_SOURCES))
    return _SOURCES.index(source)


def _pods(status: Fields) -> Iterator[dict[str, str]]:
    for user in status.rows("reservedFor"):
        if user.text("resource") == "pods" and not user.text("apiGroup", ""):
            yield {"name": user.text("name"), "uid": user.text("uid")}


def prepared_devices(arguments: Mapping[str, Any], answer: Any, node: str) -> tuple[PreparedDevice, ...]:
    """What kubelet is told: the devices of ``prepare_arguments`` with the names that the daemon has answered.

    A request's name is told once, with the first of its devices, so that no container has it twice.

    :raises ClaimUnusable: the daemon's answer lacks a request.
    """
    try:
        rows = Fields(answer, "the daemon's answer").rows("parts")
        names = {part.text("request"): (part.text("cdi"),) for part in rows}
    except Unreadable as error:
        raise ClaimUnusable(str(error)) from None
    found, told = [], set()
    for result in arguments["results"]:
        request = result["request"]
        if request not in names:
            raise ClaimUnusable(f"the daemon has prepared nothing for request {request}")
        cdi = () if request in told else names[request]
        told.add(request)
        found.append(PreparedDevice(main_request(request), node, result["device"], cdi, result["share"]))
    return tuple(found)
