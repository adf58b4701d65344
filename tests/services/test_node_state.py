"""What is waited for before a container is told: all records are durable, those too that may be written later."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.model import NO_CONSTRAINT
from tests.daemon.parts import parts
from tests.scenes import make_container


@pytest.mark.parametrize("handed_over", ["by the wait", "before it", "in the middle of it"])
async def test_what_is_written_later_is_durable_after_a_wait(
    tmp_path: Path, monkeypatch, handed_over: str
) -> None:
    services = parts(tmp_path, monkeypatch)
    node_state, store = services.node_state, services.store
    engine, settled = node_state.engine, store.settled
    assert engine is not None
    key = engine.bind(engine.admit(make_container("web"), NO_CONSTRAINT, 0.0).ticket, "web", 0.0) or "web"
    record = ("grant", key)
    engine.derived[record] = engine.grants[key]

    async def and_its_time_comes() -> None:
        monkeypatch.setattr(store, "settled", settled)
        await settled()
        node_state.save_derived()

    if handed_over == "before it":
        node_state.save_derived()
    elif handed_over == "in the middle of it":
        monkeypatch.setattr(store, "settled", and_its_time_comes)
    await node_state.written()
    assert not engine.derived and record not in store.unsaved
    assert key in (await store.load()).of("grant")
    await store.close()
