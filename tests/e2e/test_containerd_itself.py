"""That the containerd of the tests does what they build on; the agent has no part in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Iterator

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, Pod
from tests.e2e.containerd import CNI_RESULTS, Containerd, cgroup_mounts, containerd_17, missing, mounts_below

pytestmark = [pytest.mark.containerd, pytest.mark.skipif(missing() != "", reason=missing())]

CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture
def containerd(tmp_path: Path, images: Path) -> Iterator[Containerd]:
    with Containerd(tmp_path / "c", images=images) as running:
        yield running


async def run_pod(client: CriClient, containerd: Containerd, cpuset: str = "0") -> tuple[Pod, str]:
    """A pod below the instance's own cgroup, with one running container."""
    pod = await client.run_pod("web", uid="1", cgroup_parent=f"{containerd.cgroup_parent}/burstable/pod1")
    container = await client.create(pod, "main", cpuset=cpuset, mems="0")
    await client.start(container)
    return pod, container


async def test_a_container_runs_on_the_cpuset_it_was_created_with(containerd: Containerd) -> None:
    async with CriClient(str(containerd.socket)) as client:
        _, container = await run_pod(client, containerd)
        assert containerd.cpuset_of(container) == ("0", "0")
        assert containerd.allowed_of(container) == ("0", "0")
        status, _, _ = await client.exec(container, "grep", "Cpus_allowed_list", "/proc/self/status")
        assert status.split() == ["Cpus_allowed_list:", "0"]


async def test_a_container_that_was_only_created_starts_on_the_cpuset_it_was_told_since(
    containerd: Containerd,
) -> None:
    async with CriClient(str(containerd.socket)) as client:
        pod, _ = await run_pod(client, containerd)
        restored = await client.create(pod, "restored", cpuset="0", mems="0")
        await client.update(restored, cpuset_cpus="1")
        await client.start(restored)
        assert containerd.allowed_of(restored) == ("1", "0")


async def test_two_pods_talk_over_the_bridge(containerd: Containerd) -> None:
    async with CriClient(str(containerd.socket)) as client:
        pod, _ = await run_pod(client, containerd)
        server = await client.create(pod, "server", command=("httpd", "-f", "-h", "/etc"))
        await client.start(server)
        status = await client.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id))
        other = await client.run_pod("other", cgroup_parent=f"{containerd.cgroup_parent}/burstable/pod2")
        there = await client.create(other, "client")
        await client.start(there)
        page, problem, code = await client.exec(
            there, "wget", "-qO-", f"http://{status.status.network.ip}/group"
        )
    assert (page.splitlines()[:1], problem, code) == (["root:x:0:"], "", 0)


async def test_containers_survive_the_death_of_the_daemon(containerd: Containerd) -> None:
    async with CriClient(str(containerd.socket)) as client:
        _, container = await run_pod(client, containerd)
    pid = containerd.pid_of(container)
    containerd.kill()
    assert command_of(pid) != ""
    assert containerd.cpuset_of(container) == ("0", "0")
    containerd.start()
    async with CriClient(str(containerd.socket)) as client:
        assert [found.id for found in await client.list_containers()] == [container]
        assert await client.exec(container, "echo", "here") == ("here\n", "", 0)
    assert containerd.pid_of(container) == pid


@pytest.mark.parametrize("alive", [True, False], ids=["daemon alive", "daemon dead"])
async def test_close_leaves_nothing_behind(tmp_path: Path, images: Path, alive: bool) -> None:
    # Only what is this instance's is looked at: others may run on the machine.
    cgroup = f"cri-e2e-close-{os.getpid()}"
    with Containerd(tmp_path / "c", images=images, cgroup_parent=f"/{cgroup}") as containerd:
        async with CriClient(str(containerd.socket)) as client:
            pod, container = await run_pod(client, containerd)
            elsewhere = await client.create(await client.run_pod("other", cgroup_parent="/"), "main")
            await client.start(elsewhere)
        pids = [containerd.pid_of(name) for name in (pod.id, container, elsewhere)]
        bridge = socket.if_nametoindex(containerd.bridge)
        shim_sockets = containerd.shim_sockets()
        assert len(shim_sockets) == 2
        assert mounts_below(containerd.folder) != []
        assert cgroups_named(cgroup) != [] and cgroups_named(elsewhere) != []
        if not alive:
            containerd.kill()

    assert mounts_below(containerd.folder) == []
    assert cgroups_named(cgroup, elsewhere) == []
    assert not containerd.folder.exists()
    assert bridge not in [number for number, _ in socket.if_nameindex()]
    assert not any(path.exists() for path in shim_sockets)
    assert [path for path in CNI_RESULTS.glob("*") if pod.id in path.name] == []
    commands = [command_of(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")]
    assert [command for command in commands if str(containerd.folder) in command] == []
    assert [command_of(pid) for pid in pids] == ["", "", ""]


async def test_two_run_side_by_side(containerd: Containerd, tmp_path: Path, images: Path) -> None:
    async with CriClient(str(containerd.socket)) as client:
        _, container = await run_pod(client, containerd)
        with Containerd(tmp_path / "d", images=images) as second:
            assert second.number != containerd.number
            async with CriClient(str(second.socket)) as second_client:
                await run_pod(second_client, second)
                assert len(await second_client.list_containers()) == 1
        assert await client.exec(container, "echo", "here") == ("here\n", "", 0)


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(tmp_path: Path, images: Path) -> None:
    broken = Containerd(tmp_path / "c", images=images, more_config="not TOML\n")
    with pytest.raises(RuntimeError, match=r"config\.toml"), broken:
        pass
    assert not broken.folder.exists()


async def test_debian_13s_containerd_runs_a_pod_too(tmp_path: Path, images: Path) -> None:
    binary = containerd_17(CACHE)
    if binary is None:
        pytest.skip("Debian's mirror cannot be reached, or this is not Debian 12.")
    with Containerd(tmp_path / "c", binary, images=images) as running:
        async with CriClient(str(running.socket)) as client:
            _, container = await run_pod(client, running)
            assert running.cpuset_of(container) == ("0", "0")
        assert "1.7." in running.ctr("version")


def command_of(pid: int) -> str:
    """A process's command line; "" if it has ended, also while nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cgroups_named(*names: str) -> list[str]:
    """Cgroups with one of these in their name, in any hierarchy."""
    paths = (path for root, _ in cgroup_mounts() for path, _, _ in os.walk(root))
    return [path for path in paths if any(name in path for name in names)]
