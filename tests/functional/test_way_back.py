"""The way back: containers are given up one by one or all, with the daemon or without; some are never taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, rows
from tests.functional.support import (
    compared,
    cpusets,
    eventually,
    new_agent,
    restart,
    run_pod_with,
    run_without_us,
    start,
    updates,
)

#: What kubelet's cgroup allows on the machine of these tests: what a container has without us.
PARENT = "0-127"


async def _three_pods(agent: Agent) -> dict[str, str]:
    async with CriClient(agent.socket) as client:
        return {name: (await run_pod_with(client, name, cpu_limit=8000))[1] for name in ("a", "b", "c")}


# ---------------------------------------------------------------------- release


@pytest.mark.parametrize("running", [True, False], ids=["daemon up", "daemon down"])
async def test_one_container_is_released(runtime: FakeRuntime, running: bool) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        ids = await _three_pods(agent)
        before = cpusets(runtime)
        document = await _release(agent, running, "default/a/a")
        assert [(row["id"], row["cpus"], row["done"]) for row in document["updates"]] == [
            (ids["a"], PARENT, True)
        ]
        assert cpusets(runtime) == {**before, ids["a"]: PARENT}
        if not running:
            await start(agent)
        found = await rows(agent)
        assert {name: row["stance"] for name, row in found.items()} == {
            "a": "released",
            "b": "placed",
            "c": "placed",
        }


@pytest.mark.parametrize("running", [True, False], ids=["daemon up", "daemon down"])
async def test_all_are_released_and_stay_so_after_a_restart(runtime: FakeRuntime, running: bool) -> None:
    adopted = run_without_us(runtime, "adopted", cpuset="4-5")
    async with new_agent(runtime) as agent:
        await start(agent)
        ids = await _three_pods(agent)
        document = await _release(agent, running, "--all")
        assert {row["id"] for row in document["updates"]} == {*ids.values(), adopted}
        assert set(cpusets(runtime).values()) == {PARENT}
        sent = updates(runtime)
        if running:
            await restart(agent)
        else:
            await start(agent)
        assert (await ask(agent, "status"))["containers"] == {"released": 4}
        assert (updates(runtime), set(cpusets(runtime).values())) == (sent, {PARENT})
        # They make no room for others and are given none back.
        async with CriClient(agent.socket) as client:
            await run_pod_with(client, "new", cpu_limit=8000)
        await compared(agent)
        assert updates(runtime) == sent


async def _release(agent: Agent, running: bool, what: str) -> Any:
    if running:
        return await ask_cli(agent, "release", what)
    await agent.kill()
    code, out, error = await agent.cli("release", what, "--config", str(agent.config_file), "--json")
    assert (code, error) == (0, "the daemon is not running: asking the runtime directly\n")
    return json.loads(out)


async def ask_cli(agent: Agent, *words: str) -> Any:
    """The JSON answer of the real command line."""
    return await agent.ask(*words)


async def test_who_is_released_may_be_changed_by_anybody(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        ids = await _three_pods(agent)
        await ask(agent, "release", container="default/a/a")
        runtime.set_cpuset(ids["a"], "40-47")
        runtime.set_cpuset(ids["b"], "40-47")
        await compared(agent)
        await eventually(lambda: runtime.cpuset(ids["b"]) != "40-47", "drift of a managed one is repaired")
        found = await rows(agent)
        assert (runtime.cpuset(ids["a"]), found["a"]["cpus"]) == ("40-47", "40-47")


async def test_a_release_with_the_runtime_down_says_so_and_is_done_once_it_is_back(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        ids = await _three_pods(agent)
        runtime.script("UpdateContainerResources", error=(14, "containerd is restarting"), times=1)
        code, out, _ = await agent.cli("release", "default/a/a")
        assert (code, "NOT DONE" in out) == (1, True)
        await compared(agent)
        await eventually(lambda: runtime.cpuset(ids["a"]) == PARENT, "the release is tried again")


async def test_a_release_without_daemon_and_runtime_fails_in_a_sentence(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await runtime.stop()
        code, out, error = await agent.cli("release", "--all", "--config", str(agent.config_file))
        assert (code, out) == (1, "")
        assert "cri-resmgr: the runtime does not answer: " in error
        assert "Traceback" not in error


async def test_a_name_that_means_none_or_several_is_refused(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            for namespace in ("one", "two"):
                await run_pod_with(client, "app", cpu_limit=8000, pod_namespace=namespace)
        before = cpusets(runtime)
        code, _, error = await agent.cli("release", "app/app")
        assert (code, "means 2 containers: " in error) == (1, True)
        code, _, error = await agent.cli("release", "nobody")
        assert (code, "no container 'nobody' is known" in error) == (1, True)
        await agent.kill()
        code, _, error = await agent.cli("release", "app/app", "--config", str(agent.config_file))
        assert (code, "means 2 containers: " in error) == (1, True)
    assert cpusets(runtime) == before


async def test_a_release_after_a_reboot_forgets_the_dead(runtime: FakeRuntime) -> None:
    from tests.functional.test_crash_safety import _change

    async with new_agent(runtime) as agent:
        await start(agent)
        await _three_pods(agent)
        await agent.kill()
        runtime.containers.clear()
        _change(agent.state / "state.db", "UPDATE meta SET value = 'another' WHERE key = 'boot_id'")
        _change(
            agent.state / "state.db",
            "UPDATE records SET value = replace(value, '\"since_s\":', '\"since_s\":9')",
        )
        code, out, _ = await agent.cli("release", "--all", "--config", str(agent.config_file))
        assert (code, out) == (0, "0 of 0 containers changed\n")


# ---------------------------------------------------------------------- adopt


async def test_adopt_puts_one_back_under_management(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        ids = await _three_pods(agent)
        before = cpusets(runtime)
        await ask(agent, "release", container=ids["b"][:12])
        document = await ask_cli(agent, "adopt", "default/b/b")
        assert [(row["id"], row["done"]) for row in document["updates"]] == [(ids["b"], True)]
        assert cpusets(runtime) == before
        assert (await ask(agent, "status"))["containers"] == {"placed": 3}
        code, _, error = await agent.cli("adopt", "default/b/b")
        assert (code, error) == (1, "cri-resmgr: default/b/b is managed already\n")


# ---------------------------------------------------------------------- never taken


OPT_OUTS = {
    "ours": {"cri-resmgr.io/manage": "false"},
    "ours, for the pod": {"cri-resmgr.io/manage/pod": "false"},
    "ours, for the container": {"cri-resmgr.io/manage/container.web": "false"},
    "nri-plugins' for CPUs": {"cpu.preserve.resource-policy.nri.io": "true"},
    "nri-plugins' for memory, scoped": {"memory.preserve.resource-policy.nri.io/container.web": "true"},
}


@pytest.mark.parametrize("annotations", OPT_OUTS.values(), ids=OPT_OUTS.keys())
async def test_annotations_opt_out_and_the_container_is_charged_where_it_runs(
    runtime: FakeRuntime, annotations: dict[str, str]
) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000, pod_annotations=annotations)
        row = (await rows(agent))["web"]
        assert (runtime.cpuset(container_id), row["stance"], row["cpus"]) == ("", "opted out", PARENT)
        assert "opted out by annotation" in row["why"]


@pytest.mark.parametrize(
    "annotations",
    [
        {"cri-resmgr.io/manage/container.other": "false"},
        {"cri-resmgr.io/manage": "true"},
        {"cri-resmgr.io/manage": "false", "cri-resmgr.io/manage/container.web": "true"},
        {"cri-resmgr.io/manage": "perhaps"},
    ],
)
async def test_annotations_of_others_and_of_no_sense_opt_nobody_out(
    runtime: FakeRuntime, annotations: dict[str, str]
) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000, pod_annotations=annotations)
        assert runtime.cpuset(container_id) != ""


async def test_namespaces_and_runtime_handlers_are_left_alone(runtime: FakeRuntime) -> None:
    async with new_agent(runtime, placement={"unmanaged_namespaces": ["test-*"]}) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client:
            await run_pod_with(client, "spared", cpu_limit=8000, pod_namespace="test-1")
            await run_pod_with(client, "vm", cpu_limit=8000, runtime_handler="kata-qemu")
            await run_pod_with(client, "plain", cpu_limit=8000, runtime_handler="runc")
        found = await rows(agent)
        whys = {name: (row["stance"], row["why"]) for name, row in found.items()}
        assert whys["spared"] == ("opted out", "namespace test-1 is not managed")
        assert whys["vm"] == ("opted out", "runtime handler kata-qemu is not managed")
        assert whys["plain"][0] == "placed"
        await restart(agent)
        assert {name: row["stance"] for name, row in (await rows(agent)).items()} == {
            "spared": "opted out",
            "vm": "opted out",
            "plain": "placed",
        }


async def test_who_was_there_before_us_and_opts_out_is_not_adopted(runtime: FakeRuntime) -> None:
    run_without_us(runtime, "vm", runtime_handler="kata-qemu")
    run_without_us(runtime, "web", pod_annotations={"cri-resmgr.io/manage": "false"})
    async with new_agent(runtime) as agent:
        assert (await start(agent))["containers"] == {"opted out": 2}


# ---------------------------------------------------------------------- reset-policy


async def test_reset_policy_forgets_all_and_moves_nothing(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        await _three_pods(agent)
        await ask(agent, "mode", mode="observe")
        await ask(agent, "mode", mode="enforce")
        document = await ask_cli(agent, "reset-policy")
        assert (document["state"], document["updates"], document["adopted"]) == (
            "set aside as state.db.aside-1",
            [],
            3,
        )
        status = await ask(agent, "status")
        assert (status["containers"], status["degraded"], updates(runtime)) == ({"adopted": 3}, {}, 0)
        assert (await restart(agent))["containers"] == {"adopted": 3}


async def test_reset_policy_keeps_a_mode_that_was_set_by_command(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        await ask(agent, "mode", mode="observe")
        await ask(agent, "reset-policy")
        assert (await restart(agent))["mode"] == "observe"


async def test_reset_policy_replace_places_all_anew_and_prints_the_moves(runtime: FakeRuntime) -> None:
    old = [run_without_us(runtime, name, cpuset="0-1", cpu_limit=8000) for name in ("x", "y")]
    async with new_agent(runtime) as agent:
        await start(agent)
        code, out, _ = await agent.cli("reset-policy", "--replace")
        assert code == 0
        for container_id in old:
            assert f"{container_id[:13]}: {runtime.cpuset(container_id)}\n" in out
            assert runtime.cpuset(container_id) != "0-1"
        assert out.endswith("2 of 2 containers changed\n")
        status = await ask(agent, "status")
        assert (status["containers"], status["invariants"]) == ({"placed": 2}, [])


@pytest.mark.parametrize(
    "words", [("reset-policy",), ("--reset-policy",), ("-reset-policy",)], ids=["ours", "Intel's", "Go's"]
)
async def test_the_state_is_set_aside_with_the_daemon_down(
    runtime: FakeRuntime, words: tuple[str, ...]
) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        await _three_pods(agent)
        await agent.terminate()
        code, out, _ = await agent.cli(*words, "--config", str(agent.config_file))
        assert (code, out.splitlines()[0]) == (0, "state set aside as state.db.aside-1")
        assert (await start(agent))["containers"] == {"adopted": 3}
        assert updates(runtime) == 0


async def test_intels_reset_policy_leaves_a_running_daemon_its_state(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        await start(agent)
        await _three_pods(agent)
        code, _, error = await agent.cli("--reset-policy", "--config", str(agent.config_file))
        assert (code, error) == (
            1,
            f"cri-resmgr: the daemon is running: {agent.socket} is served\n  use: cri-resmgr reset-policy\n",
        )
        assert (await restart(agent))["containers"] == {"placed": 3}
