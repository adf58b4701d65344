"""One operator at a time: a Lease of coordination.k8s.io/v1, taken, renewed and lost as client-go does it.

Clocks of two machines are never compared: a Lease has run out when it has not changed for its whole duration *as seen
here*. The holder stops writing ``RENEW_WITHIN_S`` after its last renewal, before another may take the Lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

from cluster.api.heartbeat import write_micro_time
from cluster.kube.io.access import NoAccess
from cluster.kube.io.clock import Clock
from cluster.kube.pace import Backoff
from cluster.kube.requests import LEASES, ApiError, Unreachable
from cri_api.waiting import wait_within

#: client-go's defaults (leaderelection: LeaseDuration, RenewDeadline, RetryPeriod), in seconds.
DURATION_S, RENEW_WITHIN_S, RETRY_S = 15.0, 10.0, 2.0


@dataclass(frozen=True)
class Election:
    """One candidate's knowledge. Times are of a clock that never goes back."""

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
        """The spec that takes or renews it, at this time of day; the read's resourceVersion goes with it."""
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
    """The holder's spec at its orderly end, so that the next one need not wait."""
    return {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": write_micro_time(wall)}


#: Seconds between two tries to take the Lease of an API server that does not answer, at most.
AWAY_MOST_S = 30.0


class LeaseLost(Exception):
    """Another may be writing now: the process ends, and a new one waits for its turn."""


class Leader:
    """One candidate. ``acquire``, then ``keep`` beside the work, which asks ``check`` before each write."""

    def __init__(
        self,
        client: Any,
        namespace: str,
        name: str,
        me: str,
        clock: Clock,
        log: Callable[[str], None],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """``alive`` is called with every try to take the Lease or to renew it."""
        self._alive = alive
        self._client, self._namespace, self._name = client, namespace, name
        self._clock, self._log = clock, log
        self._election = Election(me)
        self._said = ""

    async def acquire(self) -> None:
        """Returns when this candidate holds the Lease; waits for as long as another does."""
        backoff = Backoff(RETRY_S, AWAY_MOST_S)
        while True:
            is_answered = await self._turn()
            if self._election.holds(self._clock.monotonic()):
                self._say(f"lease {self._namespace}/{self._name}: held by {self._election.me}")
                return
            if is_answered:
                backoff.reset()
                await self._clock.sleep(RETRY_S * (1 + self._clock.random01() / 5))
            else:
                await self._clock.sleep(backoff.next(self._clock.random01()))

    async def keep(self) -> None:
        """Renew for ever. :raises LeaseLost: it could not be renewed in time, or another holds it."""
        while True:
            await self._clock.sleep(RETRY_S)
            try:
                await wait_within(RENEW_WITHIN_S, self._turn())
            except asyncio.TimeoutError:
                pass
            self.check()

    def check(self) -> None:
        """:raises LeaseLost: nothing may be written any more."""
        if not self._election.holds(self._clock.monotonic()):
            raise LeaseLost(f"lease {self._namespace}/{self._name}: lost by {self._election.me}")

    async def release(self) -> None:
        """At an orderly end, so that the next operator need not wait; as well as it can be done."""
        if not self._election.holds(self._clock.monotonic()):
            return
        try:
            found = await self._read()
            if found and found["spec"].get("holderIdentity") == self._election.me:
                spec = released(found["spec"], self._clock.wall())
                await self._client.replace(LEASES, self._name, {**found, "spec": spec}, self._namespace)
        except (ApiError, Unreachable, NoAccess):
            pass

    async def _turn(self) -> bool:
        """Whether the API server has said anything, and be it no."""
        self._alive()
        try:
            asked_at = self._clock.monotonic()
            found = await self._read()
            self._election = self._election.observed(found["spec"] if found else None, asked_at)
            if not self._election.may_take(asked_at):
                holder = (self._election.seen or {}).get("holderIdentity")
                self._say(f"lease {self._namespace}/{self._name}: {holder} has it")
                return True
            asked_at = self._clock.monotonic()
            spec = self._election.spec(self._clock.wall())
            await self._write(found, spec)
            self._election = self._election.renewed(spec, asked_at)
        except ApiError as error:
            # A conflict: another was faster, and the next read tells.
            if error.status != 409:
                self._say(f"lease {self._namespace}/{self._name}: {error}")
            return error.status < 500
        except (Unreachable, NoAccess) as error:
            self._say(f"lease {self._namespace}/{self._name}: the API server does not answer: {error}")
            return False
        return True

    async def _read(self) -> Optional[dict[str, Any]]:
        try:
            found: dict[str, Any] = await self._client.get(LEASES, self._name, self._namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {**found, "spec": found.get("spec") or {}}

    async def _write(self, found: Optional[dict[str, Any]], spec: dict[str, Any]) -> None:
        if found is not None:
            await self._client.replace(LEASES, self._name, {**found, "spec": spec}, self._namespace)
            return
        metadata = {"name": self._name, "namespace": self._namespace}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        await self._client.create(LEASES, lease, self._namespace)

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._log(line)
