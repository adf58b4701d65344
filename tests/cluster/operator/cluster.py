"""A cluster as values: objects, server-side apply as far as the operator needs it, and agents that answer."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Callable, Optional

from cluster.api.names import API_VERSION
from cluster.operator import rollout
from cluster.operator.objects import PlacementPolicy, read_node, read_node_placement, read_policy
from cluster.operator.plan import (
    AgentsWord,
    ClusterPlan,
    agents_word_document,
    changed,
    new_node_placement,
    plan,
)
from cluster.operator.rollout import NodePlacementWrite


def policy(
    name: str = "p", config: Optional[dict[str, Any]] = None, generation: int = 1, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "PlacementPolicy",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": generation},
        "spec": {
            "config": config if config is not None else {"policy": {"Active": "hygon"}},
            **spec,
            "rollout": {"pauseSeconds": 0, **spec.get("rollout", {})},
        },
    }


def node(name: str, ready: bool = True, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"node-{name}", "labels": dict(labels)},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]},
    }


def well_status(**more: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "False"}]
    return {"conditions": conditions, "doctor": {"errors": 0}, **more}


class Simulated:
    """Nothing is remembered between two calls of ``plan`` but the objects: every call is an operator just started."""

    def __init__(self, nodes: int = 3, bad: Callable[[str, Any], str] = lambda node, config: "") -> None:
        self.now = 1_000_000.0
        self.nodes = {f"n{each}": node(f"n{each}") for each in range(nodes)}
        self.placements: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        #: (node, config) to what the agent makes of it: "" = well, "refuse", "degrade".
        self.bad = bad
        #: Node and kind of each write of spec.policy.
        self.written: list[tuple[str, str]] = []
        self._versions = itertools.count(1)

    def plan(self) -> ClusterPlan:
        return plan(
            {name: read_policy(each) for name, each in self.policies.items()},
            {name: read_node(each) for name, each in self.nodes.items()},
            {name: read_node_placement(each) for name, each in self.placements.items()},
            {},
            self.now,
        )

    def write_one(self) -> bool:
        """The first write of a plan; False where there is none."""
        found = self.plan()
        if found.create:
            self._store(new_node_placement(found.create[0]))
        elif found.words:
            self._say(found.words[0])
        elif found.statuses:
            first = found.statuses[0]
            self.policies[first.policy.name]["status"] = copy.deepcopy(first.status)
        elif found.changes:
            self._change(*found.changes[0])
        return bool(found.create or found.words or found.statuses or found.changes)

    def _say(self, word: AgentsWord) -> None:
        """As server-side apply to ``status`` does it."""
        found = self.placements[word.seen.name]
        (ready,) = agents_word_document(word, found, self.now)["status"]["conditions"]
        others = [each for each in found["status"]["conditions"] if each["type"] != "Ready"]
        found["status"] = {**found["status"], "conditions": [ready, *others]}

    def _change(self, by: Optional[PlacementPolicy], change: NodePlacementWrite) -> None:
        found = self.placements[change.seen.name]
        well = rollout.able(change.seen, True)
        if change.kind != rollout.CONFIRM:
            self.written.append((change.seen.name, change.kind))
        self._store(changed(change, by, found, self.now, well))

    def _store(self, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        found = copy.deepcopy(self.placements.get(name, {"metadata": {"uid": f"np-{name}"}}))
        found["metadata"] = {"uid": found["metadata"]["uid"], **body["metadata"]}
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        people = {key: value for key, value in found.get("spec", {}).items() if key != "policy"}
        found["spec"] = {**people, **body["spec"]}
        self.placements[name] = found

    def answer(self, name: str) -> None:
        """The agent of this node carries out what it finds and says so."""
        found = self.placements[name]
        given = found.get("spec", {}).get("policy")
        status = well_status()
        if given:
            status["policy"] = {"name": given["name"], "hash": given["hash"], "state": "Applied"}
            verdict = self.bad(name, given["config"])
            if verdict == "refuse":
                status["policy"].update(
                    state="Refused", message="policy.ReservedResources.CPU: 9 CPUs wanted, 8 there"
                )
            if verdict == "degrade":
                status["conditions"][1] = {
                    "type": "Degraded",
                    "status": "True",
                    "message": "kubelet's cpuset is in the way",
                }
        found["status"] = status
        found["metadata"]["resourceVersion"] = str(next(self._versions))

    def given_hash(self, name: str) -> str:
        """Of the document that a node has; "" = none."""
        return str((self.placements[name].get("spec", {}).get("policy") or {}).get("hash", ""))

    def in_change(self) -> int:
        states = [read_node_placement(each) for each in self.placements.values()]
        return sum(not each.confirmed for each in states)

    def settle(self) -> None:
        """Until nothing is left to write and every agent has answered, time included."""
        for _ in range(2000):
            while self.write_one():
                for name in self.placements:
                    self.answer(name)
            before = copy.deepcopy((self.placements, self.policies))
            for name in self.placements:
                self.answer(name)
            self.now += 7.0
            if not self.write_one() and self._same(before):
                self.now += 600.0
                if not self.write_one():
                    return
        raise AssertionError("the cluster does not come to rest")

    def _same(self, before: tuple[Any, Any]) -> bool:
        return self.outline() == outline(*before)

    def outline(self) -> Any:
        return outline(self.placements, self.policies)


def outline(placements: dict[str, Any], policies: dict[str, Any]) -> Any:
    """What must be the same however often the operator was killed: documents, phases and counts, not times."""
    status = {
        name: {
            key: each.get("status", {}).get(key)
            for key in ("phase", "updated", "ready", "degraded", "completedHash")
        }
        for name, each in policies.items()
    }
    return {name: each.get("spec", {}).get("policy") for name, each in placements.items()}, status
