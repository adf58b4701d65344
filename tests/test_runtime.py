"""What we ask a runtime: which one it is, where it listens, and its lists, streamed where it can do that, since one message
of it holds some 11,000 containers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import DecodeError

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import NoRuntime, RuntimeClient, discover, gather_limited
from policies.model import Placement
from tests.fake_runtime import FakeRuntime

MANY, MOST_BYTES = 200, 10_000
WAIT_S = 10.0


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


async def test_a_list_that_cannot_be_read_is_not_read_on(runtime: FakeRuntime, asked: RuntimeClient) -> None:
    runtime.script("StreamContainers", reply=(b"\xff", b""), times=1)
    with pytest.raises(DecodeError):
        await asked.containers()
    runtime.items_a_part = 1
    await runtime.wait_until(lambda: all(call.finished for call in runtime.calls_of("StreamContainers")))
    assert {item.id for item in await asked.containers()} == set()


async def test_a_list_that_is_too_long_fails_where_there_are_no_parts(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    add(runtime, MANY)
    runtime.most_bytes = MOST_BYTES
    with pytest.raises(RpcError, match="larger than max"):
        await asked.containers()


# ---------------------------------------------------------------------- which one it is


@pytest.mark.parametrize("version", ["runtime.v1", "runtime.v1alpha2"])
async def test_it_is_spoken_to_in_the_version_that_it_speaks(
    runtime: FakeRuntime, asked: RuntimeClient, version: str
) -> None:
    runtime.api_versions = (version,)
    assert (asked.api, asked.name, asked.version) == ("", "", "")
    await asked.containers()
    assert (asked.api, asked.name, asked.version) == (version, "containerd", "1.7.0")
    assert {call.api for call in runtime.calls_of("ListContainers")} == {version}


async def test_one_that_speaks_no_version_of_ours_is_an_error(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    runtime.api_versions = ()
    with pytest.raises(RpcError) as raised:
        await asked.identify()
    assert (raised.value.code, asked.api) == (Code.UNIMPLEMENTED, "")
    assert [call.api for call in runtime.calls_of("Version")] == ["runtime.v1", "runtime.v1alpha2"]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL])
async def test_another_error_than_a_version_that_is_not_there_is_not_tried_around(
    runtime: FakeRuntime, asked: RuntimeClient, code: grpc.StatusCode
) -> None:
    runtime.script("Version", error=(code, "broken"))
    with pytest.raises(RpcError, match="broken"):
        await asked.identify()
    assert len(runtime.calls_of("Version")) == 1


@pytest.mark.parametrize(
    ("name", "version", "shared"),
    [
        ("containerd", "2.0.0", True),
        ("containerd", "v2.4.1", True),
        ("containerd", "10.0", True),
        ("containerd", "1.7.35", False),
        ("containerd", "1.2.0", False),
        ("containerd", "unknown", False),
        ("containerd", "", False),
        ("cri-o", "2.0.0", False),
    ],
)
def test_events_can_be_shared_where_that_was_seen(name: str, version: str, shared: bool) -> None:
    asked = RuntimeClient("/nowhere")
    asked.name, asked.version = name, version
    assert asked.events_can_be_shared() is shared


async def test_its_connection_is_there_once_it_is_waited_for(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    assert not asked.is_connected
    await asyncio.wait_for(asked.wait_ready(), WAIT_S)
    assert asked.is_connected
    lost = asyncio.ensure_future(asked.wait_lost())
    await asyncio.sleep(0)
    assert not lost.done()
    await runtime.stop()
    await asyncio.wait_for(lost, WAIT_S)
    assert not asked.is_connected


async def test_events_are_told_until_they_are_not_read_any_more(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    await asked.identify()
    events = asked.events()
    first = asyncio.ensure_future(events.__anext__())
    await runtime.wait_until(lambda: runtime.subscribers == 1)
    runtime.emit(cri.ContainerEventResponse(container_id="one"))
    assert (await asyncio.wait_for(first, WAIT_S)).container_id == "one"
    await events.aclose()
    await runtime.wait_until(lambda: not runtime.subscribers)


@pytest.mark.parametrize(
    ("told", "read"),
    [({"info": '{"pid": 7}'}, {"pid": 7}), ({"info": "[7]"}, {}), ({"info": "{"}, {}), ({"else": "{}"}, {})],
    ids=repr,
)
async def test_what_it_tells_besides_is_one_document_or_nothing(
    runtime: FakeRuntime, asked: RuntimeClient, told: dict[str, str], read: dict[str, Any]
) -> None:
    container = cri.ContainerStatusResponse(status=cri.ContainerStatus(id="c"), info=told)
    sandbox = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id="s"), info=told)
    runtime.script("ContainerStatus", reply=container.SerializeToString())
    runtime.script("PodSandboxStatus", reply=sandbox.SerializeToString())
    for verbose in (False, True):
        status, info = await (asked.container_status("c", True) if verbose else asked.container_status("c"))
        assert (status.id, info) == ("c", read)
    pod, info = await asked.sandbox_status("s")
    assert (pod.id, info) == ("s", read)
    assert [call.message.verbose for call in runtime.calls_of("ContainerStatus")] == [False, True]
    [of_pod] = runtime.calls_of("PodSandboxStatus")
    assert (of_pod.message.pod_sandbox_id, of_pod.message.verbose) == ("s", True)


async def test_a_container_is_told_its_cpus_and_nothing_that_it_is_not_to_have(
    runtime: FakeRuntime, asked: RuntimeClient
) -> None:
    [container_id] = add(runtime, 1)
    await asked.update(CpusetUpdate(container_id, Placement(frozenset({2, 3}), frozenset({0})), False, ""))
    [call] = runtime.calls_of("UpdateContainerResources")
    linux = cri.LinuxContainerResources(cpuset_cpus="2-3", cpuset_mems="0")
    assert call.message == cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
    assert runtime.cpuset(container_id) == "2-3"


async def test_nothing_is_connected_after_its_end(runtime: FakeRuntime, asked: RuntimeClient) -> None:
    await asked.identify()
    await asked.close()
    assert not asked.is_connected


def test_it_says_where_it_is_and_whether_that_is_a_guess() -> None:
    found, guessed = RuntimeClient("/found"), RuntimeClient("/usual", is_guess=True)
    assert (found.path, found.is_guess) == ("/found", False)
    assert (guessed.path, guessed.is_guess) == ("/usual", True)


# ---------------------------------------------------------------------- where it is


@pytest.fixture
def sockets(folder: Path) -> Iterator[tuple[str, ...]]:
    """Of four usual places the first is a file, the second not there, and two are sockets."""
    paths = tuple(str(folder / name) for name in ("file", "none", "one", "two"))
    Path(paths[0]).touch()
    listeners = [socket.socket(socket.AF_UNIX) for _ in paths[2:]]
    for listener, path in zip(listeners, paths[2:]):
        listener.bind(path)
    yield paths
    for listener in listeners:
        listener.close()


def test_it_is_where_it_is_configured_or_at_the_first_usual_place_that_is_a_socket(
    sockets: tuple[str, ...],
) -> None:
    assert discover("/configured", sockets) == "/configured"
    assert discover("", sockets) == sockets[2]


def test_where_there_is_none_the_sentence_says_where_it_was_looked_for(sockets: tuple[str, ...]) -> None:
    with pytest.raises(NoRuntime) as raised:
        discover("", sockets[:2])
    assert str(raised.value) == (
        f"no container runtime found: none of {sockets[0]}, {sockets[1]} is a socket; set relay.runtime_endpoint"
    )


def test_a_place_that_may_not_be_looked_at_is_named_unless_another_has_one(
    sockets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: Any, *words: Any, **named: Any) -> os.stat_result:
        if path == sockets[1]:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *words, **named)

    monkeypatch.setattr("cri_proxy.runtime.os.stat", stat)
    assert discover("", sockets) == sockets[2]
    with pytest.raises(NoRuntime, match=f"found: {sockets[1]} may not be looked at .permission denied.,"):
        discover("", sockets[:2])


# ---------------------------------------------------------------------- many at a time


async def test_so_many_at_a_time_are_asked_and_answers_are_in_order_with_errors_among_them() -> None:
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(10 - number):  # the first ends last
            await asyncio.sleep(0)
        under_way -= 1
        if number == 3:
            raise ValueError("three")
        return number

    answers = await gather_limited(4, [ask(number) for number in range(8)])
    assert most == 4
    assert isinstance(answers[3], ValueError)
    assert answers[:3] + answers[4:] == [0, 1, 2, 4, 5, 6, 7]


async def test_those_that_were_not_asked_yet_when_that_is_cancelled_are_closed() -> None:
    async def ask() -> None:
        await asyncio.get_running_loop().create_future()

    asked = [ask() for _ in range(3)]
    asking = asyncio.ensure_future(gather_limited(1, asked))
    while asked[0].cr_frame is not None and not asked[0].cr_await:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert all(each.cr_frame is None for each in asked)
