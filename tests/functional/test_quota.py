"""Containers that own their CPUs run without quota, and so does their pod's cgroup; both come back."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.cri_client import CPU_PERIOD_US, CriClient, Pod, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, resync, rows, until
from tests.functional.support import eventually, new_agent, reloaded
from tests.machines import GIB

LIFTING = (sys.executable, "-m", "tests.lifting")
OWNER: dict[str, Any] = {"qos": "guaranteed", "cpu_limit": 2000, "memory_limit": GIB}
#: What a container that owns no CPUs is like in a Guaranteed pod.
SHARER: dict[str, Any] = {"qos": "guaranteed", "cpu_limit": 500, "memory_limit": GIB}


@dataclass
class Site:
    """A daemon that lifts quotas, and the cgroups it sees."""

    runtime: FakeRuntime
    agent: Agent
    client: CriClient

    async def pod(self, name: str, milli: int, cgroup: bool = True) -> Pod:
        """A Guaranteed pod; its cgroup has the limit that kubelet writes."""
        uid = f"uid-{name}"
        if cgroup:
            file = self.limit_file(name)
            file.parent.mkdir(parents=True)
            file.write_text(f"{milli * CPU_PERIOD_US // 1000} {CPU_PERIOD_US}\n")
        return await self.client.run_pod(name, uid=uid, cgroup_parent=cgroup_parent("guaranteed", uid))

    def limit_file(self, pod: str) -> Path:
        parent = cgroup_parent("guaranteed", f"uid-{pod}")
        return self.agent.folder / "cgroup" / parent.lstrip("/") / "cpu.max"

    def limit(self, pod: str) -> str:
        # A plain file is empty for a moment while it is written.
        return self.limit_file(pod).read_text().partition(" ")[0].strip()

    def quota(self, container_id: str) -> int:
        """What the runtime was told last."""
        return self.runtime.containers[container_id].resources.cpu_quota

    async def owner(self, name: str = "app") -> str:
        """A pod with one container that owns its CPUs and was started."""
        made = await self.client.create(await self.pod(name, 2000), name, **OWNER)
        await self.client.start(made)
        assert (self.quota(made), self.limit(name)) == (-1, "max")
        return made


@pytest_asyncio.fixture
async def site(runtime: FakeRuntime) -> AsyncIterator[Site]:
    async with new_agent(runtime) as agent:
        await agent.start(command=LIFTING)
        await until(agent, lambda status: "cri_resmgr_resyncs_total{result=ok}" in status["counters"])
        async with CriClient(agent.socket) as client:
            yield Site(runtime, agent, client)


async def restart(site: Site) -> None:
    await site.agent.kill()
    await site.agent.start(command=LIFTING)
    await until(site.agent, lambda status: "cri_resmgr_resyncs_total{result=ok}" in status["counters"])


async def test_a_pod_is_without_quota_once_its_container_is_there(site) -> None:
    await site.owner()


async def test_a_container_that_shares_its_cpus_keeps_its_quota(site) -> None:
    made = await site.client.create(await site.pod("app", 500), "app", **SHARER)
    assert (site.quota(made), site.limit("app")) == (50_000, "50000")


async def test_a_pod_keeps_its_limit_as_long_as_one_container_needs_it(site) -> None:
    pod = await site.pod("both", 2500)
    owner = await site.client.create(pod, "owner", **OWNER)
    assert site.limit("both") == "max"
    sharer = await site.client.create(pod, "sharer", **SHARER)
    assert (site.quota(owner), site.quota(sharer), site.limit("both")) == (-1, 50_000, "250000")
    await site.client.remove(sharer)
    await eventually(lambda: site.limit("both") == "max", "the pod is limited")


async def test_when_the_container_is_gone_the_pod_has_its_limit_again(site) -> None:
    made = await site.owner()
    await site.client.stop(made)
    assert site.limit("app") == "max"  # its place is held for the next attempt
    await site.client.remove(made)
    assert site.limit("app") == "200000"


async def test_a_resize_to_shared_cpus_brings_both_quotas_back(site) -> None:
    made = await site.owner()
    await site.client.update(made, cpu_quota=50_000, cpu_period=CPU_PERIOD_US, cpu_shares=512)
    assert (site.quota(made), site.limit("app")) == (50_000, "200000")
    await site.client.update(made, cpu_quota=200_000, cpu_period=CPU_PERIOD_US, cpu_shares=2048)
    assert (site.quota(made), site.limit("app")) == (-1, "max")


async def test_kubelets_update_does_not_bring_a_lifted_quota_back(site) -> None:
    made = await site.owner()
    await site.client.update(made, cpu_quota=200_000, cpu_period=CPU_PERIOD_US, cpu_shares=2048)
    assert (site.quota(made), site.limit("app")) == (-1, "max")


@pytest.mark.parametrize("up", [True, False], ids=["daemon up", "daemon down"])
async def test_the_way_back_brings_both_quotas_back(site, up) -> None:
    made = [await site.owner("app"), await site.owner("other")]
    if up:
        await ask(site.agent, "release", all=True, container="")
    else:
        await site.agent.kill()
        words = ["release", "--all", "--config", str(site.agent.config_file)]
        code, out, problem = await site.agent.cli(*words)
        assert code == 0, out + problem
    assert [site.quota(i) for i in made] == [200_000, 200_000]
    assert [site.runtime.containers[i].resources.cpu_period for i in made] == [CPU_PERIOD_US] * 2
    assert (site.limit("app"), site.limit("other")) == ("200000", "200000")


async def test_one_container_alone_is_released_with_its_pod(site) -> None:
    made = [await site.owner("app"), await site.owner("other")]
    await ask(site.agent, "release", all=False, container=made[0])
    assert [site.quota(i) for i in made] == [200_000, -1]
    assert (site.limit("app"), site.limit("other")) == ("200000", "max")


async def test_a_quota_that_could_not_be_given_back_is_given_back_later(site) -> None:
    made = await site.owner()
    site.runtime.script("UpdateContainerResources", error=(2, "device busy"), times=1)
    await ask(site.agent, "release", all=True, container="")
    assert site.quota(made) == -1
    await resync(site.agent, site.runtime)
    await site.runtime.wait_until(lambda: site.quota(made) == 200_000)


async def test_it_is_known_after_a_restart_what_has_to_come_back(site) -> None:
    made = await site.owner()
    await restart(site)
    assert (site.quota(made), site.limit("app")) == (-1, "max")
    assert not site.runtime.calls_of("UpdateContainerResources")
    await site.client.remove(made)
    assert site.limit("app") == "200000"


async def test_a_pod_whose_container_has_gone_while_the_daemon_was_away_has_its_limit_again(site) -> None:
    made = await site.owner()
    await site.agent.kill()
    del site.runtime.containers[made]
    await site.agent.start(command=LIFTING)
    await eventually(lambda: site.limit("app") == "200000", "the pod's limit comes back")


async def test_what_kubelet_writes_anew_is_lifted_again_by_the_next_comparison(site) -> None:
    await site.owner()
    site.limit_file("app").write_text(f"200000 {CPU_PERIOD_US}\n")
    await resync(site.agent, site.runtime)
    await eventually(lambda: site.limit("app") == "max", "the pod's limit is lifted again")


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_in_other_modes_nothing_is_lifted(site, mode) -> None:
    await ask(site.agent, "mode", mode=mode)
    made = await site.client.create(await site.pod("app", 2000), "app", **OWNER)
    assert (site.quota(made), site.limit("app")) == (200_000, "200000")


async def test_a_change_of_mode_moves_no_quota(site) -> None:
    made = await site.owner()
    await ask(site.agent, "mode", mode="observe")
    assert (site.quota(made), site.limit("app")) == (-1, "max")
    await ask(site.agent, "mode", mode="enforce")
    await resync(site.agent, site.runtime)
    assert (site.quota(made), site.limit("app")) == (-1, "max")


@pytest.mark.parametrize("other", ["observe", "off"])
async def test_outside_of_enforce_nothing_is_written(runtime, start_agent, other) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"}, placement={"cfs_quota": "lift"})
    async with CriClient(agent.socket) as client, CriClient(runtime.socket) as direct:
        site = Site(runtime, agent, client)
        gone, stays = await site.owner("gone"), await site.owner("stays")
        shared = await client.create(await site.pod("shared", 500), "shared", **SHARER)
        # 1. Updates wait, as a runtime refuses them, when the mode changes.
        busy = runtime.script("UpdateContainerResources", error=(2, "busy"))
        runtime.set_cpuset(shared, "9")
        await resync(agent, runtime)
        await until(agent, lambda status: status["updates_waiting"] == 1)
        await ask(agent, "mode", mode=other)
        await until(agent, lambda status: status["updates_waiting"] == 0)
        runtime.scripts.remove(busy)
        files = [site.limit_file(name) for name in ("gone", "stays", "shared")]
        written = [(file.stat().st_mtime_ns, file.read_text()) for file in files]
        calls = len(runtime.calls_of("UpdateContainerResources"))
        # 2. All that makes a daemon write: an end, another's cpuset, a resize, other CPUs, another configuration.
        await client.remove(gone)
        runtime.set_cpuset(stays, "20-21")
        await direct.update(shared, cpu_quota=100_000, cpu_period=CPU_PERIOD_US, cpu_shares=1024)
        agent.write_config({"policy": {"AvailableResources": {"CPU": "cpuset:0-63"}}})
        await reloaded(agent)
        agent.write_config({"placement": {"cfs_quota": "keep"}})
        await reloaded(agent)
        pod = await site.pod("new", 2000)
        made = await client.create(pod, "new", **OWNER)
        await client.start(made)
        if other == "observe":
            for _ in range(3):
                await resync(agent, runtime)
        assert [(file.stat().st_mtime_ns, file.read_text()) for file in files] == written
        assert len(runtime.calls_of("UpdateContainerResources")) == calls + 1
        assert (runtime.cpuset(made), site.limit("new")) == ("", "200000")
        # 3. Back: what was left is made good.
        await ask(agent, "mode", mode="enforce")
        await resync(agent, runtime)
        await runtime.wait_until(lambda: site.quota(stays) == 200_000)
        placed = await rows(agent)
        for name, container_id in (("stays", stays), ("shared", shared)):
            cpus = placed[name]["cpus"]
            await runtime.wait_until(lambda key=container_id, cpus=cpus: runtime.cpuset(key) == cpus)
        assert (placed["shared"]["cpu_limit_milli"], site.limit("gone"), site.limit("stays")) == (
            1000,
            "200000",
            "200000",
        )
        assert (await ask(agent, "status"))["invariants"] == []


@pytest.mark.parametrize("other", ["observe", "off"])
async def test_a_release_by_command_is_carried_out_in_every_mode(site, other) -> None:
    made = await site.owner()
    await ask(site.agent, "mode", mode=other)
    await ask(site.agent, "release", all=True, container="")
    assert (site.quota(made), site.limit("app")) == (200_000, "200000")
    code, _, problem = await site.agent.cli("adopt", made)
    assert (code, "nothing is placed" in problem) == (1, True)


async def test_where_the_pods_cgroup_cannot_be_written_the_quota_stays_and_it_is_told_why(site) -> None:
    made = await site.client.create(await site.pod("app", 2000, cgroup=False), "app", **OWNER)
    assert site.quota(made) == 200_000
    row = (await rows(site.agent))["app"]
    assert row["exclusive"] == row["cpus"]
    assert "its CPU quota is not lifted: the pod's cgroup kubepods/poduid-app is not below" in row["why"]
    assert "set cfs_quota: keep" in row["why"]
    await resync(site.agent, site.runtime)
    await until(site.agent, lambda status: "a CPU quota is not lifted" in str(status["warnings"]))


async def test_a_create_that_the_runtime_refuses_leaves_the_pod_its_limit(site) -> None:
    pod = await site.pod("app", 2000)
    site.runtime.script("CreateContainer", error=(8, "no space"))
    with pytest.raises(grpc.aio.AioRpcError, match="no space"):
        await site.client.create(pod, "app", **OWNER)
    assert site.limit("app") == "200000"


async def test_the_preset_that_owns_cpus_lifts_where_it_is_configured(runtime, start_agent) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"}, placement={"cfs_quota": "lift"})
    async with CriClient(agent.socket) as client:
        site = Site(runtime, agent, client)
        made = await site.owner()
        await agent.terminate()
        await agent.start()
        await until(agent, lambda status: "cri_resmgr_resyncs_total{result=ok}" in status["counters"])
        assert (site.quota(made), site.limit("app")) == (-1, "max")
        # The next attempt finds it lifted.
        pod = Pod(
            runtime.containers[made].sandbox_id,
            "uid-app",
            "app",
            "default",
            runtime.pods[runtime.containers[made].sandbox_id].config,
        )
        await client.stop(made)
        again = await client.create(pod, "app", attempt=1, **OWNER)
        assert (site.quota(again), site.limit("app")) == (-1, "max")
        await ask(agent, "release", all=True, container="")
        assert (site.quota(again), site.limit("app")) == (200_000, "200000")


async def test_quotas_come_back_when_the_configuration_keeps_them(runtime, start_agent) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"}, placement={"cfs_quota": "lift"})
    async with CriClient(agent.socket) as client:
        site = Site(runtime, agent, client)
        made = await site.owner()
        agent.write_config({"placement": {"cfs_quota": "keep"}})
        await reloaded(agent)
        await runtime.wait_until(lambda: site.quota(made) == 200_000)
        assert site.limit("app") == "200000"


async def test_without_its_state_the_way_back_still_knows_the_quota_of_a_guaranteed_container(site) -> None:
    made = await site.owner()
    await site.agent.kill()
    for file in site.agent.state.glob("state.db*"):
        file.unlink()
    code, out, problem = await site.agent.cli("release", "--all", "--config", str(site.agent.config_file))
    assert code == 0, out + problem
    assert site.quota(made) == 200_000
