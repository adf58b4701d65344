"""Others write cpusets too: drift is repaired, a fight is not fought; what does not start is left untouched."""

from __future__ import annotations

import grpc
import pytest

from tests.agent import Agent
from tests.cri_client import CriClient, Pod
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, counter, rows
from tests.functional.support import (
    compared,
    eventually,
    new_agent,
    restart,
    run_pod_with,
    start,
    updates,
)

ELSEWHERE = "40-47"


async def _drifts(agent: Agent, runtime: FakeRuntime, container_id: str) -> None:
    """Somebody changes the cpuset, and the daemon looks."""
    runtime.set_cpuset(container_id, ELSEWHERE)
    await compared(agent)


# ---------------------------------------------------------------------- drift


async def test_a_change_by_somebody_else_is_repaired_once(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        ours = runtime.cpuset(container_id)
        await _drifts(agent, runtime, container_id)
        await eventually(lambda: runtime.cpuset(container_id) == ours, "the cpuset is repaired")
        for _ in range(3):
            await compared(agent)
        status = await ask(agent, "status")
        assert updates(runtime) == 1
        assert counter(status, "drift_total{result=repaired}") == 1
        assert status["foreign"] == []


async def test_a_repair_survives_a_restart_and_is_not_made_again(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        ours = runtime.cpuset(container_id)
        await agent.kill()
        runtime.set_cpuset(container_id, ELSEWHERE)
        await start(agent)
        await eventually(lambda: runtime.cpuset(container_id) == ours, "drift while we were down is repaired")
        await restart(agent)
        assert (updates(runtime), runtime.cpuset(container_id)) == (1, ours)


async def test_who_changes_it_back_three_times_in_a_minute_has_it(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
            ours = runtime.cpuset(container_id)
            for repairs in (1, 2, 3):
                await _drifts(agent, runtime, container_id)
                await eventually(lambda wanted=repairs: updates(runtime) == wanted, "it is repaired")
                await eventually(lambda: runtime.cpuset(container_id) == ours, "it is repaired")
            await _drifts(agent, runtime, container_id)
            status = await ask(agent, "status")
            assert status["foreign"] == ["default/web/web"]
            assert counter(status, "drift_total{result=foreign}") == 1
            assert "another writer keeps changing a cpuset" in agent.log()
            _, text, _ = await agent.cli("status")
            assert "foreign    default/web/web: another writer keeps changing its cpuset" in text
            # Never a loop, and it is charged where it runs, also after a restart.
            for _ in range(3):
                await compared(agent)
            await restart(agent)
            await compared(agent)
            assert (updates(runtime), runtime.cpuset(container_id)) == (3, ELSEWHERE)
            row = (await rows(agent))["web"]
            assert (row["stance"], row["cpus"]) == ("foreign", ELSEWHERE)
            # An operator may take it back.
            await ask(agent, "adopt", container="default/web/web")
            assert runtime.cpuset(container_id) == ours
    assert updates(runtime) == 4


async def test_a_container_that_is_gone_is_not_repaired(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        runtime.set_cpuset(container_id, ELSEWHERE)
        runtime.exit_container(container_id, 1)
        await compared(agent)
        assert updates(runtime) == 0


# ---------------------------------------------------------------------- what does not start


CPUSET_ERROR = (
    2,
    "failed to create containerd task: runc create failed: unable to apply cgroup configuration: "
    'failed to write "0-3": write /sys/fs/cgroup/cpuset/kubepods/x/cpuset.cpus: permission denied',
)
OTHER_ERROR = (2, "failed to create containerd task: exec: no such file or directory")


async def _fail_to_start(client: CriClient, pod: Pod, attempt: int) -> str:
    container_id = await client.create(pod, "web", attempt=attempt, cpu_limit=8000)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.start(container_id)
    await client.remove(container_id)
    return container_id


async def test_a_start_that_fails_by_its_cpuset_leaves_the_next_attempt_untouched(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        runtime.script("StartContainer", error=CPUSET_ERROR, times=1)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            await _fail_to_start(client, pod, 0)
            status = await ask(agent, "status")
            assert status["distrusted"] == [f"{pod.uid}/web"]
            assert counter(status, "start_failures_total{next_create=untouched}") == 1
            explained = await ask(agent, "explain", container="default/web/web")
            assert "start failed: " in explained["history"][-1]["outcome"]
            # Also by a daemon that was started since; other containers of the pod are placed.
            await restart(agent)
        async with CriClient(agent.socket) as client:
            again = await client.create(pod, "web", attempt=1, cpu_limit=8000)
            await client.start(again)
            other = await client.create(pod, "other", cpu_limit=8000)
            assert (runtime.cpuset(again), runtime.cpuset(other) != "") == ("", True)
            row = (await rows(agent))["web"]
            assert (row["stance"], row["why"]) == (
                "untouched",
                "it failed to start where it was placed: untouched for ten minutes",
            )


async def test_a_start_that_fails_otherwise_twice_in_a_row_does_so_too(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        runtime.script("StartContainer", error=OTHER_ERROR, times=2)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            first = await _fail_to_start(client, pod, 0)
            assert (await ask(agent, "status"))["distrusted"] == []
            second = await client.create(pod, "web", attempt=1, cpu_limit=8000)
            assert runtime.cpuset(second) != ""
            with pytest.raises(grpc.aio.AioRpcError):
                await client.start(second)
            await client.remove(second)
            assert (await ask(agent, "status"))["distrusted"] == [f"{pod.uid}/web"]
            third = await client.create(pod, "web", attempt=2, cpu_limit=8000)
            assert runtime.cpuset(third) == ""
    assert first != second


async def test_a_start_that_succeeds_between_two_failures_is_trusted(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            for attempt in (0, 2):
                runtime.script("StartContainer", error=OTHER_ERROR, times=1)
                await _fail_to_start(client, pod, attempt)
                container_id = await client.create(pod, "web", attempt=attempt + 1, cpu_limit=8000)
                assert runtime.cpuset(container_id) != ""
                await client.start(container_id)
                await client.stop(container_id)
                await client.remove(container_id)
        assert (await ask(agent, "status"))["distrusted"] == []


async def test_a_start_that_fails_untouched_is_not_our_fault(runtime: FakeRuntime) -> None:
    async with new_agent(runtime, relay={"mode": "observe"}) as agent:
        await start(agent)
        runtime.script("StartContainer", error=CPUSET_ERROR, times=1)
        async with CriClient(agent.socket) as client:
            pod = await client.run_pod("web")
            await _fail_to_start(client, pod, 0)
        assert (await ask(agent, "status"))["distrusted"] == []
