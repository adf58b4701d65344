"""What the operator's rounds take in a large fleet: ``python -m bench.cluster_operator``.

The whole operator on a clock that jumps, with 5,000 nodes of 100 containers and 50 policies, each with a pool of its own:
all policies are changed at once and reach a tenth of their nodes at a time. The API server is in memory and its work is
not counted; each answer and each word of a watch is JSON of a whole NodePlacement, which the operator reads. Agents answer
two seconds after a change. A round is one plan with its writes.
``OPERATOR_NODES``, ``OPERATOR_POLICIES``: other numbers.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.figures import machine_line, print_row
from cluster.agent.status import AgentView, status_of
from cluster.api.fit import fit
from cluster.api.heartbeat import lease, lease_name
from cluster.api.names import AGENT_MANAGER, API_VERSION, NODE_PLACEMENT
from cluster.kube.io.clock import Clock
from cluster.kube.requests import Resource
from cluster.operator.io import operator as operator_module
from cluster.operator.io.operator import Operator, OperatorSettings
from cluster.operator.io.pulse import LOOK_S, Pulse
from tests.cluster.agent.reports import placement, report
from tests.cluster.operator.api import Api, Key, Told, run_jumping
from tests.cluster.operator.cluster import node, policy

NODES = int(os.environ.get("OPERATOR_NODES", "5000"))
POLICIES = int(os.environ.get("OPERATOR_POLICIES", "50"))
CONTAINERS = 100
#: Labels of a node besides that of its pool.
LABELS = {f"label-{number}": "x" for number in range(20)}
NOW = "2026-11-22T10:00:00Z"
BEFORE, AFTER = {"policy": {"Active": "hygon"}}, {"policy": {"Active": "topology-aware"}}
#: Seconds for the first documents, and for the change: more than ten waves of both halves take.
REST_S = 600.0


class Server(Api):
    """Objects as a server's answers: each is read from JSON by the operator. ``own_s``: CPU time of the server itself."""

    def __init__(self) -> None:
        super().__init__()
        self.own_s = 0.0

    def of_server(self, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        try:
            return work()
        finally:
            self.own_s += time.process_time() - began

    async def get(self, resource: Resource, name: str, namespace: str = "", **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return self._read(self._found((resource.plural, name)))

    def _read(self, found: Any) -> Any:
        said = self.of_server(lambda: json.dumps(found))
        return json.loads(said)

    async def list(
        self, resource: Resource, *_: Any, keep: Callable[[Any], Any] = dict, **__: Any
    ) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"items": [keep(self._read(each)) for each in self.all(resource.plural).values()]}

    def _end(self, verb: str, key: Key, body: dict[str, Any]) -> dict[str, Any]:
        return self._read(self.of_server(lambda: self._stored(verb, key, body)))  # type: ignore[no-any-return]

    def _stored(self, verb: str, key: Key, body: dict[str, Any]) -> dict[str, Any]:
        metadata = {**body["metadata"], "resourceVersion": str(next(self._versions))}
        is_new = key not in self.objects
        self.objects[key] = {**body, "metadata": metadata}
        self._tell("ADDED" if is_new else "MODIFIED", key, self.objects[key])
        return self.objects[key]

    def _tell(self, kind: str, key: Key, found: dict[str, Any]) -> None:
        for plural, _, queue in self.watchers:
            if plural == key[0]:
                queue.put_nowait(Told(kind, found))

    async def watch(
        self, resource: Resource, *, keep: Any = None, limit: int = 500, **_: Any
    ) -> AsyncIterator[Told]:
        queue: asyncio.Queue[Told] = asyncio.Queue()
        self.watchers.append((resource.plural, keep, queue))
        yield Told("SYNC", [keep(self._read(each)) for each in self.all(resource.plural).values()])
        while True:
            told = await queue.get()
            yield Told(told.kind, keep(self._read(told.object)))
            await asyncio.sleep(0.00001)


class Rounds:
    """Plans, and the CPU time of each and of the writes after it, without the server's."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.plans_s: list[float] = []
        #: CPU time until the beginning of each.
        self.began_s: list[float] = []
        self.changes: list[int] = []
        self._plan = operator_module.plan

    def plan(self, *words: Any) -> Any:
        began = time.process_time()
        self.began_s.append(began - self.server.own_s)
        made = self._plan(*words)
        self.plans_s.append(time.process_time() - began)
        self.changes.append(len(made.changes))
        return made


async def main() -> None:
    print(machine_line())
    server = Server()
    rounds = Rounds(server)
    # The only place in which a plan can be counted from outside.
    operator_module.plan = rounds.plan  # type: ignore[assignment]
    rows = [placement(f"storefront-{number:03}") for number in range(CONTAINERS)]
    status = fit(status_of(AgentView(report(placements=rows)), {}, NOW))
    for number in range(NODES):
        server.objects["nodes", f"n{number:04}"] = node(
            f"n{number:04}", pool=f"pool-{number % POLICIES}", **LABELS
        )
        metadata = {"name": f"n{number:04}", "uid": f"np-{number}", "resourceVersion": "1"}
        server.objects["nodeplacements", f"n{number:04}"] = {
            "metadata": metadata,
            "spec": {},
            "status": status,
        }
    for number in range(POLICIES):
        selector = {"matchLabels": {"pool": f"pool-{number}"}}
        rollout = {"maxUnavailable": "10%", "pauseSeconds": 10}
        server.put("placementpolicies", policy(f"p{number}", BEFORE, nodeSelector=selector, rollout=rollout))
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time, lambda: 1_000_000.0 + loop.time(), asyncio.sleep, lambda: 0.5)
    operator = Operator(server, OperatorSettings("bench"), clock, lambda line: None)
    tasks = [asyncio.ensure_future(each) for each in (operator.run(), _agents(server))]
    await asyncio.sleep(REST_S)
    assert _complete(server) == POLICIES
    before_s, own_s, plans = time.process_time(), server.own_s, len(rounds.plans_s)
    for found in server.all("placementpolicies").values():
        spec = {**found["spec"], "config": AFTER}
        server.put(
            "placementpolicies", {**found, "metadata": {**found["metadata"], "generation": 2}, "spec": spec}
        )
    while _complete(server) < POLICIES:
        await asyncio.sleep(5)
    spent_s = time.process_time() - before_s - (server.own_s - own_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    made_s, changes = rounds.plans_s[plans:], rounds.changes[plans:]
    size = len(json.dumps(server.objects["nodeplacements", "n0000"]))
    print(f"{NODES} nodes of {size // 1000} KB, {POLICIES} policies, one change of all")
    print_row("rounds; of these with changes", f"{len(made_s)}; {sum(1 for each in changes if each)}")
    print_row("a plan, CPU s: mean, most", f"{sum(made_s) / len(made_s):.3f}, {max(made_s):.3f}")
    began_s = rounds.began_s[plans:]
    most_s = max(after - before for before, after in zip(began_s, began_s[1:]))
    print_row(
        "a round with all it reads and writes, CPU s: mean, most",
        f"{spent_s / len(made_s):.2f}, {most_s:.2f}",
    )
    print_row("the whole change, CPU s", f"{spent_s:.1f}")
    print_row("a look at all heartbeats, CPU s", f"{await _heartbeats_s(server, clock):.2f}")


async def _heartbeats_s(server: Server, clock: Clock) -> float:
    """CPU time of a look at the Leases of all agents, each of which was renewed since the one before."""
    looks, began_s, own_s = 10, time.process_time(), server.own_s
    looking = asyncio.ensure_future(Pulse(server, clock, asyncio.Event(), lambda line: None).run())
    for _ in range(looks):
        server.of_server(lambda: _renew(server, clock.wall()))
        await asyncio.sleep(LOOK_S)
    looking.cancel()
    return (time.process_time() - began_s - (server.own_s - own_s)) / looks


def _renew(server: Server, now: float) -> None:
    for name in server.all("nodes"):
        owner = {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "name": name, "uid": f"np-{name}"}
        found = lease(name, owner, now)
        found["metadata"]["managedFields"] = [{"manager": AGENT_MANAGER, "time": NOW, "operation": "Apply"}]
        server.objects["leases", lease_name(name)] = found


def _complete(server: Server) -> int:
    found = server.all("placementpolicies").values()
    return sum(
        each.get("status", {}).get("phase") == "Complete"
        and each["status"]["observedGeneration"] == each["metadata"]["generation"]
        for each in found
    )


async def _agents(server: Server) -> None:
    """Those of the nodes whose document is another than they have told, every two seconds."""
    told: dict[str, str] = {}
    while True:
        await asyncio.sleep(2.0)
        for name, found in server.all("nodeplacements").items():
            given = found["spec"].get("policy") or {}
            if given.get("hash", "") != told.get(name, ""):
                told[name] = given["hash"]
                done = {**{key: given[key] for key in ("name", "generation", "hash")}, "state": "Applied"}
                status = {**found["status"], "policy": done, "judgedPolicy": given["hash"]}
                server.put("nodeplacements", {**found, "status": status})


if __name__ == "__main__":
    run_jumping(main())
