"""Removes unfinished containers and sandboxes: plugins had not agreed to them when their call ended.

They are left by a kill of the daemon (marks on disk name them), a create whose answer was lost, and a failed removal.
Until they are gone they stay hidden, and a create of the same name waits for the removal. One that the runtime does not
list may still be made, by a request that the daemon before had sent: it is looked for again until ``LATE_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, Callable

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.visibility import ContainerKey, SandboxKey, Visibility
from cri_proxy.nri.io.host.intent_log import IntentLog
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.relay.interception import AnswerFailed, CallEnd
from cri_proxy.relay.status import Code
from cri_proxy.services.node_state import NodeState

RETRY_S = 5.0
#: How long a runtime may take for a request whose sender is gone: as long as a ticket in doubt keeps its CPUs.
LATE_S = 120.0


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
        #: Each with the time until which it may still be made.
        self._containers: dict[ContainerKey, float] = {}
        self._sandboxes: dict[SandboxKey, float] = {}
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
        until_s = self._node_state.clock() + LATE_S
        self._containers.update(dict.fromkeys(containers, until_s))
        self._sandboxes.update(dict.fromkeys(sandboxes, until_s))
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
        if containers & self._containers.keys() or sandboxes & self._sandboxes.keys():
            await self.clear()
            self._let_go(containers, sandboxes)
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
                # Else the next daemon would remove what the client was told of.
                await intents.settled()
            else:
                self.add(containers, sandboxes)

    async def run(self) -> None:
        """Remove leftovers, whenever there are any."""
        while True:
            await self._there_are.wait()
            try:
                await self.clear()
                if len(self):
                    await asyncio.sleep(RETRY_S)
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
            await self._clear_and_let_go(frozenset([key]), frozenset())

    async def clear_for_sandbox(self, key: SandboxKey) -> None:
        if key in self._sandboxes:
            await self._clear_and_let_go(frozenset(), frozenset([key]))

    async def _clear_and_let_go(
        self, containers: frozenset[ContainerKey], sandboxes: frozenset[SandboxKey]
    ) -> None:
        """Those of these names that are made from now on are no leftovers."""
        await self.clear()
        self._let_go(containers, sandboxes)
        await self._intents.settled()

    async def clear(self) -> None:
        """Remove all that are there.

        :raises AnswerFailed: the runtime would not, or is away; the rest is tried again later.
        """
        async with self._lock:
            now_s, containers, sandboxes = self._node_state.clock(), self._containers, self._sandboxes
            late_containers = [key for key, until_s in containers.items() if until_s <= now_s]
            late_sandboxes = [key for key, until_s in sandboxes.items() if until_s <= now_s]
            made_containers = await self._clear_containers(frozenset(containers)) if containers else ()
            made_sandboxes = await self._clear_sandboxes(frozenset(sandboxes)) if sandboxes else ()
            self._let_go([*made_containers, *late_containers], [*made_sandboxes, *late_sandboxes])

    def _let_go(self, containers: Iterable[ContainerKey], sandboxes: Iterable[SandboxKey]) -> None:
        """These are gone, or finished."""
        over, over_sandboxes = frozenset(containers), frozenset(sandboxes)
        for key in over & self._containers.keys():
            del self._containers[key]
        for name in over_sandboxes & self._sandboxes.keys():
            del self._sandboxes[name]
        self._hidden.making -= over
        self._hidden.making_sandboxes -= over_sandboxes
        if over or over_sandboxes:
            self._intents.drop(over, over_sandboxes)
        if not len(self):
            self._there_are.clear()

    async def _clear_containers(self, keys: frozenset[ContainerKey]) -> set[ContainerKey]:
        """Remove those that were not started; returns those that there were."""
        made: set[ContainerKey] = set()
        request = cri.ListContainersRequest()
        listed = await self._upstream.call("ListContainers", request, cri.ListContainersResponse)
        for item in listed.containers:
            key = (item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)
            if key not in keys:
                continue
            made.add(key)
            # A started container was finished: only its mark is old. The list is older than the last removal.
            if item.state != cri.CONTAINER_CREATED or not await self._is_unstarted(item.id):
                continue
            await self._upstream.remove_container(item.id)
            self._hidden.removed(item.id)
            self._log.info("removed an unfinished container", id=item.id, name=item.metadata.name)
            engine = self._node_state.engine
            if engine is not None:
                engine.remove(item.id)
                self._node_state.save()
                # A comparison that is under way may have taken it for one that is there.
                self._node_state.on_doubt()
        return made

    async def _is_unstarted(self, container_id: str) -> bool:
        request = cri.ContainerStatusRequest(container_id=container_id)
        try:
            got = await self._upstream.call("ContainerStatus", request, cri.ContainerStatusResponse)
        except AnswerFailed as error:
            if error.code != Code.NOT_FOUND:
                raise
            return False
        return bool(got.status.state == cri.CONTAINER_CREATED)

    async def _clear_sandboxes(self, keys: frozenset[SandboxKey]) -> set[SandboxKey]:
        """Remove those in which no container was made; returns those that there were."""
        made: set[SandboxKey] = set()
        listed = await self._upstream.call(
            "ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse
        )
        for item in listed.items:
            meta = item.metadata
            key = (meta.name, meta.namespace, meta.uid, meta.attempt)
            if key not in keys:
                continue
            made.add(key)
            if await self._is_used(item.id):
                continue
            await self._upstream.remove_sandbox(item.id)
            self._hidden.removed(item.id)
            self._log.info("removed an unfinished sandbox", id=item.id, name=meta.name)
        return made

    async def _is_used(self, sandbox_id: str) -> bool:
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=sandbox_id))
        listed = await self._upstream.call("ListContainers", request, cri.ListContainersResponse)
        return bool(listed.containers)
