"""That the runtime of the tests does what they build on; the agent has no part in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Iterator

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, Pod
from tests.e2e.cgroups import cgroup_mounts
from tests.e2e.containerd import missing
from tests.e2e.runtime import CNI_RESULTS, MakeRuntime, RealRuntime, mounts_below

pytestmark = [pytest.mark.containerd, pytest.mark.skipif(missing() != "", reason=missing())]


@pytest.fixture
def runtime(make_runtime: MakeRuntime, tmp_path: Path) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path / "c") as running:
        yield running


async def run_pod(client: CriClient, runtime: RealRuntime, cpuset: str = "0") -> tuple[Pod, str]:
    """A pod below the instance's own cgroup, with one running container."""
    pod = await client.run_pod("web", uid="1", cgroup_parent=f"{runtime.cgroup_parent}/burstable/pod1")
    container = await client.create(pod, "main", cpuset=cpuset, mems="0")
    await client.start(container)
    return pod, container


async def test_a_container_runs_on_the_cpuset_it_was_created_with(runtime: RealRuntime) -> None:
    async with CriClient(str(runtime.socket)) as client:
        _, container = await run_pod(client, runtime)
        assert runtime.cpuset_of(container) == ("0", "0")
        assert runtime.allowed_of(container) == ("0", "0")
        status, _, _ = await client.exec(container, "grep", "Cpus_allowed_list", "/proc/self/status")
        assert status.split() == ["Cpus_allowed_list:", "0"]


async def test_a_container_that_was_only_created_starts_on_the_cpuset_it_was_told_since(
    runtime: RealRuntime,
) -> None:
    async with CriClient(str(runtime.socket)) as client:
        pod, _ = await run_pod(client, runtime)
        restored = await client.create(pod, "restored", cpuset="0", mems="0")
        await client.update(restored, cpuset_cpus="1")
        await client.start(restored)
        assert runtime.allowed_of(restored) == ("1", "0")


async def test_two_pods_talk_over_the_bridge(runtime: RealRuntime) -> None:
    async with CriClient(str(runtime.socket)) as client:
        pod, _ = await run_pod(client, runtime)
        server = await client.create(pod, "server", command=("httpd", "-f", "-h", "/etc"))
        await client.start(server)
        status = await client.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id))
        other = await client.run_pod("other", cgroup_parent=f"{runtime.cgroup_parent}/burstable/pod2")
        there = await client.create(other, "client")
        await client.start(there)
        page, problem, code = await client.exec(
            there, "wget", "-qO-", f"http://{status.status.network.ip}/group"
        )
    assert (page.splitlines()[:1], problem, code) == (["root:x:0:"], "", 0)


async def test_containers_survive_the_death_of_the_daemon(runtime: RealRuntime) -> None:
    async with CriClient(str(runtime.socket)) as client:
        _, container = await run_pod(client, runtime)
    pid = runtime.pid_of(container)
    runtime.kill()
    assert command_of(pid) != ""
    assert runtime.cpuset_of(container) == ("0", "0")
    runtime.start()
    async with CriClient(str(runtime.socket)) as client:
        assert [found.id for found in await client.list_containers()] == [container]
        assert await client.exec(container, "echo", "here") == ("here\n", "", 0)
    assert runtime.pid_of(container) == pid


@pytest.mark.parametrize("alive", [True, False], ids=["daemon alive", "daemon dead"])
async def test_close_leaves_nothing_behind(make_runtime: MakeRuntime, tmp_path: Path, alive: bool) -> None:
    # Only what is this instance's is looked at: others may run on the machine.
    cgroup = f"cri-e2e-close-{os.getpid()}"
    with make_runtime(tmp_path / "c", cgroup_parent=f"/{cgroup}") as runtime:
        async with CriClient(str(runtime.socket)) as client:
            pod, container = await run_pod(client, runtime)
            elsewhere = await client.create(await client.run_pod("other", cgroup_parent="/"), "main")
            await client.start(elsewhere)
        # Of containers: a sandbox need not have a process.
        pids = [runtime.pid_of(name) for name in (container, elsewhere)]
        bridge = socket.if_nametoindex(runtime.bridge)
        outside = [*runtime._outside(), *(path for path in CNI_RESULTS.glob("*") if pod.id in path.name)]
        assert outside != []
        assert mounts_below(runtime.folder) != []
        assert cgroups_named(cgroup) != [] and cgroups_named(elsewhere) != []
        if not alive:
            runtime.kill()

    assert mounts_below(runtime.folder) == []
    assert cgroups_named(cgroup, elsewhere) == []
    assert not runtime.folder.exists()
    assert bridge not in [number for number, _ in socket.if_nameindex()]
    assert not any(path.exists() for path in outside)
    commands = [command_of(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")]
    assert [command for command in commands if str(runtime.folder) in command] == []
    assert [command_of(pid) for pid in pids] == ["", ""]


async def test_two_run_side_by_side(runtime: RealRuntime, make_runtime: MakeRuntime, tmp_path: Path) -> None:
    async with CriClient(str(runtime.socket)) as client:
        _, container = await run_pod(client, runtime)
        with make_runtime(tmp_path / "d") as second:
            assert second.number != runtime.number
            async with CriClient(str(second.socket)) as second_client:
                await run_pod(second_client, second)
                assert len(await second_client.list_containers()) == 1
        assert await client.exec(container, "echo", "here") == ("here\n", "", 0)


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(
    make_runtime: MakeRuntime, tmp_path: Path
) -> None:
    broken = make_runtime(tmp_path / "c", more_config="not TOML\n")
    with pytest.raises(RuntimeError, match=r"config\.toml"), broken:
        pass
    assert not broken.folder.exists()


def command_of(pid: int) -> str:
    """A process's command line; "" if it has ended, also while no parent has waited for it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cgroups_named(*names: str) -> list[str]:
    """Cgroups with one of these in their name, in any hierarchy."""
    paths = (path for root, _ in cgroup_mounts() for path, _, _ in os.walk(root))
    return [path for path in paths if any(name in path for name in names)]
