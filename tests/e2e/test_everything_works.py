"""What kubelet and crictl do, through our socket and with both versions of CRI: as if we were not there."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import INTERCEPTED as INTERCEPTED_METHODS
from tests.cri_client import IMAGE, CriClient, container_config, create_request
from tests.e2e.node import GIB, Node, Running, needs_api, until
from tests.e2e.streaming import frames, output, upgrade

pytestmark = pytest.mark.containerd

PORT = 8080
#: All that is read on its way; the event stream waits for events, whatever it was asked.
INTERCEPTED = sorted(INTERCEPTED_METHODS - {"GetContainerEvents"})
RUBBISH = {
    "bits": b"\xff" * 9,
    "cut": b"\x0a\x05ab",
    "nothing": b"",
    "large": b"\x00" * 100_000,
}
#: How annotations begin that CRI-O keeps of a container in its spec, with times and paths.
CRIO_NOTE = "io.kubernetes.cri-o."
#: Says something over and over.
SAYING = ("sh", "-c", "while :; do echo said; usleep 50000; done")


@pytest.fixture(params=["runtime.v1", "runtime.v1alpha2"])
async def node_of_api(node: Node, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """The node, spoken to in one of the versions of CRI."""
    async with CriClient(node.agent.socket, request.param) as client:
        await needs_api(client)
        node.kubelet = client
        yield node


async def test_every_question_has_the_runtimes_own_answer(node_of_api: Node) -> None:
    node = node_of_api
    requests = questions(await node.run("p", cpu_limit=1000))
    through, past = await both_answers(node, {name: r.SerializeToString() for name, r in requests.items()})
    assert through == past
    assert {code for code, _, _, _ in past.values()} == {0}


async def test_every_mistake_gets_the_runtimes_own_error(node_of_api: Node) -> None:
    requests = {method: request.SerializeToString() for method, request in mistakes().items()}
    through, past = await both_answers(node_of_api, requests)
    assert through == past
    assert {method for method, (code, *_) in past.items() if code == 0} <= {
        "RemoveImage",
        "UpdateRuntimeConfig",
        "StopPodSandbox",
        "Exec",  # CRI-O's URL leads to the error
    }


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
async def test_rubbish_is_the_runtimes_to_refuse(node: Node, rubbish: bytes) -> None:
    through, past = await both_answers(node, dict.fromkeys([*INTERCEPTED, "ListContainers"], rubbish))
    assert through == past
    assert await node.cpus(await node.run("p", cpu_limit=1000)) == "0"


async def both_answers(node: Node, requests: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answers through our socket and past it."""
    async with CriClient(str(node.runtime.socket), node.kubelet.api) as direct:
        through = {
            method: await answer(node.kubelet, method, request) for method, request in requests.items()
        }
        past = {method: await answer(direct, method, request) for method, request in requests.items()}
    return through, past


