"""Affinity end to end: the real daemon, the real observer playing recorded traffic, a fake runtime.

What is asserted is the cpuset that a container has at the runtime.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from cri_api.control import ControlError
from policies.machine.cpus import parse_cpus
from tests.agent import Agent, merged
from tests.cri_client import CriClient
from tests.functional.conftest import UPDATE, ask, counter, cpus_of, until
from tests.observer import QUICK, ObserverProcess

MANUAL: dict[str, Any] = {"affinity": {"rebalance": "manual", "cooldown": "1ms"}, "constants": QUICK}
AUTO: dict[str, Any] = {
    "affinity": {"cooldown": "1ms"},
    "constants": {**QUICK, "affinity_rebalance_interval_s": 0.2},
}


def flow(a: str, b: str) -> dict[str, Any]:
    """50 MB/s between the containers ``app`` of two pods."""
    return {
        "a": f"default/{a}/app",
        "b": f"default/{b}/app",
        "bytes_ab": 5e7,
        "bytes_ba": 1e6,
        "messages": 1000,
    }


async def create(client: CriClient, pod_name: str, **pod: Any) -> str:
    """A pod with one container ``app`` that runs."""
    sandbox = await client.run_pod(pod_name, **pod)
    container = await client.create(sandbox, "app", cpu_request=1000, cpu_limit=2000)
    await client.start(container)
    return container


async def edges(agent: Agent, count: int = 1) -> Any:
    """The graph, as soon as it has so many edges and is fresh."""
    return await until(agent, lambda d: len(d["edges"]) >= count and not d["frozen"], "affinity")


async def test_containers_that_talk_are_moved_into_one_l3_by_command(start_agent, runtime) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        web, db, other = [await create(client, name) for name in ("web", "db", "other")]
        before = cpus_of(runtime, other)
        assert cpus_of(runtime, web) != cpus_of(runtime, db)
        await edges(agent)

        code, out, _ = await agent.cli("rebalance", "--dry-run")
        assert code == 0
        assert "nothing was moved (--dry-run)" in out
        assert not runtime.calls_of(UPDATE)

        code, out, _ = await agent.cli("rebalance")
        assert code == 0
        assert "1 of 1 container moved" in out
        assert cpus_of(runtime, web) == cpus_of(runtime, db)
        assert cpus_of(runtime, other) == before

        code, out, _ = await agent.cli("explain", "default/web/app")
        assert "talks to default/db/app" in out
        assert "(same L3)" in out


async def test_traffic_does_not_bring_together_what_is_declared_to_be_apart(start_agent, runtime) -> None:
    terms = "app: [{scope: {key: pod/name, operator: Equals, values: [cache]}, match: {key: name, operator: Exists}}]"
    apart = {"cri-resmgr.io/anti-affinity": terms}
    flows = [flow("web", "cache"), flow("web", "hub"), flow("cache", "hub")]
    heavy = [{**each, "bytes_ab": 1e12, "messages": 1e9} for each in flows]
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, heavy):
        web = await create(client, "web", annotations=apart)
        cache, hub = [await create(client, name) for name in ("cache", "hub")]
        assert cpus_of(runtime, web) != cpus_of(runtime, cache)
        await edges(agent, 3)
        await agent.ask("rebalance")
        assert cpus_of(runtime, web) != cpus_of(runtime, cache)
        assert cpus_of(runtime, hub) in (cpus_of(runtime, web), cpus_of(runtime, cache))
        _, out, _ = await agent.cli("explain", "default/web/app")
        assert "  declared to be apart from default/cache/app: kept in different " in out


async def test_a_move_is_told_of_both_sides_also_by_the_next_daemon(start_agent, runtime) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        ids = {name: await create(client, name) for name in ("web", "db")}
        await edges(agent)
        [planned] = (await agent.ask("rebalance", "--dry-run"))["moves"]
        mover, peer = planned["container"], "default/db/app"
        if mover == peer:
            peer = "default/web/app"
        _, out, _ = await agent.cli("explain", mover)
        assert f"  would move to {planned['to']} beside {peer}, which saves " in out
        assert "; waits for cri-resmgr rebalance: affinity.rebalance is manual\n" in out
        await agent.ask("rebalance")
    for restarts in (False, True):
        if restarts:
            await agent.kill()
            await agent.start()
        await until(agent, lambda s: s["runtime"]["connected"])
        _, out, _ = await agent.cli("explain", mover)
        assert f" nearer to {peer}, to save " in out and "would move" not in out
        _, out, _ = await agent.cli("explain", peer)
        assert f"  {mover} came nearer " in out
        assert " mCPU; plan: " in out
    assert cpus_of(runtime, ids["web"]) == cpus_of(runtime, ids["db"])


async def test_a_plan_that_does_not_pay_says_so_of_the_container_that_it_would_move(start_agent) -> None:
    agent = await start_agent(**merged(AUTO, {"affinity": {"hysteresis": 1.0}}))
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        ids = [await create(client, name) for name in ("web", "db")]

        async def told() -> list[Any]:
            rows = [(await ask(agent, "explain", container=key))["containers"][0] for key in ids]
            return [row["would_move"] for row in rows if row["would_move"]]

        await edges(agent)
        await until(agent, lambda s: any("until it pays" in text for text in s["affinity"]["waits_for"]))
        [row] = await told()
        assert row["waits"].startswith("until it pays (affinity.hysteresis): 1 move saves ")
        assert row["beside"] and row["gain"] > 0


async def test_the_graph_is_told_as_text_and_as_json(start_agent) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        ids = [await create(client, name) for name in ("web", "db")]
        await edges(agent)
        document = await agent.ask("affinity")
        [edge] = document["edges"]
        assert {edge["a"], edge["b"]} == set(ids)
        assert edge["where"] == "same NUMA node"
        assert edge["kinds"] == ["tcp"]
        assert document["observer"]["provider"] == "replay"
        assert [sorted(group["members"]) for group in document["groups"]] == [
            ["default/db/app", "default/web/app"]
        ]
        code, out, _ = await agent.cli("affinity")
        assert code == 0
        assert "observer   replay: plays " in out
        assert "same NUMA node     100%" in out
        _, out, _ = await agent.cli("affinity", "--groups")
        assert "group 1: 2 containers" in out
        _, out, _ = await agent.cli("affinity", "--graphml")
        assert "default/db/app" in out and "</graphml>" in out
        _, out, _ = await agent.cli("status")
        assert "affinity   seen by replay: plays " in out
        assert "cri_resmgr_affinity_edges 1.0" in (await agent.cli("metrics"))[1]
        assert 'cri_resmgr_observer_count{what="replayed"}' in (await agent.cli("metrics"))[1]


async def test_containers_that_talk_are_moved_together_by_themselves(start_agent, runtime) -> None:
    agent = await start_agent(**AUTO)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        web, db = [await create(client, name) for name in ("web", "db")]
        await runtime.wait_until(lambda: cpus_of(runtime, web) == cpus_of(runtime, db))
        status = await until(agent, lambda s: counter(s, "moves_total{result=made}") == 1)
        assert status["affinity"]["last_plan"]["moves"] == 1
        # What follows the node hears of the move and of the group.
        report = await ask(agent, "report")
        [event] = report["events"]
        assert (event["reason"], event["type"], event["container"]) == ("MovedNearPeer", "Normal", "app")
        assert event["message"] and "\n" not in event["message"]
        [group] = report["affinity_groups"]
        assert sorted(member["pod"] for member in group["members"]) == ["db", "web"]
        assert (group["together"], group["why_not"]) == (True, "")
        assert group["bytes_per_s"] > 0


async def test_a_frozen_daemon_moves_nobody_until_it_is_unfrozen(start_agent, runtime) -> None:
    agent = await start_agent(**AUTO)
    async with CriClient(agent.socket) as client:
        web, db = [await create(client, name) for name in ("web", "db")]
        code, out, _ = await agent.cli("rebalance", "--freeze")
        assert (code, out) == (
            0, "containers are not moved: containers are frozen by command (cri-resmgr freeze off)\n"
        )  # fmt: skip
        async with ObserverProcess(agent, [flow("web", "db")]):
            await edges(agent)
            assert counter(await ask(agent, "status"), "plans_total{result=accepted}") == 0
            await agent.cli("rebalance", "--unfreeze")
            await runtime.wait_until(lambda: cpus_of(runtime, web) == cpus_of(runtime, db))


async def test_a_new_replica_comes_near_its_peers_before_it_has_talked(start_agent, runtime) -> None:
    """Also after a restart of the daemon, with the observer gone: what owners do is remembered."""
    agent = await start_agent(**MANUAL)
    labels = {"pod-template-hash": "7d4b9c6f5"}
    async with CriClient(agent.socket) as client:
        db = await create(client, "db")
        web = await create(client, "web-7d4b9c6f5-aaaaa", labels=labels)
        async with ObserverProcess(agent, [flow("web-7d4b9c6f5-aaaaa", "db")]):
            await until(agent, lambda d: bool(d["owner_edges"]) and not d["frozen"], "affinity")
    assert cpus_of(runtime, web) != cpus_of(runtime, db)
    await agent.terminate()
    await agent.start()
    async with CriClient(agent.socket) as client:
        second = await create(client, "web-7d4b9c6f5-bbbbb", labels=labels)
        assert cpus_of(runtime, second) == cpus_of(runtime, db)
        [row] = (await ask(agent, "explain", container=second))["containers"]
        assert "near default/db/app" in row["why"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_an_observer_that_ends_freezes_the_picture_and_one_that_returns_thaws_it(
    start_agent, runtime, number
) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client:
        web, db = [await create(client, name) for name in ("web", "db")]
        async with ObserverProcess(agent, [flow("web", "db")]) as observer:
            await edges(agent)
            await observer.end(number)
            gone = await until(agent, lambda d: bool(d["observer"]["problem"]), "affinity")
            assert len(gone["edges"]) == 1, "it is kept"
            assert "containers are not moved" in gone["rebalance"]
            await create(client, "third")
            assert (await ask(agent, "status"))["degraded"] == {}
            await observer.start()
            await edges(agent)
        assert cpus_of(runtime, web) != cpus_of(runtime, db)


async def test_without_an_observer_everything_is_said_and_works(agent, client) -> None:
    await create(client, "web")
    code, out, _ = await agent.cli("affinity")
    assert code == 0
    assert "no observer answers at" in out
    assert "no traffic between containers is known" in out
    code, out, _ = await agent.cli("rebalance")
    assert code == 0
    assert "no container is known to talk to another" in out
    assert (await ask(agent, "status"))["degraded"] == {}


async def test_a_reset_daemon_still_knows_who_talks_to_whom(start_agent) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        web = await create(client, "web")
        await create(client, "db")
        await edges(agent)
        await ask(agent, "reset-policy")
        [row] = (await ask(agent, "explain", container=web))["containers"]
        assert [peer["container"] for peer in row["peers"]] == ["default/db/app"]


async def test_affinity_can_be_turned_off_and_on_without_a_restart(start_agent) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        for name in ("web", "db"):
            await create(client, name)
        await edges(agent)
        agent.write_config({"affinity": {"enabled": False}})
        agent.reload()
        off = await until(agent, lambda s: not s["affinity"]["enabled"])
        assert off["affinity"]["edges"] == 0
        assert "affinity   off (affinity.enabled)" in (await agent.cli("status"))[1]
        agent.write_config({"affinity": {"enabled": True}})
        agent.reload()
        await until(agent, lambda s: s["affinity"]["enabled"] and s["affinity"]["edges"] == 1)


async def test_in_mode_observe_a_rebalance_is_refused_with_a_sentence(start_agent) -> None:
    agent = await start_agent(relay={"mode": "observe"})
    with pytest.raises(ControlError, match="in mode observe nothing is moved"):
        await ask(agent, "rebalance")
    code, out, _ = await agent.cli("rebalance", "--dry-run", "--json")
    assert (code, json.loads(out)["moved"]) == (0, 0)


async def test_a_move_that_the_runtime_refuses_is_taken_back_and_the_command_fails(
    start_agent, runtime
) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("web", "db")]):
        web, db = [await create(client, name) for name in ("web", "db")]
        before = cpus_of(runtime, web), cpus_of(runtime, db)
        await edges(agent)
        runtime.script("UpdateContainerResources", error=(13, "the cgroup is busy"))
        code, out, _ = await agent.cli("rebalance")
        assert code == 1
        assert "0 of 1 container moved" in out
        assert "the cgroup is busy" in out
        assert (cpus_of(runtime, web), cpus_of(runtime, db)) == before
        rows = {row["id"]: row for row in await ask(agent, "placements")}
        assert {len(rows[key]["cpus"]) > 0 for key in (web, db)} == {True}
        assert (await ask(agent, "status"))["updates_waiting"] == 0


async def test_an_exchange_that_a_kill_has_cut_is_finished_by_the_next_daemon(start_agent, runtime) -> None:
    agent = await start_agent(**MANUAL)
    async with CriClient(agent.socket) as client:
        in_leaf: dict[frozenset[int], list[str]] = {}
        ids: dict[str, str] = {}
        while sum(len(names) == 2 for names in in_leaf.values()) < len(in_leaf) or len(in_leaf) < 2:
            name = f"c{len(ids)}"
            sandbox = await client.run_pod(name)
            ids[name] = await client.create(sandbox, "app", cpu_request=3500, cpu_limit=3500)
            await client.start(ids[name])
            in_leaf.setdefault(cpus_of(runtime, ids[name]), []).append(name)
        (a, b), (c, d) = [names for names in in_leaf.values() if len(names) == 2][:2]
        async with ObserverProcess(agent, [flow(a, c), flow(b, d)]):
            await edges(agent, 2)
            runtime.script(UPDATE, times=1)
            script = runtime.script(UPDATE, hold=asyncio.Event(), times=1)
            rebalance = asyncio.ensure_future(agent.cli("rebalance"))
            await runtime.wait_until(lambda: script.used == 1)
            assert len(runtime.calls_of(UPDATE)) == 2
            await agent.kill()
            await rebalance
    await agent.start()
    async with CriClient(agent.socket):
        await runtime.wait_until(
            lambda: all(
                cpus_of(runtime, ids[one]) == cpus_of(runtime, ids[other]) for one, other in ((a, c), (b, d))
            )
        )
        rows = {row["id"]: row for row in await ask(agent, "placements")}
        assert {key: parse_cpus(rows[key]["cpus"]) for key in ids.values()} == {
            key: cpus_of(runtime, key) for key in ids.values()
        }
        assert cpus_of(runtime, ids[a]) == cpus_of(runtime, ids[c]) != cpus_of(runtime, ids[b])


async def test_what_containers_exchange_with_other_nodes_is_in_the_report(start_agent) -> None:
    agent = await start_agent(**MANUAL)
    remotes = [
        {"a": "default/web/app", "address": "10.244.7.3", "bytes": 2e6},
        {"a": "default/web/app", "address": "fd00::7:4", "bytes": 8e6},
        {"a": "default/gone/app", "address": "10.244.7.4", "bytes": 8e6},
    ]
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [], remotes):
        await create(client, "web")
        report = await until(
            agent, lambda d: any(row["bytes_per_s"] > 1_500_000 for row in d["remote_peers"][1:]), "report"
        )
        assert [(row["namespace"], row["pod"], row["container"]) for row in report["remote_peers"]] == [
            ("default", "web", "app")
        ] * 2
        assert [row["address"] for row in report["remote_peers"]] == ["fd00::7:4", "10.244.7.3"]
        assert report["remote_left_out"] == 0
        assert report["affinity_groups"] == []


async def test_where_affinity_is_off_no_other_node_is_told_of(start_agent) -> None:
    agent = await start_agent(**merged(MANUAL, {"affinity": {"enabled": False}}))
    remotes = [{"a": "default/web/app", "address": "10.244.7.3", "bytes": 2e6}]
    async with CriClient(agent.socket) as client, ObserverProcess(agent, [], remotes):
        await create(client, "web")
        await until(agent, lambda d: d["affinity"]["observer"]["counters"].get("replayed", 0) > 1)
        assert (await ask(agent, "report"))["remote_peers"] == []
