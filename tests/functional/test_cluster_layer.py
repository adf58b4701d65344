"""What the cluster asks of a node: policies, overrides and a freeze, on the real daemon, over restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cri_api.control import ControlError
from tests.agent import Agent
from tests.functional.conftest import ask, cpus_of, rows, until
from tests.functional.support import reloaded, restart, run_pod_with, start, updates
from tests.functional.test_view_socket import look

GOLD: dict[str, Any] = {"name": "gold", "generation": 3, "config": {"placement": {"unlimited": "socket"}}}


async def origin(agent: Agent, key: str) -> tuple[str, str]:
    """The value of an option and where it comes from, as ``config show`` has them."""
    [row] = [row for row in await ask(agent, "config") if row["key"] == key]
    return row["value"], row["origin"]


async def refusal(agent: Agent, command: str, **arguments: Any) -> str:
    """The sentence by which a command is refused."""
    with pytest.raises(ControlError) as error:
        await ask(agent, command, **arguments)
    return str(error.value)


async def pin(agent: Agent, *overrides: tuple[str, str]) -> list[dict[str, str]]:
    """Overrides as (``NAMESPACE/POD/CONTAINER``, zone); what became of them."""
    listed = []
    for path, zone in overrides:
        namespace, pod, container = path.split("/")
        listed.append({"namespace": namespace, "pod": pod, "container": container, "zone": zone})
    found: list[dict[str, str]] = (await ask(agent, "overrides", overrides=listed))["overrides"]
    return found


# ---------------------------------------------------------------------- the policy


async def test_a_policy_counts_at_once_and_config_show_says_that_it_is_one(agent) -> None:
    answer = await ask(agent, "cluster-policy", **GOLD)
    assert answer == {"state": "applied", "changed": ["placement.unlimited"], "needs_restart": []}
    assert await origin(agent, "placement.unlimited") == ("socket", "cluster policy gold (generation 3)")
    shown = (await look(agent, "report"))["cluster"]
    assert (shown["state"], shown["policy"]["name"], shown["policy"]["generation"]) == ("applied", "gold", 3)


async def test_a_policy_places_the_next_container(agent, client, runtime) -> None:
    _, before = await run_pod_with(client, "before")
    await ask(agent, "cluster-policy", **GOLD)
    _, after = await run_pod_with(client, "after")
    assert len(cpus_of(runtime, before)) == 16
    assert len(cpus_of(runtime, after)) == 64


async def test_the_same_policy_again_does_nothing(agent) -> None:
    await ask(agent, "cluster-policy", **GOLD)
    assert await ask(agent, "cluster-policy", **GOLD) == {
        "state": "applied",
        "changed": [],
        "needs_restart": [],
    }
    assert await agent.terminate() == 0  # a thread writes the log, to its end
    assert agent.log().count("configuration loaded") == 1


async def test_a_policy_stays_over_a_kill_and_over_a_reload(agent) -> None:
    await ask(agent, "cluster-policy", **GOLD)
    await restart(agent)
    assert (await origin(agent, "placement.unlimited"))[0] == "socket"
    await reloaded(agent)
    assert (await origin(agent, "placement.unlimited"))[0] == "socket"


async def test_a_policy_counts_after_the_nodes_file_and_before_what_is_forced(start_agent) -> None:
    agent = await start_agent(placement={"unlimited": "machine", "besteffort": "ccx"})
    await ask(agent, "cluster-policy", **GOLD)
    assert await origin(agent, "placement.unlimited") == ("socket", "cluster policy gold (generation 3)")
    assert (await origin(agent, "placement.besteffort"))[0] == "ccx"
    forced = agent.folder / "forced.yaml"
    forced.write_text("placement: {unlimited: ccx}")
    await agent.kill()
    await agent.start("--force-config", str(forced))
    assert (await origin(agent, "placement.unlimited"))[0] == "ccx"


async def test_a_policy_that_is_taken_back_leaves_the_nodes_own_values(start_agent) -> None:
    agent = await start_agent(placement={"unlimited": "machine"})
    await ask(agent, "cluster-policy", **GOLD)
    answer = await ask(agent, "cluster-policy", name=None)
    assert answer == {"state": "none", "changed": ["placement.unlimited"], "needs_restart": []}
    assert (await origin(agent, "placement.unlimited"))[0] == "machine"
    assert (await look(agent, "report"))["cluster"]["policy"] is None


async def test_a_person_on_the_node_takes_it_off_with_one_command_and_no_other_comes_in(agent) -> None:
    await ask(agent, "cluster-policy", **GOLD)
    code, out, err = await agent.cli("config", "cluster-policy")
    assert (code, "placement.unlimited: socket" in out) == (0, True), err
    code, out, err = await agent.cli("config", "cluster-policy", "--clear")
    assert (code, "no policy of the cluster is in force" in out) == (0, True), err
    assert (await origin(agent, "placement.unlimited"))[1] == "default"
    assert "this node takes no policy of the cluster" in await refusal(agent, "cluster-policy", **GOLD)
    await restart(agent)
    assert "this node takes no policy of the cluster" in await refusal(agent, "cluster-policy", **GOLD)
    code, out, err = await agent.cli("config", "cluster-policy", "--accept")
    # The agent has handed it over, was refused, and does not ask again.
    assert (code, "policy gold, generation 3" in out) == (0, True), err
    assert (await origin(agent, "placement.unlimited"))[0] == "socket"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"relay": {"socket": "/tmp/x.sock"}},
            "relay.socket is not for a policy of the cluster: it is set on each node by itself",
        ),
        (
            {"nri": {"plugin_path": "/tmp"}},
            "nri.plugin_path is not for a policy of the cluster: it is set on each node by itself",
        ),
        (
            {"placement": {"fail_closed_namespaces": ["*"]}},
            "placement.fail_closed_namespaces is not for a policy of the cluster: it is set on each node by itself",
        ),
        ({"placement": {"laddr": "fine"}}, "unknown key placement.laddr"),
        (
            {"placement": {"ladder": "steep"}},
            'placement.ladder is "steep", expected manual or fine',
        ),
        (
            {"policy": {"ReservedResources": {"CPU": "500"}}},
            "policy.ReservedResources.CPU is 500, and this node has 128 CPUs",
        ),
        (
            {"policy": {"ReservedResources": {"CPU": "128"}}},
            "policy.ReservedResources.CPU is 128, which leaves none of the usable CPUs (0-127) to containers",
        ),
        (
            {"policy": {"AvailableResources": {"CPU": "cpuset:0-3,200"}}},
            'policy.AvailableResources.CPU is cpuset:0-3,200, and this node\'s CPUs are 0-127',
        ),
        (
            {"policy": {"ReservedResources": {"CPU": "cgroup:/system.slice"}}},
            "policy.ReservedResources.CPU names the cgroup /system.slice, expected a quantity or a cpuset: paths are "
            "each node's own",
        ),
        ({"placement": {"memory_only_nodes": "9"}}, "placement.memory_only_nodes names NUMA node 9, and this node has 0-7"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ".".join(str(part) for part in value),
)  # fmt: skip
async def test_a_policy_that_may_not_be_or_does_not_fit_changes_nothing(agent, config, sentence) -> None:
    await ask(agent, "cluster-policy", **GOLD)
    before = await ask(agent, "config")
    said = await refusal(agent, "cluster-policy", name="bad", generation=1, config=config)
    assert said.replace('"', "") == f"cluster policy bad (generation 1): {sentence}".replace('"', "")
    assert "\n" not in said
    assert await ask(agent, "config") == before
    cluster = (await look(agent, "report"))["cluster"]
    assert (cluster["state"], cluster["sentence"], cluster["policy"]["name"]) == ("refused", said, "gold")
    status = await agent.cli("status")
    assert f"refused: {said}" in status[1]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"name": ""}, "the policy's name"),
        ({"name": 3}, "the policy's name"),
        ({"generation": "x"}, "generation"),
        ({"config": []}, "config"),
        ({"config": {"placement": {"ladder": None}}}, "placement.ladder has no value"),
        ({"hash": 7}, "hash"),
    ],
    ids=str,
)
async def test_what_is_no_policy_is_refused_with_the_name_of_the_field(agent, changes, part) -> None:
    assert part in await refusal(agent, "cluster-policy", **{**GOLD, **changes})


async def test_a_kept_policy_that_this_version_does_not_take_costs_nothing_but_itself(start_agent) -> None:
    agent = await start_agent(placement={"ladder": "fine"})
    await ask(agent, "cluster-policy", **GOLD)
    await agent.kill()
    kept = agent.state / "cluster-policy.json"
    kept.write_text(kept.read_text().replace("unlimited", "of_a_later_version"))
    status = await start(agent)
    assert not status["degraded"]
    assert (await origin(agent, "placement.ladder"))[0] == "fine"
    cluster = (await look(agent, "report"))["cluster"]
    assert cluster["state"] == "refused"
    assert "unknown key placement.of_a_later_version" in cluster["sentence"]


async def test_what_the_observer_reads_is_printed_for_it_with_the_policy(agent) -> None:
    config = {"affinity": {"within": "owner", "hysteresis": 0.2}}
    answer = await ask(agent, "cluster-policy", **{**GOLD, "config": config})
    assert answer["changed"] == ["affinity.within", "affinity.hysteresis"]
    assert answer["needs_restart"] == []
    code, out, err = await agent.cli("observer", "options", "--config", str(agent.config_file))
    assert code == 0, err
    printed = json.loads(out)
    assert printed["within"] == "owner"
    assert printed["watch"] == str(agent.state / "cluster-policy.json")
    assert (agent.state / "cluster-policy.json").exists()


# ---------------------------------------------------------------------- overrides


async def test_an_override_moves_a_container_that_runs_and_explain_says_so(agent, client, runtime) -> None:
    _, web = await run_pod_with(client, "web", cpu_limit=2000)
    [state] = await pin(agent, ("default/web/web", "node-3"))
    assert (state["state"], state["sentence"]) == ("applied", "")
    assert cpus_of(runtime, web) <= frozenset([*range(24, 32), *range(88, 96)])
    [row] = (await look(agent, "report"))["placements"]
    assert row["why"].startswith("pinned to numa-3 by an override")
    explained = await ask(agent, "explain", container="web")
    assert explained["containers"][0]["why"].startswith("pinned to numa-3 by an override")


async def test_an_override_places_what_is_created_later_by_the_beginning_of_its_pods_name(
    agent, client, runtime
) -> None:
    [state] = await pin(agent, ("default/web-*/app", "l3-5"))
    assert (state["state"], state["sentence"]) == ("waiting", "no container of that name runs here")
    pod = await client.run_pod("web-7d9f-x2x4z")
    first = await client.create(pod, "app", cpu_limit=2000)
    await client.start(first)
    other = await client.run_pod("db-0")
    second = await client.create(other, "app", cpu_limit=2000)
    zones = {zone["name"]: zone for zone in (await look(agent, "report"))["zones"]}
    assert runtime.cpuset(first) == zones["l3-5"]["cpus"]
    assert runtime.cpuset(second) != zones["l3-5"]["cpus"]
    assert not updates(runtime)
    [state] = (await ask(agent, "overrides"))["overrides"]
    assert state["state"] == "applied"


async def test_an_override_that_does_not_fit_is_refused_and_the_container_stays(
    agent, client, runtime
) -> None:
    _, big = await run_pod_with(client, "big", cpu_limit=12000)
    before = runtime.cpuset(big)
    [state] = await pin(agent, ("default/big/big", "l3-5"))
    assert state["state"] == "refused"
    assert state["sentence"].startswith("default/big/big asks for ")
    assert "l3-5 has 8 shared CPUs" in state["sentence"]
    assert runtime.cpuset(big) == before


async def test_a_create_that_does_not_fit_its_zone_is_placed_elsewhere_and_says_why(
    agent, client, runtime
) -> None:
    await pin(agent, ("default/big/big", "l3-5"))
    await run_pod_with(client, "big", cpu_limit=12000)
    why = (await rows(agent))["big"]["why"]
    assert "not in l3-5, where an override pins it: default/big/big asks for" in why


async def test_a_zone_that_is_not_there_is_refused_with_those_there_are(agent) -> None:
    [state] = await pin(agent, ("default/web/web", "node-99"))
    assert state["state"] == "refused"
    assert state["sentence"] == (
        "this machine has no zone numa-99, expected one of socket-0 to socket-1, numa-0 to numa-7, l3-0 to l3-15"
    )


async def test_overrides_that_are_taken_away_leave_containers_where_they_are(agent, client, runtime) -> None:
    _, web = await run_pod_with(client, "web", cpu_limit=2000)
    await pin(agent, ("default/web/web", "node-3"))
    there = runtime.cpuset(web)
    assert await pin(agent) == []
    assert runtime.cpuset(web) == there


async def test_the_runtimes_refusal_of_a_move_is_what_the_override_says(agent, client, runtime) -> None:
    _, web = await run_pod_with(client, "web", cpu_limit=2000)
    runtime.script("UpdateContainerResources", error=(9, "cpuset is busy"))
    [state] = await pin(agent, ("default/web/web", "node-3"))
    assert state["state"] == "refused"
    assert "cpuset is busy" in state["sentence"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("x", "overrides is no list, expected a list of namespace, pod, container and zone"),
        (["x"], "overrides[0] is no object, expected namespace, pod, container and zone"),
        (
            [{"namespace": "a", "pod": "b", "container": "c"}],
            "overrides[0].zone is null, expected a name of 1 to 253 characters",
        ),
        (
            [{"namespace": "a", "pod": "b*c", "container": "c", "zone": "node-0"}],
            'overrides[0].pod is "b*c", expected a * nowhere but at the end of pod',
        ),
        (
            [{"namespace": "a", "pod": "b", "container": "c", "zone": "node-0", "cpus": "1"}],
            "overrides[0] has the unknown field 'cpus', expected namespace, pod, container, zone",
        ),
    ],
    ids=["no list", "no object", "no zone", "star", "unknown"],
)
async def test_overrides_that_cannot_be_read_change_nothing(agent, overrides, sentence) -> None:
    await pin(agent, ("default/web/web", "node-3"))
    assert await refusal(agent, "overrides", overrides=overrides) == sentence
    assert len((await ask(agent, "overrides"))["overrides"]) == 1


# ---------------------------------------------------------------------- freeze


async def test_what_is_frozen_is_not_moved_and_what_is_new_is_placed(agent, client, runtime) -> None:
    _, web = await run_pod_with(client, "web", cpu_limit=2000)
    before = runtime.cpuset(web)
    assert (await ask(agent, "freeze", on=True))["freeze"] is True
    [state] = await pin(agent, ("default/web/web", "node-3"))
    assert state["state"] == "waiting"
    assert state["sentence"] == "containers are frozen by command (cri-resmgr freeze off)"
    assert runtime.cpuset(web) == before
    _, new = await run_pod_with(client, "new", cpu_limit=2000)
    assert len(cpus_of(runtime, new)) == 8
    assert "containers are frozen" in await refusal(agent, "rebalance")
    code, out, _ = await agent.cli("status")
    assert (code, "frozen     no container that runs is moved" in out) == (0, True)
    # What was asked for meanwhile is done once it may be.
    await ask(agent, "freeze", on=False)
    await until(agent, lambda answer: answer["overrides"][0]["state"] == "applied", "overrides")


async def test_a_killed_daemon_keeps_policy_overrides_and_freeze(agent) -> None:
    await ask(agent, "cluster-policy", **GOLD)
    await pin(agent, ("default/web-*/app", "l3-5"))
    await ask(agent, "freeze", on=True)
    before = (await look(agent, "report"))["cluster"]
    await restart(agent)
    assert (await look(agent, "report"))["cluster"] == before
    assert before["freeze"] and before["policy"]["name"] == "gold" and len(before["overrides"]) == 1
    # Nor does a reset of the records take them away.
    await ask(agent, "reset-policy")
    await restart(agent)
    assert (await look(agent, "report"))["cluster"] == before


@pytest.mark.parametrize("value", ["yes", 1, {}])
async def test_a_freeze_is_on_or_off(agent, value) -> None:
    assert await refusal(agent, "freeze", on=value) == f"on is {value!r}, expected true or false"


async def test_the_command_line_pins_freezes_and_shows(agent, client) -> None:
    await run_pod_with(client, "web", cpu_limit=2000)
    code, out, err = await agent.cli("overrides", "default/web/web=numa-3")
    assert (code, out.splitlines()[1].split()[:3]) == (0, ["default/web/web", "numa-3", "applied"]), err
    code, out, _ = await agent.cli("overrides", "--clear")
    assert (code, out) == (0, "no override\n")
    code, out, _ = await agent.cli("freeze", "on")
    assert (code, out) == (0, "frozen: no container that runs is moved\n")
    code, out, _ = await agent.cli("freeze")
    assert (code, out) == (0, "frozen: no container that runs is moved\n")
    assert (await agent.cli("overrides", "web=numa-3"))[0] == 2


# ---------------------------------------------------------------------- what owners should hear of


async def test_a_larger_rung_is_an_event_that_is_told_once(agent, client) -> None:
    for number in range(16):
        await run_pod_with(client, f"p{number}", cpu_limit=8000)
    assert (await look(agent, "report"))["events"] == []
    await run_pod_with(client, "late", cpu_limit=8000)
    report = await look(agent, "report")
    [event] = report["events"]
    assert (event["reason"], event["type"], event["pod"], event["seq"]) == (
        "LargerRung",
        "Warning",
        "late",
        1,
    )
    assert event["message"].startswith("no room")
    assert (report["events_next"], report["events_lost"]) == (2, 0)
    assert (await look(agent, "report", events_since=report["events_next"]))["events"] == []


async def test_a_create_that_is_refused_is_an_event(agent, client) -> None:
    annotations = {"cri-resmgr.io/numa": "require"}
    pod = await client.run_pod("wide", annotations=annotations)
    with pytest.raises(Exception, match="cri-resmgr"):
        await client.create(pod, "app", cpu_limit=40_000)
    [event] = (await look(agent, "report"))["events"]
    assert (event["reason"], event["pod"], event["container"]) == ("Refused", "wide", "app")