async def test_a_container_is_made_as_without_us_but_for_its_cpuset(node_of_api: Node) -> None:
    node = node_of_api
    config = {
        "annotations": {"some/annotation": "äöü"},
        "envs": (("WHO", "me"), ("EMPTY", "")),
        "mounts": (cri.Mount(container_path="/here", host_path="/usr", readonly=True),),
    }
    resources = {"cpu_request": 250, "cpu_limit": 1000, "memory_limit": GIB // 8}
    through = await spec_of(node, await node.run("p", **config, **resources))
    past = await spec_of(node, await node.run("p", by=node.direct, **config, **resources))
    assert through["linux"]["resources"]["cpu"].pop("cpus") == "0"
    assert through["linux"]["resources"]["cpu"].pop("mems") == "0"
    assert through == past


async def test_a_pod_lives_and_dies(node_of_api: Node) -> None:
    node = node_of_api
    made = await node.run("p", cpu_limit=1000, envs=(("WHO", "me"),))
    assert await node.kubelet.exec(made.id, "sh", "-c", "echo $WHO; exit 3") == ("me\n", "", 3)
    assert (await node.kubelet.status(made.id)).status.state == cri.CONTAINER_RUNNING
    await node.kubelet.update(made.id, memory_limit_in_bytes=64 << 20)
    assert await node.cpus(made) == "0"
    await node.kubelet.stop(made.id)
    assert (await node.kubelet.status(made.id)).status.state == cri.CONTAINER_EXITED
    await node.kubelet.remove(made.id)
    await node.kubelet.stop_pod(made.pod.id)
    await node.kubelet.remove_pod(made.pod.id)
    assert await node.direct.list_containers() == []
    assert (await node.direct.call("ListPodSandbox", cri.ListPodSandboxRequest())).items == []
    assert await node.ask("placements") == []


async def test_a_container_writes_its_log(node: Node, tmp_path: Path) -> None:
    pod = await node.pod("p")
    config = cri.PodSandboxConfig()
    config.CopyFrom(pod.config)
    config.log_directory = str(tmp_path)
    container = container_config("main", command=SAYING)
    container.log_path = "main/0.log"
    (tmp_path / "main").mkdir()
    request = create_request(replace(pod, config=config), container)
    made = (await node.kubelet.call("CreateContainer", request)).container_id
    await node.kubelet.start(made)
    log = tmp_path / "main" / "0.log"
    await until_said(log)
    # As kubelet rotates.
    log.rename(tmp_path / "main" / "0.log.old")
    await node.kubelet.call("ReopenContainerLog", cri.ReopenContainerLogRequest(container_id=made))
    await until_said(log)


async def test_usage_is_told_of_every_pod_and_container(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000, command=("sh", "-c", "while :; do :; done"))

    async def cpu_time() -> Any:
        listed = await node.kubelet.call("ListContainerStats", cri.ListContainerStatsRequest())
        return {stats.attributes.id: stats.cpu.usage_core_nano_seconds.value for stats in listed.stats}

    first = await until(cpu_time, lambda times: times.get(made.id, 0) > 0)
    await until(cpu_time, lambda times: times[made.id] > first[made.id])
    pods = (await node.kubelet.call("ListPodSandboxStats", cri.ListPodSandboxStatsRequest())).stats
    assert [stats.attributes.id for stats in pods] == [made.pod.id]
    disks = (await node.kubelet.call("ImageFsInfo", cri.ImageFsInfoRequest())).image_filesystems
    assert [disk.fs_id.mountpoint.startswith(f"{node.runtime.folder}/root/") for disk in disks] == [True]


@pytest.mark.parametrize("to", ["websocket", "SPDY/3.1"])
async def test_exec_streams_from_the_runtimes_own_server(node: Node, to: str) -> None:
    made = await node.run("p", cpu_limit=1000)
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    request = cri.ExecRequest(container_id=made.id, cmd=command, stdout=True, stderr=True)
    through = (await node.kubelet.call("Exec", request)).url
    past = (await node.direct.call("Exec", request)).url
    assert through.rsplit("/", 1)[0] == past.rsplit("/", 1)[0]
    async with upgrade(through, to, "v4.channel.k8s.io") as connection:
        assert connection.status == 101
        assert connection.headers["upgrade"] == to.lower()
        if to == "websocket":
            printed = await output(connection)
            assert (printed[1], printed[2]) == (b"out\n", b"err\n")
            assert b'"reason":"ExitCode","message":"3"' in printed[3]


async def test_attach_shows_what_a_container_prints(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000, command=SAYING)
    request = cri.AttachRequest(container_id=made.id, stdout=True, stderr=True)
    url = (await node.kubelet.call("Attach", request)).url
    async with upgrade(url, "websocket", "v4.channel.k8s.io") as connection:
        assert connection.status == 101
        async for channel, data in frames(connection):
            assert (channel, data) == (1, b"said\n")
            break


async def test_port_forward_reaches_a_port_of_the_pod(node: Node) -> None:
    made = await node.run("p", cpu_limit=1000, command=("nc", "-ll", "-p", str(PORT), "-e", "echo", "hello"))
    await until(lambda: node.direct.exec(made.id, "nc", "127.0.0.1", str(PORT)), lambda done: done[2] == 0)
    request = cri.PortForwardRequest(pod_sandbox_id=made.pod.id, port=[PORT])
    url = (await node.kubelet.call("PortForward", request)).url
    async with upgrade(f"{url}?port={PORT}", "websocket", "v4.channel.k8s.io") as connection:
        assert connection.status == 101
        said = b""
        async for channel, data in frames(connection):
            said += data if channel == 0 else b""
            if said.endswith(b"hello\n"):
                break
    # Before the data, each channel says which port it is for.
    assert said == PORT.to_bytes(2, "little") + b"hello\n"


async def spec_of(node: Node, made: Running) -> Any:
    """What the runtime made of the requests for runc, without what is another's in every pod."""
    status = await node.direct.status(made.id, verbose=True)
    spec = json.loads(status.info["info"])["runtimeSpec"]
    spec["annotations"] = {k: v for k, v in spec["annotations"].items() if not k.startswith(CRIO_NOTE)}
    text = json.dumps(settled(spec)).replace(spec["root"]["path"], "ROOT")
    text = re.sub(r"/namespaces/(\w+)/[0-9a-f-]{36}", r"/namespaces/\1/POD", text)
    own = {made.id: "CONTAINER", made.pod.id: "POD", made.pod.uid: "UID"}
    with contextlib.suppress(FileNotFoundError):  # CRI-O's have none
        own[f"/proc/{node.runtime.pid_of(made.pod.id)}/"] = "/proc/POD/"
    for name, word in own.items():
        text = text.replace(name, word)
    return json.loads(text)


def questions(made: Running) -> dict[str, Any]:
    """Requests by method, whose answers do not change by themselves."""
    pod, container = made.pod.id, made.id
    image = cri.ImageSpec(image=IMAGE)
    return {
        "Version": cri.VersionRequest(version="v1"),
        "Status": cri.StatusRequest(verbose=True),
        "ListPodSandbox": cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(id=pod)),
        "PodSandboxStatus": cri.PodSandboxStatusRequest(pod_sandbox_id=pod, verbose=True),
        "ListContainers": cri.ListContainersRequest(filter=cri.ContainerFilter(id=container)),
        "ContainerStatus": cri.ContainerStatusRequest(container_id=container, verbose=True),
        "ListImages": cri.ListImagesRequest(),
        "ImageStatus": cri.ImageStatusRequest(image=image, verbose=True),
    }


