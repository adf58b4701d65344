"""The fake runtime keeps its promises, seen through the client that the other tests use."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, cgroup_parent, container_config, pod_config
from tests.fake_runtime import FakeRuntime

CREATE = "/runtime.v1.RuntimeService/CreateContainer"
VERSION = "/runtime.v1.RuntimeService/Version"


@pytest.fixture
def socket() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="crt-")
    yield f"{directory}/runtime.sock"
    shutil.rmtree(directory)


@pytest_asyncio.fixture
async def fake(socket: str) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(socket) as fake:
        yield fake


@pytest_asyncio.fixture
async def client(fake: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(fake.socket) as client:
        yield client


def code_of(caught: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> grpc.StatusCode:
    return caught.value.code()


async def test_a_container_lives_from_create_to_remove(fake, client) -> None:
    pod = await client.run_pod("web", runtime_handler="runc")
    container_id = await client.create(pod, "main", cpu_request=500, cpu_limit=2000)
    await client.start(container_id)
    [listed] = await client.list_containers(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING))
    assert (listed.id, listed.pod_sandbox_id, listed.metadata.name) == (container_id, pod.id, "main")
    await client.stop(container_id)
    assert (await client.status(container_id)).status.state == cri.CONTAINER_EXITED
    await client.remove(container_id)
    await client.stop_pod(pod.id)
    await client.remove_pod(pod.id)
    assert not fake.containers and not fake.pods
    assert [call.method for call in fake.calls] == [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "ListContainers",
        "StopContainer",
        "ContainerStatus",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ]


async def test_the_client_makes_kubelets_numbers_labels_and_cgroups(fake, client) -> None:
    pod = await client.run_pod("db", uid="u1", cgroup_parent=cgroup_parent("guaranteed", "u1"))
    container_id = await client.create(pod, "main", cpu_limit=1500, memory_limit=1 << 30, qos="guaranteed")
    resources = fake.containers[container_id].resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.cpu_period) == (1536, 150_000, 100_000)
    assert (resources.memory_limit_in_bytes, resources.oom_score_adj) == (1 << 30, -997)
    assert fake.pods[pod.id].config.linux.cgroup_parent == "/kubepods/podu1"
    assert fake.containers[container_id].labels == {
        "io.kubernetes.pod.name": "db",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u1",
        "io.kubernetes.container.name": "main",
    }


async def test_what_does_not_exist_is_not_found_and_a_used_name_is_reserved(client) -> None:
    pod = await client.run_pod("web")
    await client.create(pod, "main")
    with pytest.raises(grpc.aio.AioRpcError, match="is reserved for") as reserved:
        await client.create(pod, "main")
    assert code_of(reserved) == grpc.StatusCode.UNKNOWN
    await client.create(pod, "main", attempt=1)
    await client.remove_pod(pod.id)
    for asked in (
        client.create(pod, "other"),
        client.update("nobody", cpu_shares=2),
        client.status("nobody"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await asked
        assert code_of(missing) == grpc.StatusCode.NOT_FOUND


async def test_an_update_changes_only_what_is_set_and_not_an_exited_container(fake, client) -> None:
    pod = await client.run_pod("web")
    container_id = await client.create(pod, "main", cpu_request=1000, cpuset="0-3", mems="0")
    await client.update(container_id[:12], cpuset_cpus="4-7")
    linux = (await client.status(container_id)).status.resources.linux
    assert (linux.cpuset_cpus, linux.cpuset_mems, linux.cpu_shares) == ("4-7", "0", 1024)
    fake.exit_container(container_id, 3)
    assert (await client.status(container_id)).status.exit_code == 3
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await client.update(container_id, cpuset_cpus="0")
    assert code_of(late) == grpc.StatusCode.FAILED_PRECONDITION


async def test_bytes_appended_to_a_create_win_over_those_before(fake, client) -> None:
    pod = await client.run_pod("web")
    config = container_config("main", cpu_request=500, cpuset="0-7")
    request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config).SerializeToString()
    linux = cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(cpuset_cpus="2-3"))
    appended = cri.CreateContainerRequest(config=cri.ContainerConfig(linux=linux)).SerializeToString()
    reply = await client.call_bytes(CREATE, request + appended)
    container_id = cri.CreateContainerResponse.FromString(reply.messages[0]).container_id
    assert fake.cpuset(container_id) == "2-3"
    assert fake.containers[container_id].resources.cpu_shares == 512
    assert fake.containers[container_id].create_bytes == request + appended == fake.calls[-1].request[0]


async def test_verbose_pod_status_tells_the_cgroup_and_the_numbers_as_containerd(client) -> None:
    pod = await client.run_pod(
        "web", uid="u2", runtime_handler="kata", overhead=cri.LinuxContainerResources(cpu_shares=256)
    )
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
    reply = await client.call("PodSandboxStatus", request)
    info = json.loads(reply.info["info"])
    assert info["runtimeHandler"] == reply.status.runtime_handler == "kata"
    assert info["config"]["linux"]["cgroup_parent"] == "/kubepods/burstable/podu2"
    assert info["config"]["linux"]["overhead"] == {"cpu_shares": 256}


async def test_an_unknown_method_of_any_service_is_echoed_with_everything_recorded(fake, client) -> None:
    reply = await client.call_bytes(
        "/invented.v9.Service/Do",
        b"\xff\x00",
        timeout=60,
        metadata=(("k", "1"), ("k-bin", b"\x00"), ("k", "2")),
    )
    assert (reply.messages, reply.code) == ((b"\xff\x00",), 0)
    [call] = fake.calls_of("/invented.v9.Service/Do")
    assert (call.request, call.outcome) == ((b"\xff\x00",), "ok")
    # grpc.aio's client keeps the order of the values of a key, not the order of the keys.
    assert [value for key, value in call.metadata if key == "k"] == ["1", "2"]
    assert ("k-bin", b"\x00") in call.metadata
    # The wire rounds deadlines up: 60 s may arrive as 60.1 s.
    assert call.time_remaining is not None and 0 < call.time_remaining < 61


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_a_scripted_error_arrives_with_details_and_both_metadata(fake, client, code) -> None:
    trailing = (("t", "1"), ("t", "2"), ("t-bin", b"\x00\xff"))
    # grpc.aio's client forgets the initial metadata where it learns of the status first: now and then, under load.
    for _ in range(20):
        fake.script(
            "Version",
            error=(code.value[0], "no\nwäy: 100%", trailing),
            initial_metadata=(("i", "1"),),
            times=1,
        )
        failed = await client.call_bytes(VERSION, b"")
        assert (failed.messages, failed.code, failed.details) == ((), code.value[0], "no\nwäy: 100%")
        assert failed.trailing_metadata == trailing
        if failed.initial_metadata:
            break
    assert ("i", "1") in failed.initial_metadata or code is grpc.StatusCode.CANCELLED
    assert (await client.call_bytes(VERSION, b"")).code == 0


async def test_a_scripted_reply_and_metadata_arrive_as_they_are(fake, client) -> None:
    fake.script("Version", reply=b"not protobuf \xff", trailing_metadata=(("t", "1"),), times=1)
    fake.script(VERSION, reply=(b"one", b"two"), error=(10, "broke"), when=lambda message: message == b"")
    reply = await client.call_bytes(VERSION, b"")
    assert (reply.messages, reply.trailing_metadata, reply.code) == (
        (b"not protobuf \xff",),
        (("t", "1"),),
        0,
    )
    halfway = await client.call_bytes(VERSION, b"")
    assert (halfway.messages, halfway.code, halfway.details) == ((b"one", b"two"), 10, "broke")
    other = await client.call_bytes(VERSION, cri.VersionRequest(version="v1").SerializeToString())
    assert cri.VersionResponse.FromString(other.messages[0]).runtime_name == "containerd"


async def test_a_held_call_answers_when_released_and_others_overtake_it(fake, client) -> None:
    release = asyncio.Event()
    fake.script("Version", hold=release, times=1)
    held = asyncio.ensure_future(client.call_bytes(VERSION, b""))
    first = await fake.wait_for_call("Version")
    assert (await client.call_bytes(VERSION, b"")).code == 0
    assert not first.finished
    release.set()
    assert (await held).code == 0
    assert fake.calls[1].finished < first.finished


async def test_after_a_client_deadline_the_container_exists_all_the_same(fake, client) -> None:
    pod = await client.run_pod("web")
    fake.script("CreateContainer", then_hang=True, act_before_error=True)
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await client.create(pod, "main", timeout=2)
    assert code_of(late) == grpc.StatusCode.DEADLINE_EXCEEDED
    [call] = fake.calls_of("CreateContainer")
    await fake.wait_until(lambda: call.outcome == "cancelled")
    assert [record.name for record in fake.containers.values()] == ["main"]


async def test_a_cancelled_client_ends_the_held_call_without_its_deed(fake, client) -> None:
    pod = await client.run_pod("web")
    fake.script("CreateContainer", hold=asyncio.Event())
    creating = asyncio.ensure_future(client.create(pod, "main"))
    call = await fake.wait_for_call("CreateContainer")
    creating.cancel()
    await fake.wait_until(lambda: call.outcome == "cancelled")
    assert not fake.containers


async def test_each_subscriber_sees_every_event(fake, client) -> None:
    streams = [client.events(), client.events()]
    await fake.wait_until(lambda: fake.subscribers == 2)
    pod = await client.run_pod("web")
    container_id = await client.create(pod, "main")
    fake.exit_container(container_id, 1)
    for stream in streams:
        seen = [await stream.next() for _ in range(4)]
        assert [(event.container_id, event.container_event_type) for event in seen] == [
            (pod.id, cri.CONTAINER_CREATED_EVENT),
            (pod.id, cri.CONTAINER_STARTED_EVENT),
            (container_id, cri.CONTAINER_CREATED_EVENT),
            (container_id, cri.CONTAINER_STOPPED_EVENT),
        ]
        stream.cancel()
    await fake.wait_until(lambda: fake.subscribers == 0)


async def test_subscribers_of_a_single_stream_steal_from_each_other(socket) -> None:
    async with FakeRuntime(socket, event_streams="single") as fake, CriClient(socket) as client:
        streams = [client.events(), client.events()]
        await fake.wait_until(lambda: fake.subscribers == 2)
        for name in ("a", "b"):
            fake.emit(cri.ContainerEventResponse(container_id=name))
        seen = [(await stream.next()).container_id for stream in streams]
        assert sorted(seen) == ["a", "b"]


async def test_a_runtime_without_events_or_without_an_api_says_unimplemented(socket) -> None:
    async with FakeRuntime(socket, event_streams="none", api_versions=("runtime.v1",)) as fake:
        async with CriClient(socket) as client:
            with pytest.raises(grpc.aio.AioRpcError) as no_events:
                await client.events().next()
            assert code_of(no_events) == grpc.StatusCode.UNIMPLEMENTED
        async with CriClient(socket, api="runtime.v1alpha2") as old:
            with pytest.raises(grpc.aio.AioRpcError, match="unknown service") as no_api:
                await old.call("Version", cri.VersionRequest())
            assert code_of(no_api) == grpc.StatusCode.UNIMPLEMENTED
        assert [call.outcome for call in fake.calls] == ["error", "error"]


async def test_a_returning_runtime_has_its_containers_and_ended_the_calls_it_left(fake, client) -> None:
    pod_id = fake.add_pod(pod_config("old"))
    container_id = fake.add_container(pod_id, container_config("main", cpuset="0-1"))
    fake.set_cpuset(container_id, "5")
    fake.script("Version", then_hang=True, times=1)
    hanging = asyncio.ensure_future(client.call_bytes(VERSION, b""))
    await fake.wait_for_call("Version")
    await fake.stop()
    assert (await hanging).code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert (await client.call_bytes(VERSION, b"")).code == grpc.StatusCode.UNAVAILABLE.value[0]
    await fake.start()
    async with CriClient(fake.socket) as returned:
        [listed] = await returned.list_containers(label_selector={"io.kubernetes.container.name": "main"})
        assert (listed.id, listed.state) == (container_id, cri.CONTAINER_RUNNING)
        assert (await returned.status(container_id)).status.resources.linux.cpuset_cpus == "5"


async def test_messages_of_eight_mebibytes_pass(fake, client) -> None:
    message = bytes(8 << 20)
    reply = await client.call_bytes("/runtime.v1.RuntimeService/Invented", message)
    assert reply.messages == (message,)


async def test_images_are_there_once_pulled(client) -> None:
    spec = cri.ImageSpec(image="example.org/new:1")
    assert not (await client.call("ImageStatus", cri.ImageStatusRequest(image=spec))).HasField("image")
    pulled = await client.call("PullImage", cri.PullImageRequest(image=spec))
    status = await client.call("ImageStatus", cri.ImageStatusRequest(image=spec))
    assert status.image.id == pulled.image_ref


async def test_only_running_containers_have_stats(fake, client) -> None:
    pod_id = fake.add_pod(pod_config("web"))
    running = fake.add_container(pod_id, container_config("main"))
    fake.add_container(pod_id, container_config("init"), state=cri.CONTAINER_EXITED)
    request = cri.ListContainerStatsRequest(filter=cri.ContainerStatsFilter(pod_sandbox_id=pod_id))
    reply = await client.call("ListContainerStats", request)
    assert [stats.attributes.id for stats in reply.stats] == [running]


async def test_exec_gives_what_the_runtime_was_scripted_to_say(fake, client) -> None:
    said = cri.ExecSyncResponse(stdout=b"0-3\n", stderr=b"", exit_code=1)
    fake.script("ExecSync", reply=said.SerializeToString())
    assert await client.exec("c1", "cat", "/cpus") == ("0-3\n", "", 1)
    assert list(fake.calls_of("ExecSync")[0].message.cmd) == ["cat", "/cpus"]
