"""What is asked of the daemon about one claim, as its commands have it, and the parts that the engine is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Optional

from cri_api.claims import claim_key, part_name
from cri_proxy.claims.devices import ClaimDevice
from cri_proxy.claims.parameters import (
    ParametersEntry,
    parameters_for,
    read_parameters,
)
from cri_proxy.engine.model import ClaimPart, ContainerRecord
from policies.frozen import frozen

#: A claim of Kubernetes has at most 32 devices; names have 253 characters at most.
MOST_RESULTS, MOST_ENTRIES, NAME_CHARS = 32, 64, 253
#: More CPUs than a machine has.
MOST_CPUS = 8192
_UID = re.compile(r"[0-9A-Za-z-]{1,63}")
_REQUEST = re.compile(r"[0-9a-z]([0-9a-z-]{0,61}[0-9a-z])?(/[0-9a-z]([0-9a-z-]{0,61}[0-9a-z])?)?")


class BadClaim(ValueError):
    """A claim that cannot be read, or makes no sense on this node. The message is a sentence that names the place."""


@frozen
class DeviceResult:
    """One device that a request was allocated. ``cpus``: how many of a shared one; None = it is given whole."""

    request: str
    device: str
    cpus: Optional[int] = None


@frozen
class ClaimRequest:
    """A claim to be prepared, as the scheduler has allocated it."""

    uid: str
    namespace: str
    name: str
    results: tuple[DeviceResult, ...]
    parameters: tuple[ParametersEntry, ...] = ()

    @property
    def path(self) -> str:
        """What people call it."""
        return f"{self.namespace}/{self.name}"


def read_uid(arguments: Mapping[str, Any]) -> str:
    """:raises BadClaim: there is none."""
    uid = arguments.get("uid")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise BadClaim(f"uid is {_shown(uid)}, expected the UID of a claim")
    return uid


def read_claim(arguments: Mapping[str, Any]) -> ClaimRequest:
    """The arguments of ``claim-prepare``. Keys that are not known are passed over: a newer agent may know more.

    :raises BadClaim, BadParameters: they cannot be read.
    """
    uid = read_uid(arguments)
    results = tuple(
        _read_result(item, f"results[{at}]")
        for at, item in enumerate(_listed(arguments, "results", MOST_RESULTS))
    )
    if not results:
        raise BadClaim("results is empty, expected the devices that the claim was allocated")
    entries = tuple(
        _read_entry(item, f"parameters[{at}]")
        for at, item in enumerate(_listed(arguments, "parameters", MOST_ENTRIES))
    )
    return ClaimRequest(uid, _name(arguments, "namespace"), _name(arguments, "name"), results, entries)


def _listed(arguments: Mapping[str, Any], key: str, most: int) -> list[Any]:
    given = arguments.get(key, [])
    if not isinstance(given, list) or len(given) > most:
        raise BadClaim(f"{key} is {_shown(given)}, expected a list of at most {most}")
    return given


def _name(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS or not value.isprintable():
        raise BadClaim(f"{key} is {_shown(value)}, expected a name of 1 to {NAME_CHARS} characters")
    return value


def _read_result(item: Any, where: str) -> DeviceResult:
    if not isinstance(item, Mapping):
        raise BadClaim(f"{where} is {_shown(item)}, expected an object with request, device and cpus")
    request, device, cpus = item.get("request"), item.get("device"), item.get("cpus")
    if not isinstance(request, str) or not _REQUEST.fullmatch(request):
        raise BadClaim(f"{where}.request is {_shown(request)}, expected the name of a request")
    if not isinstance(device, str) or not 0 < len(device) <= NAME_CHARS:
        raise BadClaim(f"{where}.device is {_shown(device)}, expected the name of a device")
    if cpus is not None and (
        isinstance(cpus, bool) or not isinstance(cpus, int) or not 0 < cpus <= MOST_CPUS
    ):
        raise BadClaim(f"{where}.cpus is {_shown(cpus)}, expected a whole number of CPUs from 1 on, or null")
    return DeviceResult(request, device, cpus)


def _read_entry(item: Any, where: str) -> ParametersEntry:
    requests = item.get("requests", []) if isinstance(item, Mapping) else None
    if not isinstance(requests, list) or not all(isinstance(name, str) for name in requests):
        raise BadClaim(f"{where} is {_shown(item)}, expected an object with requests and value")
    return ParametersEntry(tuple(requests), read_parameters(item.get("value"), "the claim's parameters"))


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (str, int, float, bool, type(None))) else "of another kind"
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---------------------------------------------------------------------- parts


def parts_of(
    claim: ClaimRequest,
    find: Callable[[str], Optional[ClaimDevice]],
    known: Mapping[str, ContainerRecord],
) -> tuple[ClaimPart, ...]:
    """What the engine is asked for: a part a request. ``known``: the engine's records.

    :raises BadClaim: the allocation fits no device of this node.
    """
    by_request: dict[str, list[DeviceResult]] = {}
    for result in claim.results:
        by_request.setdefault(result.request, []).append(result)
    return tuple(_part_of(claim, request, results, find, known) for request, results in by_request.items())


def _part_of(
    claim: ClaimRequest,
    request: str,
    results: list[DeviceResult],
    find: Callable[[str], Optional[ClaimDevice]],
    known: Mapping[str, ContainerRecord],
) -> ClaimPart:
    devices = {result.device: _found(result, find) for result in results}
    names, parameters = tuple(sorted(devices)), parameters_for(claim.parameters, request)
    bounds = frozenset().union(*[device.bounds for device in devices.values()])
    there = known.get(claim_key(part_name(claim.uid, request)))
    before = None if there is None else there.part
    if any(device.is_shared for device in devices.values()):
        count = _count(request, results, devices)
    elif before is not None and before.devices == names:
        count = before.count  # what of it may be owned has changed since, perhaps
    else:
        count = len(frozenset().union(*[device.cpus for device in devices.values()]))
    if not count:
        taken = (
            "all are reserved, offline, or owned by containers without a claim; see: cri-resmgr placements"
        )
        raise BadClaim(f"no CPU of {', '.join(names)} can be given to a claim now: {taken}")
    return ClaimPart(request, count, bounds, parameters.preferences(), names)


def _found(result: DeviceResult, find: Callable[[str], Optional[ClaimDevice]]) -> ClaimDevice:
    device = find(result.device)
    if device is None:
        sentence = (
            f"the request {result.request} was allocated {result.device}, and this node has no such device"
        )
        raise BadClaim(f"{sentence}: its machine may be another than the one that was published")
    return device


def _count(request: str, results: list[DeviceResult], devices: Mapping[str, ClaimDevice]) -> int:
    """The CPUs of a shared device. Of several the engine would not know how many are whose."""
    if len(devices) > 1:
        names = ", ".join(sorted(devices))
        raise BadClaim(
            f"the request {request} was allocated parts of {len(devices)} devices ({names}); "
            "name a request for each of them"
        )
    counts = [result.cpus for result in results]
    if None in counts:
        raise BadClaim(
            f"the allocation of the request {request} does not say how many CPUs of {results[0].device}"
        )
    return sum(count or 0 for count in counts)
