"""Whoever talks to the runtime through the daemon sees what he would see without it, to the byte.

Each case is called twice, past the daemon and through it, and the two are compared: what the runtime got and
what the client got back. One runtime and one daemon serve the whole module.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import INTERCEPTED
from tests.agent import Agent
from tests.cri_client import CriClient, RawReply, container_config, create_request
from tests.fake_runtime import Call, FakeRuntime
from tests.functional.conftest import CREATE, HANG_S, UPDATE, VERSION, ask, start_in_front_of
from tests.machines import HYGON_7285_2S, machine

pytestmark = pytest.mark.asyncio(loop_scope="module")

APIS = ("runtime.v1", "runtime.v1alpha2")
SERVICES = cri.DESCRIPTOR.services_by_name
METHODS = [(service.name, method.name) for service in SERVICES.values() for method in service.methods]
CRI_METHODS = [f"/{api}.{service}/{method}" for api in APIS for service, method in METHODS]
INVENTED = [
    "/runtime.v1.RuntimeService/Levitate",
    "/runtime.v1alpha2.ImageService/Levitate",
    "/runtime.v2.RuntimeService/CreateContainer",
    "/runtime.v1.RuntimeService/createcontainer",
    "/containerd.services.images.v1.Images/Get",
    "/a/b",
    "/grpc.health.v1.Health/Watch",
]
#: Headers that every gRPC hop writes itself.
HOP_HEADERS = ("user-agent", "te", "grpc-accept-encoding", "accept-encoding")

#: Field 1000 with "new": what a later version of the CRI may add to any message.
UNKNOWN = b"\xc2\x3e\x03new"
#: Not a protobuf message.
GARBAGE = b"\xff\xff\x00garbage"
SENT = (
    ("traceparent", "00-1-2-01"),
    ("x-many", "1"),
    ("x-many", "2"),
    ("x-key-bin", b"\x00\xff\n"),
    ("grpc-trace-bin", b"\x01"),
)
INITIAL = (("i", "1"), ("i", "2"), ("i-bin", b"\x00\x01\xff"))
TRAILING = (
    ("t", "1"),
    ("t", ""),
    ("t", "1"),
    ("t-bin", b"\xfe\x00"),
    ("t-bin", b""),
    ("grpc-status-details-bin", b"\x08\x05"),
)
DETAILS = {
    "empty": "",
    "unicode": "größer 龙 🐉",
    "newlines": "one\ntwo\r\n\ttabbed\n",
    "percent": "100% of %2F, 5%%, %zz",
    "of 9 kB": "wide ü " * 1300,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_runtime() -> AsyncIterator[FakeRuntime]:
    with tempfile.TemporaryDirectory(prefix="crf-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            yield runtime


@pytest.fixture
def runtime(shared_runtime: FakeRuntime) -> Iterator[FakeRuntime]:
    shared_runtime.calls.clear()
    yield shared_runtime
    shared_runtime.scripts.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(shared_runtime: FakeRuntime) -> AsyncIterator[Agent]:
    agent = await start_in_front_of(shared_runtime, machine(HYGON_7285_2S), {})
    yield agent
    assert agent.process is not None and agent.process.returncode is None, agent.log()
    await agent.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(agent: Agent) -> AsyncIterator[CriClient]:
    async with CriClient(agent.socket) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct(shared_runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(shared_runtime.socket) as client:
        yield client


async def both(
    runtime: FakeRuntime, direct: CriClient, client: CriClient, method: str, message: bytes, **call: Any
) -> tuple[tuple[RawReply, Call], tuple[RawReply, Call]]:
    """One call past the daemon, then the same through it: what came back, and what the runtime got."""
    found = []
    for caller in (direct, client):
        before = len(runtime.calls_of(method))
        reply = await asyncio.wait_for(caller.call_bytes(method, message, **call), HANG_S)
        # The daemon may ask for its own sake meanwhile.
        [got] = [one for one in runtime.calls_of(method)[before:] if one.request == (message,)]
        found.append((reply, got))
    return found[0], found[1]


def headers(call: Call) -> dict[str, list[Any]]:
    """Metadata as gRPC defines it: the values of each key in their order."""
    found: dict[str, list[Any]] = {}
    for key, value in call.metadata:
        if key not in HOP_HEADERS:
            found.setdefault(key, []).append(value)
    return found


# ---------------------------------------------------------------------- every method


async def test_the_list_of_methods_is_that_of_the_cri() -> None:
    assert len(CRI_METHODS) >= 80
    assert {method for _, method in METHODS} > INTERCEPTED


@pytest.mark.parametrize("method", [*CRI_METHODS, *INVENTED])
async def test_a_call_and_its_answer_pass_unchanged(runtime, direct, client, method) -> None:
    runtime.script(method, reply=GARBAGE, initial_metadata=INITIAL, trailing_metadata=TRAILING)
    plain, relayed = await both(runtime, direct, client, method, UNKNOWN, metadata=SENT)
    assert relayed[0] == plain[0]
    assert relayed[0].messages == (GARBAGE,) and relayed[0].trailing_metadata == TRAILING
    assert relayed[1].request == plain[1].request == (UNKNOWN,)
    assert headers(relayed[1]) == headers(plain[1])
    assert headers(plain[1])["x-many"] == ["1", "2"]


@pytest.mark.parametrize("method", [*CRI_METHODS, *INVENTED])
async def test_an_error_passes_unchanged_also_after_messages(runtime, direct, client, method) -> None:
    runtime.script(method, reply=(b"one", b"", GARBAGE), error=(9, "then it\nbroke: 7%", TRAILING))
    plain, relayed = await both(runtime, direct, client, method, GARBAGE)
    assert relayed[0] == plain[0]
    assert (relayed[0].code, relayed[0].details) == (9, "then it\nbroke: 7%")
    assert relayed[0].messages == (b"one", b"", GARBAGE)
    assert relayed[1].request == plain[1].request == (GARBAGE,)


@pytest.mark.parametrize("message", [b"", UNKNOWN, GARBAGE], ids=["empty", "unknown field", "garbage"])
@pytest.mark.parametrize("method", [VERSION, CREATE, UPDATE])
async def test_empty_requests_and_replies_arrive_as_messages(
    runtime, direct, client, method, message
) -> None:
    runtime.script(method, reply=b"")
    plain, relayed = await both(runtime, direct, client, method, message)
    assert relayed[0] == plain[0] and relayed[0].messages == (b"",)
    assert relayed[1].request == plain[1].request == (message,)


@pytest.mark.parametrize("method", [VERSION, CREATE, "/runtime.v1.RuntimeService/GetContainerEvents"])
@pytest.mark.parametrize("messages", [(), (b"",), (UNKNOWN, GARBAGE)], ids=["none", "one", "two"])
async def test_as_many_messages_arrive_as_were_sent(runtime, direct, client, method, messages) -> None:
    runtime.script(method, error=(13, "cardinality violation"))
    for caller in (direct, client):
        call = caller._channel.stream_stream(method)(iter(messages))
        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "cardinality violation"
    assert [call.request for call in runtime.calls_of(method)] == [messages, messages]


# ---------------------------------------------------------------------- statuses


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
@pytest.mark.parametrize("method", [VERSION, CREATE], ids=["Version", "CreateContainer"])
async def test_every_status_code_passes(runtime, direct, client, method, code) -> None:
    failure = {"reply": b""} if code is grpc.StatusCode.OK else {"error": (code, "because", TRAILING)}
    runtime.script(method, **failure)
    plain, relayed = await both(runtime, direct, client, method, UNKNOWN)
    assert relayed[0] == plain[0] and relayed[0].code == code.value[0]


@pytest.mark.parametrize("kind", DETAILS)
@pytest.mark.parametrize("method", [VERSION, CREATE], ids=["Version", "CreateContainer"])
async def test_details_pass_to_the_character(runtime, direct, client, method, kind) -> None:
    runtime.script(method, error=(2, DETAILS[kind]))
    plain, relayed = await both(runtime, direct, client, method, UNKNOWN)
    assert relayed[0] == plain[0] and relayed[0].details == DETAILS[kind]


# ---------------------------------------------------------------------- what is added to a create


def telling_request(pod: Any) -> bytes:
    """A create whose order, new fields and unknown fields at five levels must survive."""
    config = container_config(
        "app",
        cpu_request=1500,
        cpu_limit=2000,
        envs=tuple((name, f"value of {name}") for name in ("Z", "B", "A", "Z", "M", "")),
        mounts=tuple(
            cri.Mount(
                container_path=f"/{name}",
                host_path=f"/host/{name}",
                readonly=name == "c",
                recursive_read_only=name == "c",
                uidMappings=[cri.IDMapping(host_id=100_000, container_id=0, length=65_536)],
                gidMappings=[cri.IDMapping(host_id=200_000, container_id=0, length=65_536)],
            )
            for name in ("z", "c", "a", "m")
        ),
    )
    mount = cri.Mount.FromString(config.mounts[1].SerializeToString() + UNKNOWN)
    config.mounts[1].CopyFrom(mount)
    resources = cri.LinuxContainerResources.FromString(config.linux.resources.SerializeToString() + UNKNOWN)
    config.linux.resources.CopyFrom(resources)
    config.linux.CopyFrom(cri.LinuxContainerConfig.FromString(config.linux.SerializeToString() + UNKNOWN))
    config.CopyFrom(cri.ContainerConfig.FromString(config.SerializeToString() + UNKNOWN))
    return create_request(pod, config).SerializeToString() + UNKNOWN


@pytest.mark.parametrize("api", APIS)
async def test_a_create_arrives_as_it_was_with_nothing_but_the_cpuset_behind_it(runtime, agent, api) -> None:
    async with CriClient(agent.socket, api=api) as client:
        pod = await client.run_pod(f"web-{api}")
        sent = telling_request(pod)
        reply = await client.call_bytes(f"/{api}.RuntimeService/CreateContainer", sent)
    assert reply.code == 0
    [call] = runtime.calls_of("CreateContainer")
    [got] = call.request
    resources = call.message.config.linux.resources
    assert resources.cpuset_cpus
    linux = cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(cpuset_cpus=resources.cpuset_cpus))
    delta = cri.CreateContainerRequest(config=cri.ContainerConfig(linux=linux)).SerializeToString()
    assert got == sent + delta


async def test_what_the_runtime_reads_from_a_create_differs_in_the_cpuset_only(runtime, client) -> None:
    pod = await client.run_pod("orders")
    sent = telling_request(pod)
    await client.call_bytes(CREATE, sent)
    [got] = runtime.calls_of("CreateContainer")
    message = got.message
    assert [env.key for env in message.config.envs] == ["Z", "B", "A", "Z", "M", ""]
    assert [mount.container_path for mount in message.config.mounts] == ["/z", "/c", "/a", "/m"]
    assert message.config.mounts[1].recursive_read_only
    assert [mount.uidMappings[0].host_id for mount in message.config.mounts] == [100_000] * 4
    assert [mount.gidMappings[0].host_id for mount in message.config.mounts] == [200_000] * 4
    message.config.linux.resources.ClearField("cpuset_cpus")
    before = cri.CreateContainerRequest.FromString(sent)
    assert message.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)
    assert sent.count(UNKNOWN) == 5


async def test_a_create_and_its_reply_of_eight_mebibytes_pass(runtime, client) -> None:
    pod = await client.run_pod("large")
    config = container_config("app", cpu_request=100, envs=(("BIG", "x" * (8 << 20)),))
    sent = create_request(pod, config).SerializeToString()
    answer = (
        cri.CreateContainerResponse(container_id="large").SerializeToString()
        + b"\xc2\x3e\x80\x80\x80\x04"
        + bytes(8 << 20)
    )
    runtime.script("CreateContainer", reply=answer)
    reply = await client.call_bytes(CREATE, sent)
    assert reply.messages == (answer,)
    assert runtime.calls_of("CreateContainer")[0].request[0].startswith(sent)


async def test_any_message_of_eight_mebibytes_passes_both_ways(runtime, client) -> None:
    message = bytes(range(256)) * (8 << 12)
    runtime.script(VERSION, reply=message)
    for method in (VERSION, INVENTED[0]):
        assert (await client.call_bytes(method, message)).messages == (message,)
        assert runtime.calls_of(method)[0].request == (message,)


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("method", [VERSION, CREATE, INVENTED[0]])
async def test_the_runtime_sees_the_clients_deadline_or_none(runtime, direct, client, method) -> None:
    runtime.script(method, reply=b"")
    _, (_, late) = await both(runtime, direct, client, method, UNKNOWN, timeout=3600)
    # gRPC sends three digits of a timeout, rounded up, on each of the two ways.
    assert late.time_remaining is not None and abs(late.time_remaining - 3600) < 72
    _, (_, never) = await both(runtime, direct, client, method, UNKNOWN)
    assert never.time_remaining is None


@pytest.mark.parametrize(
    "method", [VERSION, CREATE, "/runtime.v1.RuntimeService/GetContainerEvents", INVENTED[0]]
)
async def test_a_client_that_goes_away_ends_the_call_at_the_runtime(runtime, client, method) -> None:
    runtime.script(method, then_hang=True)
    calling = asyncio.ensure_future(client.call_bytes(method, UNKNOWN))
    call = await runtime.wait_for_call(method)
    assert not call.finished
    calling.cancel()
    await runtime.wait_until(lambda: call.outcome == "cancelled")


async def test_a_deadline_that_passes_ends_the_call_at_the_runtime(runtime, client) -> None:
    runtime.script(VERSION, then_hang=True)
    calling = asyncio.ensure_future(client.call_bytes(VERSION, b"", timeout=3))
    call = await runtime.wait_for_call(VERSION)
    assert (await calling).code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    await runtime.wait_until(lambda: call.outcome == "cancelled")


# ---------------------------------------------------------------------- streams


async def test_an_invented_method_may_talk_both_ways_message_by_message(runtime, client) -> None:
    call = client._channel.stream_stream(INVENTED[0])()
    for number in range(5):
        message = bytes([number]) * number
        await call.write(message)
        assert await asyncio.wait_for(call.read(), HANG_S) == message
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF and await call.code() is grpc.StatusCode.OK
    assert runtime.calls_of(INVENTED[0])[0].outcome == "ok"


async def test_events_come_one_by_one_while_other_calls_go_on(runtime, client) -> None:
    events = client.events()
    await runtime.wait_until(lambda: runtime.subscribers == 1)
    for number in range(3):
        event = cri.ContainerEventResponse(container_id=f"c{number}", container_event_type=number)
        runtime.emit(cri.ContainerEventResponse.FromString(event.SerializeToString() + UNKNOWN))
        got = await events.next()
        assert got.SerializeToString() == event.SerializeToString() + UNKNOWN
        assert (await client.call_bytes(VERSION, b"")).code == 0
    events.cancel()
    await runtime.wait_until(lambda: runtime.subscribers == 0)


async def test_a_client_of_a_single_queue_sees_the_same_events_as_without_the_daemon(folder) -> None:
    wanted = [f"c{number}" for number in range(20)]
    async with FakeRuntime(f"{folder}/r.sock", event_streams="single") as runtime:
        # Often enough that a daemon with a mind to subscribe would have done it meanwhile.
        agent = await start_in_front_of(
            runtime, machine(HYGON_7285_2S), {"constants": {"reconcile_poll_s": 0.5}}
        )
        try:
            polls = len(runtime.calls_of("ListContainers"))
            await runtime.wait_until(lambda: len(runtime.calls_of("ListContainers")) >= polls + 4)
            assert runtime.calls_of("GetContainerEvents") == []
            for socket in (runtime.socket, agent.socket):
                async with CriClient(socket) as client:
                    events = client.events()
                    await runtime.wait_until(lambda: runtime.subscribers == 1)
                    for name in wanted:
                        runtime.emit(cri.ContainerEventResponse(container_id=name))
                    assert [(await events.next()).container_id for _ in wanted] == wanted
                    events.cancel()
                    await runtime.wait_until(lambda: runtime.subscribers == 0)
            assert len(runtime.calls_of("GetContainerEvents")) == 2
        finally:
            await agent.close()


async def test_on_a_runtime_with_many_queues_the_daemon_reads_events_while_no_client_does(folder) -> None:
    async with FakeRuntime(f"{folder}/r.sock", runtime_version="2.1.0") as runtime:
        agent = await start_in_front_of(runtime, machine(HYGON_7285_2S), {})
        try:
            await runtime.wait_until(lambda: runtime.subscribers == 1)
            [own] = runtime.calls_of("GetContainerEvents")
            async with CriClient(agent.socket) as client:
                events = client.events()
                await runtime.wait_for_call("GetContainerEvents", 2)
                await runtime.wait_until(lambda: runtime.subscribers == 2 - bool(own.finished))
                runtime.emit(cri.ContainerEventResponse(container_id="c"))
                assert (await events.next()).container_id == "c"
                await runtime.wait_until(lambda: own.outcome == "cancelled")
                assert (await ask(agent, "status"))["exits"] == "a client's event stream"
                events.cancel()
                await runtime.wait_until(lambda: runtime.subscribers == 0)
            await runtime.wait_until(lambda: runtime.subscribers == 1)
        finally:
            await agent.close()
