"""What a container is, by its OCI spec as runc has it: a flat table, so that two of them are compared line by line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.e2e.containerd import Containerd

#: What tells one container from another of the same kind, or is the proxy's own business: placement.
_OWN = ("linux.resources.cpu.cpus", "linux.resources.cpu.mems", "linux.cgroupsPath", "process.env HOSTNAME")

#: Options that runc has for a mount without them; propagation is seen from inside only.
_UNSAID = {"rw", "rprivate", "rslave"}
#: What runc makes of a device without them.
_DEVICE = {"fileMode": 0o666, "uid": 0, "gid": 0}


def spec_of(runtime: Containerd, container_id: str) -> dict[str, Any]:
    """The spec of a container that was started, in which "it" stands for its id."""
    text = (runtime.bundle_of(container_id) / "config.json").read_text()
    return flatten(json.loads(text.replace(container_id, "it")))


def flatten(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is named is by its name: variables, mounts, devices, limits; what is a list without names is one value."""
    flat: dict[str, Any] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                add(f"{path}.{key}" if path else key, part)
        elif path == "process.env":
            for each in value:
                name, _, content = each.partition("=")
                flat[f"{path} {name}"] = content
        elif path == "mounts":
            for each in value:
                options = sorted({*each.get("options", ())} - _UNSAID)
                flat[f"mount {each['destination']}"] = {**each, "options": options}
        elif path == "linux.devices":
            for each in value:
                flat[f"device {each['path']}"] = {**_DEVICE, **each}
        elif path == "linux.resources.devices":
            for each in value:
                flat[f"device rule {each.get('type')} {each.get('major')}:{each.get('minor')}"] = each
        elif path == "process.rlimits":
            for each in value:
                flat[f"limit {each['type']}"] = each
        else:
            flat[path] = value

    add("", spec)
    return {path: value for path, value in flat.items() if path not in _OWN}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What is another value in ``after``; None: it is not there any more."""
    gone = dict.fromkeys(path for path in before if path not in after)
    return gone | {path: value for path, value in after.items() if before.get(path) != value}
