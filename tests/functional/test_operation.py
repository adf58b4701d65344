"""What an operator does with a running daemon: modes, reloads, the way back, and what it does about other writers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.annotations.keys import GONE
from cri_proxy.simulator.replay import simulate
from policies.machine.cpus import parse_cpus
from tests.agent import ROOT
from tests.config.configs import read
from tests.cri_client import CriClient, cgroup_parent
from tests.functional import support
from tests.functional.conftest import ask, cpus_of, resync, run_guaranteed, until
from tests.machines import HYGON_7285_2S, machine

CCX_0, CCX_1, MACHINE = "0-3,64-67", "4-7,68-71", "0-127"


POD_FIELDS = ("annotations", "namespace", "runtime_handler", "cgroup_parent")


async def run_pod(client: CriClient, name: str = "web", cpus: int = 4, **more: Any) -> str:
    """A started container of ``cpus`` CPUs in a pod of its own; its id."""
    pod_more = {key: more.pop(key) for key in POD_FIELDS if key in more}
    pod = await client.run_pod(name, **pod_more)
    container = await client.create(pod, "app", cpu_request=cpus * 1000, cpu_limit=cpus * 1000, **more)
    await client.start(container)
    return container


# ---------------------------------------------------------------------- modes


async def test_observing_decides_and_explains_and_changes_nothing(runtime, start_agent) -> None:
    agent = await start_agent(relay={"mode": "observe"})
    async with CriClient(agent.socket) as client:
        container = await run_pod(client)
    assert runtime.cpuset(container) == ""
    row = (await agent.ask("explain", container))["containers"][0]
    assert (row["stance"], row["cpus"], row["level"]) == ("observed", CCX_0, "ccx")


async def test_a_simulation_says_of_the_node_what_its_status_says(runtime, start_agent) -> None:
    policy = {
        "ReservedResources": {"CPU": "cpuset:0,200"},
        "AvailableResources": {"CPU": "cgroup:/none"},
        "ActivePolicy": "hygon",
    }
    agent = await start_agent(policy=policy)
    status = await agent.ask("status")
    loaded = read(json.dumps({"policy": policy}))
    told, state = simulate(
        machine(HYGON_7285_2S), loaded, [{"op": "wait", "seconds": 1}, {"op": "state"}], read
    )
    cpus, *warnings = told["notes"]
    own = [sentence.replace(str(agent.config_file), "c.yaml") for sentence in status["warnings"]]
    assert len(warnings) == 4
    assert [w.partition(": ")[2] or w for w in warnings] == [w.partition(": ")[2] or w for w in own]
    assert f"  policy     {cpus.removeprefix('policy ')}\n" in (await agent.cli("status"))[1]
    assert {key: status[key] for key in state["status"]} == state["status"]


async def test_off_passes_bytes_and_knows_nothing(runtime, start_agent) -> None:
    agent = await start_agent(relay={"mode": "off"})
    async with CriClient(agent.socket) as client:
        container = await run_pod(client)
    assert runtime.cpuset(container) == ""
    assert await agent.ask("placements") == []


async def test_a_mode_set_by_command_works_at_once_and_survives_a_kill(runtime, agent) -> None:
    assert (await agent.cli("mode", "off"))[:2] == (0, "off\n")
    await support.restart(agent)
    assert (await agent.cli("mode"))[1] == "off\n"
    assert (await agent.cli("mode", "enforce"))[0] == 0
    async with CriClient(agent.socket) as client:
        assert runtime.cpuset(await run_pod(client)) == CCX_0


async def test_going_from_observe_to_enforce_moves_nothing_and_adopt_places_one(runtime, start_agent) -> None:
    agent = await start_agent(relay={"mode": "observe"})
    async with CriClient(agent.socket) as client:
        container = await run_pod(client)
        await agent.cli("mode", "enforce")
        await resync(agent, runtime)
        assert (runtime.cpuset(container), support.updates(runtime)) == ("", 0)
        assert (await agent.cli("adopt", container))[0] == 0
    assert runtime.cpuset(container) == CCX_0


# ---------------------------------------------------------------------- reloads


async def test_a_reload_applies_what_is_valid_and_moves_nothing(runtime, agent, client) -> None:
    first = await run_pod(client, "one")
    agent.write_config({"policy": {"ReservedResources": {"CPU": "cpuset:4-7,68-71"}}})
    status = await support.reloaded(agent)
    assert (status["degraded"], status["reserved"]) == ({}, CCX_1)
    second = await run_pod(client, "two")
    assert (runtime.cpuset(first), runtime.cpuset(second), support.updates(runtime)) == (
        CCX_0,
        "8-11,72-75",
        0,
    )


async def test_reserving_cpus_takes_them_from_who_runs_there(runtime, agent, client) -> None:
    container = await run_pod(client)
    agent.write_config({"policy": {"ReservedResources": {"CPU": "cpuset:0,64"}}})
    await support.reloaded(agent)
    await runtime.wait_until(lambda: runtime.cpuset(container) == "1-3,65-67")


async def test_an_invalid_reload_leaves_the_running_configuration(runtime, agent, client) -> None:
    agent.write_config({"placement": {"ladder": "rope"}})
    status = await support.reloaded(agent)
    assert "placement.ladder" in status["degraded"]["config"]
    assert "rope" in status["degraded"]["config"]
    assert runtime.cpuset(await run_pod(client)) == CCX_0


async def test_what_needs_a_restart_is_named(agent) -> None:
    agent.write_config({"state": {"directory": str(agent.folder / "elsewhere")}})
    status = await support.reloaded(agent)
    assert "state.directory" in status["degraded"]["restart"]


# ---------------------------------------------------------------------- the way back


async def test_release_gives_all_cpus_back_and_it_stays_so(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        containers = [await run_pod(client, name) for name in ("one", "two")]
        code, _, _ = await agent.cli("release", "--all")
        assert code == 0
        assert [runtime.cpuset(c) for c in containers] == [MACHINE, MACHINE]
        await support.restart(agent)
        await support.compared(agent)
        assert [runtime.cpuset(c) for c in containers] == [MACHINE, MACHINE]
        await agent.cli("adopt", containers[0])
    assert runtime.cpuset(containers[0]) != MACHINE


async def test_adopt_all_places_what_was_released_exclusive_cpus_and_all(runtime, start_agent) -> None:
    support.run_without_us(runtime, "old", cpu_limit=4000, cpuset="96-99")
    agent = await start_agent(policy={"Active": "topology-aware"})
    async with CriClient(agent.socket) as client:
        own = await run_pod(
            client,
            "own",
            cgroup_parent=cgroup_parent("guaranteed", "own"),
            qos="guaranteed",
            memory_limit=1 << 30,
        )
        left = await run_pod(client, "left", annotations={"cri-resmgr.io/manage": "false"})
        exclusive = (await support.placed(agent))[own]["exclusive"]
        assert exclusive
        _, out, _ = await agent.cli("release", "--all")
        assert f"default/own/app ({own[:13]}): {MACHINE}" in out.splitlines()
        _, out, _ = await agent.cli("adopt", "--all")
    rows = await support.placed(agent)
    assert f"default/own/app ({own[:13]}): {rows[own]['cpus']}" in out.splitlines()
    # Not what has asked to be left alone.
    assert (rows[left]["stance"], sorted(row["stance"] for row in rows.values())[:2]) == (
        "released",
        ["placed"] * 2,
    )
    assert len(parse_cpus(rows[own]["exclusive"])) == 4 and runtime.cpuset(own) == rows[own]["cpus"]
    assert runtime.cpuset(left) == ""


async def test_adopt_knows_what_was_made_past_the_daemon_since_the_last_comparison(runtime, agent) -> None:
    await support.compared(agent)
    one, two, three = (support.run_without_us(runtime, name) for name in ("one", "two", "three"))
    code, _, problem = await agent.cli("adopt", one)
    assert (code, runtime.cpuset(one) != "") == (0, True), problem
    three_is_gone = runtime.containers.pop(three)
    assert (await agent.cli("adopt", "--all"))[0] == 0
    assert runtime.cpuset(two) != ""
    assert three_is_gone and set(await support.placed(agent)) == {one, two}


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_where_nothing_is_placed_nothing_is_adopted(runtime, agent, client, mode) -> None:
    await run_pod(client)
    await agent.cli("release", "--all")
    await agent.cli("mode", mode)
    before = support.updates(runtime)
    for words in (("adopt", "--all"), ("reset-policy", "--replace")):
        code, _, problem = await agent.cli(*words)
        assert (code, f"in mode {mode} nothing is placed" in problem) == (1, True), words
    assert support.updates(runtime) == before


async def test_release_works_with_the_daemon_down(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        one, two = await run_pod(client, "one"), await run_pod(client, "two")
    await agent.kill()
    code, out, err = await agent.cli("release", one, "--config", str(agent.config_file), "--json")
    assert (code, json.loads(out)["updates"][0]["cpus"]) == (0, MACHINE), err
    assert (runtime.cpuset(one), runtime.cpuset(two)) == (MACHINE, CCX_1)
    assert (await agent.cli("release", "--all", "--config", str(agent.config_file)))[0] == 0
    assert runtime.cpuset(two) == MACHINE
    await agent.start()
    await support.compared(agent)
    assert set(support.cpusets(runtime).values()) == {MACHINE}


OPT_OUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "our annotation": ({"annotations": {"cri-resmgr.io/manage": "false"}}, {}),
    "our annotation for this container": (
        {"annotations": {"cri-resmgr.io/manage/container.app": "false"}},
        {},
    ),
    "nri-plugins' cpu.preserve": ({"annotations": {"cpu.preserve.resource-policy.nri.io": "true"}}, {}),
    "nri-plugins' memory.preserve": (
        {"annotations": {"memory.preserve.resource-policy.nri.io/pod": "true"}},
        {},
    ),
    "its namespace": ({"namespace": "ops-1"}, {"placement": {"unmanaged_namespaces": ["ops-*"]}}),
    "a virtual machine's handler": ({"runtime_handler": "kata-qemu"}, {}),
}


@pytest.mark.parametrize(("pod", "config"), OPT_OUTS.values(), ids=OPT_OUTS.keys())
async def test_opted_out_by(runtime, start_agent, pod, config) -> None:
    agent = await start_agent(**config)
    async with CriClient(agent.socket) as client:
        container = await run_pod(client, **pod)
    assert runtime.cpuset(container) == ""
    assert (await support.placed(agent))[container]["stance"] == "opted out"


async def test_annotations_that_are_ignored_are_in_the_log_and_in_explain(runtime, start_agent) -> None:
    asked = {"cri-resmgr.io/balloon": "web", "cri-resmgr.io/cpuset-file": "true"}
    agent = await start_agent()
    async with CriClient(agent.socket) as client:
        await run_pod(client, annotations=asked)
    [row] = (await support.placed(agent)).values()
    for sentence in (
        'the annotation for a balloon of type "web": this policy has no balloons',
        GONE["cpuset-file"],
    ):
        assert sentence in row["why"]
        # A thread writes the log.
        await support.eventually(lambda said=sentence: said in agent.log().replace('\\"', '"'), sentence)


async def test_a_container_of_a_vm_sandbox_from_before_us_is_left_alone(runtime, start_agent) -> None:
    support.run_without_us(runtime, "vm", runtime_handler="kata")
    agent = await start_agent()
    await resync(agent, runtime)
    sandbox = next(iter(runtime.pods))
    async with CriClient(agent.socket) as client:
        config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="late"))
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
        container = (await client.call("CreateContainer", request)).container_id
    assert runtime.cpuset(container) == ""


async def test_reset_policy_adopts_and_moves_nothing_and_replace_places_anew(runtime, start_agent) -> None:
    support.run_without_us(runtime, "old", cpu_request=4000, cpu_limit=4000, cpuset="96-99")
    agent = await start_agent()
    async with CriClient(agent.socket) as client:
        own = await run_pod(client, memory_limit=2 << 30)
    before, charged = support.cpusets(runtime), (await agent.ask("status"))["domains"]
    assert charged[0]["charged_milli"] == 8000
    memory = (await agent.ask("explain", own))["containers"][0]["memory"]
    assert [(row["node"], row["charged_bytes"]) for row in memory] == [(0, 2 << 30)]
    result = await agent.ask("reset-policy")
    assert (result["updates"], support.cpusets(runtime)) == ([], before)
    # What is adopted counts where it runs, as before.
    assert (await agent.ask("status"))["domains"] == charged
    assert (await agent.ask("explain", own))["containers"][0]["memory"] == memory
    assert {row["level"] for row in await agent.ask("placements")} == {"ccx"}
    assert {row["stance"] for row in await agent.ask("placements")} == {"adopted"}
    result = await agent.ask("reset-policy", "--replace")
    assert {update["container"] for update in result["updates"]} == {"default/old/old", "default/web/app"}
    assert sorted(support.cpusets(runtime).values()) == [CCX_0, CCX_1]


# ---------------------------------------------------------------------- other writers


async def test_a_changed_cpuset_is_repaired_once_for_each_change(runtime, agent, client) -> None:
    container = await run_pod(client)
    for number in (1, 2):
        runtime.set_cpuset(container, "100-103")
        await resync(agent, runtime)
        await runtime.wait_until(lambda: runtime.cpuset(container) == CCX_0)
        assert support.updates(runtime) == number


async def test_a_writer_that_does_not_give_up_ends_as_foreign_and_not_in_a_loop(
    runtime, agent, client
) -> None:
    container = await run_pod(client)
    for _ in range(3):
        runtime.set_cpuset(container, "100-103")
        await resync(agent, runtime)
        await runtime.wait_until(lambda: runtime.cpuset(container) == CCX_0)
    runtime.set_cpuset(container, "100-103")
    for _ in range(3):
        status = await resync(agent, runtime)
    assert (runtime.cpuset(container), support.updates(runtime)) == ("100-103", 3)
    assert status["foreign"] == ["default/web/app"]
    row = (await support.placed(agent))[container]
    assert (row["stance"], row["cpus"]) == ("foreign", "100-103")


async def test_a_place_that_does_not_start_is_not_insisted_on(runtime, agent, client) -> None:
    runtime.script(
        "StartContainer",
        error=(grpc.StatusCode.UNKNOWN, "runc: write cpuset.cpus: invalid argument"),
        times=1,
    )
    pod = await client.run_pod("web")
    first = await client.create(pod, "app", cpu_limit=4000)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.start(first)
    second = await client.create(pod, "app", cpu_limit=4000, attempt=1)
    assert (runtime.cpuset(first), runtime.cpuset(second)) == (CCX_0, "")
    other = await run_pod(client, "other")
    assert runtime.cpuset(other) != ""
    assert len((await agent.ask("status"))["distrusted"]) == 1


async def test_two_failed_starts_in_a_row_are_enough_whatever_they_say(runtime, agent, client) -> None:
    runtime.script("StartContainer", error=(grpc.StatusCode.UNKNOWN, "no such file"), times=2)
    got = []
    pod = await client.run_pod("web")
    for attempt in range(3):
        container = await client.create(pod, "app", cpu_limit=4000, attempt=attempt)
        got.append(runtime.cpuset(container))
        if attempt < 2:
            with pytest.raises(grpc.aio.AioRpcError):
                await client.start(container)
    assert got == [CCX_0, CCX_0, ""]


# ---------------------------------------------------------------------- the command line


async def test_every_json_answer_is_one_document(agent, client) -> None:
    container = await run_pod(client)
    for words in (["status"], ["placements"], ["explain", container[:12]], ["topology"], ["config", "show"]):
        code, out, err = await agent.cli(*words, "--json")
        assert (code, err) == (0, "")
        json.loads(out)
        code, out, _ = await agent.cli(*words)
        assert code == 0
        assert out.strip()


async def test_the_metrics_are_prometheus_text_and_tell_what_happened(runtime, agent, client) -> None:
    await run_pod(client)
    await client.update((await agent.ask("placements"))[0]["id"], cpu_quota=800_000, cpu_period=100_000)
    assert len(runtime.calls_of(support.UPDATE)) == 1
    _, text, _ = await agent.cli("metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    placed_creates = [
        s.value
        for s in families["cri_resmgr_requests"].samples
        if s.labels == {"method": "CreateContainer", "outcome": "placed"} and s.name.endswith("_total")
    ]
    assert placed_creates == [1.0]
    for name in (
        "decision_seconds",
        "updates",
        "drift",
        "tickets_in_doubt",
        "mode",
        "degraded",
        "cpus",
        "build_info",
    ):
        assert f"cri_resmgr_{name}" in families, name


async def test_without_a_daemon_every_question_is_one_sentence_and_exit_1(agent) -> None:
    await agent.terminate()
    for words in (["status"], ["mode"], ["placements"], ["explain", "x"], ["metrics"], ["adopt", "x"]):
        code, out, err = await agent.cli(*words)
        assert (code, out) == (1, ""), words
        assert "is not running" in err
        assert "systemctl start" in err


@pytest.mark.parametrize(
    "words", [["placements", "--nonsense"], ["release"], ["mode", "fast"], ["simulate", "x"], ["nonsense"]]
)
async def test_wrong_usage_is_exit_2(agent, words) -> None:
    code, out, err = await agent.cli(*words)
    assert (code, out) == (2, "")
    assert err


async def test_intels_flags_start_the_daemon_without_a_subcommand(runtime, agent) -> None:
    await agent.terminate()
    words = [
        "-relay-socket",
        agent.socket,
        f"--runtime-socket={runtime.socket}",
        "-metrics-interval",
        "5s",
        "-disable-ui",
    ]
    environment = {**os.environ, "NOTIFY_SOCKET": str(agent.folder / "n.sock"), "PYTHONPATH": str(ROOT)}
    with agent.log_file.open("ab") as log:
        agent.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cri_proxy", *words, "-force-config", str(agent.config_file),
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    await agent.wait_notified("READY=1")
    async with CriClient(agent.socket) as client:
        assert runtime.cpuset(await run_pod(client)) == CCX_0
    assert "-metrics-interval" in agent.log()


async def test_a_container_with_no_cpu_left_is_a_reason_until_the_next_comparison_has_got_it_one(
    runtime, start_agent
) -> None:
    agent = await start_agent(policy={"Active": "topology-aware"})
    async with CriClient(agent.socket) as client:
        pod = await run_guaranteed(client, "db")
        db = await client.create(pod, "db", qos="guaranteed", cpu_limit=3000, memory_limit=1 << 30)
        here = sorted(cpus_of(runtime, db))
        annotations = {"cri-resmgr.io/manage": "false"}
        await support.run_pod_with(client, "pinned", cpuset=str(here[0]), pod_annotations=annotations)
        reason = (await ask(agent, "status"))["degraded"]["invariants"]
        assert f"default/pinned/pinned (opted out) may run only on CPUs {here[0]}" in reason
        status = await support.compared(agent)
        assert (status["degraded"], status["invariants"]) == ({}, [])
        await until(agent, lambda status: not status["updates_waiting"])
        assert len(cpus_of(runtime, db)) == 3 and cpus_of(runtime, db) > set(here[1:])
        await agent.logged("invariants were broken")
