"""What isolation changes is in the history, an entry for a group's treatment of an L3; what is grave is on the pods."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from cri_proxy.engine.model import ContainerRecord
from cri_proxy.isolation.model import Step
from tests.isolation.node import IsolatedNode


class Told:
    """What the history was told, each with the containers that it is about."""

    def __init__(self, node: IsolatedNode) -> None:
        self.node = node
        self.entries: list[tuple[str, tuple[str, ...]]] = []
        node.services.node_state.on_happening = self.add

    def add(
        self,
        operation: str,
        why: str,
        keys: Sequence[str],
        is_own: bool,
        grants: Mapping[str, ContainerRecord],
    ) -> None:
        assert operation == "isolation"
        self.entries.append((why, tuple(keys)))

    async def round(self) -> list[tuple[str, tuple[str, ...]]]:
        """What one round has told."""
        self.entries = []
        await self.node.isolation.round()
        return self.entries

    @property
    def events(self) -> list[tuple[str, str]]:
        """Reason and pod of each."""
        return [(row["reason"], row["pod"]) for row in self.node.engine.notable.since(None)["events"]]


@pytest_asyncio.fixture
async def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Told]:
    node = IsolatedNode(tmp_path, monkeypatch)
    told = Told(node)
    await node.begin()
    yield told
    node.isolation.close()


async def test_an_l3_that_becomes_shared_is_one_entry_and_no_other_follows(told: Told) -> None:
    protected, batch = told.node.protected(), told.node.batch()
    [(why, keys)] = await told.round()
    assert why.startswith("L3 0: cri-resmgr.batch has 5 ways (1f), bandwidth ") and "was all of it" in why
    assert "is protected" in why and keys == (protected, batch)
    told.node.batch()
    assert await told.round() == [] and told.events == []


async def test_what_is_put_back_is_an_entry(told: Told) -> None:
    told.node.protected()
    told.node.batch()
    await told.round()
    told.node.configure(caches="off", bandwidth="off")
    assert [why for why, _ in await told.round()] == [
        "the group cri-resmgr.batch is removed: its containers have all of it"
    ]


async def test_a_step_of_protection_is_an_entry_with_what_protection_says(told: Told) -> None:
    told.node.protected()
    told.node.batch()
    await told.round()
    told.node.isolation.step_whys = {0: "app: fills 9, without batch 3"}
    told.node.isolation.steps = {0: Step(0.2, None)}
    [(why, _)] = await told.round()
    assert why.startswith("L3 0: cri-resmgr.batch has 4 ways (f)") and why.endswith(
        "app: fills 9, without batch 3"
    )


async def test_a_class_that_changes_is_an_entry_of_its_container(told: Told) -> None:
    batch = told.node.batch()
    await told.round()
    told.node.configure(batch=(), protected=("qos/BestEffort",))
    assert await told.round() == [("its class is protected (qos/BestEffort), was batch", (batch,))]


async def test_what_another_daemon_did_is_not_told_again(told: Told) -> None:
    told.node.protected()
    told.node.batch()
    await told.round()
    told.entries = []
    await told.node.restart()
    assert told.entries == []
    told.node.isolation.close()


async def test_a_refused_value_is_told_once_and_on_the_pods_that_batch_should_give_way_to(told: Told) -> None:
    node = told.node
    takes = node.kernel.write

    def write(group: str, resource: str, values: Mapping[int, str]) -> None:
        if resource == "MB" and values.get(0, "2048") != "2048":
            raise OSError(errno.EINVAL, "Invalid argument: MB value 0 out of range")
        takes(group, resource, values)

    node.kernel.write = write  # type: ignore[method-assign]
    protected = node.protected()
    node.batch()
    entries = await told.round()
    [refused] = [(why, keys) for why, keys in entries if "is refused" in why]
    assert any(why.startswith("L3 0: cri-resmgr.batch has 5 ways (1f), was") for why, _ in entries)
    assert "cri-resmgr.batch#MB:0" in refused[0] and refused[1] == (protected,)
    assert told.events == [("IsolationRefused", protected)]
    await node.look()
    assert told.events == [("IsolationRefused", protected)]


async def test_no_class_of_service_left_is_told_on_the_pods_that_it_hurts(told: Told) -> None:
    node = told.node
    for number in range(15):
        node.kernel.make_other(f"other{number}")
    protected = node.protected()
    node.batch()
    [(why, keys)] = await told.round()
    assert why.startswith("cri-resmgr.batch is treated as the root group: ") and keys == (protected,)
    assert told.events == [("NoClassOfService", protected)]


async def test_what_is_only_observed_is_no_entry(told: Told) -> None:
    told.node.configure(caches="observe", bandwidth="observe")
    told.node.protected()
    told.node.batch()
    assert await told.round() == []