def mistakes() -> dict[str, Any]:
    """Requests that the runtime refuses, by method."""
    nobody = "0123456789abcdef"
    image = cri.ImageSpec(image="localhost:1/none:0")
    return {
        "CreateContainer": cri.CreateContainerRequest(pod_sandbox_id=nobody, config=container_config("main")),
        "StartContainer": cri.StartContainerRequest(container_id=nobody),
        "ContainerStatus": cri.ContainerStatusRequest(container_id=nobody),
        "ContainerStats": cri.ContainerStatsRequest(container_id=nobody),
        "UpdateContainerResources": cri.UpdateContainerResourcesRequest(container_id=nobody),
        "StopPodSandbox": cri.StopPodSandboxRequest(pod_sandbox_id=nobody),
        "RunPodSandbox": cri.RunPodSandboxRequest(),
        "Exec": cri.ExecRequest(container_id=nobody, stdout=True),
        "PullImage": cri.PullImageRequest(image=image),
        "RemoveImage": cri.RemoveImageRequest(image=image),
        "UpdateRuntimeConfig": cri.UpdateRuntimeConfigRequest(),
        "CheckpointContainer": cri.CheckpointContainerRequest(container_id=nobody),
    }


async def answer(client: CriClient, method: str, message: bytes) -> tuple[int, str, Any, Any]:
    """Code, details, trailers, and the replies as messages: a map's bytes are others each time."""
    got = await client.call_bytes(client.full_method(method), message)
    replies = [getattr(cri, f"{method}Response").FromString(each) for each in got.messages]
    if method == "Exec":  # CRI-O answers a container that is not there with a URL, with a token of its own
        for reply in replies:
            reply.url = reply.url.rpartition("/")[0]
    for reply in replies:
        # A map that is written to skips some of its keys.
        for key, value in dict(getattr(reply, "info", {})).items():
            with contextlib.suppress(ValueError):  # of words
                reply.info[key] = json.dumps(settled(json.loads(value)), sort_keys=True)
        if method == "PodSandboxStatus":  # CRI-O says when it was asked
            reply.ClearField("timestamp")
        if method == "Status":  # in no order on CRI-O
            reply.runtime_handlers.sort(key=lambda handler: handler.name)
    if method == "ListImages":  # in no order, and whatever the filter
        for reply in replies:
            reply.images.sort(key=lambda image: image.id)
    return got.code, got.details, got.trailing_metadata, replies


def settled(value: Any) -> Any:
    """JSON with its lists in one order: CRI-O has some in another each time."""
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items()}
    return sorted(map(settled, value), key=repr) if isinstance(value, list) else value


async def until_said(log: Path) -> None:
    async def read() -> str:
        return log.read_text() if log.exists() else ""

    await until(read, lambda text: text.endswith(" stdout F said\n"))
