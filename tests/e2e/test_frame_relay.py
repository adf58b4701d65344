"""The frame relay between grpc-go and grpc-go: containerd itself, and its own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

import pytest
import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import CallEnd, Forward, Outcome, Refuse, intercepted
from cri_proxy.relay.io.server import FrameRelay
from tests.cri_client import CriClient, Pod, container_config, create_request
from tests.e2e.images import BUSYBOX
from tests.e2e.node import remove_all_pods
from tests.e2e.runtime import RealRuntime

pytestmark = pytest.mark.containerd

CREATE = "/runtime.v1.RuntimeService/CreateContainer"
VERSION = "/runtime.v1.RuntimeService/Version"
HANG_S = 60.0


def to_cpu_1() -> bytes:
    """What is appended to a create so that the container runs on CPU 1."""
    delta = cri.CreateContainerRequest()
    delta.config.linux.resources.cpuset_cpus = "1"
    return delta.SerializeToString()


class Creates:
    """Appends the cpuset to every create, or refuses it; ``ends`` tells how all intercepted calls went."""

    def __init__(self) -> None:
        self.refuses = False
        self.ends: list[tuple[str, CallEnd, int]] = []

    def open(self, full_method: str) -> Optional[Create]:
        method = intercepted(full_method)
        return Create(self, method) if method else None


class Create:
    filter = None

    def __init__(self, creates: Creates, method: str) -> None:
        self._creates = creates
        self._method = method

    async def request(self, message: bytes) -> Outcome:
        if self._method != "CreateContainer":
            return Forward()
        return Refuse(9, "no room: größer") if self._creates.refuses else Forward(to_cpu_1())

    async def replied(self, message: bytes) -> None:
        pass

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        self._creates.ends.append((self._method, end, code))


@pytest.fixture
def creates() -> Creates:
    return Creates()


@pytest_asyncio.fixture
async def relay(runtime: RealRuntime, creates: Creates, tmp_path: Path) -> AsyncIterator[FrameRelay]:
    doubts: list[str] = []
    relay = FrameRelay(str(runtime.socket), creates, on_closing=doubts.append)
    await relay.open([tmp_path / "k.sock"], [])
    await relay.start_behind(asyncio.sleep(0))
    yield relay
    await relay.close(1)
    assert doubts == []


@pytest_asyncio.fixture
async def client(relay: FrameRelay) -> AsyncIterator[CriClient]:
    async with CriClient(str(relay.sockets[0])) as client:
        yield client


async def pod_on(runtime: RealRuntime, client: CriClient, name: str) -> Pod:
    return await client.run_pod(name, uid=name, cgroup_parent=f"{runtime.cgroup_parent}/burstable/pod{name}")


async def test_a_container_runs_on_the_cpuset_that_was_appended(
    runtime: RealRuntime, direct: CriClient, client: CriClient, creates: Creates
) -> None:
    pod = await pod_on(runtime, client, "frames")
    container = await client.create(pod, "main", cpuset="0", mems="0")
    await client.start(container)
    assert runtime.cpuset_of(container)[0] == "1"
    assert (await client.exec(container, "echo", "hello"))[0] == "hello\n"
    await client.stop(container)
    await client.remove(container)
    assert [end for _, end, _ in creates.ends] == [CallEnd.OK] * 5
    await remove_all_pods(client)


async def test_refusals_and_calls_in_turn_leave_grpc_go_in_step(
    runtime: RealRuntime, direct: CriClient, client: CriClient, creates: Creates
) -> None:
    pod = await pod_on(runtime, client, "refused")
    request = create_request(pod, container_config("main", cpu_request=100)).SerializeToString()
    for number in range(30):
        creates.refuses = True
        headers = (("x-number", str(number)), ("traceparent", f"00-{number}-01"))
        refused, version = await asyncio.wait_for(
            asyncio.gather(
                client.call_bytes(CREATE, request, metadata=headers),
                client.call_bytes(VERSION, b"", metadata=headers),
            ),
            HANG_S,
        )
        assert (refused.code, refused.details, version.code) == (9, "no room: größer", 0)
    creates.refuses = False
    assert await client.list_containers() == []
    assert (await client.call_bytes(CREATE, request)).code == 0


async def test_an_error_of_containerds_is_its_own(client: CriClient, direct: CriClient) -> None:
    request = cri.StartContainerRequest(container_id="nobody").SerializeToString()
    replies = [
        await caller.call_bytes("/runtime.v1.RuntimeService/StartContainer", request)
        for caller in (client, direct)
    ]
    assert replies[0] == replies[1] and replies[0].code == 5


async def test_containerds_own_client_works_through_the_relay(
    runtime: RealRuntime, relay: FrameRelay, tmp_path: Path
) -> None:
    async def ctr(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "ctr", "--address", str(relay.sockets[0]), "-n", "k8s.io", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), HANG_S)
        assert process.returncode == 0, output
        return output.decode()

    archive = tmp_path / "exported.tar"
    outputs: list[Any] = await asyncio.gather(
        ctr("images", "list"),
        ctr("version"),
        ctr("plugins", "list"),
        ctr("images", "export", str(archive), BUSYBOX),
    )
    assert BUSYBOX in outputs[0] and "Server" in outputs[1]
    assert archive.stat().st_size > 500_000  # streamed in frames of 16 KiB, over windows of 64 KiB
    await ctr("images", "import", str(archive))
