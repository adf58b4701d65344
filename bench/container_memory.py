"""What a container takes in the daemon's memory: ``python -m bench.container_memory [--containers N]``.

A whole daemon with the ``hygon`` policy in front of a fake runtime; pods as kubelet sends them, with its labels and
annotations. Resident memory after the first 20, which touch all code, and after N more. Then of daemons that come to 20
containers, and to as many more, which ran before: all of these are looked up at once, and how long that takes is told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from bench.figures import machine_line, print_row, process, resident_mb
from bench.raw import Client
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.control import ask
from tests.agent import Agent
from tests.cri_client import Pod, container_config, create_request, pod_config
from tests.machines import HYGON_7285_2S, machine

CONTAINERS = 480
FIRST = 20
COMPARED = "cri_resmgr_resyncs_total{result=ok}"
#: What a rollout gives all its pods, and what each has for itself (number).
LABELS = {"app": "shop", "pod-template-hash": "5d4f8c7b9", "app.kubernetes.io/part-of": "shop"}
ANNOTATIONS = {"kubernetes.io/config.seen": "2026-11-24T00:00:00.0{}Z", "kubernetes.io/config.source": "api"}
CONTAINER_ANNOTATIONS = {
    "io.kubernetes.container.hash": "{}",
    "io.kubernetes.container.restartCount": "0",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
}


def start_container(client: Client, number: int, cdi: tuple[str, ...] = ()) -> None:
    """A pod with one container, as kubelet starts them; ``cdi``: the names of its CDI devices."""

    def call(method: str, message: bytes) -> bytes:
        client.prepare(method, 1)
        return client.call(message)

    name = f"shop-5d4f8c7b9-{number:05d}"
    uid = f"0a1b2c3d-0000-4000-8000-{number:012d}"
    config = pod_config(name, uid=uid)
    own = {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": uid,
    }
    config.labels.update({**LABELS, **own})
    config.annotations.update({key: text.format(number) for key, text in ANNOTATIONS.items()})
    run = cri.RunPodSandboxRequest(config=config)
    sandbox_id = cri.RunPodSandboxResponse.FromString(
        call("RunPodSandbox", run.SerializeToString())
    ).pod_sandbox_id
    container = container_config("app", cdi=cdi, cpu_request=100, cpu_limit=1000, memory_limit=1 << 28)
    container.labels.update({"io.kubernetes.container.name": "app", **own})
    container.annotations.update({key: text.format(number) for key, text in CONTAINER_ANNOTATIONS.items()})
    create = create_request(Pod(sandbox_id, "", name, "default", config), container)
    reply = call("CreateContainer", create.SerializeToString())
    container_id = cri.CreateContainerResponse.FromString(reply).container_id
    call("StartContainer", cri.StartContainerRequest(container_id=container_id).SerializeToString())


async def compared(agent: Agent) -> int:
    """Wait until a daemon knows all containers; its pid."""
    assert agent.process is not None
    while not (await asyncio.to_thread(ask, agent.control, "status"))["counters"].get(COMPARED):
        pass
    return agent.process.pid


async def main(containers: int) -> None:
    print(machine_line())
    print_row(
        "containers", "resident MB", "kB a container", "s from READY to the end of the first comparison"
    )
    with tempfile.TemporaryDirectory(prefix="crb-") as folder:
        path = str(Path(folder) / "r.sock")
        with process("bench.create_cost", "--serve", path, "0"):
            async with Agent(path, machine(HYGON_7285_2S)) as agent:
                await grow(agent, agent.socket, containers, "created")
        path = str(Path(folder) / "ran-before.sock")
        with process("bench.create_cost", "--serve", path, "0"):
            await grow(Agent(path, machine(HYGON_7285_2S)), path, containers, "adopted")


async def grow(agent: Agent, socket: str, containers: int, name: str) -> None:
    """Memory with the first containers and with more, which come by ``socket``. An agent that does not run yet is started
    after them, each time."""
    has_begun, found, took_s = agent.process is not None, list[float](), list[str]()
    with contextlib.closing(Client(socket)) as client:
        for first, last in ((0, FIRST), (FIRST, FIRST + containers)):
            for number in range(first, last):
                start_container(client, number)
            if not has_begun:
                await agent.start()
                ready_s = time.monotonic()
                await compared(agent)
                took_s.append(f"{time.monotonic() - ready_s:.2f}")
            await asyncio.to_thread(ask, agent.control, "status")
            assert agent.process is not None
            found.append(resident_mb(agent.process.pid))
            if not has_begun:
                await agent.close()
                agent = Agent(socket, machine(HYGON_7285_2S))
    print_row(f"{FIRST} {name}", f"{found[0]:.1f}", "", *took_s[:1])
    more = (found[1] - found[0]) * 1024 / containers
    print_row(f"{FIRST + containers} {name}", f"{found[1]:.1f}", f"{more:.1f}", *took_s[1:])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--containers", type=int, default=CONTAINERS)
    asyncio.run(main(arguments.parse_args().containers))
