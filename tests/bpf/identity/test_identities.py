"""Who containers are comes from a runtime: a real gRPC server, in either version of CRI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bpf.identity.identities import LEAST_PAUSE_S, MOST_PAUSE_S, Identities
from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime

LABELS = {"pod-template-hash": "7d4b9c6f5"}


@pytest.fixture
async def runtime(folder: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(f"{folder}/r.sock") as runtime:
        yield runtime


def pod_of(name: str) -> cri.PodSandboxConfig:
    metadata = cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="shop")
    return cri.PodSandboxConfig(metadata=metadata, labels=LABELS)


def add(runtime: FakeRuntime, pod: str, container: str) -> str:
    config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name=container))
    return runtime.add_container(runtime.add_pod(pod_of(pod)), config)


async def test_containers_and_pods_have_names_and_owners(folder, runtime) -> None:
    added = add(runtime, "web-7d4b9c6f5-x2x7k", "nginx")
    identities = Identities([str(folder / "absent.sock"), runtime.socket])
    await identities.refresh([], 0.0)
    found = identities.by_id[added]
    assert (found.namespace, found.pod, found.container) == ("shop", "web-7d4b9c6f5-x2x7k", "nginx")
    assert found.owner == "shop/web/nginx"
    assert identities.by_id["pod:uid-web-7d4b9c6f5-x2x7k"].owner == "shop/web/"
    assert identities.resolve("shop/web-7d4b9c6f5-x2x7k/nginx") == added
    assert identities.resolve("somebody") == "somebody"


@pytest.mark.parametrize("items_a_part", [0, 2])
async def test_lists_that_are_too_long_for_a_message_come_in_parts_if_the_runtime_can(
    runtime, items_a_part
) -> None:
    added = {add(runtime, f"web-{n}", "nginx") for n in range(5)}
    runtime.items_a_part, runtime.most_bytes = items_a_part, 500
    identities = Identities([runtime.socket])
    await identities.refresh([], 0.0)
    assert added <= set(identities.by_id) or not items_a_part
    assert ("RESOURCE_EXHAUSTED" in identities.problem) is (not items_a_part)


async def test_the_runtime_is_asked_again_only_for_the_unknown_and_not_too_often(folder, runtime) -> None:
    identities = Identities([runtime.socket])
    await identities.refresh([], 0.0)
    added = add(runtime, "web-0", "nginx")
    await identities.refresh([added], LEAST_PAUSE_S - 1)
    assert added not in identities.by_id
    await identities.refresh([], LEAST_PAUSE_S + 1)
    assert added not in identities.by_id
    await identities.refresh([added], LEAST_PAUSE_S + 1)
    assert added in identities.by_id


async def test_what_has_ended_is_noticed_within_a_minute(folder, runtime) -> None:
    added = add(runtime, "web-0", "nginx")
    identities = Identities([runtime.socket])
    await identities.refresh([], 0.0)
    async with CriClient(runtime.socket) as client:
        await client.call("RemoveContainer", cri.RemoveContainerRequest(container_id=added))
    assert await identities.refresh([], MOST_PAUSE_S + 1) == {added}
    assert added not in identities.by_id


async def test_of_what_seems_to_have_ended_the_runtime_is_asked(folder, runtime) -> None:
    runs, ended = add(runtime, "web-0", "nginx"), add(runtime, "web-1", "nginx")
    identities = Identities([runtime.socket])
    await identities.refresh([], 0.0)
    async with CriClient(runtime.socket) as client:
        await client.call("RemoveContainer", cri.RemoveContainerRequest(container_id=ended))
    # Not too often; but it is not forgotten either.
    assert await identities.refresh([], LEAST_PAUSE_S - 1, [runs, ended]) == frozenset()
    assert await identities.refresh([], LEAST_PAUSE_S + 1) == {ended}
    assert runs in identities.by_id


async def test_a_runtime_that_is_away_costs_names_only(folder) -> None:
    identities = Identities([str(folder / "absent.sock")])
    assert await identities.refresh(["x"], 0.0) == frozenset()
    assert identities.problem.startswith("the runtime does not name its containers: No such file")


async def test_an_old_runtime_is_asked_in_its_version(folder) -> None:
    async with FakeRuntime(f"{folder}/r.sock", api_versions=("runtime.v1alpha2",)) as runtime:
        added = add(runtime, "web-0", "nginx")
        identities = Identities([runtime.socket])
        await identities.refresh([], 0.0)
        assert added in identities.by_id
