"""The agent's process between a real daemon and an API server: what it writes, carries out, and outlives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.cluster.agent.io.node import NodeAgent, is_write, policy
from tests.cri_client import CriClient
from tests.functional.conftest import ask
from tests.functional.support import run_pod_with, start

OVERRIDE = {"namespace": "default", "pod": "web", "container": "web", "zone": "node-3"}


async def config_of(node: NodeAgent, key: str) -> Any:
    rows = await ask(node.daemon, "config")
    return next(row["value"] for row in rows if row["key"] == key)


# ---------------------------------------------------------------------- reporting


async def test_a_nodes_machine_zones_and_containers_appear(node: NodeAgent, client: CriClient) -> None:
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


async def test_the_topology_for_schedulers_belongs_to_the_nodes_object(node: NodeAgent) -> None:
    node.create()
    await node.start()
    await node.api.until(lambda: node.topology and node.topology["metadata"].get("ownerReferences"))
    assert node.topology is not None
    [owner] = node.topology["metadata"]["ownerReferences"]
    assert owner["uid"] == node.placement["metadata"]["uid"]
    assert [zone["name"] for zone in node.topology["zones"]][:2] == ["node-0", "node-1"]


async def test_an_agent_without_kubelets_file_has_its_topology_manager_from_the_daemon(
    node: NodeAgent,
) -> None:
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


async def test_without_the_kind_for_schedulers_everything_else_works(node: NodeAgent) -> None:
    node.api.missing.add("noderesourcetopologies")
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    await node.api.called(lambda call: "noderesourcetopologies" in call.path)
    assert node.topology is None


async def test_a_node_without_an_object_is_waited_for(node: NodeAgent) -> None:
    await node.start()
    await node.api.called(is_write)
    node.create()
    await node.until_condition("Ready", "True", "DaemonAnswers")


async def test_a_container_on_a_larger_rung_is_an_event_on_its_pod(
    node: NodeAgent, client: CriClient
) -> None:
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    for number in range(20):
        await run_pod_with(client, f"web-{number}", cpu_limit=7000)
    await node.api.until(lambda: node.events)
    found = node.events[0]
    assert found["involvedObject"]["kind"] == "Pod" and found["involvedObject"]["name"].startswith("web-")
    assert found["reason"] == "LargerRung"


async def test_an_agent_whose_folder_was_removed_from_the_host_ends_to_be_given_the_new_one(
    node: NodeAgent, tmp_path: Path
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


async def test_what_a_spec_asks_is_carried_out_and_acknowledged(node: NodeAgent, client: CriClient) -> None:
    node.create(mode="enforce", freeze=True, policy=policy(), overrides=[OVERRIDE])
    await run_pod_with(client, "web", cpu_limit=2000)
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    assert await config_of(node, "placement.max_moves") == "3"
    told = node.status["policy"]
    assert (told["name"], told["hash"], told["state"]) == ("dense", "h1", "Applied")
    assert node.status["observedGeneration"] == node.placement["metadata"]["generation"]
    assert [row["zone"] for row in node.status["overrides"]] == ["node-3"]
    await node.api.until(lambda: node.status.get("frozen") is True)


async def test_a_policy_with_a_forbidden_key_is_a_condition_and_changes_nothing(node: NodeAgent) -> None:
    node.create(policy=policy("good"))
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    node.ask(policy=policy("bad", config={"relay": {"socket": "/evil.sock"}}))
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert "relay" in found["message"]
    assert node.status["policy"]["hash"] == "bad"
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "good"


async def test_a_key_of_a_newer_version_is_a_condition_and_fields_of_one_are_passed_over(
    node: NodeAgent,
) -> None:
    node.create(policy=policy(config={"placement": {"telepathy": True}}, weather="fine"), color="red")
    await node.start()
    found = await node.until_condition("ConfigApplied", "False", "Refused")
    assert "telepathy" in found["message"]
    node.ask(policy=policy("h2", weather="fine"), color="red")
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_a_policy_that_is_no_longer_asked_for_is_taken_out_of_force(node: NodeAgent) -> None:
    before = await config_of(node, "placement.max_moves")
    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    node.ask()
    await node.until_condition("ConfigApplied", "True", "NoPolicy")
    assert await config_of(node, "placement.max_moves") == before


async def test_a_deleted_object_changes_nothing_on_the_node(node: NodeAgent) -> None:
    from cluster.agent.io.written import PLACEMENTS
    from tests.cluster.agent.io.node import NAME

    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "True", "Applied")
    node.api.remove(PLACEMENTS, NAME)
    writes = node.writes
    await node.daemon.kill()
    await start(node.daemon)
    await node.api.until(lambda: node.writes > writes)
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "h1"


async def test_a_node_that_only_reports_answers_a_spec_with_a_condition(node: NodeAgent) -> None:
    node.create()
    await node.start(commands=False)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    assert node.condition("ConfigApplied") == {}
    node.ask(mode="observe")
    found = await node.until_condition("ConfigApplied", "False", "ReportsOnly")
    assert "control socket" in found["message"]
    assert (await ask(node.daemon, "status"))["mode"] == "enforce"


# ---------------------------------------------------------------------- what it outlives


async def test_an_api_server_that_was_away_gets_what_has_happened(node: NodeAgent, client: CriClient) -> None:
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    await node.api.stop()
    await run_pod_with(client, "meanwhile", cpu_limit=2000)
    await node.api.start()
    await node.api.until(lambda: [row["pod"] for row in node.status["placements"]] == ["meanwhile"])


async def test_a_daemon_that_is_away_is_not_ready_and_comes_back(node: NodeAgent) -> None:
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    first = node.status["instance"]
    await node.daemon.kill()
    await node.until_condition("Ready", "False", "DaemonAway")
    assert node.status["zones"]
    await start(node.daemon)
    await node.until_condition("Ready", "True", "DaemonAnswers")
    assert node.status["instance"] != first


async def test_a_spec_of_a_time_without_a_daemon_is_carried_out_when_it_comes(node: NodeAgent) -> None:
    await node.daemon.kill()
    node.create(policy=policy())
    await node.start()
    await node.until_condition("ConfigApplied", "False", "Pending")
    await start(node.daemon)
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_a_token_that_was_renewed_is_used(node: NodeAgent, client: CriClient) -> None:
    node.api.tokens = {"first"}
    node.create()
    await node.start()
    await node.until_condition("Ready", "True", "DaemonAnswers")
    node.token_file.write_text("second")
    node.api.tokens = {"second"}
    await run_pod_with(client, "web", cpu_limit=2000)
    await node.api.until(lambda: len(node.status["placements"]) == 1)


async def test_a_watch_whose_version_is_gone_begins_anew(node: NodeAgent) -> None:
    node.create()
    await node.start()
    await node.until_condition("ConfigApplied", "True", "NoPolicy")
    node.api.touch()
    node.api.compact()
    node.api.end_watches()
    node.ask(policy=policy())
    await node.until_condition("ConfigApplied", "True", "Applied")


async def test_the_agent_that_is_restarted_writes_no_event_again_and_sends_no_policy_again(
    node: NodeAgent, client: CriClient
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


async def test_bad_usage_is_one_sentence(node: NodeAgent) -> None:
    await node.start("--kubeconfig=/nowhere/at/all")
    assert node.process is not None
    assert await node.process.wait() == 1
    assert node.log.count("\n") == 1 and "/nowhere/at/all" in node.log
