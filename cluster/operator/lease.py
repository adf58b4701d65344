"""One operator at a time: a Lease of coordination.k8s.io/v1, taken, renewed and lost as client-go does it.

Clocks of two machines are never compared: a Lease has run out when it has not changed for its whole duration *as seen
here*. The holder stops writing ``RENEW_WITHIN_S`` after its last renewal, before another may take the Lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

from cluster.operator.objects import write_micro_time

#: client-go's defaults (leaderelection: LeaseDuration, RenewDeadline, RetryPeriod), in seconds.
DURATION_S, RENEW_WITHIN_S, RETRY_S = 15.0, 10.0, 2.0


@dataclass(frozen=True)
class Election:
    """What one candidate knows. Times are of a clock that never goes back."""

    me: str
    #: The Lease's spec as it was last seen, and since when it has been so.
    seen: Optional[Mapping[str, Any]] = None
    seen_at: float = 0.0
    #: When this candidate last renewed it; None: it does not hold the Lease.
    renewed_at: Optional[float] = None

    def observed(self, spec: Optional[Mapping[str, Any]], now: float) -> Election:
        """After a read of the Lease (None: there is none)."""
        mine = self.renewed_at if spec and spec.get("holderIdentity") == self.me else None
        if spec == self.seen:
            return replace(self, renewed_at=mine)
        return replace(self, seen=spec, seen_at=now, renewed_at=mine)

    def may_take(self, now: float) -> bool:
        """It is free, it is this candidate's, or its holder has let it run out."""
        holder = (self.seen or {}).get("holderIdentity") or ""
        if not holder or holder == self.me:
            return True
        duration_s = float((self.seen or {}).get("leaseDurationSeconds") or DURATION_S)
        return now >= self.seen_at + duration_s

    def spec(self, wall: float) -> dict[str, Any]:
        """What to write to take or renew it, at this time of day; the read's resourceVersion goes with it."""
        seen = self.seen or {}
        held = seen.get("holderIdentity") == self.me
        time = write_micro_time(wall)
        return {
            "holderIdentity": self.me,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": seen.get("acquireTime") or time if held else time,
            "renewTime": time,
            "leaseTransitions": int(seen.get("leaseTransitions") or 0) + (0 if held or not seen else 1),
        }

    def renewed(self, spec: Mapping[str, Any], asked_at: float) -> Election:
        """The write has succeeded; it holds from when it was *asked*, since the answer may have taken long."""
        return replace(self, seen=spec, seen_at=asked_at, renewed_at=asked_at)

    def holds(self, now: float) -> bool:
        """This candidate may write."""
        return self.renewed_at is not None and now < self.renewed_at + RENEW_WITHIN_S


def released(spec: Mapping[str, Any], wall: float) -> dict[str, Any]:
    """What the holder writes at its orderly end, so that the next one need not wait."""
    return {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": write_micro_time(wall)}
