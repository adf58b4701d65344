"""A container that is told its CPUs inside reads what is decided about it, through moves, restarts and to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import grpc
import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import StartAgent, create_exclusive, resync, run_guaranteed
from tests.functional.support import compared, eventually, restart, run_pod_with, run_without_us

INSIDE = "/run/cri-resmgr.io"
ASKED = {"cri-resmgr.io/cpuset-file": "true"}
ALL = {"cpuset_file": "all"}


def mounts(runtime: FakeRuntime) -> list[list[Any]]:
    """What the creates that the runtime has seen mount."""
    return [list(call.message.config.mounts) for call in runtime.calls_of("CreateContainer")]


def folder_of(runtime: FakeRuntime, call: int = -1) -> Optional[Path]:
    """The folder that a create has mounted for it."""
    found = [mount for mount in mounts(runtime)[call] if mount.container_path == INSIDE]
    assert all(mount.readonly for mount in found)
    return Path(found[0].host_path) if found else None


async def until_told(folder: Path, **wanted: str) -> None:
    def holds() -> bool:
        told = dict(line.split("=") for line in (folder / "cpuset").read_text().splitlines())
        return all(told[key] == value for key, value in wanted.items())

    await eventually(holds, f"{folder} says {wanted}")


async def test_off_by_default_nothing_is_mounted(
    runtime: FakeRuntime, agent: Agent, client: CriClient
) -> None:
    await run_pod_with(client, "web", cpu_limit=2000, annotations=ASKED)
    assert mounts(runtime) == [[]]
    assert not (agent.folder / "cpusets").exists()


@pytest.mark.parametrize(
    ("mode", "annotations", "is_told"),
    [
        ("annotated", None, False),
        ("annotated", {"cri-resmgr.io/cpuset-file": "true"}, True),
        ("all", None, True),
        ("all", {"cri-resmgr.io/cpuset-file": "false"}, False),
    ],
)
async def test_the_option_and_the_annotation_say_which(
    runtime: FakeRuntime, start_agent: StartAgent, mode: str, annotations: Any, is_told: bool
) -> None:
    agent = await start_agent(placement={"cpuset_file": mode})
    async with CriClient(agent.socket) as client:
        await run_pod_with(client, "web", cpu_limit=2000, annotations=annotations)
    assert (folder_of(runtime) is not None) is is_told


async def test_the_file_follows_moves_and_restarts_and_goes_with_its_container(
    runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(placement=ALL)
    async with CriClient(agent.socket) as client:
        pod, web = await run_pod_with(client, "web", cpu_limit=8000)
        folder = folder_of(runtime)
        assert folder is not None
        # It is there before the container is, as its create says.
        told = (folder / "cpuset").read_text()
        mems = runtime.containers[web].config.linux.resources.cpuset_mems
        assert told == f"cpus={runtime.cpuset(web)}\nmems={mems}\nexclusive=\n"
        # Another one takes some of its CPUs.
        db = await run_guaranteed(client, "db")
        own = await create_exclusive(client, db, "db", runtime.cpuset(web).split(",")[0])
        await runtime.wait_until(lambda: f"cpus={runtime.cpuset(web)}\n" not in told)
        await until_told(folder, cpus=runtime.cpuset(web))
        # Also what changes while no daemon runs, or as one starts.
        await restart(agent)
        await until_told(folder, cpus=runtime.cpuset(web))
    async with CriClient(agent.socket) as client:
        await client.stop(own)
        await client.remove(own)
        await eventually(
            lambda: f"cpus={runtime.cpuset(web)}\n" in (folder / "cpuset").read_text(), "it has grown"
        )
        await client.stop(web)
        await client.remove(web)
        await client.stop_pod(pod.id)
        await client.remove_pod(pod.id)
        await eventually(lambda: not folder.exists(), "its folder is gone")


async def test_a_container_whose_record_was_lost_keeps_its_folder(
    runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(placement=ALL)
    async with CriClient(agent.socket) as client:
        _, web = await run_pod_with(client, "web", cpu_limit=8000)
    folder = folder_of(runtime)
    assert folder is not None
    await agent.kill()
    for path in agent.state.iterdir():
        path.unlink() if path.is_file() else None
    (folder / "cpuset").write_text("cpus=\nmems=\nexclusive=\n")
    leftover = folder.with_name("0" * 32)
    leftover.mkdir()
    await agent.start()
    await compared(agent)
    await eventually(lambda: not leftover.exists(), "what belongs to no container is gone")
    assert (folder / "cpuset").exists()


async def test_a_container_that_mounts_over_the_place_gets_none(
    runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(placement=ALL)
    async with CriClient(agent.socket) as client:
        for number, path in enumerate(("/run", "/var/run/", "/run/cri-resmgr.io")):
            own = cri.Mount(container_path=path, host_path="/srv")
            await run_pod_with(client, f"web-{number}", cpu_limit=2000, mounts=(own,))
            assert mounts(runtime)[-1] == [own]


async def test_a_create_or_start_that_fails_with_it_is_tried_without(
    runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(placement=ALL)
    error = (grpc.StatusCode.UNKNOWN, "read-only file system")
    async with CriClient(agent.socket) as client:
        for name, method in (("a", "CreateContainer"), ("b", "StartContainer")):
            runtime.script(method, error=error, times=1)
            pod = await client.run_pod(name)
            with pytest.raises(grpc.aio.AioRpcError):
                await client.start(await client.create(pod, name, cpu_limit=2000))
            assert folder_of(runtime) is not None, method
            await client.start(await client.create(pod, name, cpu_limit=2000, attempt=1))
            assert folder_of(runtime) is None, method


async def test_a_folder_that_cannot_be_made_fails_no_create(
    runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(placement=ALL)
    (agent.folder / "cpusets").write_text("in the way")
    async with CriClient(agent.socket) as client:
        _, web = await run_pod_with(client, "web", cpu_limit=2000)
    assert (folder_of(runtime), runtime.cpuset(web) != "") == (None, True)
    await agent.logged("no cpuset file")


async def test_what_ran_before_is_left_alone(runtime: FakeRuntime, start_agent: StartAgent) -> None:
    run_without_us(runtime, "old")
    agent = await start_agent(placement=ALL)
    await resync(agent, runtime)
    assert not (agent.folder / "cpusets").exists()
