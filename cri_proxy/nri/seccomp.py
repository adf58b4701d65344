"""A seccomp policy of a plugin as a file: CRI takes profiles by their path only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from cri_api import nri_v1alpha1_pb2 as nri


@dataclass(frozen=True)
class SeccompFile:
    """A profile in the form of the OCI runtime spec. The same policy has the same name, so files can be shared."""

    path: str
    content: str


def seccomp_file(policy: nri.LinuxSeccomp, folder: str) -> SeccompFile:
    """The file of a policy, in a folder of ours."""
    content = json.dumps(_profile(policy), indent=1, sort_keys=True) + "\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return SeccompFile(f"{folder.rstrip('/')}/nri-{digest[:32]}.json", content)


def _profile(policy: nri.LinuxSeccomp) -> dict[str, Any]:
    """With the names of the OCI runtime spec (config-linux.md, seccomp); what is empty is left out."""
    profile: dict[str, Any] = {
        "defaultAction": policy.default_action,
        "architectures": list(policy.architectures),
        "flags": list(policy.flags),
        "listenerPath": policy.listener_path,
        "listenerMetadata": policy.listener_metadata,
        "syscalls": [_syscall(syscall) for syscall in policy.syscalls],
    }
    if policy.HasField("default_errno"):
        profile["defaultErrnoRet"] = policy.default_errno.value
    return {key: value for key, value in profile.items() if value not in ("", [])}


def _syscall(syscall: nri.LinuxSyscall) -> dict[str, Any]:
    written: dict[str, Any] = {"names": list(syscall.names), "action": syscall.action}
    if syscall.HasField("errno_ret"):
        written["errnoRet"] = syscall.errno_ret.value
    if syscall.args:
        written["args"] = [
            {"index": arg.index, "value": arg.value, "valueTwo": arg.value_two, "op": arg.op}
            for arg in syscall.args
        ]
    return written
