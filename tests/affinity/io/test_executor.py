"""Plans carried out: only while they count, some moves at a time, and no mistake twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
import pytest_asyncio

from cri_proxy.affinity.io.executor import AT_ONCE
from cri_proxy.affinity.io.rebalancer import CannotRebalance
from cri_proxy.engine.build import make_engine
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.relay.status import Code, RpcError
from tests.affinity.io.affinity_node import Node, apart, config_of
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime

PAIRS = [("a", "b"), ("c", "d"), ("e", "f")]


@pytest_asyncio.fixture
async def client(runtime: FakeRuntime) -> AsyncIterator[CriClient]:
    async with CriClient(runtime.socket) as client:
        yield client


@pytest_asyncio.fixture
async def node(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(runtime, tmp_path) as node:
        yield node


def on_update(node: Node, happens: Callable[[CpusetUpdate], Optional[Exception]]) -> None:
    """What happens when the runtime is told of new CPUs; an error is its answer."""
    deliver = node.services.node_state.updates.deliver

    async def interrupted(update: CpusetUpdate) -> None:
        error = happens(update)
        if error is not None:
            raise error
        await deliver(update)

    node.services.node_state.updates.deliver = interrupted


# ---------------------------------------------------------------------- while it counts


def to_mode(mode: str) -> Callable[[Node], None]:
    def switch(node: Node) -> None:
        node.services.node_state.mode = mode

    return switch


def to_config(**affinity: Any) -> Callable[[Node], None]:
    def reload(node: Node) -> None:
        node.services.config = config_of(affinity=affinity)
        node.affinity.reconfigured()

    return reload


def to_another_engine(node: Node) -> None:
    node.services.node_state.engine = make_engine(node.services.config, node.engine.host)


SWITCHES = {
    "mode observe": to_mode("observe"),
    "mode off": to_mode("off"),
    "frozen by command": lambda node: node.freeze(True),
    "moved by command only": to_config(rebalance="manual"),
    "affinity turned off": to_config(enabled=False),
    "other settings": to_config(hysteresis=0.2),
    "another engine": to_another_engine,
    "the observer is gone": lambda node: node.talk(("web", "db"), frozen="the observer has ended"),
}


@pytest.mark.parametrize("name", SWITCHES)
async def test_what_happens_while_the_planner_thinks_counts(node, client, name) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.planner.meanwhile = lambda: SWITCHES[name](node)
    await node.round()
    assert node.plans() == 1
    assert node.made() == []
    assert node.affinity.status()["last_plan"]["is_under_way"] is False


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_who_asks_for_moves_is_told_that_the_mode_has_changed(node, client, mode) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.planner.meanwhile = lambda: to_mode(mode)(node)
    with pytest.raises(CannotRebalance, match="in mode observe nothing is moved|passes bytes only"):
        await node.affinity.rebalance(dry_run=False)
    assert node.made() == []
    assert not node.together("web", "db")


async def test_a_new_configuration_ends_a_plan_that_is_under_way(runtime, client, tmp_path) -> None:
    async with Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1}}) as node:
        await apart(node, client, *"abcdef")
        node.talk(*PAIRS)
        await node.round()
        assert (len(node.made()), node.plans()) == (1, 1)
        to_config(moves_per_minute=2)(node)
        await node.round()
        assert (len(node.made()), node.plans()) == (1, 1), "dropped"
        await node.round()
        assert (len(node.made()), node.plans()) == (3, 2), "and made anew"


async def test_a_plan_that_cannot_be_carried_out_makes_way_for_the_next(node, client) -> None:
    await apart(node, client, "web", "db")
    node.talk(("web", "db"))
    node.mover.bug = RuntimeError("a bug")
    await node.round()
    assert node.services.health.reasons["affinity"] == "containers are not moved: RuntimeError: a bug"
    node.mover.bug = None
    await node.round()
    assert node.plans() == 2
    assert node.together("web", "db")


# ---------------------------------------------------------------------- what the runtime refuses


async def test_a_refused_move_is_not_made_again_and_the_plan_goes_on(runtime, client, tmp_path) -> None:
    async with Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1}}) as node:
        await apart(node, client, *"abcdef")
        node.talk(*PAIRS)
        tried: list[str] = []

        def refuses_the_first(update: CpusetUpdate) -> Optional[Exception]:
            tried.append(update.id)
            return RpcError(Code.INTERNAL, "no") if update.id == tried[0] else None

        on_update(node, refuses_the_first)
        for _ in range(3):
            await node.round()
            node.now_s += 60
        assert len(tried) == len(set(tried)) == 3
        assert sorted(node.together(*pair) for pair in PAIRS) == [False, True, True]
        assert node.plans() == 1


# ---------------------------------------------------------------------- exchanges


async def crossed(node: Node, client: CriClient) -> tuple[str, str, str, str]:
    """A node whose L3s have one CPU left each; of two pairs that talk, one end each is in one of two L3s."""
    in_leaf: dict[frozenset[int], list[str]] = {}
    for number in range(2 * len(node.engine.host.topology.leaves)):
        name = f"c{number}"
        await node.create(client, name, 3.5)
        in_leaf.setdefault(node.leaf(name), []).append(name)
    assert {len(names) for names in in_leaf.values()} == {2}
    node.now_s += 100
    (a, b), (c, d) = list(in_leaf.values())[:2]
    node.talk((a, c), (b, d))
    return a, b, c, d


async def test_containers_change_places_on_a_full_node_together(runtime, client, tmp_path) -> None:
    async with Node(runtime, tmp_path, {"affinity": {"moves_per_minute": 1}}) as node:
        a, b, c, d = await crossed(node, client)
        await node.round()
        assert (node.together(a, c), node.together(b, d), node.plans()) == (True, True, 1)
        assert len(node.made()) == 2


@pytest.mark.parametrize("refused", [0, 1], ids=["the first", "the second"])
async def test_an_exchange_of_which_one_is_refused_is_taken_back_whole(node, client, refused) -> None:
    names = await crossed(node, client)
    before = {name: node.leaf(name) for name in names}
    tried: list[CpusetUpdate] = []

    def refuses(update: CpusetUpdate) -> Optional[Exception]:
        tried.append(update)
        return RpcError(Code.INTERNAL, "no") if len(tried) == refused + 1 else None

    on_update(node, refuses)
    answer = await node.affinity.rebalance(dry_run=False)
    assert (answer["moved"], len(answer["failed"])) == (0, 2)
    assert (
        sum("with which it was to change places, was refused: no" in row["error"] for row in answer["failed"])
        == 1
    )
    await node.services.node_state.updates.tried([update.id for update in tried], 5)
    assert not node.services.node_state.updates.pending
    assert {name: node.leaf(name) for name in names} == before
    assert all(node.engine.grants[node.ids[name]].cpus == cpus for name, cpus in before.items())
    # The one that was made goes back.
    assert len(tried) == 3


# ---------------------------------------------------------------------- the guard


async def test_the_first_plan_waits_until_there_is_something_to_compare_with(node, client) -> None:
    await apart(node, client, "web", "db")
    before = {name: node.leaf(name) for name in ("web", "db")}
    node.talk(("web", "db"))
    for name in ("web", "db"):
        node.waited(name, 1.0)
    await node.round()
    node.now_s += 1.0
    await node.round()
    assert (node.plans(), node.made()) == (0, [])
    assert node.affinity.status()["guard"] == (
        "the first plan waits for a second look at how long containers wait for CPUs"
    )
    node.now_s += 60
    node.pressure = {"web": 11.0, "db": 1.0}  # 10 of the 20 seconds after the move
    await node.round()
    assert node.plans() == 1
    assert {name: node.leaf(name) for name in before} == before
    assert node.affinity.status()["last_plan"]["taken_back"] == 1


# ---------------------------------------------------------------------- some moves at a time


async def many(node: Node, client: CriClient) -> int:
    """More pairs that talk than are moved at a time, of which each is apart; returns how many."""
    names = [f"c{number}" for number in range(2 * AT_ONCE + 8)]
    for name in names:
        await node.create(client, name)
    node.now_s += 100
    pairs = list(zip(names[::2], names[1::2]))
    assert not any(node.together(*pair) for pair in pairs)
    node.talk(*pairs)
    return len(pairs)


def where_all_are(node: Node) -> dict[str, frozenset[int]]:
    return {key: grant.placement.home for key, grant in node.engine.grants.items()}


async def test_a_large_plan_is_made_in_parts_each_of_which_the_runtime_has_before_the_next(
    node, client
) -> None:
    count = await many(node, client)
    before = where_all_are(node)
    moved_in_engine = []

    def count_moved(update: CpusetUpdate) -> None:
        now = where_all_are(node)
        moved_in_engine.append(sum(now[key] != before[key] for key in now))

    on_update(node, count_moved)
    document = await node.affinity.rebalance(dry_run=False)
    assert document["moved"] == moved_in_engine[-1] >= count
    assert moved_in_engine[0] == AT_ONCE
    assert all(later - earlier in (0, AT_ONCE) or later == document["moved"]
               for earlier, later in zip(moved_in_engine, moved_in_engine[1:]))  # fmt: skip


async def test_when_the_mode_changes_between_two_parts_the_rest_is_not_made_and_that_is_said(
    node, client
) -> None:
    await many(node, client)
    on_update(node, lambda update: to_mode("observe")(node))
    document = await node.affinity.rebalance(dry_run=False)
    assert document["moved"] == len(node.made()) == AT_ONCE
    assert document["notes"] == ["not all was tried: in mode observe nothing is moved"]


async def test_a_runtime_that_does_not_answer_is_not_given_more(node, client) -> None:
    await many(node, client)
    on_update(node, lambda update: RpcError(Code.UNAVAILABLE, "no"))
    document = await node.affinity.rebalance(dry_run=False)
    assert document["moved"] == len(node.services.node_state.updates.pending) == AT_ONCE
    assert document["notes"] == ["not all was tried: the runtime does not answer"]
