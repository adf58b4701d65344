"""Hundreds of pods of one node, which the server is asked about together: each by itself would keep the machine busy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Callable

from tests.cluster.real.control_plane import Refused
from tests.cluster.real.node import PODS
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import SharedNode

#: Between two looks, seconds: one takes the server a tenth of that for 200 pods.
LOOK_S = 1.0
#: As long as no pod comes, runs or goes, seconds: then what is waited for will not be.
STALLED_S = 2 * TIMEOUT_S
#: What a pod does: it has no node yet, is being started, has all its containers running, is being ended.
WAITS, COMES, RUNS, GOES = "waits", "comes", "runs", "goes"

Made = Callable[[str, int], dict[str, Any]]


class Crowd:
    """All pods of the server. ``states``: by name, as they were at the last look."""

    def __init__(self, node: SharedNode) -> None:
        self._node = node
        self._changed_s = time.monotonic()
        self._looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.states: Mapping[str, str] = {}
        self.task = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while True:
            pods = (await asyncio.to_thread(self._node.api.ask, "GET", PODS))["items"]
            states = {each["metadata"]["name"]: state_of(each) for each in pods}
            if states != self.states:
                self.states, self._changed_s = states, time.monotonic()
            looked, self._looked = self._looked, asyncio.get_running_loop().create_future()
            looked.set_result(None)
            await asyncio.sleep(LOOK_S)

    async def until(self, is_right: Callable[[], bool]) -> None:
        """Until the states are right, by a look that began after this call.

        :raises AssertionError: they are not, and nothing changes any more.
        """
        for looks in itertools.count():
            if looks > 1 and is_right():
                return
            await asyncio.wait({self.task, self._looked}, return_when=asyncio.FIRST_COMPLETED)
            if self.task.done():
                self.task.result()
            since_s = time.monotonic() - self._changed_s
            assert since_s < STALLED_S, {name: s for name, s in self.states.items() if s != RUNS}

    async def start(self, *pods: dict[str, Any]) -> None:
        """Create pods, all at once, and wait until all of them run."""
        await asyncio.gather(*(self._node.create(each) for each in pods))
        names = [each["metadata"]["name"] for each in pods]
        await self.until(lambda: all(self.states.get(name) == RUNS for name in names))

    async def remove(self, *names: str) -> None:
        """Delete pods and wait until all of them are gone."""
        for name in names:
            with contextlib.suppress(Refused):  # it may be gone by now
                await asyncio.to_thread(self._node.api.ask, "DELETE", f"{PODS}/{name}")
        await self.until(lambda: self.states.keys().isdisjoint(names))


def state_of(pod: Mapping[str, Any]) -> str:
    """What a pod does, by what the server has of it."""
    status = pod["status"]
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if "deletionTimestamp" in pod["metadata"]:
        return GOES
    if conditions.get("PodScheduled") == "False":
        return WAITS
    running = [each["name"] for each in status.get("containerStatuses") or () if "running" in each["state"]]
    return RUNS if len(running) == len(pod["spec"]["containers"]) else COMES


@asynccontextmanager
async def crowd_on(node: SharedNode) -> AsyncIterator[Crowd]:
    crowd = Crowd(node)
    try:
        yield crowd
    finally:
        crowd.task.cancel()
        await asyncio.gather(crowd.task, return_exceptions=True)


class Load:
    """Pods that come and go; ``made`` says which, by name and number.

    Every seventh goes as soon as it has come, whatever has become of it; of those for which there is no room every second
    goes while it waits.
    """

    HASTY, IMPATIENT = 7, 2

    def __init__(self, node: SharedNode, crowd: Crowd, workers: int, made: Made) -> None:
        self._node, self._crowd = node, crowd
        self._made = made
        self._is_over = False
        #: How many have gone, by what they had come to.
        self.gone = {COMES: 0, WAITS: 0, RUNS: 0}
        self.tasks = [asyncio.ensure_future(self._work(number)) for number in range(workers)]

    async def _work(self, worker: int) -> None:
        for count in itertools.takewhile(lambda count: not self._is_over, itertools.count()):
            name, number = f"load-{worker}-{count}", worker + count
            await self._node.create(self._made(name, number))
            enough = {RUNS} if number % self.IMPATIENT else {RUNS, WAITS}
            state = COMES
            if number % self.HASTY:
                state = await self._come_to(name, enough)
            await self._crowd.remove(name)
            self.gone[state] += 1

    async def _come_to(self, name: str, states: Collection[str]) -> str:
        """Which of these states a pod has come to."""
        await self._crowd.until(lambda: self._crowd.states.get(name) in states)
        return self._crowd.states[name]

    async def end(self) -> None:
        """Until none comes any more: a create that was begun would go on in its thread were its task cancelled."""
        self._is_over = True
        await asyncio.gather(*self.tasks)

    async def goes_on(self, more: int = 1) -> None:
        """Until so many pods more have come and gone."""
        wanted = sum(self.gone.values()) + more

        def is_enough() -> bool:
            for task in self.tasks:
                if task.done():
                    task.result()
            return sum(self.gone.values()) >= wanted

        await self._crowd.until(is_enough)


@asynccontextmanager
async def load_on(node: SharedNode, crowd: Crowd, workers: int, made: Made) -> AsyncIterator[Load]:
    """A load on a node until the end of the block; nothing of it is left then."""
    load = Load(node, crowd, workers, made)
    try:
        yield load
        await load.end()
    finally:
        for task in load.tasks:
            task.cancel()
        await asyncio.gather(*load.tasks, return_exceptions=True)
