"""Enforce, observe and off: switched live by command and by configuration; observe changes nothing, off is bytes."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.agent import Agent
from tests.cri_client import CriClient, Pod, container_config, create_request
from tests.fake_runtime import FakeRuntime
from tests.functional import support
from tests.functional.conftest import ask, rows, until


async def _create_bytes(agent: Agent, runtime: FakeRuntime, name: str) -> tuple[bytes, bytes]:
    """A CreateContainerRequest as it was sent, and as the runtime got it."""
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod(name)
        sent = create_request(
            pod, container_config(name, cpu_limit=8000, memory_limit=1 << 30)
        ).SerializeToString()
        await client.call_bytes("/runtime.v1.RuntimeService/CreateContainer", sent)
    return sent, runtime.calls_of("CreateContainer")[-1].request[0]


# ---------------------------------------------------------------------- what a mode does


async def test_observe_decides_logs_and_explains_but_changes_no_byte(runtime, start_agent) -> None:
    agent = await start_agent(relay={"mode": "observe"})
    sent, got = await _create_bytes(agent, runtime, "web")
    assert got == sent
    row = (await rows(agent))["web"]
    assert (row["stance"], row["level"], row["cpus"]) == ("observed", "ccx", "0-3,64-67")
    explained = await ask(agent, "explain", container="default/web/web")
    assert "8 CPUs wanted" in explained["history"][-1]["why"]
    await agent.logged("cpus=0-3,64-67")
    async with CriClient(agent.socket) as client:
        await client.start(row["id"])
        await client.update(row["id"], cpu_quota=1_600_000, cpu_period=100_000)
    assert runtime.cpuset(row["id"]) == ""
    await support.compared(agent)
    assert support.updates(runtime) == 1  # the client's own


async def test_the_next_place_in_observe_counts_with_the_one_before(start_agent) -> None:
    agent = await start_agent(relay={"mode": "observe"})
    async with CriClient(agent.socket) as client:
        for name in ("a", "b"):
            await support.run_pod_with(client, name, cpu_limit=8000)
    found = await rows(agent)
    assert found["a"]["cpus"] != found["b"]["cpus"]


async def test_off_decides_nothing(runtime, start_agent) -> None:
    agent = await start_agent(relay={"mode": "off"})
    sent, got = await _create_bytes(agent, runtime, "web")
    assert got == sent
    assert await ask(agent, "placements") == []
    assert await agent.terminate() == 0
    assert "CreateContainer" not in agent.log()


# ---------------------------------------------------------------------- switching


async def test_a_mode_is_switched_by_command_while_pods_start(runtime, agent, client) -> None:
    found: list[bool] = []
    for mode in ("enforce", "observe", "off", "enforce"):
        code, out, _ = await agent.cli("mode", mode)
        assert (code, out) == (0, f"{mode}\n")
        assert (await ask(agent, "status"))["mode"] == mode
        _, container_id = await support.run_pod_with(client, f"in-{len(found)}", cpu_limit=8000)
        found.append(runtime.cpuset(container_id) != "")
    assert found == [True, False, False, True]
    assert agent.last_status() == "enforce, serving"


async def test_a_mode_is_switched_by_configuration(agent) -> None:
    for mode in ("observe", "off", "enforce"):
        agent.write_config({"relay": {"mode": mode}})
        assert (await support.reloaded(agent))["mode"] == mode


async def test_a_mode_by_command_survives_restarts_until_another_is_configured(agent) -> None:
    await ask(agent, "mode", mode="observe")
    assert (await support.restart(agent))["mode"] == "observe"
    assert (await support.reloaded(agent))["mode"] == "observe"
    await agent.terminate()
    agent.write_config({"relay": {"mode": "off"}})
    assert (await support.start(agent))["mode"] == "off"
    agent.write_config({"relay": {"mode": "enforce"}})
    assert (await support.reloaded(agent))["mode"] == "enforce"
    assert (await support.restart(agent))["mode"] == "enforce"


async def test_a_mode_by_command_is_over_once_a_daemon_has_run_with_another_configured(agent) -> None:
    await ask(agent, "mode", mode="observe")
    for configured in ("off", "enforce"):
        await agent.terminate()
        agent.write_config({"relay": {"mode": configured}})
        assert (await support.start(agent))["mode"] == configured


async def test_a_mode_by_command_survives_reset_policy(agent) -> None:
    await ask(agent, "mode", mode="observe")
    await ask(agent, "reset-policy")
    assert (await support.restart(agent))["mode"] == "observe"


async def test_a_mode_that_is_none_is_refused(agent) -> None:
    code, out, error = await agent.cli("mode", "of")
    assert (code, out) == (2, "")
    assert "'of' is not one of" in error
    assert (await ask(agent, "status"))["mode"] == "enforce"


@pytest.mark.parametrize("other", ["observe", "off"])
async def test_going_back_to_enforce_moves_nothing(runtime, agent, client, other) -> None:
    _, before = await support.run_pod_with(client, "before", cpu_limit=8000)
    ended_pod, ended = await support.run_pod_with(client, "ended", cpu_limit=8000)
    await ask(agent, "mode", mode=other)
    _, meanwhile = await support.run_pod_with(client, "meanwhile", cpu_limit=8000)
    await client.stop_pod(ended_pod.id)
    await client.remove_pod(ended_pod.id)
    at_the_runtime = support.cpusets(runtime)
    await ask(agent, "mode", mode="enforce")
    await support.compared(agent)
    assert (support.updates(runtime), support.cpusets(runtime)) == (0, at_the_runtime)
    known = await rows(agent)
    assert {key: row["stance"] for key, row in known.items()} == {
        "before": "placed",
        "meanwhile": "observed" if other == "observe" else "adopted",
    }
    assert (await ask(agent, "status"))["invariants"] == []
    # Its next attempt is placed.
    pod = _pod_of(runtime, meanwhile)
    await client.stop(meanwhile)
    again = await client.create(pod, "meanwhile", attempt=1, cpu_limit=8000)
    assert runtime.cpuset(again) != ""
    assert runtime.cpuset(before) != ""


def _pod_of(runtime: FakeRuntime, container_id: str) -> Pod:
    record = runtime.pods[runtime.containers[container_id].sandbox_id]
    meta = record.config.metadata
    return Pod(record.id, meta.uid, meta.name, meta.namespace, record.config)


async def test_drift_in_observe_is_watched_and_left(runtime, agent, client) -> None:
    _, container_id = await support.run_pod_with(client, "web", cpu_limit=8000)
    await ask(agent, "mode", mode="observe")
    runtime.set_cpuset(container_id, "40-41")
    for _ in range(4):
        await support.compared(agent)
    assert (runtime.cpuset(container_id), support.updates(runtime)) == ("40-41", 0)
    # Nobody has fought over it.
    assert (await ask(agent, "status"))["foreign"] == []


async def test_modes_of_a_daemon_without_an_engine_are_wanted_only(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        missing = agent.folder / "later"
        agent.write_config({"topology": {"source": str(missing)}})
        await agent.start()
        code, out, _ = await agent.cli("mode", "observe")
        assert (code, out) == (0, "off (wanted: observe; see: cri-resmgr status)\n")
        missing.symlink_to(agent.folder / "topology.json")
        status: Any = await until(agent, lambda status: status["mode"] != "off")
        assert status["mode"] == "observe"


async def test_a_container_from_before_is_adopted_in_observe_too(runtime) -> None:
    support.run_without_us(runtime, "old", cpuset="4-5")
    async with support.new_agent(runtime, relay={"mode": "observe"}) as agent:
        assert (await support.start(agent))["containers"] == {"adopted": 1}
        await ask(agent, "mode", mode="enforce")
        await support.compared(agent)
        assert (support.updates(runtime), (await rows(agent))["old"]["cpus"]) == (0, "4-5")


# ---------------------------------------------------------------------- resizes meanwhile


async def _resized_past_us(direct: CriClient, container_id: str, milli: int) -> None:
    await direct.update(container_id, cpu_quota=100 * milli, cpu_period=100_000, cpu_shares=1024)


@pytest.mark.parametrize("other", ["observe", "off", "away", "past us"])
async def test_a_resize_that_nobody_told_us_of_is_followed(runtime, other) -> None:
    old = support.run_without_us(runtime, "old", cpu_request=1000, cpu_limit=8000)
    async with support.new_agent(runtime) as agent, CriClient(runtime.socket) as direct:
        await support.start(agent)
        async with CriClient(agent.socket) as client:
            _, made = await support.run_pod_with(client, "web", cpu_request=1000, cpu_limit=8000)
        before = runtime.cpuset(made)
        if other == "away":
            await agent.kill()
        elif other != "past us":
            await ask(agent, "mode", mode=other)
        for container_id in (made, old):
            await _resized_past_us(direct, container_id, 32_000)
        if other == "away":
            await support.start(agent)
        elif other != "past us":
            assert support.updates(runtime) == 2  # the client's own
            await ask(agent, "mode", mode="enforce")
        await support.compared(agent)
        found = await rows(agent)
        for name, container_id in (("web", made), ("old", old)):
            assert (found[name]["stance"], found[name]["cpu_limit_milli"]) == ("placed", 32_000)
            assert runtime.cpuset(container_id) == found[name]["cpus"] not in ("", before)
        status = await ask(agent, "status")
        assert status["counters"]["cri_resmgr_drift_total{result=resized}"] == 2
        assert status["invariants"] == []
        explained = await ask(agent, "explain", container=made)
        last = explained["history"][-1]
        assert (last["operation"], last["outcome"]) == ("resize", "resized past us")


async def test_in_observe_a_resize_is_known_and_moves_nothing_until_it_may(runtime) -> None:
    async with support.new_agent(runtime) as agent, CriClient(agent.socket) as client:
        await support.start(agent)
        _, made = await support.run_pod_with(client, "web", cpu_request=1000, cpu_limit=8000)
        before = runtime.cpuset(made)
        await ask(agent, "mode", mode="observe")
        await _resized_past_us(client, made, 32_000)
        await support.compared(agent)
        row = (await rows(agent))["web"]
        assert (row["cpu_limit_milli"], row["cpus"], runtime.cpuset(made)) == (32_000, before, before)
        assert (support.updates(runtime), (await support.restart(agent))["mode"]) == (1, "observe")
        await ask(agent, "mode", mode="enforce")
        await support.compared(agent)
        assert runtime.cpuset(made) == (await rows(agent))["web"]["cpus"] != before


async def test_the_newer_of_two_resizes_wins_where_the_reply_of_the_older_was_lost(runtime) -> None:
    async with support.new_agent(runtime) as agent, CriClient(agent.socket) as client:
        await support.start(agent)
        _, made = await support.run_pod_with(client, "web", cpu_request=1000, cpu_limit=2000)
        before = runtime.cpuset(made)
        runtime.script("UpdateContainerResources", act_before_error=True, error=(14, "gone"), times=1)
        # The look that the pod's start has asked for could end the doubt by what it asks after its list.
        await support.compared(agent)
        with support.unlisted(runtime):
            with pytest.raises(grpc.aio.AioRpcError):
                await _resized_past_us(client, made, 32_000)
            await until(agent, lambda status: status["in_doubt"] == 1)
            await _resized_past_us(client, made, 2000)
        await support.compared(agent)
        row = (await rows(agent))["web"]
        assert (row["cpu_limit_milli"], row["cpus"], runtime.cpuset(made)) == (2000, before, before)
        status = await ask(agent, "status")
        assert (status["in_doubt"], status["invariants"]) == (0, [])
