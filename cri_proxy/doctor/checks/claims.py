"""What the doctor says of claims of CPUs (Dynamic Resource Allocation), where they are on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cri_proxy.doctor.facts import Facts
from cri_proxy.doctor.findings import Finding, ok, problem, warning

#: The first containerd that can give containers CDI devices.
_CONTAINERD_WITH_CDI = (1, 7)


def check_claims(facts: Facts) -> Iterator[Finding]:
    """Can claims be prepared, and do they reach containers?"""
    claims = facts.claims
    if claims is None or not claims.is_enabled:
        return
    found = [*_kubelet(facts), *_runtime(facts), *_driver(facts)]
    yield from found
    status: Mapping[str, Any] = (facts.status or {}).get("claims") or {}
    if status.get("reason"):
        yield warning("claims", f"no claims are prepared: {status['reason']}", "cri-resmgr status")
    elif not found:
        count = status.get("count", 0)
        yield ok("claims", f"claims of CPUs are prepared for the driver {claims.driver}; there are {count}")


def _kubelet(facts: Facts) -> Iterator[Finding]:
    if facts.kubelet is not None and facts.kubelet.settings.get("cpuManagerPolicy") == "static":
        sentence = (
            "dra.enabled is true, and kubelet's CPU manager is static: both give CPUs to containers alone"
        )
        yield problem("claims-cpu-manager", sentence, "cpuManagerPolicy: none, and drain the node first")


def _runtime(facts: Facts) -> Iterator[Finding]:
    runtime = facts.runtime
    if runtime is None or runtime.problem or runtime.name != "containerd":
        return
    number = re.search(r"(\d+)\.(\d+)", runtime.version)
    if number and (int(number[1]), int(number[2])) < _CONTAINERD_WITH_CDI:
        sentence = f"containerd {runtime.version} knows no CDI devices: no container gets its claim"
        yield problem("claims-cdi", sentence, "containerd 1.7 or later")
    elif runtime.gives_cdi is False:
        sentence = f"containerd {runtime.version} has CDI devices switched off: "
        hint = "enable_cdi = true in the CRI plugin's part of containerd's config.toml"
        if not number or int(number[1]) >= 2:
            yield problem("claims-cdi", f"{sentence}no container with a claim starts", hint)
        elif facts.front_end == "nri-plugin":
            yield problem(
                "claims-cdi", f"{sentence}the NRI plugin sees no claim, and no container gets one", hint
            )
        else:
            sentence += "containers have their claims of CPUs, and no device of another driver"
            yield warning("claims-cdi", sentence, hint)


def _driver(facts: Facts) -> Iterator[Finding]:
    claims = facts.claims
    if claims is not None and claims.others:
        others = " and ".join(claims.others)
        sentence = (
            f"the driver {claims.driver} of this node is {others}, and dra.driver_name has the same name"
        )
        yield problem("claims-driver", sentence, "remove that driver, or set another dra.driver_name")
