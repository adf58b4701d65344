"""Removes unfinished containers and sandboxes: plugins had not agreed to them when their call ended.

They are left by a kill of the daemon (marks on disk name them), a create whose answer was lost, and a failed removal.
Until they are gone they stay hidden, and a create of the same name waits for the removal.
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
from cri_proxy.relay.interception import AnswerFailed, CallEnd
from cri_proxy.relay.status import Code
from cri_proxy.services.node_state import NodeState

RETRY_S = 5.0


class Cleanup:
    """The removals to do; ``run`` does them until cancelled."""

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
        """Take over the marks of the daemon before."""
        containers, sandboxes = self._intents.load()
        if containers or sandboxes:
            self._log.warning(
                "an earlier daemon ended before plugins had agreed; its unfinished containers are removed",
                containers=len(containers),
                sandboxes=len(sandboxes),
            )
        self.add(containers, sandboxes)

    def add(
        self,
        containers: frozenset[ContainerKey] = frozenset(),
        sandboxes: frozenset[SandboxKey] = frozenset(),
    ) -> None:
        """Remove these, if they exist. They are marked already."""
        self._containers |= containers
        self._sandboxes |= sandboxes
        self._hidden.making |= containers
        self._hidden.making_sandboxes |= sandboxes
        if len(self):
            self._there_are.set()

    @contextlib.asynccontextmanager
    async def making(
        self,
        name: str,
        is_there: Callable[[], bool],
        containers: frozenset[ContainerKey] = frozenset(),
        sandboxes: frozenset[SandboxKey] = frozenset(),
    ) -> AsyncIterator[None]:
        """Hide and mark a container or sandbox while it is made; left over if in doubt or ``is_there``.

        :raises AnswerFailed: it is being made already, or a leftover cannot be removed.
        """
        if containers & self._containers or sandboxes & self._sandboxes:
            await self.clear()
        hidden, intents = self._hidden, self._intents
        if containers & hidden.making or sandboxes & hidden.making_sandboxes:
            raise AnswerFailed(Code.UNKNOWN, f"failed to reserve {name}: it is being made already")
        hidden.making |= containers
        hidden.making_sandboxes |= sandboxes
        intents.add(containers, sandboxes)
        is_settled = False
        try:
            await intents.settled()
            yield
            is_settled = True
        except AnswerFailed as error:
            is_settled = not is_there() and error.end is not CallEnd.UNKNOWN
            raise
        finally:
            if is_settled:
                hidden.making -= containers
                hidden.making_sandboxes -= sandboxes
                intents.drop(containers, sandboxes)
            else:
                self.add(containers, sandboxes)

    async def run(self) -> None:
        """Remove leftovers, whenever there are any."""
        while True:
            await self._there_are.wait()
            try:
                await self.clear()
            except AnswerFailed as error:
                self._log.warning("unfinished containers cannot be removed yet", error=error.message)
                await asyncio.sleep(RETRY_S)
            except Exception:
                self._log.error("unfinished containers cannot be removed", exc_info=True)
                await asyncio.sleep(RETRY_S)

    async def clear_for(self, key: ContainerKey) -> None:
        """Remove a leftover before a create of its name: the runtime would call the name reserved.

        :raises AnswerFailed: the runtime's word on it.
        """
        if key in self._containers:
            await self.clear()

    async def clear_for_sandbox(self, key: SandboxKey) -> None:
        if key in self._sandboxes:
            await self.clear()

    async def clear(self) -> None:
        """Remove all of them.

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
            # A started container was finished: only its mark is old.
            if key not in keys or item.state != cri.CONTAINER_CREATED:
                continue
            await self._upstream.remove_container(item.id)
            self._hidden.removed(item.id)
            self._log.info("removed an unfinished container", id=item.id, name=item.metadata.name)
            engine = self._node_state.engine
            if engine is not None:
                engine.remove(item.id)
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
            self._log.info("removed an unfinished sandbox", id=item.id, name=meta.name)
