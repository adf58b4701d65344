"""The runtime's lists: streamed where it can do that, since one message of it holds some 11,000 containers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import RuntimeClient
from tests.fake_runtime import FakeRuntime

MANY, MOST_BYTES = 200, 10_000


@pytest_asyncio.fixture
async def asked(runtime: FakeRuntime) -> AsyncIterator[RuntimeClient]:
    asked = RuntimeClient(runtime.socket)
    yield asked
    await asked.close()


def add(runtime: FakeRuntime, count: int) -> set[str]:
    pods = [cri.PodSandboxMetadata(name=f"p{n}", uid=f"u{n}", namespace="ns") for n in range(2)]
    ids = [runtime.add_pod(cri.PodSandboxConfig(metadata=pod)) for pod in pods]
    names = [cri.ContainerMetadata(name=f"c{n}") for n in range(count)]
    configs = [cri.ContainerConfig(metadata=name) for name in names]
    return {runtime.add_container(ids[n % 2], config) for n, config in enumerate(configs)}


def counts(runtime: FakeRuntime) -> tuple[int, int]:
    """How often the list was asked for in parts, and how often in one message."""
    return len(runtime.calls_of("StreamContainers")), len(runtime.calls_of("ListContainers"))


async def test_a_list_that_is_too_long_for_a_message_comes_in_parts(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    added, runtime.items_a_part, runtime.most_bytes = add(runtime, MANY), 20, MOST_BYTES
    assert {item.id for item in await asked.containers()} == added
    assert {item.id for item in await asked.sandboxes()} == set(runtime.pods)
    upstream = await Upstream(asked).call(
        "ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse
    )
    assert len(upstream.containers) == MANY
    assert counts(runtime) == (2, 0) and not runtime.calls_of("ListPodSandbox")


async def test_a_runtime_without_streamed_lists_is_asked_for_them_once_a_connection(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    added = add(runtime, 3)
    for _ in range(3):
        assert {item.id for item in await asked.containers()} == added
    assert counts(runtime) == (1, 3)
    # It may be another one when it is back.
    runtime.items_a_part = 2
    await asked.identify()
    assert {item.id for item in await asked.containers()} == added
    assert counts(runtime) == (2, 3)


async def test_a_list_that_breaks_off_is_no_list(runtime: FakeRuntime, asked: RuntimeClient) -> None:
    runtime.items_a_part = 1
    part = cri.StreamContainersResponse(containers=[cri.Container(id="one")]).SerializeToString()
    runtime.script("StreamContainers", reply=part, error=(grpc.StatusCode.INTERNAL, "broken"))
    with pytest.raises(RpcError, match="broken"):
        await asked.containers()
    assert counts(runtime) == (1, 0)


async def test_a_list_that_is_too_long_fails_where_there_are_no_parts(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    add(runtime, MANY)
    runtime.most_bytes = MOST_BYTES
    with pytest.raises(RpcError, match="larger than max"):
        await asked.containers()
