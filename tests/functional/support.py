"""What the tests about the daemon share: its life and death, and a kubelet that never rests.

``conftest.py`` has the fixtures, and the helpers that ask the control socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any, Callable, Optional, Union

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, cgroup_parent, container_config, pod_config
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import HANG_S, ask, resyncs, until
from tests.machines import HYGON_7285_2S, machine

Condition = Callable[[], Union[bool, Awaitable[bool]]]

UPDATE = "UpdateContainerResources"


async def eventually(condition: Condition, what: str) -> None:
    """Return once ``condition`` holds; for what nothing tells of: a process, a file, a log."""
    deadline = asyncio.get_running_loop().time() + HANG_S
    while True:
        holds = condition()
        if isinstance(holds, bool) or not hasattr(holds, "__await__"):
            if holds:
                return
        elif await holds:
            return
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def new_agent(runtime: FakeRuntime, **config: Any) -> AsyncIterator[Agent]:
    """A daemon on the two-socket Hygon that was not started yet."""
    agent = Agent(runtime.socket, machine(HYGON_7285_2S), config)
    try:
        yield agent
    finally:
        await agent.close()


async def start(agent: Agent, *arguments: str, **how: Any) -> Any:
    """Start a daemon, wait until it has compared its records with the runtime's; its status then."""
    await agent.start(*arguments, **how)
    return await until(agent, lambda status: resyncs(status) > 0 or status["mode"] == "off")


async def restart(agent: Agent, *arguments: str, **how: Any) -> Any:
    """Kill -9, and start again."""
    await agent.kill()
    return await start(agent, *arguments, **how)


async def ended(agent: Agent) -> int:
    """The exit code of a daemon that ends by itself."""
    assert agent.process is not None
    return await asyncio.wait_for(agent.process.wait(), HANG_S)


async def reloaded(agent: Agent) -> Any:
    """SIGHUP, and the status once it is over."""
    done = len(agent.messages)
    agent.reload()
    await agent.wait_notified("RELOADING=1")
    await agent.wait_notified("READY=1")
    assert any("RELOADING" in message for message in agent.messages[done:])
    return await ask(agent, "status")


async def compared(agent: Agent) -> Any:
    """The status after a comparison with the runtime that has begun after this call, and the updates that follow from it.

    Unlike ``conftest.resync`` it works for a daemon that was started again.
    """
    status = await ask(agent, "status")
    for _ in range(2):  # the first that ends may have begun before
        done = resyncs(status)
        await ask(agent, "mode", mode=status["mode_wanted"])
        status = await until(agent, lambda status, done=done: resyncs(status) > done)
    # Not in observe and off: none is sent then.
    return await until(agent, lambda status: status["mode"] != "enforce" or not status["updates_waiting"])


@contextlib.contextmanager
def unlisted(runtime: FakeRuntime) -> Iterator[None]:
    """Meanwhile the runtime does not list its containers: what is in doubt stays so, although the daemon looks by itself."""
    listing = asyncio.Event()
    script = runtime.script("ListContainers", hold=listing)
    try:
        yield
    finally:
        runtime.scripts.remove(script)
        listing.set()


def updates(runtime: FakeRuntime) -> int:
    """How many UpdateContainerResources calls the runtime has seen."""
    return len(runtime.calls_of(UPDATE))


def cpusets(runtime: FakeRuntime) -> dict[str, str]:
    """All cpusets the runtime has, by container."""
    return {key: runtime.cpuset(key) for key in runtime.containers}


def live_cpusets(runtime: FakeRuntime) -> dict[str, str]:
    """The cpusets of containers that have not exited."""
    live = (key for key, record in runtime.containers.items() if record.state != cri.CONTAINER_EXITED)
    return {key: runtime.cpuset(key) for key in live}


async def placed(agent: Agent) -> dict[str, Any]:
    """The placements by container id, without those whose create is under way or in doubt."""
    return {row["id"]: row for row in await ask(agent, "placements") if row["state"] != "creating"}


def run_without_us(
    runtime: FakeRuntime,
    name: str,
    *,
    cpuset: str = "",
    qos: str = "burstable",
    running: bool = True,
    **more: Any,
) -> str:
    """A pod with one container that nobody asked for through the daemon; the container's id.

    ``more``: the arguments of ``container_config``; ``pod_annotations``, ``namespace`` and ``runtime_handler``
    are the pod's.
    """
    pod_more = {
        "annotations": more.pop("pod_annotations", None),
        "namespace": more.pop("namespace", "default"),
    }
    handler = more.pop("runtime_handler", "")
    uid = f"uid-{name}"
    config = pod_config(name, uid=uid, cgroup_parent=cgroup_parent(qos, uid), **pod_more)
    pod = runtime.add_pod(config, handler)
    state = cri.CONTAINER_RUNNING if running else cri.CONTAINER_CREATED
    return runtime.add_container(pod, container_config(name, cpuset=cpuset, qos=qos, **more), state)


