"""Unfinished containers are removed at a real server; finished ones are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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
from tests.cri_client import container_config, pod_config
from tests.fake_runtime import FakeRuntime

LOG = structlog.get_logger()
NO_ENGINE = cast(NodeState, SimpleNamespace(engine=None))


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "r.sock")) as fake:
        yield fake


@pytest.fixture
async def upstream(fake: FakeRuntime) -> AsyncIterator[Upstream]:
    runtime = RuntimeClient(fake.socket)
    yield Upstream(runtime)
    await runtime.close()


def cleanup(tmp_path: Path, upstream: Upstream, hidden: Visibility) -> Cleanup:
    made = Cleanup(upstream, IntentLog(tmp_path / "state", LOG), hidden, NO_ENGINE, LOG)
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
