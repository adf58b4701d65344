"""Kubelet is asked which devices it has given to a container, and never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from cri_proxy.kubelet.io.pod_resources import KEPT, PodResources
from policies.model import RESOURCES, Container, Hint
from tests.pod_resources import PodResourcesServer
from tests.scenes import make_container, make_pod

DEVICES = {
    "shop/web/app/nvidia.com/gpu": (1,),
    "shop/web/side/intel.com/nic": (0, 2),
    "shop/web/side/intel.com/qat": (),
}
#: Longer than any of these tests, on a busy machine too.
PATIENCE_S = 60.0


def container(name: str = "app", pod: str = "web") -> Container:
    return make_container(name, pod=make_pod(pod, namespace="shop"))


def of(resource: str, *nodes: int) -> Hint:
    return Hint(RESOURCES, resource, frozenset(nodes))


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "pod-resources/kubelet.sock"


@pytest_asyncio.fixture
async def kubelet(socket: Path) -> AsyncIterator[PodResourcesServer]:
    server = PodResourcesServer(dict(DEVICES))
    await server.start(socket)
    yield server
    await server.stop()


async def test_a_container_has_a_hint_for_each_resource_whose_place_is_known(kubelet, socket) -> None:
    asking = PodResources(socket, PATIENCE_S)
    assert await asking.hints(container()) == (of("nvidia.com/gpu", 1),)
    assert await asking.hints(container("side")) == (of("intel.com/nic", 0, 2),)
    assert await asking.hints(container("none")) == ()
    # One question a pod: kubelet answers a hundred a second.
    assert kubelet.asked == ["Get"]


async def test_where_kubelet_answers_about_no_single_pod_it_is_asked_about_all(socket) -> None:
    kubelet = PodResourcesServer(dict(DEVICES), has_get=False)
    await kubelet.start(socket)
    asking = PodResources(socket, PATIENCE_S)
    assert await asking.hints(container()) == (of("nvidia.com/gpu", 1),)
    assert await asking.hints(container(pod="other")) == ()
    assert kubelet.asked == ["Get", "List", "List"]
    await kubelet.stop()


async def test_a_pod_that_kubelet_did_not_know_is_asked_about_again(kubelet, socket) -> None:
    asking = PodResources(socket, PATIENCE_S)
    assert await asking.hints(container(pod="late")) == ()
    kubelet.devices["shop/late/app/nvidia.com/gpu"] = (1,)
    assert await asking.hints(container(pod="late")) == (of("nvidia.com/gpu", 1),)


async def test_answers_are_kept_for_a_bounded_number_of_pods(kubelet, socket) -> None:
    asking = PodResources(socket, PATIENCE_S)
    for number in range(KEPT + 1):
        one = container()
        await asking.hints(replace(one, pod=replace(one.pod, uid=f"uid-{number}")))
    assert len(asking._known) == KEPT and "uid-0" not in asking._known


async def test_a_kubelet_that_is_not_there_or_hangs_gives_no_hint_and_comes_back(socket) -> None:
    asking = PodResources(socket)
    assert await asking.hints(container()) == ()
    hanging = PodResourcesServer({}, hangs=True)
    await hanging.start(socket)
    # Had it waited for an answer this would not end.
    assert await asyncio.wait_for(asking.hints(container()), PATIENCE_S) == ()
    await hanging.stop()
    socket.unlink(missing_ok=True)
    kubelet = PodResourcesServer(dict(DEVICES))
    await kubelet.start(socket)
    assert await PodResources(socket, PATIENCE_S).hints(container()) == (of("nvidia.com/gpu", 1),)
    await kubelet.stop()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100])
async def test_what_is_no_kubelet_gives_no_hint(socket, answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    socket.parent.mkdir()
    server = await asyncio.start_unix_server(talk, str(socket))
    assert await PodResources(socket, 1.0).hints(container()) == ()
    server.close()
    await server.wait_closed()
