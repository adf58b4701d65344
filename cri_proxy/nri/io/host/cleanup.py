"""Removes what was left half made: containers and sandboxes that plugins had not agreed to when the daemon ended.

That is so after a kill of the daemon (the marks on disk tell), after a create whose answer was lost, and where a
removal failed. Until they are gone they stay hidden, and a create of the same name waits for its removal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Callable

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.visibility import ContainerKey, SandboxKey, Visibility
from cri_proxy.nri.io.host.intent_log import IntentLog
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.relay.interception import AnswerFailed
from cri_proxy.services.node_state import NodeState

RETRY_S = 5.0
#: gRPC's code that containerd gives most of its refusals.
UNKNOWN = 2
#: After these it is not known whether the runtime has done it: CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE.
_DOUBTFUL = frozenset([1, 4, 14])


class Cleanup:
    """What is to be removed; ``run`` does it until it is cancelled."""

    def __init__(
        self, upstream: Upstream, intents: IntentLog, hidden: Visibility, node_state: NodeState, log: Any
    ) -> None:
        self._upstream = upstream
        self._intents = intents
        self._hidden = hidden
        self._node_state = node_state
        self._log = log
        self._containers: set[ContainerKey] = set()
        self._sandboxes: set[SandboxKey] = set()
        self._lock = asyncio.Lock()
        self._there_are = asyncio.Event()

    def __len__(self) -> int:
        return len(self._containers) + len(self._sandboxes)

    def load(self) -> None:
        """Take over what the daemon before has left."""
        containers, sandboxes = self._intents.load()
        if containers or sandboxes:
            self._log.warning(
                "an earlier daemon was ended before plugins had agreed; what it had made is removed",
                containers=len(containers),
                sandboxes=len(sandboxes),
            )
        self.add(containers, sandboxes)

    def add(
        self,
        containers: frozenset[ContainerKey] = frozenset(),
        sandboxes: frozenset[SandboxKey] = frozenset(),
    ) -> None:
        """These may exist and must not. They are marked already."""
        self._containers |= containers
        self._sandboxes |= sandboxes
        self._hidden.making |= containers
        self._hidden.making_sandboxes |= sandboxes
        if len(self):
            self._there_are.set()

    @contextlib.asynccontextmanager
    async def making(
        self,
        what: str,
        is_there: Callable[[], bool],
        containers: frozenset[ContainerKey] = frozenset(),
        sandboxes: frozenset[SandboxKey] = frozenset(),
    ) -> AsyncIterator[None]:
        """While something is made: hidden, and marked on disk; if it ends in doubt, or ``is_there``, left over.

        :raises AnswerFailed: it is being made already, or one that is left over cannot be removed.
        """
        if containers & self._containers or sandboxes & self._sandboxes:
            await self.clear()
        hidden, intents = self._hidden, self._intents
        if containers & hidden.making or sandboxes & hidden.making_sandboxes:
            raise AnswerFailed(UNKNOWN, f"failed to reserve {what}: it is being made already")
        hidden.making |= containers
        hidden.making_sandboxes |= sandboxes
        intents.add(containers, sandboxes)
        is_settled = False
        try:
            await intents.settled()
            yield
            is_settled = True
        except AnswerFailed as error:
            is_settled = not is_there() and error.code not in _DOUBTFUL
            raise
        finally:
            if is_settled:
                hidden.making -= containers
                hidden.making_sandboxes -= sandboxes
                intents.drop(containers, sandboxes)
            else:
                self.add(containers, sandboxes)

    async def run(self) -> None:
        """Remove what is there, whenever there is something."""
        while True:
            await self._there_are.wait()
            try:
                await self.clear()
            except AnswerFailed as error:
                self._log.warning("what was left half made cannot be removed yet", error=error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                self._log.error("what was left half made cannot be removed", exc_info=True)
                await asyncio.sleep(RETRY_S)

    async def clear_for(self, key: ContainerKey) -> None:
        """Before a create of a name that is left over, remove it: the runtime would call the name reserved.

        :raises AnswerFailed: the runtime's word on it.
        """
        if key in self._containers:
            await self.clear()

    async def clear_for_sandbox(self, key: SandboxKey) -> None:
        if key in self._sandboxes:
            await self.clear()

    async def clear(self) -> None:
        """Remove all there is.

        :raises AnswerFailed: the runtime would not, or is away; the rest is tried again later.
        """
        async with self._lock:
            containers, sandboxes = frozenset(self._containers), frozenset(self._sandboxes)
            if containers:
                await self._clear_containers(containers)
            if sandboxes:
                await self._clear_sandboxes(sandboxes)
            self._containers -= containers
            self._sandboxes -= sandboxes
            self._hidden.making -= containers
            self._hidden.making_sandboxes -= sandboxes
            self._intents.drop(containers, sandboxes)
            if not len(self):
                self._there_are.clear()

    async def _clear_containers(self, keys: frozenset[ContainerKey]) -> None:
        request = cri.ListContainersRequest()
        listed = await self._upstream.call("ListContainers", request, cri.ListContainersResponse)
        for item in listed.containers:
            key = (item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)
            # What was started has been finished and only the mark is old.
            if key not in keys or item.state != cri.CONTAINER_CREATED:
                continue
            await self._upstream.remove_container(item.id)
            self._hidden.removed(item.id)
            self._log.info("removed a container that was left half made", id=item.id, name=item.metadata.name)
            engine = self._node_state.engine
            if engine is not None:
                self._node_state.send(engine.remove(item.id))
                self._node_state.save()

    async def _clear_sandboxes(self, keys: frozenset[SandboxKey]) -> None:
        listed = await self._upstream.call(
            "ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse
        )
        request = cri.ListContainersRequest()
        containers = await self._upstream.call("ListContainers", request, cri.ListContainersResponse)
        used = {item.pod_sandbox_id for item in containers.containers}
        for item in listed.items:
            meta = item.metadata
            key = (meta.name, meta.namespace, meta.uid, meta.attempt)
            if key not in keys or item.id in used:
                continue
            await self._upstream.remove_sandbox(item.id)
            self._hidden.removed(item.id)
            self._log.info("removed a sandbox that was left half made", id=item.id, name=meta.name)
