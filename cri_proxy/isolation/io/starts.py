"""A container is about to start: it is brought into its group before anything of its image runs, where there is a moment.

1. The container has threads that wait for the start (CRI-O makes them with the create; every runtime has them when its NRI
   tells of the start): they are moved.
2. The pod has a shim (containerd): where all the pod's containers belong to one group the shim is moved there, and forks
   there what runs in them: their first processes, and their probes. Where they do not, it belongs in the root group.
3. Neither: the container's cgroup is looked for until it has threads. So it is, too, where threads are to be scheduled
   (``isolation.io.scheduling``), which the shim is never, and until a look has found nothing to set: runc's process in
   there forks the one that becomes the image's.

What comes too late for any of them is found by the round that follows each start (``Tasks.follow``).
Rule: no start waits longer than ``START_S``, and none fails, for anything in here; the runtime is not called.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any, Callable

from cri_api.waiting import wait_within
from cri_proxy.engine.model import ContainerRecord, Life, pod_cgroup
from cri_proxy.isolation.io.tasks import Tasks
from cri_proxy.isolation.model import ROOT
from cri_proxy.services.services import Services

#: The longest that a start waits: some writes of 20 us each, and those of a group that is not there yet.
START_S = 0.05
#: How long a cgroup is looked for, seconds, and how often: between its first thread and the start of its image containerd
#: begins another runc, which takes 10 ms and more.
CATCH_S, LOOK_S = 10.0, 0.002


class Starts:
    """The starts of one node's containers.

    ``settled``: the group of a container, once that is written; ``group_of``: the same as far as it is known now.
    """

    def __init__(
        self,
        services: Services,
        tasks: Tasks,
        settled: Callable[[str], Awaitable[str]],
        group_of: Callable[[str], str],
    ) -> None:
        self._services = services
        self._tasks = tasks
        self._settled = settled
        self._group_of = group_of
        self._catching: set[asyncio.Task[None]] = set()
        #: Starts that did not wait until it was done.
        self.late = 0

    async def before(self, key: str) -> None:
        """Wait until a container is in its group as far as it can be before it starts, or the time is over."""
        engine = self._services.node_state.active()
        grant = None if engine is None else engine.grants.get(key)
        if grant is None or not grant.container.pod.cgroup_parent:
            return
        try:
            await wait_within(START_S, self._before(key, grant))
        except asyncio.TimeoutError:
            self.late += 1
            self._begin(self._after_all(key, grant))
        except Exception:
            self._services.log.error("a container starts outside its group", id=key, exc_info=True)

    async def close(self) -> None:
        """Nothing is looked for any more."""
        for task in self._catching:
            task.cancel()
        await asyncio.gather(*self._catching, return_exceptions=True)

    async def _before(self, key: str, grant: ContainerRecord) -> None:
        group = await self._settled(key)
        pod = grant.container.pod
        cgroup, common = f"/{pod_cgroup(pod.cgroup_parent)}", self._common(key, pod.id, group)

        def move() -> bool:
            has_threads = self._tasks.begin(key, cgroup, group)
            is_shims = self._tasks.begin_by_shim(key, cgroup, pod.id, common)
            is_grouped = has_threads or group == ROOT or (is_shims and common == group)
            return is_grouped and (has_threads or not self._tasks.is_scheduled(key))

        if not await asyncio.to_thread(move):
            self._begin(self._catch(key, cgroup, group))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._services.supervisor.begin("isolation of a start", work)
        self._catching.add(task)
        task.add_done_callback(self._catching.discard)

    async def _after_all(self, key: str, grant: ContainerRecord) -> None:
        """The start has not waited: the shim is moved, which may not have forked it yet, and then what runs."""
        with contextlib.suppress(asyncio.TimeoutError):
            group = await wait_within(CATCH_S, self._settled(key))
            pod = grant.container.pod
            cgroup, common = f"/{pod_cgroup(pod.cgroup_parent)}", self._common(key, pod.id, group)
            await asyncio.to_thread(self._tasks.begin_by_shim, key, cgroup, pod.id, common)
            if group != ROOT or self._tasks.is_scheduled(key):
                await self._catch(key, cgroup, group)

    def _common(self, key: str, pod_id: str, group: str) -> str:
        """Where a pod's shim belongs: in the group of a container that starts, if all the others are in that, too."""
        return group if all(self._group_of(each) == group for each in self._beside(key, pod_id)) else ROOT

    def _beside(self, key: str, pod_id: str) -> list[str]:
        """The other containers of a pod that have processes, or will have."""
        engine = self._services.node_state.engine
        return [
            each.key
            for each in (engine.grants.values() if engine is not None else ())
            if each.container.pod.id == pod_id and each.key != key and each.life is not Life.HELD
        ]

    async def _catch(self, key: str, pod: str, group: str) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + CATCH_S
        while loop.time() < ends_at:
            # A listing of the pod's cgroup, which has some containers, takes 10 us.
            path = self._tasks.cgroup_of(key, pod)
            is_caught = False if not path else await asyncio.to_thread(self._tasks.catch, key, path, group)
            if is_caught:
                return
            await asyncio.sleep(LOOK_S)

    def status(self) -> dict[str, Any]:
        return {"late": self.late}
