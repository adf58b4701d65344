"""What the tests of the simulation share: steps in few words, and runs of them on a named machine.

Every run is checked for what holds of every line: the keys and their order, and that an error shows no place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from cri_proxy.config.config import Config
from cri_proxy.simulator.replay import simulate
from policies.model import PLACEMENT_LEVELS
from tests.config.configs import read
from tests.machines import HYGON_7285_2S, machine

KEYS = (
    *("step", "op", "id", "cpus", "mems", "exclusive", "cpu_quota", "cpu_shares", "level"),
    *("sent", "why", "moved", "error", "notes"),
)
STATE_KEYS = (*KEYS, "containers", "free", "invariants", "status")
STATE: dict[str, Any] = {"op": "state"}

#: The CPUs of the CCXs and NUMA nodes of the Hygon that tests speak of.
CCX = [f"{4 * i}-{4 * i + 3},{64 + 4 * i}-{64 + 4 * i + 3}" for i in range(16)]
NUMA = [f"{8 * i}-{8 * i + 7},{64 + 8 * i}-{64 + 8 * i + 7}" for i in range(8)]


def config(text: str = "{}") -> Config:
    return read(text).config


def create(container: str, cpus: Any = None, /, **fields: Any) -> dict[str, Any]:
    """A container whose limit and request are ``cpus``, in a pod of its own unless ``pod`` is given."""
    step = {"op": "create", "id": container, "pod": f"pod-of-{container}", **fields}
    if cpus is not None:
        step = {"cpu_request": cpus, "cpu_limit": cpus, **step}
    return step


def kubelets(container: str, cpus: str, count: int, /, **fields: Any) -> dict[str, Any]:
    """A container to which kubelet's static CPU manager has given ``count`` CPUs of its own."""
    return create(
        container, count, memory_limit="1Gi", qos="guaranteed", cpuset=cpus, kubelets=True, **fields
    )


def run(
    *steps: Mapping[str, Any],
    on: str = HYGON_7285_2S,
    text: str = "{}",
    files: Optional[Mapping[str, str]] = None,
) -> list[dict[str, Any]]:
    """The lines of a scenario under the configuration ``text``. After every step the invariants hold."""
    checked = [step for given in steps for step in (given, STATE)]
    lines = list(simulate(machine(on), config(text), checked, lambda name: config((files or {})[name])))
    for line in lines:
        assert tuple(line) == (STATE_KEYS if line["op"] == "state" else KEYS)
        assert line["level"] in PLACEMENT_LEVELS
        assert not line["error"] or (line["cpus"], line["level"], line["moved"]) == ("", "none", [])
    assert {line["invariants"] for line in lines[1::2]} <= {"ok"}
    return lines[::2]


def last(*steps: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return run(*steps, **options)[-1]


def containers(line: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The containers of a ``state`` line, by id."""
    return {row["id"]: row for row in line["containers"]}


def places(line: Mapping[str, Any]) -> dict[str, str]:
    """The CPUs of the containers of a ``state`` line."""
    return {row["id"]: row["cpus"] for row in line["containers"]}


def moves(line: Mapping[str, Any]) -> dict[str, str]:
    """The CPUs of those who moved."""
    return {row["id"]: row["cpus"] for row in line["moved"]}
