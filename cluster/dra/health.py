"""The health of devices, as kubelet is told it, out of what the daemon tells of devices and claims. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from cluster.api.reader import Fields


class DeviceState(NamedTuple):
    """Of one device; ``message``: for people, in the status of the pods that have it, "" = there is nothing to say."""

    device: str
    is_healthy: bool = True
    message: str = ""


def device_states(devices: Any, claims: Any) -> tuple[DeviceState, ...]:
    """By name, out of the daemon's ``claim-devices`` and ``claims``.

    A device is as healthy as the claims on it. A claim is not where it has fewer CPUs than it was given: some went offline,
    and its devices had no others.
    A device that is not to be had any more is told for as long as a claim has it.

    :raises Unreadable: a document of the daemon is none.
    """
    states = {
        device.text("name"): DeviceState(device.text("name"))
        for device in Fields(devices, "claim-devices").rows("devices")
    }
    # Of several claims on a device the one that is worst off speaks for it.
    for claim in sorted(Fields(claims, "claims").rows("claims"), key=_well):
        for device in claim.texts("devices"):
            before = states.get(device, DeviceState(device))
            if before.is_healthy and not before.message:
                states[device] = DeviceState(device, _well(claim)[0], _message(claim))
    return tuple(states[name] for name in sorted(states))


def _well(claim: Fields) -> tuple[bool, bool, str]:
    """In this order: CPUs gone, moved, and as it was."""
    is_healthy, moved = claim.flag("healthy", True), claim.flag("moved", False)
    return is_healthy, not moved, f"{claim.text('namespace')}/{claim.text('name')}"


def _message(claim: Fields) -> str:
    is_healthy, has_stayed, name = _well(claim)
    cpus = claim.text("cpus") or "none"
    if not is_healthy:
        return f"the claim {name} has not all that it was given, as CPUs are offline; its CPUs are {cpus} now"
    return "" if has_stayed else f"the claim {name} had to move; its CPUs are {cpus} now"
