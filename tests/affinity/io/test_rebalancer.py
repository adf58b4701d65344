"""The controller: what goes to the engine, when plans are made and carried out, and what is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from cri_proxy.affinity.io.planner_process import PlannerWorker
from cri_proxy.affinity.io.rebalancer import CannotRebalance
from cri_proxy.engine.build import make_engine
from tests.affinity.io.affinity_node import Node, apart, looked_twice
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S
from tests.scenes import topology


@pytest_asyncio.fixture
async def client(runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(runtime.socket) as client:
        yield client


@pytest_asyncio.fixture
async def node(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(runtime, tmp_path) as node:
        yield node


# ---------------------------------------------------------------------- by itself


async def test_those_who_talk_are_moved_together_and_the_others_stay(node, client) -> None:
    await apart(node, client, "web", "db", "other")
    before = node.leaf("other")
    node.talk(("web", "db"))
    await node.round()
    assert node.together("web", "db")
    assert node.leaf("other") == before
    [*_, last] = node.engine.history
    assert last.operation == "rebalance"
    assert "near default/" in node.engine.grants[last.id].why
    assert node.affinity.status()["last_plan"]["moved"] == 1


async def test_a_plan_is_written_down_before_it_is_sent(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    hold = asyncio.Event()
    node.runtime.script("UpdateContainerResources", hold=hold)
    going = asyncio.ensure_future(node.round())
    await node.runtime.wait_for_call("UpdateContainerResources")
    saved = (await node.services.store.load()).of("grant")
    hold.set()
    await going
    assert {grant.placement.home for grant in saved.values()} == {node.leaf("web")}


async def test_a_second_plan_moves_nobody_any_more(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    await node.round()
    await node.round()  # the rest of the plan: nothing
    calls = len(node.runtime.calls_of("UpdateContainerResources"))
    for _ in range(3):
        node.now_s += 60
        await node.round()
    assert len(node.runtime.calls_of("UpdateContainerResources")) == calls


async def test_after_moves_a_plan_must_save_more_unless_a_person_asks_for_it(
    runtime, client, tmp_path
) -> None:
    async with Node(runtime, tmp_path, {"affinity": {"hysteresis": 0.4}}) as node:
        await apart(node, client, "web", "db")
        node.talk(("web", "db"))
        await node.round()
        await node.round()
        # 2. Two more pairs, of which one is too young to be moved.
        await apart(node, client, "a", "b")
        await node.create(client, "p")
        await node.create(client, "q")
        node.talk(("web", "db"), ("a", "b"), ("p", "q"))
        saved = (await node.affinity.rebalance(dry_run=True))["why"]
        assert "(50.0%); to make them costs" in saved
        await node.round()
        assert not node.together("a", "b")
        [waits] = filter(
            None, (node.affinity.would_move(node.engine.grants[node.ids[name]]) for name in "ab")
        )
        assert "at least 53% are needed, 1.3 times as much as at rest" in waits["waits"]
        # 3. Hours later it is as before.
        node.now_s += 3600 * 8
        await node.round()
        assert node.together("a", "b")


async def test_a_container_with_much_memory_in_use_stays_in_its_node(node, client) -> None:
    """Whatever its limit says; the other one may come to it."""
    await apart(node, client, "web", "db")
    assert len(topology(HYGON_7285_2S).nodes_of(node.leaf("web") | node.leaf("db"))) == 1
    for name in ("e", "f", "g"):
        await node.create(client, name)
    node.now_s += 100
    folder = node.folder / "cgroup" / "kubepods" / node.ids["g"]
    folder.mkdir(parents=True)
    (folder / "memory.current").write_text(str(9 << 30))
    before = node.leaf("g")
    assert not topology(HYGON_7285_2S).nodes_of(before) <= topology(HYGON_7285_2S).nodes_of(node.leaf("web"))
    node.talk(("web", "g"))
    await node.round()
    assert node.leaf("g") == before == node.leaf("web")


@pytest.mark.parametrize(
    ("config", "mode", "frozen", "by_hand", "reason"),
    [
        ({"affinity": {"enabled": False}}, "enforce", "", False, "affinity.enabled is off"),
        ({"affinity": {"rebalance": "manual"}}, "enforce", "", False, "affinity.rebalance is manual"),
        ({"affinity": {"moves_per_minute": 0}}, "enforce", "", False, "affinity.moves_per_minute is 0"),
        ({}, "observe", "", False, "mode observe"),
        ({}, "off", "", False, "mode off"),
        ({}, "enforce", "the observer is gone", False, "the picture of the traffic is old: the observer is gone"),
        ({}, "enforce", "", True, "containers are frozen by command (cri-resmgr freeze off)"),
    ],
)  # fmt: skip
async def test_nothing_moves_by_itself(
    runtime, client, tmp_path,
    config, mode, frozen, by_hand, reason
) -> None:  # fmt: skip
    async with Node(runtime, tmp_path, config) as node:
        await apart(node, client, "web", "db")
        node.talk(("web", "db"), frozen=frozen)
        node.services.node_state.mode = mode
        node.freeze(by_hand)
        await node.round()
        assert not runtime.calls_of("UpdateContainerResources")
        assert node.affinity.planner.pid is None, "no process for nothing"
        assert node.affinity.status()["rebalance"] == f"containers are not moved: {reason}"


async def test_another_configuration_is_no_end_of_its_rounds(node) -> None:
    rounds = asyncio.ensure_future(node.affinity.run())
    for _ in range(3):
        node.affinity.reconfigured()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not rounds.done()
    rounds.cancel()
    await asyncio.gather(rounds, return_exceptions=True)


BATCH_ALL = {"isolation": {"caches": "observe", "batch": ["namespace/default"], "protected": []}}


async def test_a_batch_container_leaves_a_domain_with_the_next_plan_after_it_was_asked_for(
    runtime, client, tmp_path
) -> None:
    async with Node(runtime, tmp_path, BATCH_ALL) as node:
        for name in ("web", "db"):  # batch comes together by itself
            await node.create(client, name)
        node.talk(("web", "db"))
        node.now_s += 1000
        here = node.leaf("web")
        await node.round()
        assert node.leaf("web") == node.leaf("db") == here
        assert node.affinity.ask_apart(here)
        await node.round()
        assert [node.leaf(name) == here for name in ("web", "db")].count(False) == 1
        # It was for one plan.
        node.now_s += 1000
        for _ in range(2):
            await node.round()
        assert node.together("web", "db")


async def test_no_container_is_asked_away_where_none_moves_or_none_is_batch(
    runtime, client, tmp_path
) -> None:
    leaves = [leaf.cpus for leaf in topology(HYGON_7285_2S).leaves]
    async with Node(runtime, tmp_path, BATCH_ALL) as node:
        await node.create(client, "web")
        here = node.leaf("web")
        assert node.affinity.ask_apart(here)
        assert not node.affinity.ask_apart(next(cpus for cpus in leaves if cpus != here))
        node.freeze(True)
        assert not node.affinity.ask_apart(here)
    async with Node(runtime, tmp_path / "plain") as node:
        await node.create(client, "web")
        assert not node.affinity.ask_apart(node.leaf("web"))


async def test_the_metrics_say_whether_the_observer_is_there(node, monkeypatch) -> None:
    for problem, is_up in (("it has gone", 0), ("", 1), ("it has gone again", 0)):
        monkeypatch.setattr(node.affinity.source, "status", lambda problem=problem: {"problem": problem})
        node.affinity.follow()
        assert f"cri_resmgr_observer_up {is_up}.0" in node.services.metrics.text().splitlines()


async def test_where_nobody_talks_no_planner_is_started(node, client) -> None:
    await apart(node, client, "web", "db")
    await node.round()
    assert node.affinity.planner.pid is None


async def test_the_rest_of_a_plan_follows_as_tokens_come(runtime, client, tmp_path) -> None:
    async with Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1}}) as node:
        names = ["a", "b", "c", "d", "e", "f"]
        await apart(node, client, *names)
        pairs = [("a", "b"), ("c", "d"), ("e", "f")]
        node.talk(*pairs)
        moved = []
        for _ in range(3):
            await node.round()
            moved.append(sum(node.together(*pair) for pair in pairs))
            await node.round()  # no token yet
            node.now_s += 60
        assert moved == [1, 2, 3]
        assert 'cri_resmgr_plans_total{result="accepted"} 1.0' in node.services.metrics.text(), "weighed once"


async def test_a_planner_that_fails_is_a_warning_and_nothing_else(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.affinity.planner = PlannerWorker(("/nowhere/python",))
    await node.round()
    [warning] = node.services.health.warnings
    assert warning.startswith("the planner does not work: the planner could not be started")
    node.affinity.planner = PlannerWorker()
    await node.round()
    assert node.together("web", "db")
    assert node.services.health.warnings == []


# ---------------------------------------------------------------------- taken back


async def test_what_the_runtime_refuses_is_back_at_its_place(node, client) -> None:
    await apart(node, client, "web", "db")
    before = {name: node.leaf(name) for name in ("web", "db")}
    node.talk(("web", "db"))
    node.runtime.script("UpdateContainerResources", error=(grpc.StatusCode.INTERNAL, "no such cgroup"))
    await node.round()
    for name, cpus in before.items():
        assert node.leaf(name) == cpus
        assert node.engine.grants[node.ids[name]].cpus == cpus
    assert node.services.node_state.updates.pending == frozenset()
    assert "the runtime refused it: no such cgroup" in " ".join(g.why for g in node.engine.grants.values())


async def test_a_refused_move_is_not_tried_again_at_once(node, client) -> None:
    """Only one of the two can be moved to the other, then; and not for ten minutes the way that was refused."""
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.runtime.script("UpdateContainerResources", error=(grpc.StatusCode.INTERNAL, "no"))
    for _ in range(3):
        await node.round()
        node.now_s += 60
    targets = [(c.message.container_id, c.message.linux.cpuset_cpus)
               for c in node.runtime.calls_of("UpdateContainerResources")]  # fmt: skip
    assert len(targets) == len(set(targets))


async def test_a_runtime_that_is_away_is_no_refusal(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.runtime.script(
        "UpdateContainerResources", error=(grpc.StatusCode.UNAVAILABLE, "restarting"), times=1
    )
    await node.round()
    assert len(node.services.node_state.updates.pending) == 1
    node.services.node_state.updates.hurry()
    await node.runtime.wait_for_call("UpdateContainerResources", 2)
    while node.services.node_state.updates.pending:
        await asyncio.sleep(0.01)
    assert node.together("web", "db")


async def test_a_move_that_makes_containers_wait_is_taken_back_and_not_made_again(node, client) -> None:
    await apart(node, client, "web", "db")
    before = {name: node.leaf(name) for name in ("web", "db")}
    node.talk(("web", "db"))
    await looked_twice(node, "web", "db")
    node.pressure = {"web": 11.0, "db": 1.0}  # 10 of the 20 seconds
    node.now_s += 60
    await node.round()
    assert {name: node.leaf(name) for name in before} == before
    assert node.affinity.status()["last_plan"]["taken_back"] == 1
    assert "wait for CPUs" in " ".join(g.why for g in node.engine.grants.values())
    assert 'cri_resmgr_moves_total{result="taken_back"} 1.0' in node.services.metrics.text()
    made = [(c.message.container_id, c.message.linux.cpuset_cpus)
            for c in node.runtime.calls_of("UpdateContainerResources")]  # fmt: skip
    node.pressure = {}
    await node.round()
    again = [(c.message.container_id, c.message.linux.cpuset_cpus)
             for c in node.runtime.calls_of("UpdateContainerResources")][len(made):]  # fmt: skip
    assert made[0] not in again


async def test_a_move_under_which_nobody_waits_stays(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    await looked_twice(node, "web", "db")
    node.pressure = {"web": 1.1, "db": 1.0}
    node.now_s += 60
    await node.round()
    assert node.together("web", "db")
    assert node.affinity.status()["guard"] == "moves are guarded by pressure (PSI)"


async def test_without_pressure_files_the_status_says_that_there_is_no_guard(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    await node.round()
    assert node.together("web", "db")
    assert node.affinity.status()["guard"] == (
        "moves are not guarded: no container's cgroup tells pressure or throttling"
    )


# ---------------------------------------------------------------------- by command


async def test_a_dry_run_shows_the_moves_and_makes_none(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    document = await node.affinity.rebalance(dry_run=True)
    assert document["accepted"]
    [move] = document["moves"]
    assert move["container"] in ("default/web/web", "default/db/db")
    assert move["from"] != move["to"]
    assert move["gain"] > 0
    assert not node.runtime.calls_of("UpdateContainerResources")
    assert not node.together("web", "db")


async def test_whoever_asks_gets_all_moves_at_once(runtime, client, tmp_path) -> None:
    async with Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1, "rebalance": "manual"}}) as node:
        await apart(node, client, "a", "b", "c", "d", "e", "f")
        node.talk(("a", "b"), ("c", "d"), ("e", "f"))
        document = await node.affinity.rebalance(dry_run=False)
        assert (document["moved"], document["failed"]) == (3, [])
        assert all(node.together(*pair) for pair in ("ab", "cd", "ef"))


async def test_an_old_picture_is_planned_by_if_a_person_asks_and_it_is_said(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"), frozen="the observer is gone")
    document = await node.affinity.rebalance(dry_run=False)
    assert document["notes"] == ["the picture of the traffic is old: the observer is gone"]
    assert document["moved"] == 1


async def test_a_refused_move_is_told_to_whoever_asked(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.runtime.script("UpdateContainerResources", error=(grpc.StatusCode.INTERNAL, "no such cgroup"))
    document = await node.affinity.rebalance(dry_run=False)
    assert document["moved"] == 0
    assert [failed["error"] for failed in document["failed"]] == ["no such cgroup"]


async def test_in_mode_observe_only_a_dry_run_is_possible(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.services.node_state.mode = "observe"
    with pytest.raises(
        CannotRebalance, match="in mode observe nothing is moved; --dry-run shows what would be"
    ):
        await node.affinity.rebalance(dry_run=False)
    assert (await node.affinity.rebalance(dry_run=True))["accepted"]


async def test_a_planner_that_fails_is_told_to_whoever_asked(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.affinity.planner = PlannerWorker(("/nowhere/python",))
    with pytest.raises(CannotRebalance, match="the planner could not be started"):
        await node.affinity.rebalance(dry_run=True)


async def test_a_new_engine_knows_the_traffic_from_the_first_decision_on(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    engine = make_engine(node.services.config, node.engine.host)
    node.affinity.follow(engine)
    assert engine.traffic is node.source.traffic
