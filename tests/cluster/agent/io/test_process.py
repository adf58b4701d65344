"""The agent's process between a real daemon and an API server: what it writes, carries out, and outlives."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from cluster.agent.__main__ import _arguments, find_access
from policies.machine.cpus import parse_cpus
from tests.cluster.agent.io.node import NAME, PLACEMENTS, NodeAgent, is_write, policy
from tests.functional.conftest import ask, cpus_of
from tests.functional.support import run_pod_with, start

OVERRIDE = {"namespace": "default", "pod": "web", "container": "web", "zone": "node-3"}


async def config_of(node: NodeAgent, key: str) -> Any:
    rows = await ask(node.daemon, "config")
    return next(row["value"] for row in rows if row["key"] == key)


# ---------------------------------------------------------------------- reporting


async def test_a_nodes_machine_zones_and_containers_appear(node, client) -> None:
    node.create()
    _, container_id = await run_pod_with(client, "web", cpu_limit=2000)
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    [row] = node.status["placements"]
    assert (row["pod"], row["containerId"], row["zone"]) == ("web", container_id[:13], "l3-0")
    assert len(node.status["machine"]["numaNodes"]) == 8
    assert node.status["counts"]["placements"] == 1
    await run_pod_with(client, "db", cpu_limit=2000)
    await node.api.until(lambda: len(node.status["placements"]) == 2)
    assert await node.stop() == 0


async def test_the_topology_for_schedulers_belongs_to_the_nodes_object(node) -> None:
    node.create()
    await node.start()
    await node.api.until(lambda: node.topology and node.topology["metadata"].get("ownerReferences"))
    assert node.topology is not None
    [owner] = node.topology["metadata"]["ownerReferences"]
    assert owner["uid"] == node.placement["metadata"]["uid"]
    assert [zone["name"] for zone in node.topology["zones"]][:2] == ["node-0", "node-1"]


async def test_an_agent_without_kubelets_file_has_its_topology_manager_from_the_daemon(node) -> None:
    kubelet = Path(node.daemon.config["kubelet"]["directory"])
    kubelet.mkdir()
    (kubelet / "config.yaml").write_text("topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n")
    await node.daemon.kill()
    await node.daemon.start()
    node.create()
    await node.start(f"--kubelet-config={node.folder}/none")
    await node.api.until(lambda: node.topology)
    assert node.topology is not None
    said = {each["name"]: each["value"] for each in node.topology["attributes"]}
    assert (said["topologyManagerPolicy"], said["topologyManagerScope"]) == ("restricted", "pod")


async def test_without_the_kind_for_schedulers_everything_else_works(node) -> None:
    node.api.missing.add("noderesourcetopologies")
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    await node.api.called(lambda call: "noderesourcetopologies" in call.path)
    assert node.topology is None


async def test_a_node_without_an_object_is_waited_for(node) -> None:
    await node.start()
    await node.api.called(is_write)
    node.create()
    await node.until_condition("Ready", "True", "DaemonAnswers")


async def test_a_node_whose_object_was_deleted_and_made_again_has_its_status_and_its_new_spec(node) -> None:
    node.create(mode="observe")
    await node.start()
    await node.until_condition("ConfigApplied", "True", "NoPolicy")
    await node.api.until(lambda: node.status.get("mode") == "observe" and node.topology)
    # Of the same generation: only its uid is another.
    for mode in ("off", ""):
        generation = node.placement["metadata"]["generation"]
        node.api.remove(PLACEMENTS, NAME)
        node.create(**({"mode": mode} if mode else {}))
        assert node.placement["metadata"]["generation"] == generation
        await node.until_condition("Ready", "True", "DaemonAnswers")
        await node.until_condition("ConfigApplied", "True", "NoPolicy")
        await node.api.until(lambda mode=mode: node.status["mode"] == (mode or "enforce"))
        await node.api.until(lambda: owner_of_topology(node) == node.placement["metadata"]["uid"])


def owner_of_topology(node: NodeAgent) -> str:
    assert node.topology is not None
    return "".join(each["uid"] for each in node.topology["metadata"].get("ownerReferences", ()))


async def test_a_container_on_a_larger_rung_is_an_event_on_its_pod(node, client) -> None:
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    for number in range(20):
        await run_pod_with(client, f"web-{number}", cpu_limit=7000)
    await node.api.until(lambda: node.events)
    found = node.events[0]
    assert found["involvedObject"]["kind"] == "Pod" and found["involvedObject"]["name"].startswith("web-")
    assert found["reason"] == "LargerDomain"


async def test_an_agent_whose_folder_was_removed_from_the_host_ends_to_be_given_the_new_one(
    node, tmp_path
) -> None:
    # As a mount of it, a descriptor keeps a folder that is not there any more.
    folder = tmp_path / "mounted"
    folder.mkdir()
    mounted = os.open(folder, os.O_RDONLY)
    try:
        socket = f"/proc/self/fd/{mounted}/view.sock"
        node.create()
        await node.start(f"--view-socket={socket}", commands=False, keep=(mounted,))
        await node.until_condition("Ready", "False", "DaemonAway")
        folder.rmdir()
        assert await node.ended() == 1
    finally:
        os.close(mounted)
    assert "was removed from the host" in node.log.splitlines()[-1]


# ---------------------------------------------------------------------- commanding


async def test_what_a_spec_asks_is_carried_out_and_acknowledged(node, client) -> None:
    node.create(mode="enforce", freeze=True, policy=policy(), overrides=[OVERRIDE])
    await run_pod_with(client, "web", cpu_limit=2000)
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert await config_of(node, "placement.max_moves") == "3"
    told = node.status["policy"]
    assert (told["name"], told["hash"], told["state"]) == ("dense", "h1", "Applied")
    assert node.status["observedGeneration"] == node.placement["metadata"]["generation"]
    assert [row["zone"] for row in node.status["overrides"]] == ["numa-3"]
    await node.api.until(lambda: node.status.get("frozen") is True)


async def test_a_policy_with_a_forbidden_key_is_a_condition_and_changes_nothing(node) -> None:
    node.create(policy=policy("good"))
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    node.ask(policy=policy("bad", config={"relay": {"socket": "/evil.sock"}}))
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert "relay" in found["message"]
    assert node.status["policy"]["hash"] == "bad"
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "good"


async def test_a_key_of_a_newer_version_is_a_condition_and_fields_of_one_are_passed_over(node) -> None:
    node.create(policy=policy(config={"placement": {"telepathy": True}}, weather="fine"), color="red")
    await node.start()
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert "telepathy" in found["message"]
    node.ask(policy=policy("h2", weather="fine"), color="red")
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_a_policy_that_is_no_longer_asked_for_is_taken_out_of_force(node) -> None:
    before = await config_of(node, "placement.max_moves")
    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    node.ask()
    await node.until_condition("ConfigApplied", "True", "NoPolicy")
    assert await config_of(node, "placement.max_moves") == before


async def test_a_deleted_object_changes_nothing_on_the_node(node) -> None:
    from cluster.agent.io.written import PLACEMENTS

    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    node.api.remove(PLACEMENTS, NAME)
    writes = node.writes
    await node.daemon.kill()
    await start(node.daemon)
    await node.api.until(lambda: node.writes > writes)
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "h1"


async def test_a_node_that_only_reports_answers_a_spec_with_a_condition(node) -> None:
    node.create()
    await node.start(commands=False)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    assert node.condition("ConfigApplied") == {}
    node.ask(mode="observe")
    found = await node.until_condition("ConfigApplied", "False", "ReportsOnly")
    assert "control socket" in found["message"]
    assert (await ask(node.daemon, "status"))["mode"] == "enforce"


# ---------------------------------------------------------------------- what it outlives


async def test_an_api_server_that_was_away_gets_what_has_happened(node, client) -> None:
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    await node.api.stop()
    await run_pod_with(client, "meanwhile", cpu_limit=2000)
    await node.api.start()
    await node.api.until(lambda: [row["pod"] for row in node.status["placements"]] == ["meanwhile"])


async def test_a_daemon_that_is_away_is_not_ready_and_comes_back(node) -> None:
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    first = node.status["instance"]
    await node.daemon.kill()
    found = await node.until_condition("Ready", "False", "DaemonAway")
    assert found["message"].startswith(f"the daemon of {NAME} does not answer; ")
    assert str(node.view) not in found["message"]
    assert str(node.view) in node.log
    assert node.status["zones"]
    await start(node.daemon)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    assert node.status["instance"] != first


async def test_a_spec_of_a_time_without_a_daemon_is_carried_out_when_it_comes(node) -> None:
    await node.daemon.kill()
    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "False", "Pending")
    await start(node.daemon)
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_a_token_that_was_renewed_is_used(node, client) -> None:
    node.api.tokens = {"first"}
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    node.token_file.write_text("second")
    node.api.tokens = {"second"}
    await run_pod_with(client, "web", cpu_limit=2000)
    await node.api.until(lambda: len(node.status["placements"]) == 1)


async def test_a_watch_whose_version_is_gone_begins_anew(node) -> None:
    node.create()
    await node.start()
    await node.until_condition("ConfigApplied", "True", "NoPolicy")
    node.api.touch()
    node.api.compact()
    node.api.end_watches()
    node.ask(policy=policy())
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_the_agent_that_is_restarted_writes_no_event_again_and_sends_no_policy_again(
    node, client
) -> None:
    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    for number in range(20):
        await run_pod_with(client, f"web-{number}", cpu_limit=7000)
    await node.api.until(lambda: len(node.status["placements"]) == 20 and node.events)
    assert await node.stop() == 0
    events, sent = len(node.events), node.log.count('event="told the daemon"')
    writes = node.writes
    await node.start()
    await node.api.until(lambda: node.writes >= writes + 2)
    await node.stop()
    assert len(node.events) == events
    assert node.log.count('event="told the daemon"') == sent


async def test_an_agent_without_a_kubeconfig_says_so_and_stays(node, tmp_path) -> None:
    health = tmp_path / "health"
    await node.start("--kubeconfig=/nowhere/at/all", f"--health-file={health}")
    while not health.exists():
        await asyncio.sleep(0.05)
    assert node.log.count("\n") == 1 and "/nowhere/at/all cannot be read" in node.log
    assert await node.stop() == 0


async def test_a_kubeconfig_is_looked_for_each_minute_and_missed_once(node, tmp_path, capsys) -> None:
    late = tmp_path / "late"
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 2:
            node.api.kubeconfig(late)

    options = _arguments([f"--kubeconfig={late}"])
    assert (await find_access(options, lambda: None, sleep)).port == node.api.port
    assert asked == [60.0, 60.0]
    missed, found = capsys.readouterr().err.splitlines()
    assert "level=error" in missed and str(late) in missed
    assert "there is one now" in found


# ---------------------------------------------------------------------- overrides


def overridden(node: NodeAgent) -> dict[str, tuple[str, str]]:
    """State and message of each override that is acknowledged, by its zone."""
    return {row["zone"]: (row["state"], row["message"]) for row in node.status.get("overrides", ())}


def shown_zone(node: NodeAgent, pod: str) -> str:
    """Where the node's status says that a pod's container is."""
    found = {row["pod"]: row["zone"] for row in node.status.get("placements", ())}
    return str(found.get(pod, ""))


async def test_a_container_is_moved_to_its_overrides_zone_and_that_is_acknowledged(
    node, client, runtime
) -> None:
    node.create()
    _, container_id = await run_pod_with(client, "web", cpu_limit=2000)
    before = cpus_of(runtime, container_id)
    await node.start()
    await node.api.until(lambda: shown_zone(node, "web") == "l3-0")
    node.ask(overrides=[OVERRIDE])
    await node.api.until(lambda: overridden(node).get("numa-3", ("", ""))[0] == "Applied")
    zone = next(row for row in node.status["zones"] if row["name"] == "numa-3")
    after = cpus_of(runtime, container_id)
    assert after and after <= parse_cpus(zone["cpus"]) and not after & before
    await node.api.until(
        lambda: shown_zone(node, "web") == "numa-3" or shown_zone(node, "web") in _l3s_of(node)
    )
    assert node.status["observedGeneration"] == node.placement["metadata"]["generation"]


def _l3s_of(node: NodeAgent) -> set[str]:
    """The L3s of NUMA node 3."""
    return {row["name"] for row in node.status["zones"] if row.get("parent") == "numa-3"}


async def test_on_a_frozen_node_an_override_waits_and_nothing_moves(node, client, runtime) -> None:
    node.create(freeze=True)
    _, container_id = await run_pod_with(client, "web", cpu_limit=2000)
    before = runtime.cpuset(container_id)
    await node.start()
    await node.api.until(lambda: node.status.get("frozen") is True)
    node.ask(freeze=True, overrides=[OVERRIDE])
    await node.api.until(lambda: overridden(node).get("numa-3", ("", ""))[0] == "Waiting")
    assert "frozen" in overridden(node)["numa-3"][1]
    assert runtime.cpuset(container_id) == before
    node.ask(freeze=False, overrides=[OVERRIDE])
    await node.api.until(lambda: overridden(node)["numa-3"][0] == "Applied")
    # It is told beside the answer.
    await runtime.wait_until(lambda: runtime.cpuset(container_id) != before)


async def test_an_override_to_a_zone_that_is_not_there_is_refused_in_a_sentence(
    node, client, runtime
) -> None:
    node.create(overrides=[{**OVERRIDE, "zone": "node-99"}])
    _, container_id = await run_pod_with(client, "web", cpu_limit=2000)
    before = runtime.cpuset(container_id)
    await node.start()
    await node.api.until(lambda: overridden(node).get("numa-99", ("", ""))[0] == "Refused")
    assert "numa-99" in overridden(node)["numa-99"][1]
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert "numa-99" in found["message"]
    assert runtime.cpuset(container_id) == before


async def test_an_override_waits_for_its_container_and_is_applied_when_that_comes(
    node, client, runtime
) -> None:
    node.create(overrides=[OVERRIDE])
    await node.start()
    await node.api.until(
        lambda: overridden(node).get("numa-3", ("", ""))[0] == "Waiting" and node.status["zones"]
    )
    _, container_id = await run_pod_with(client, "web", cpu_limit=2000)
    # The daemon is looked at every half a minute while nothing is known to change; a spec is news.
    node.ask(overrides=[OVERRIDE], mode="enforce")
    await node.api.until(lambda: overridden(node)["numa-3"][0] == "Applied")
    zone = next(row for row in node.status["zones"] if row["name"] == "numa-3")
    assert cpus_of(runtime, container_id) <= parse_cpus(zone["cpus"])
