"""Unfinished containers are removed at a real server; finished ones are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest
import structlog

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.visibility import Visibility
from cri_proxy.nri.io.host import cleanup as nri_leftovers
from cri_proxy.nri.io.host.cleanup import Cleanup
from cri_proxy.nri.io.host.intent_log import IntentLog
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.relay.interception import AnswerFailed
from cri_proxy.runtime import RuntimeClient
from cri_proxy.services.node_state import NodeState
from cri_proxy.state.writer import StateWriter
from tests.cri_client import container_config, pod_config
from tests.fake_runtime import FakeRuntime

LOG = structlog.get_logger()


class Node(SimpleNamespace):
    """What a cleanup needs of the daemon, without an engine."""

    engine = None
    now_s = 0.0

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "r.sock")) as fake:
        yield fake


@pytest.fixture
async def upstream(fake: FakeRuntime) -> AsyncIterator[Upstream]:
    runtime = RuntimeClient(fake.socket)
    yield Upstream(runtime)
    await runtime.close()


def cleanup(tmp_path: Path, upstream: Upstream, hidden: Visibility, node: Optional[Node] = None) -> Cleanup:
    node_state = cast(NodeState, node or Node())
    made = Cleanup(upstream, IntentLog(tmp_path / "state", LOG), hidden, node_state, LOG)
    made.load()
    return made


def key_of(fake: FakeRuntime, container_id: str) -> tuple[str, str, int]:
    record = fake.containers[container_id]
    return record.sandbox_id, record.name, record.attempt


async def test_only_what_was_never_started_and_is_marked_is_removed(tmp_path, fake, upstream) -> None:
    pod = fake.add_pod(pod_config("p"))
    states = {
        "half-made": cri.CONTAINER_CREATED,
        "runs": cri.CONTAINER_RUNNING,
        "other": cri.CONTAINER_CREATED,
    }
    ids = {name: fake.add_container(pod, container_config(name), state) for name, state in states.items()}
    IntentLog(tmp_path / "state", LOG).add(
        containers=[key_of(fake, ids["half-made"]), key_of(fake, ids["runs"])]
    )
    hidden = Visibility()
    left = cleanup(tmp_path, upstream, hidden)
    assert len(left) == 2 and key_of(fake, ids["half-made"]) in hidden.making
    await left.clear()
    assert set(fake.containers) == {ids["runs"], ids["other"]}
    assert not hidden and len(left) == 0
    assert IntentLog(tmp_path / "state", LOG).load() == (frozenset(), frozenset())


async def test_a_sandbox_is_removed_if_nobody_has_used_it(tmp_path, fake, upstream) -> None:
    empty = fake.add_pod(pod_config("empty", uid="u1"))
    used = fake.add_pod(pod_config("used", uid="u2"))
    fake.add_container(used, container_config("c"))
    names = [("empty", "default", "u1", 0), ("used", "default", "u2", 0)]
    IntentLog(tmp_path / "state", LOG).add(sandboxes=names)
    left = cleanup(tmp_path, upstream, Visibility())
    await left.clear_for_sandbox(("somebody", "else", "", 0))
    assert set(fake.pods) == {empty, used}
    await left.clear_for_sandbox(names[0])
    assert set(fake.pods) == {used}


async def test_what_cannot_be_removed_stays_hidden_and_marked_and_is_tried_again(
    tmp_path, fake, upstream, monkeypatch
) -> None:
    monkeypatch.setattr(nri_leftovers, "RETRY_S", 0.01)
    pod = fake.add_pod(pod_config("p"))
    container = fake.add_container(pod, container_config("c"), cri.CONTAINER_CREATED)
    key = key_of(fake, container)
    IntentLog(tmp_path / "state", LOG).add(containers=[key])
    script = fake.script("RemoveContainer", error=(2, "busy"))
    hidden = Visibility()
    left = cleanup(tmp_path, upstream, hidden)
    with pytest.raises(AnswerFailed, match="busy"):
        await left.clear_for(key)
    assert key in hidden.making
    running: Any = asyncio.ensure_future(left.run())
    await fake.wait_for_call("RemoveContainer", 3)
    fake.scripts.remove(script)
    await fake.wait_until(lambda: container not in fake.containers)
    await fake.wait_until(lambda: all(call.finished for call in fake.calls))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert fake.containers == {}


async def test_what_was_started_after_the_list_is_not_removed(tmp_path, fake, upstream) -> None:
    pod = fake.add_pod(pod_config("p"))
    ids = [fake.add_container(pod, container_config(name), cri.CONTAINER_CREATED) for name in ("a", "b")]
    IntentLog(tmp_path / "state", LOG).add(containers=[key_of(fake, each) for each in ids])
    left = cleanup(tmp_path, upstream, Visibility())
    hold = asyncio.Event()
    removal = fake.script("RemoveContainer", hold=hold, times=1)
    clearing = asyncio.ensure_future(left.clear())
    await fake.wait_until(lambda: removal.used == 1)
    [other] = [each for each in ids if each != fake.calls_of("RemoveContainer")[0].message.container_id]
    fake.containers[other].state = cri.CONTAINER_RUNNING
    hold.set()
    await clearing
    assert set(fake.containers) == {other}
    assert len(left) == 0


async def test_what_the_runtime_makes_late_is_removed_then(tmp_path, fake, upstream) -> None:
    pod = fake.add_pod(pod_config("p"))
    keys = [(pod, "late", 0), (pod, "never", 0)]
    IntentLog(tmp_path / "state", LOG).add(containers=keys)
    hidden, node = Visibility(), Node()
    left = cleanup(tmp_path, upstream, hidden, node)
    await left.clear()
    assert len(left) == 2 and hidden.making == set(keys)
    fake.add_container(pod, container_config("late"), cri.CONTAINER_CREATED)
    await left.clear()
    assert (fake.containers, hidden.making) == ({}, {keys[1]})
    node.now_s = nri_leftovers.LATE_S
    await left.clear()
    assert len(left) == 0 and not hidden
    assert IntentLog(tmp_path / "state", LOG).load() == (frozenset(), frozenset())


async def test_a_create_of_a_leftovers_name_is_no_leftover(tmp_path, fake, upstream) -> None:
    pod = fake.add_pod(pod_config("p"))
    key = (pod, "c", 0)
    IntentLog(tmp_path / "state", LOG).add(containers=[key])
    hidden = Visibility()
    left = cleanup(tmp_path, upstream, hidden)
    async with left.making("c", lambda: True, containers=frozenset([key])):
        fake.add_container(pod, container_config("c"), cri.CONTAINER_CREATED)
    await left.clear()
    assert len(fake.containers) == 1 and not hidden


class Slow:
    """A disk: what is to be written waits."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def later(self, work: Any) -> None:
        self.works.append(work)

    async def settled(self) -> None:
        while self.works:
            self.works.pop(0)()


async def test_a_mark_is_gone_from_the_disk_before_the_answer(tmp_path, fake, upstream) -> None:
    intents = IntentLog(tmp_path / "state", LOG, cast(StateWriter, Slow()))
    left = Cleanup(upstream, intents, Visibility(), cast(NodeState, Node()), LOG)
    key = ("pod", "c", 0)
    async with left.making("c", lambda: True, containers=frozenset([key])):
        assert IntentLog(tmp_path / "state", LOG).load()[0] == {key}
    assert IntentLog(tmp_path / "state", LOG).load()[0] == frozenset()