async def run_pod_with(
    client: CriClient, name: str, *, runtime_handler: str = "", **more: Any
) -> tuple[Pod, str]:
    """A pod with one running container, both named ``name``; ``pod_...`` arguments are the pod's."""
    pod_more = {key[4:]: more.pop(key) for key in [key for key in more if key.startswith("pod_")]}
    pod = await client.run_pod(name, runtime_handler=runtime_handler, **pod_more)
    container_id = await client.create(pod, name, **more)
    await client.start(container_id)
    return pod, container_id


class BusyKubelet:
    """One operation after another, as a seed has it, on whatever the runtime holds now.

    Like kubelet's it never has two operations on one pod under way, nor two attempts of one container alive.
    """

    PODS = 10
    LIMITS = (500, 1000, 2000, 4000, 7000, 8000, 12000, 16000, 24000)

    def __init__(self, runtime: FakeRuntime, seed: int) -> None:
        self.runtime = runtime
        self.random = random.Random(seed)
        self._made = 0

    def several(self, client: CriClient, count: int) -> list[Awaitable[Any]]:
        """Operations on different pods; nothing is sent before they are awaited."""
        busy: set[str] = set()
        return [self._operation(client, busy) for _ in range(count)]

    def operation(self, client: CriClient) -> Awaitable[Any]:
        """The next operation."""
        return self.several(client, 1)[0]

    def _operation(self, client: CriClient, busy: set[str]) -> Awaitable[Any]:
        choose, runtime = self.random, self.runtime
        ready = [p for p in runtime.pods.values() if p.state == cri.SANDBOX_READY and p.id not in busy]
        if len(ready) < 3 or (len(ready) < self.PODS and choose.random() < 0.15):
            self._made += 1
            return client.run_pod(f"pod{self._made}", uid=f"uid{self._made}")
        what = choose.choices(("create", "start", "stop", "remove", "resize", "end"), (8, 6, 3, 3, 4, 1))[0]
        states = {"start": cri.CONTAINER_CREATED, "remove": cri.CONTAINER_EXITED}
        state = states.get(what, cri.CONTAINER_RUNNING)
        idle = {pod.id for pod in ready}
        fitting = [c for c in runtime.containers.values() if c.state == state and c.sandbox_id in idle]
        if what in ("create", "end") or not fitting:
            pod = choose.choice(ready)
            busy.add(pod.id)
            return self._end(client, pod.id) if what == "end" else self._create(client, pod)
        container = choose.choice(fitting)
        busy.add(container.sandbox_id)
        if what == "start":
            return client.start(container.id)
        if what == "stop":
            return client.stop(container.id)
        if what == "remove":
            return client.remove(container.id)
        limit = choose.choice(self.LIMITS)
        shares, quota = max(limit * 1024 // 1000, 2), limit * 100
        return client.update(container.id, cpu_shares=shares, cpu_quota=quota, cpu_period=100_000)

    def _create(self, client: CriClient, record: Any) -> Awaitable[Any]:
        meta = record.config.metadata
        pod = Pod(record.id, meta.uid, meta.name, meta.namespace, record.config)
        name = self.random.choice(("app", "sidecar", "proxy", "logger"))
        mine = [c for c in self.runtime.containers.values() if (c.sandbox_id, c.name) == (pod.id, name)]
        alive = next((c for c in mine if c.state != cri.CONTAINER_EXITED), None)
        if alive is not None:
            return client.stop(alive.id)
        limit = self.random.choice((*self.LIMITS, None))
        return client.create(
            pod, name, attempt=max((c.attempt for c in mine), default=-1) + 1, cpu_limit=limit
        )

    async def _end(self, client: CriClient, pod_id: str) -> None:
        await client.stop_pod(pod_id)
        await client.remove_pod(pod_id)


@contextlib.contextmanager
def broken_module(
    folder: Path, name: str, text: str = "raise ImportError('it is broken')"
) -> Iterator[dict[str, str]]:
    """Environment for a process in which importing ``name`` fails."""
    module = folder / "broken" / name
    module.mkdir(parents=True)
    (module / "__init__.py").write_text(text + "\n")
    root = Path(__file__).resolve().parents[2]
    yield {"PYTHONPATH": f"{module.parent}:{root}"}


def message_with(agent: Agent, text: str) -> Optional[str]:
    """The first message to the service manager that contains ``text``."""
    return next((message for message in agent.messages if text in message), None)
