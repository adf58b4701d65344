"""The operator's process on objects in memory and a clock that jumps: what it writes beside rollouts, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Callable

from cluster.kube.io.clock import Clock
from cluster.kube.requests import ApiError, Unreachable
from cluster.operator.advice import FADING_S
from cluster.operator.io.advices import LOOKUPS
from cluster.operator.io.leader import DURATION_S, LeaseLost
from cluster.operator.io.operator import Operator, OperatorSettings
from tests.cluster.operator.api import Api, Key, run_jumping
from tests.cluster.operator.cluster import node, policy, well_status


def clock() -> Clock:
    loop = asyncio.get_running_loop()
    return Clock(loop.time, lambda: 1_000_000.0 + loop.time(), asyncio.sleep, lambda: 0.5)


class Running:
    """An operator on an API; ``ended`` has what ``run`` raised."""

    def __init__(self, api: Api, **settings: Any) -> None:
        self.lines: list[str] = []
        me = settings.pop("me", "a")
        self.operator = Operator(api, OperatorSettings(me, **settings), clock(), self.lines.append)
        self.task = asyncio.ensure_future(self.operator.run())

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def in_time(scenario: Callable[[Api], Awaitable[None]]) -> None:
    run_jumping(scenario(Api()))


def answer_all(api: Api) -> None:
    for found in api.all("nodeplacements").values():
        api.put("nodeplacements", {**found, "status": well_status()})


def test_a_nodeplacement_follows_its_node_in_and_a_minute_later_out() -> None:
    async def scenario(api: Api) -> None:
        api.put("nodes", node("n0"))
        api.put("nodes", node("n1"))
        running = Running(api)
        await asyncio.sleep(5)
        assert set(api.all("nodeplacements")) == {"n0", "n1"}
        api.remove(("nodes", "n1"))
        await asyncio.sleep(50)
        assert set(api.all("nodeplacements")) == {"n0", "n1"}
        await asyncio.sleep(20)
        assert set(api.all("nodeplacements")) == {"n0"}
        await running.close()

    in_time(scenario)


def test_two_operators_write_one_after_the_other_and_an_orderly_end_hands_over_at_once() -> None:
    async def scenario(api: Api) -> None:
        first = Running(api, me="a")
        await asyncio.sleep(5)
        second = Running(api, me="b")
        await asyncio.sleep(60)
        assert api.all("leases")["cri-resmgr-operator"]["spec"]["holderIdentity"] == "a"
        await first.close()
        await asyncio.sleep(3)
        assert api.all("leases")["cri-resmgr-operator"]["spec"]["holderIdentity"] == "b"
        await second.close()

    in_time(scenario)


def test_an_operator_that_cannot_renew_writes_nothing_after_its_time_and_ends() -> None:
    async def scenario(api: Api) -> None:
        api.put("nodes", node("n0"))
        running = Running(api)
        await asyncio.sleep(5)
        renewed_at = asyncio.get_running_loop().time()
        replace = api.replace

        async def away(*_: Any, **__: Any) -> Any:
            raise Unreachable("no route")

        api.replace = away  # type: ignore[method-assign]
        await asyncio.wait([running.task])
        assert isinstance(running.task.exception(), LeaseLost)
        assert asyncio.get_running_loop().time() - renewed_at < DURATION_S
        api.replace = replace  # type: ignore[method-assign]

    in_time(scenario)


def test_a_lease_is_asked_for_less_and_less_where_the_api_server_does_not_answer() -> None:
    async def scenario(api: Api) -> None:
        asked = 0
        get = api.get

        async def away(*_: Any, **__: Any) -> Any:
            nonlocal asked
            asked += 1
            raise Unreachable("no route")

        api.get = away  # type: ignore[method-assign]
        running = Running(api)
        await asyncio.sleep(600)
        # At 1.5, 3, 6, 12 and then 22.5 s after each other.
        assert asked <= 5 + 600 // 22
        api.get = get  # type: ignore[method-assign]
        await asyncio.sleep(60)
        assert api.all("leases")["cri-resmgr-operator"]["spec"]["holderIdentity"] == "a"
        await running.close()

    in_time(scenario)


def test_an_api_server_that_refuses_a_write_is_asked_again_later_and_later() -> None:
    async def scenario(api: Api) -> None:
        asked: list[float] = []
        loop = asyncio.get_running_loop()

        def refuse(verb: str, key: Key) -> None:
            if key[0] == "nodeplacements":
                asked.append(loop.time())
                raise ApiError(500, "InternalError", "etcd is not there")

        api.before = refuse
        api.put("nodes", node("n0"))
        running = Running(api)
        await asyncio.sleep(100)
        waits = [later - before for before, later in zip(asked, asked[1:])]
        assert 4 < len(asked) < 12
        assert waits[-1] > 4 * waits[0]
        assert any("etcd is not there" in line for line in running.lines)
        api.before = lambda verb, key: None
        await asyncio.sleep(60)
        assert set(api.all("nodeplacements")) == {"n0"}
        await running.close()

    in_time(scenario)


def test_a_policy_that_no_node_can_have_is_told_and_nothing_is_written_to_nodes() -> None:
    async def scenario(api: Api) -> None:
        api.put("nodes", node("n0"))
        api.put("placementpolicies", policy(nodeSelector={"labels": {}}))
        running = Running(api)
        await asyncio.sleep(5)
        answer_all(api)
        await asyncio.sleep(30)
        status = api.all("placementpolicies")["p"]["status"]
        assert status["phase"] == "Invalid"
        assert status["message"].startswith("spec.nodeSelector.labels is not known")
        assert "policy" not in api.all("nodeplacements")["n0"]["spec"]
        await running.close()

    in_time(scenario)


def test_owners_that_would_gain_from_one_node_are_advised_and_no_longer_when_they_do_not_talk() -> None:
    async def scenario(api: Api) -> None:
        def pod(name: str) -> dict[str, str]:
            return {"namespace": "shop", "pod": name, "container": "c"}

        web, base = "web-7d9f8b6c5d-bcdfg", "db-0"
        group = {"members": [pod(web), pod(base)], "bytesPerSecond": 50_000_000, "together": True}
        for name, pods in (("n0", [web, base]), ("n1", ["web-7d9f8b6c5d-xxxxx"])):
            api.put("nodes", node(name))
            status = well_status(
                placements=[pod(each) for each in pods], affinityGroups=[group] if name == "n0" else []
            )
            api.put("nodeplacements", {"metadata": {"name": name, "uid": name}, "spec": {}, "status": status})
        for plural, name in (("deployments", "web"), ("statefulsets", "db")):
            api.put(plural, {"metadata": {"name": name}, "status": {"selector": f"app={name}"}})
        running = Running(api)
        await asyncio.sleep(100)
        (advice,) = api.all("affinityadvices").values()
        assert "podAffinity" in advice["status"]
        assert advice["status"]["bytesPerSecond"] == 50_000_000
        found = api.all("nodeplacements")["n0"]
        api.put("nodeplacements", {**found, "status": {**found["status"], "affinityGroups": []}})
        await asyncio.sleep(100)
        (advice,) = api.all("affinityadvices").values()
        assert advice["status"]["fadingSince"]
        await asyncio.sleep(FADING_S)
        assert api.all("affinityadvices") == {}
        await running.close()

    in_time(scenario)


def apart(api: Api, clients: int = 1) -> None:
    """A database on n0 that pods of a Deployment on n1 open connections to; and what n0 exchanges with others."""
    web = [f"web-7d9f8b6c5d-bcd{'bcdfghjklmnpqrstvwxz'[n]}f" for n in range(clients)]

    def row(address: str) -> dict[str, Any]:
        return {**_row("db-0"), "address": address, "bytesPerSecond": 3_000_000}

    remote = [row(f"10.244.1.{n}") for n in range(clients)] + [row("10.96.0.1"), row("10.0.0.7")]
    for name, pods, told in (("n0", ["db-0"], remote), ("n1", web, [])):
        api.put("nodes", node(name))
        status = well_status(placements=[_row(each) for each in pods], affinityGroups=[], remoteTraffic=told)
        api.put("nodeplacements", {"metadata": {"name": name, "uid": name}, "spec": {}, "status": status})
    for plural, name in (("deployments", "web"), ("statefulsets", "db")):
        api.put(plural, {"metadata": {"name": name}, "status": {"selector": f"app={name}"}})
    for number, name in enumerate(web):
        _put_pod(api, name, f"10.244.1.{number}")
    _put_pod(api, "ingress-5b7f4c9d8f-x2k4q", "10.0.0.7", hostNetwork=True)


def _row(name: str) -> dict[str, str]:
    return {"namespace": "shop", "pod": name, "container": "c"}


def _put_pod(api: Api, name: str, address: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": "shop", "uid": name}
    status = {"phase": "Running", "podIP": address}
    api.put("pods", {"metadata": metadata, "spec": {"nodeName": "n1", **spec}, "status": status})


def test_owners_that_talk_from_node_to_node_are_advised_with_few_questions() -> None:
    async def scenario(api: Api) -> None:
        apart(api, clients=2)
        running = Running(api)
        await asyncio.sleep(200)
        (advice,) = api.all("affinityadvices").values()
        assert advice["status"]["remoteBytesPerSecond"] == 6_000_000
        assert advice["status"]["target"]["name"] == "db"
        assert "podAffinity" in advice["status"]
        # Once for each address, however many rounds there are.
        asked = [selector for plural, selector in api.listed if plural == "pods"]
        assert sorted(asked) == [
            f"status.podIP={each}" for each in ("10.0.0.7", "10.244.1.0", "10.244.1.1", "10.96.0.1")
        ]
        assert any(
            "of 4 addresses that nodes exchange bytes with, 2 are of no pod" in line for line in running.lines
        )
        await running.close()

    in_time(scenario)


def test_of_many_addresses_a_few_are_looked_up_in_each_round() -> None:
    async def scenario(api: Api) -> None:
        apart(api)
        found = api.all("nodeplacements")["n0"]
        rows = [
            {**_row("db-0"), "address": f"10.244.9.{n}", "bytesPerSecond": 9_000_000}
            for n in range(3 * LOOKUPS)
        ]
        api.put("nodeplacements", {**found, "status": {**found["status"], "remoteTraffic": rows}})
        running = Running(api)
        await asyncio.sleep(30)
        assert sum(plural == "pods" for plural, _ in api.listed) == LOOKUPS
        await asyncio.sleep(300)
        assert sum(plural == "pods" for plural, _ in api.listed) == 3 * LOOKUPS
        await running.close()

    in_time(scenario)


def test_without_the_right_to_read_pods_there_is_still_the_other_advice() -> None:
    async def scenario(api: Api) -> None:
        apart(api)
        api.refused = {"pods"}
        group = {"members": [_row("web-7d9f8b6c5d-bcdfg"), _row("db-0")], "bytesPerSecond": 5_000_000}
        found = api.all("nodeplacements")["n0"]
        placements = [*found["status"]["placements"], _row("web-7d9f8b6c5d-bcdfg")]
        status = {**found["status"], "affinityGroups": [group], "placements": placements}
        api.put("nodeplacements", {**found, "status": status})
        running = Running(api)
        await asyncio.sleep(100)
        (advice,) = api.all("affinityadvices").values()
        rates = advice["status"]["bytesPerSecond"], advice["status"]["remoteBytesPerSecond"]
        assert rates == (5_000_000, 0)
        assert sum("pods cannot be looked up" in line for line in running.lines) == 1
        await running.close()

    in_time(scenario)


def test_kinds_that_the_server_does_not_have_are_told() -> None:
    async def scenario(api: Api) -> None:
        async def silent(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(1e6)
            yield None

        api.watch = silent  # type: ignore[method-assign,assignment]
        api.problem = "404 NotFound: the server could not find the requested resource"  # type: ignore[attr-defined]
        running = Running(api)
        await asyncio.sleep(30)
        told = [line for line in running.lines if "cannot be listed: 404 NotFound" in line]
        assert len(told) == 1
        await running.close()

    in_time(scenario)
