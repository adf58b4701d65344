"""An agent that has died on a node on which nothing happens is noticed by its Lease, and nothing else is taken for that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.api.heartbeat import lease, lease_name
from cluster.api.names import AGENT_MANAGER, AGENT_SILENT
from cluster.kube.requests import ApiError, Unreachable
from cluster.kubectl import complaints, node_row
from cluster.operator.heartbeats import SILENT_S
from cluster.operator.io.leader import LeaseLost
from cluster.operator.io.pulse import LOOK_S
from cluster.operator.objects import write_time
from tests.cluster.operator.api import Api
from tests.cluster.operator.cluster import node, well_status
from tests.cluster.operator.test_operator import Running, answer_all, in_time
from tests.cluster.operator.test_told import ready, told

NAMES = ("n0", "n1", "n2")
#: As long as an agent may take.
RENEW_S = 60.0
#: From an agent's last renewal until its silence must be said.
MOST_S = SILENT_S + 2 * LOOK_S


class Agents:
    """Agents that renew their Leases while they ``live``, on a server that is ``away`` at times."""

    def __init__(self, api: Api, *living: str) -> None:
        self.api, self.living, self.is_away = api, set(living), False
        for name in NAMES:
            api.put("nodes", node(name))
        self.task = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        while True:
            if not self.is_away:
                for name in sorted(self.living):
                    self.renew(name)
            await asyncio.sleep(RENEW_S)

    def renew(self, name: str) -> None:
        at = asyncio.get_running_loop().time()
        found = lease(name, {"uid": f"np-{name}"}, at)
        found["metadata"]["managedFields"] = [{"manager": AGENT_MANAGER, "time": write_time(at)}]
        self.api.put("leases", found)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def on_quiet_nodes(scenario: Callable[[Api, Agents], Awaitable[None]], *living: str) -> None:
    """Of agents that are well, and write not a word after their first status."""

    async def whole(api: Api) -> None:
        agents = Agents(api, *living)
        first = Running(api)
        await asyncio.sleep(5)
        answer_all(api)
        await first.close()
        await scenario(api, agents)
        await agents.close()

    in_time(whole)


def silent(api: Api) -> list[str]:
    return [name for name in NAMES if ready(api, name).get("reason") == AGENT_SILENT]


def test_a_dead_agent_is_named_everywhere_and_is_well_again_once_it_renews_its_lease() -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        running = Running(api)
        await asyncio.sleep(600)
        assert silent(api) == []
        agents.living.remove("n1")
        last = api.all("leases")[lease_name("n1")]["spec"]["renewTime"][:19]
        await asyncio.sleep(MOST_S)
        # 1. By itself, in top, for doctor, and as an Event.
        says = f"the agent of n1 has not renewed its Lease cri-resmgr/node-n1 since {last}Z"
        found = api.all("nodeplacements")["n1"]
        assert silent(api) == ["n1"]
        assert ready(api, "n1")["status"] == node_row(found)["ready"] == "Unknown"
        assert any(
            each["message"].startswith(says) and "--field-selector spec.nodeName=n1" in each["message"]
            for each in complaints(found)
        )
        assert [each[:2] for each in told(api)] == [("n1", AGENT_SILENT)]
        # 2. Nothing more is written while nothing changes.
        before = dict(api.objects)
        await asyncio.sleep(3600)
        assert {key[0] for key in before if before[key] != api.objects[key]} == {"leases"}
        # 3. It is back.
        agents.living.add("n1")
        await asyncio.sleep(RENEW_S + 2 * LOOK_S)
        assert silent(api) == []
        assert ready(api, "n1")["status"] == "True"
        await running.close()

    on_quiet_nodes(scenario, *NAMES)


def test_an_agent_of_a_version_before_has_no_lease_and_is_not_silent_for_want_of_it() -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        running = Running(api)
        await asyncio.sleep(3600)
        assert silent(api) == []
        await running.close()

    on_quiet_nodes(scenario, "n0")


def test_an_agent_that_was_replaced_by_one_of_a_version_before_is_not_silent_once_it_has_written() -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        running = Running(api)
        await asyncio.sleep(600)
        agents.living.clear()
        await asyncio.sleep(SILENT_S - RENEW_S)
        for _ in range(3):
            await asyncio.sleep(RENEW_S)
            now = write_time(asyncio.get_running_loop().time())
            for name, found in api.all("nodeplacements").items():
                told_by = [{"manager": AGENT_MANAGER, "subresource": "status", "time": now}]
                metadata = {**found["metadata"], "managedFields": told_by}
                if name != "n2":
                    api.put("nodeplacements", {**found, "metadata": metadata, "status": well_status()})
        await asyncio.sleep(3600)
        assert silent(api) == ["n2"]
        await running.close()

    on_quiet_nodes(scenario, *NAMES)


def test_an_operator_that_starts_waits_for_each_agent_and_takes_no_silence_back_before_it_has_heard() -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        agents.living -= {"n0"}
        await asyncio.sleep(3600)
        for _ in range(3):
            running = Running(api)
            await asyncio.sleep(SILENT_S - 2 * LOOK_S)
            assert silent(api) == []
            await running.close()
        running = Running(api)
        await asyncio.sleep(MOST_S)
        assert silent(api) == ["n0"]
        await running.close()
        agents.living -= {"n1"}
        for _ in range(3):
            running = Running(api)
            await asyncio.sleep(MOST_S)
            assert silent(api) == ["n0", "n1"]
            await running.close()

    on_quiet_nodes(scenario, *NAMES)


@pytest.mark.parametrize("verbs", [("list",), ("get", "list", "create", "replace", "apply", "patch")])
def test_after_ten_minutes_without_the_api_server_no_agent_is_silent(verbs: tuple[str, ...]) -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        async def operate() -> None:
            while True:
                running = Running(api)
                try:
                    await running.task
                except LeaseLost:
                    pass
                finally:
                    await running.close()

        operating = asyncio.ensure_future(operate())
        # Each Lease is seen once more after its last renewal.
        await asyncio.sleep(10 * LOOK_S + 10)
        there = {verb: getattr(api, verb) for verb in verbs}

        async def away(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(0.001)
            raise Unreachable("no route")

        agents.is_away = True
        for verb in verbs:
            setattr(api, verb, away)
        await asyncio.sleep(600)
        for verb, call in there.items():
            setattr(api, verb, call)
        # Seen as they were, before they have renewed.
        await asyncio.sleep(LOOK_S)
        agents.is_away = False
        for _ in range(60):
            await asyncio.sleep(10)
            assert silent(api) == []
        # It still notices.
        agents.living.clear()
        await asyncio.sleep(MOST_S)
        assert silent(api) == list(NAMES)
        operating.cancel()
        await asyncio.gather(operating, return_exceptions=True)

    on_quiet_nodes(scenario, *NAMES)


def test_an_operator_without_the_right_to_list_leases_says_it_once_and_goes_on() -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        api.refused = {"leases"}
        running = Running(api)
        agents.living.clear()
        await asyncio.sleep(3600)
        assert silent(api) == []
        assert sum("leases is forbidden" in line for line in running.lines) == 1
        api.put("nodes", node("n3"))
        await asyncio.sleep(5)
        assert "n3" in api.all("nodeplacements")
        await running.close()

    on_quiet_nodes(scenario, *NAMES)


def test_a_server_that_fails_now_and_then_does_not_hide_a_dead_agent() -> None:
    async def scenario(api: Api, agents: Agents) -> None:
        asked = 0
        there = api.list

        async def every_third(*words: Any, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked % 3 == 0:
                raise ApiError(503, "ServiceUnavailable", "not now")
            return await there(*words, **named)

        api.list = every_third  # type: ignore[method-assign]
        running = Running(api)
        await asyncio.sleep(600)
        assert silent(api) == []
        agents.living.remove("n1")
        await asyncio.sleep(3600)
        assert silent(api) == ["n1"]
        await running.close()

    on_quiet_nodes(scenario, "n0", "n1")
