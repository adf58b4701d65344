"""The Lease on the server: read, written, renewed every two seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Optional

from cluster.kube.backoff import Backoff
from cluster.kube.errors import ApiError, Unreachable
from cluster.kube.io.access import NoAccess
from cluster.kube.requests import Resource
from cluster.operator.io.clock import Clock
from cluster.operator.lease import RENEW_WITHIN_S, RETRY_S, Election, released
from cri_api.waiting import wait_within

LEASES = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)

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
                await self._clock.sleep(RETRY_S * (1 + self._clock.jitter() / 5))
            else:
                await self._clock.sleep(backoff.next(self._clock.jitter()))

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
