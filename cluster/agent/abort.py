"""When an agent that has lost the API server takes a policy back by itself. Pure.

With the API server there, this is the operator's work: it stops the other nodes as well. Without it a node that a
policy has degraded would stay so until the API server is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from cluster.agent.memory import AgentMemory

NOT_READY, DEGRADED, DOCTOR_ERRORS = "NotReady", "Degraded", "DoctorErrors"

#: A sign counts once it has held so long: a daemon that restarts is away for some seconds.
HOLD_S = 10.0
#: The API server is lost once nothing was heard of it for so long.
LOST_S = 30.0
#: A policy that has held so long is not what a new trouble comes from.
WITHIN_S = 900.0


def signs_of(
    report: Optional[Mapping[str, Any]], trouble: str, problems: Optional[Sequence[Mapping[str, Any]]]
) -> frozenset[str]:
    """What speaks against a node now, in the words of ``abortOn``."""
    found = set()
    if trouble or report is None or report.get("machine") is None:
        found.add(NOT_READY)
    if not trouble and report is not None and report.get("degraded"):
        found.add(DEGRADED)
    if any(problem.get("severity") == "error" for problem in problems or ()):
        found.add(DOCTOR_ERRORS)
    return frozenset(found)


class Signs:
    """Since when each sign has been there without a break."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.now: frozenset[str] = frozenset()

    def see(self, signs: frozenset[str], now_s: float) -> None:
        self.now = signs
        self._since = {sign: self._since.get(sign, now_s) for sign in signs}

    def against(self, memory: AgentMemory, now_s: float, since_1970_s: float) -> str:
        """The sign for which the policy in force should go, "" = there is none.

        ``now_s`` is of the clock of ``see``; ``since_1970_s`` of the one that ``AgentMemory.applied_at_s`` is from.
        """
        policy = memory.policy
        if policy is None or memory.spec is None or memory.spec.policy is None:
            return ""
        if policy.hash != memory.spec.policy.hash or policy.hash == memory.taken_back:
            return ""
        if not 0 <= since_1970_s - memory.applied_at_s < WITHIN_S:
            return ""
        held = [
            sign
            for sign in policy.abort_on
            if sign not in memory.baseline and now_s - self._since.get(sign, now_s) >= HOLD_S
        ]
        return held[0] if held else ""
