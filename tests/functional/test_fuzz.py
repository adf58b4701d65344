"""Whatever bytes come, the runtime gets them, and the daemon lives."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import INTERCEPTED
from tests.agent import Agent
from tests.cri_client import CriClient, Pod, RawReply, container_config, create_request, pod_config
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import HANG_S, VERSION, ask, counter, start_in_front_of
from tests.machines import HYGON_7285_2S, machine

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS = sorted(INTERCEPTED)
fuzz = settings(
    max_examples=60, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

POD = Pod("p1", "uid-1", "web", "default", pod_config("web", uid="uid-1"))
CONFIG = container_config(
    "app",
    cpu_request=500,
    cpu_limit=2000,
    memory_limit=1 << 30,
    cpuset="0-31",
    mems="0-1",
    envs=(("A", "1"),),
)
#: A message of each method that is understood; the container "c1" is there once it has been created.
VALID = {
    "RunPodSandbox": cri.RunPodSandboxRequest(config=POD.config, runtime_handler="runc"),
    "StopPodSandbox": cri.StopPodSandboxRequest(pod_sandbox_id="p1"),
    "RemovePodSandbox": cri.RemovePodSandboxRequest(pod_sandbox_id="p1"),
    "UpdatePodSandboxResources": cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id="p1", resources=cri.LinuxContainerResources(cpu_shares=2048, cpu_quota=400_000)
    ),
    "CreateContainer": create_request(POD, CONFIG),
    "StartContainer": cri.StartContainerRequest(container_id="c1"),
    "StopContainer": cri.StopContainerRequest(container_id="c1", timeout=5),
    "RemoveContainer": cri.RemoveContainerRequest(container_id="c1"),
    "UpdateContainerResources": cri.UpdateContainerResourcesRequest(
        container_id="c1",
        linux=cri.LinuxContainerResources(cpu_shares=512, cpu_quota=900_000, cpuset_cpus="0-63"),
    ),
    "RestorePod": cri.RestorePodRequest(
        checkpoint_path="/checkpoint", config=POD.config, runtime_handler="runc", container_configs=[CONFIG]
    ),
    "GetContainerEvents": cri.GetEventsRequest(),
}
REPLIES = {
    "RunPodSandbox": cri.RunPodSandboxResponse(pod_sandbox_id="p1"),
    "CreateContainer": cri.CreateContainerResponse(container_id="c1"),
    "GetContainerEvents": cri.ContainerEventResponse(
        container_id="c1",
        container_event_type=cri.CONTAINER_STOPPED_EVENT,
        containers_statuses=[cri.ContainerStatus(id="c1", exit_code=3, finished_at=1)],
    ),
}
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\n", "\0", "0-", "0-99999999", "7-3", "/", "c1", "app", "x" * 5000]),
)
NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, 1, 2, -1, 262_144]))


@st.composite
def mangled(draw: Any, message: bytes) -> bytes:
    """A valid message, cut off, or with bytes replaced (lengths then still hold), inserted or left out."""
    how, found = draw(st.sampled_from(["cut", "replace", "replace", "edit"])), bytearray(message)
    # Hypothesis likes small numbers: left to itself it would seldom get beyond the first field.
    random = Random(draw(st.integers(0, 1 << 32)))
    if how == "cut":
        return bytes(found[: random.randint(0, len(found))])
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, max(0, len(found) - 1))
        size, new = (1, 1) if how == "replace" else (random.randint(0, 2), random.randint(0, 2))
        found[at : at + size] = random.randbytes(new)
    return bytes(found)


def messages(method: str) -> st.SearchStrategy[bytes]:
    valid = mangled(VALID[method].SerializeToString())
    return st.one_of(st.binary(max_size=300), valid, valid)


def replies(method: str) -> st.SearchStrategy[bytes]:
    valid = mangled(reply_of(method))
    return st.one_of(st.binary(max_size=100), valid, valid)


def reply_of(method: str) -> bytes:
    return bytes(REPLIES[method].SerializeToString()) if method in REPLIES else b""


@st.composite
def hostile_resources(draw: Any) -> cri.LinuxContainerResources:
    return cri.LinuxContainerResources(
        cpu_period=draw(NUMBERS),
        cpu_quota=draw(NUMBERS),
        cpu_shares=draw(NUMBERS),
        memory_limit_in_bytes=draw(NUMBERS),
        oom_score_adj=draw(NUMBERS),
        cpuset_cpus=draw(TEXTS),
        cpuset_mems=draw(TEXTS),
    )


@st.composite
def hostile_creates(draw: Any) -> bytes:
    """A create that can be read, with values that nobody expects."""
    request = create_request(POD, CONFIG)
    request.pod_sandbox_id, request.config.metadata.name = draw(TEXTS), draw(TEXTS)
    request.config.metadata.attempt = draw(st.integers(0, (1 << 32) - 1))
    request.config.linux.resources.CopyFrom(draw(hostile_resources()))
    sandbox = request.sandbox_config
    sandbox.metadata.uid, sandbox.metadata.name, sandbox.metadata.namespace = (
        draw(TEXTS),
        draw(TEXTS),
        draw(TEXTS),
    )
    sandbox.linux.cgroup_parent = draw(TEXTS)
    sandbox.linux.resources.CopyFrom(draw(hostile_resources()))
    for key in ("intel.com/resources", "cri-resmgr.io/manage", "cpu.preserve.resource-policy.nri.io"):
        sandbox.annotations[key] = draw(TEXTS)
    return bytes(request.SerializeToString())


@st.composite
def hostile_updates(draw: Any) -> bytes:
    request = cri.UpdateContainerResourcesRequest(container_id="c1", linux=draw(hostile_resources()))
    return bytes(request.SerializeToString())


# ---------------------------------------------------------------------- the daemon, one for all


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[FakeRuntime]:
    with tempfile.TemporaryDirectory(prefix="crf-") as folder:
        async with FakeRuntime(f"{folder}/r.sock") as runtime:
            yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(runtime: FakeRuntime) -> AsyncIterator[Agent]:
    agent = await start_in_front_of(runtime, machine(HYGON_7285_2S), {})
    yield agent
    await agent.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(agent: Agent) -> AsyncIterator[CriClient]:
    async with CriClient(agent.socket) as client:
        yield client


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def alive(runtime: FakeRuntime, agent: Agent, client: CriClient) -> AsyncIterator[None]:
    """After every test the daemon serves, its books are in order, and it has not met an error of its own."""
    yield
    runtime.scripts.clear()
    runtime.calls.clear()
    assert agent.process is not None and agent.process.returncode is None, agent.log()
    assert (await client.call_bytes(VERSION, b"")).code == 0
    status = await ask(agent, "status")
    assert status["invariants"] == []
    assert counter(status, "failed_open_total{reason=bug}") == 0, agent.log()


async def sent_and_got(
    runtime: FakeRuntime, client: CriClient, method: str, message: bytes, reply: bytes
) -> tuple[bytes, RawReply]:
    """One call: the bytes that arrived at the runtime, and what the client got back."""
    runtime.scripts.clear()
    runtime.calls.clear()
    runtime.script(method, reply=reply)
    full_method = f"/runtime.v1.RuntimeService/{method}"
    answer = await asyncio.wait_for(client.call_bytes(full_method, message), HANG_S)
    [call] = runtime.calls_of(method)
    [got] = call.request
    return got, answer


def is_our_delta(method: str, added: bytes) -> bool:
    """Whether bytes say nothing but a cpuset and memory nodes."""
    resources = cri.LinuxContainerResources()
    if method == "CreateContainer":
        resources = cri.CreateContainerRequest.FromString(added).config.linux.resources
        linux = cri.LinuxContainerConfig(resources=cpuset_only(resources))
        again: Any = cri.CreateContainerRequest(config=cri.ContainerConfig(linux=linux))
    else:
        resources = cri.UpdateContainerResourcesRequest.FromString(added).linux
        again = cri.UpdateContainerResourcesRequest(linux=cpuset_only(resources))
    return bool(resources.cpuset_cpus) and again.SerializeToString() == added


def cpuset_only(resources: cri.LinuxContainerResources) -> cri.LinuxContainerResources:
    return cri.LinuxContainerResources(cpuset_cpus=resources.cpuset_cpus, cpuset_mems=resources.cpuset_mems)


def can_be_read(method: str, message: bytes) -> bool:
    name = "GetEvents" if method == "GetContainerEvents" else method
    try:
        getattr(cri, f"{name}Request").FromString(message)
    except DecodeError:
        return False
    return True


def check(method: str, message: bytes, got: bytes) -> None:
    """What arrived is what was sent; a create or update that can be read may have a cpuset behind it."""
    assert got[: len(message)] == message
    added = got[len(message) :]
    if added:
        assert method in ("CreateContainer", "UpdateContainerResources") and can_be_read(method, message)
        assert is_our_delta(method, added)


# ---------------------------------------------------------------------- the claims


@pytest.mark.parametrize("method", METHODS)
@fuzz
@given(data=st.data())
async def test_requests_that_are_cut_off_mangled_or_noise_arrive_unchanged(
    runtime, client, method, data
) -> None:
    message = data.draw(messages(method))
    got, _ = await sent_and_got(runtime, client, method, message, reply_of(method))
    check(method, message, got)


@pytest.mark.parametrize("method", METHODS)
@fuzz
@given(data=st.data())
async def test_replies_that_are_cut_off_mangled_or_noise_arrive_unchanged(
    runtime, client, method, data
) -> None:
    message, reply = VALID[method].SerializeToString(), data.draw(replies(method))
    got, answer = await sent_and_got(runtime, client, method, message, reply)
    assert (answer.messages, answer.code) == ((reply,), 0)
    check(method, message, got)


@fuzz
@given(data=st.data())
async def test_a_life_of_a_pod_in_mangled_messages_arrives_unchanged(runtime, client, data) -> None:
    for method in data.draw(st.lists(st.sampled_from(METHODS), min_size=2, max_size=8)):
        valid = VALID[method].SerializeToString()
        message = data.draw(st.one_of(st.just(valid), mangled(valid)))
        got, answer = await sent_and_got(runtime, client, method, message, reply_of(method))
        assert (answer.messages, answer.code) == ((reply_of(method),), 0)
        check(method, message, got)


@fuzz
@given(message=hostile_creates())
async def test_creates_with_values_nobody_expects_arrive_with_a_sound_cpuset_or_none(
    runtime, client, message
) -> None:
    got, answer = await sent_and_got(runtime, client, "CreateContainer", message, reply_of("CreateContainer"))
    assert answer.code == 0
    check("CreateContainer", message, got)


@fuzz
@given(message=hostile_updates())
async def test_updates_with_values_nobody_expects_arrive_with_a_sound_cpuset_or_none(
    runtime, client, message
) -> None:
    create = VALID["CreateContainer"].SerializeToString()
    await sent_and_got(runtime, client, "CreateContainer", create, reply_of("CreateContainer"))
    got, answer = await sent_and_got(runtime, client, "UpdateContainerResources", message, b"")
    assert answer.code == 0
    check("UpdateContainerResources", message, got)


HUGE = {
    "zeros": bytes(8 << 20),
    "noise": bytes(range(256)) * (16 << 10),
    "groups in groups": b"\x0b" * (1 << 20),
    "messages in messages": b"\x12\x80\x01" * (1 << 18),
    "a length of 2 GiB": b"\x0a\xff\xff\xff\xff\x07" + bytes(1 << 20),
    "an endless number": b"\x08" + b"\xff" * (1 << 20),
    "a long unknown field": b"\xc2\x3e\x80\x80\x80\x04" + bytes(8 << 20),
}


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("method", METHODS)
async def test_huge_messages_arrive_unchanged(runtime, client, method, kind) -> None:
    valid = VALID[method].SerializeToString()
    got, answer = await sent_and_got(runtime, client, method, valid + HUGE[kind], b"")
    assert answer.code == 0
    check(method, valid + HUGE[kind], got)
