"""The operator's own process and account on a real API server; three agents that answer by writing status."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from cluster.api.names import AGENT_MANAGER, API_VERSION, NAMESPACE, OPERATOR
from cluster.operator.objects import read_node_placement
from tests.cluster.operator.cluster import policy, well_status
from tests.cluster.real.control_plane import ControlPlane, Refused

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[3]
APPLY = "application/apply-patch+yaml"
PLACEMENTS = "/apis/cri-resmgr.io/v1alpha1/nodeplacements"
POLICIES = "/apis/cri-resmgr.io/v1alpha1/placementpolicies"
GOOD = {"policy": {"Active": "hygon"}}
BETTER = {"policy": {"Active": "topology-aware"}}
TOO_MANY = {"policy": {"Active": "hygon", "ReservedResources": {"CPU": "900"}}}
REFUSAL = "policy.ReservedResources.CPU is 900 CPUs, and this node has 64"
LIMIT_S = 120.0
NAMES = ("roll-0", "roll-1", "roll-2")


def until(done: Callable[[], bool]) -> None:
    """Wait; a server that says no (a CRD is not served at once) is asked again."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(Refused):
            if done():
                return
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


class Agents(threading.Thread):
    """Three nodes: heartbeats, and for each an agent that carries out what its NodePlacement says."""

    def __init__(self, server: ControlPlane) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.problem: Any = None
        self.most_in_change = 0
        self._over = threading.Event()
        self._beaten_at = 0.0

    def run(self) -> None:
        try:
            while not self._over.wait(0.05):
                try:
                    self._round()
                except Refused as refused:
                    # As after another schema: it is to be asked again.
                    if refused.code != 429:
                        raise
        except BaseException as error:
            self.problem = error

    def close(self) -> None:
        self._over.set()
        self.join()
        assert self.problem is None, self.problem

    def _round(self) -> None:
        if time.monotonic() > self._beaten_at + 5:
            self._beaten_at = time.monotonic()
            for name in NAMES:
                now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
                ready = {"type": "Ready", "status": "True", "reason": "Tests", "lastHeartbeatTime": now}
                body = {"status": {"conditions": [ready]}}
                kind = "application/strategic-merge-patch+json"
                self.server.ask("PATCH", f"/api/v1/nodes/{name}/status", body, content_type=kind)
        found = [
            each for each in self.server.ask("GET", PLACEMENTS)["items"] if each["metadata"]["name"] in NAMES
        ]
        states = [read_node_placement(each) for each in found]
        self.most_in_change = max(self.most_in_change, sum(not each.confirmed for each in states))
        for each in found:
            self._answer(each)

    def _answer(self, found: dict[str, Any]) -> None:
        given = found["spec"].get("policy")
        status = well_status(observedGeneration=found["metadata"]["generation"])
        for condition in status["conditions"]:
            condition.update(reason="Tests", message="", lastTransitionTime="2026-01-01T00:00:00Z")
        if given:
            done = {key: given[key] for key in ("name", "generation", "hash")}
            status["policy"] = {**done, "state": "Applied", "message": ""}
            if given["config"] == TOO_MANY:
                status["policy"].update(state="Refused", message=REFUSAL)
        if found.get("status") == status:
            return
        name = found["metadata"]["name"]
        document = {
            "apiVersion": API_VERSION,
            "kind": "NodePlacement",
            "metadata": {"name": name},
            "status": status,
        }
        where = f"{PLACEMENTS}/{name}/status?fieldManager={AGENT_MANAGER}&force=true"
        self.server.ask("PATCH", where, document, content_type=APPLY)


class Process:
    """``python -m cluster.operator``, or another ``program``, as its service account."""

    def __init__(self, server: ControlPlane, folder: Path, program: str = "cluster.operator") -> None:
        self._program = program
        token = server.account_token(NAMESPACE, OPERATOR)
        self._kubeconfig = server.kubeconfig(folder / "operator.kubeconfig", token=token)
        self._log = folder / "operator.log"
        self._running: Any = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        command = [sys.executable, "-m", self._program, f"--kubeconfig={self._kubeconfig}"]
        # The same holder each time: the one before is dead, and its Lease need not run out.
        command += ["--identity=tests", "--quiet=0.02"]
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._running.terminate()
        return int(self._running.wait(30))

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def agents(rights: ControlPlane) -> Iterator[Agents]:
    for name in NAMES:
        rights.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"roll": "yes"}}})
    running = Agents(rights)
    running.start()
    try:
        yield running
    finally:
        running.close()
        for name in NAMES:
            rights.ask("DELETE", f"/api/v1/nodes/{name}")
            with contextlib.suppress(Refused):
                rights.ask("DELETE", f"{PLACEMENTS}/{name}")
        with contextlib.suppress(Refused):
            rights.ask("DELETE", f"{POLICIES}/roll")


@pytest.fixture
def process(rights: ControlPlane, agents: Agents, tmp_path: Path) -> Iterator[Process]:
    running = Process(rights, tmp_path)
    running.start()
    try:
        yield running
    finally:
        # In good order: the Lease is given back, and the next operator need not wait for its end.
        running.stop()
        # Shown if the test fails.
        print(running.log()[-8000:])


def write_policy(server: ControlPlane, config: dict[str, Any]) -> None:
    selector = {"matchLabels": {"roll": "yes"}}
    document = policy("roll", config, nodeSelector=selector, rollout={"maxUnavailable": 1, "pauseSeconds": 0})
    document["metadata"] = {"name": "roll"}
    where = f"{POLICIES}/roll?fieldManager=people&force=true"
    server.ask("PATCH", where, document, content_type=APPLY)


def status(server: ControlPlane) -> dict[str, Any]:
    """Of the policy, once the operator has looked at its newest generation; {} before."""
    found = server.ask("GET", f"{POLICIES}/roll")
    said = found.get("status") or {}
    return said if said.get("observedGeneration") == found["metadata"]["generation"] else {}


def configs(server: ControlPlane) -> list[Any]:
    found = [server.ask("GET", f"{PLACEMENTS}/{name}") for name in NAMES]
    return [each["spec"].get("policy", {}).get("config") for each in found]


def test_a_policy_goes_over_three_nodes_and_one_that_a_node_refuses_comes_back(
    rights: ControlPlane, agents: Agents, process: Process
) -> None:
    write_policy(rights, GOOD)
    until(lambda: status(rights).get("phase") == "Complete")
    said = status(rights)
    assert [said[key] for key in ("desired", "updated", "ready", "degraded")] == [3, 3, 3, 0]
    assert configs(rights) == [GOOD] * 3
    # 1. What people write is left, and a change reaches all nodes.
    people = {
        "apiVersion": API_VERSION,
        "kind": "NodePlacement",
        "metadata": {"name": NAMES[0]},
        "spec": {"freeze": True},
    }
    where = f"{PLACEMENTS}/{NAMES[0]}?fieldManager=people"
    rights.ask("PATCH", where, people, content_type=APPLY)
    write_policy(rights, BETTER)
    until(lambda: status(rights).get("phase") == "Complete")
    assert configs(rights) == [BETTER] * 3
    assert rights.ask("GET", f"{PLACEMENTS}/{NAMES[0]}")["spec"]["freeze"] is True
    # 2. More reserved CPUs than a node has: the first node refuses, and has back what it had.
    write_policy(rights, TOO_MANY)
    until(lambda: status(rights).get("phase") == "Aborted")
    assert configs(rights) == [BETTER] * 3
    assert REFUSAL in status(rights)["message"]
    assert agents.most_in_change <= 1
    assert process.stop() == 0
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{OPERATOR}"
    assert not rights.ask("GET", lease)["spec"].get("holderIdentity")


@pytest.mark.parametrize(
    ("config", "phase", "end"), [(BETTER, "Complete", BETTER), (TOO_MANY, "Aborted", GOOD)]
)
def test_killed_after_each_change_that_can_be_seen_it_ends_the_same(
    rights: ControlPlane, agents: Agents, process: Process, config: Any, phase: str, end: Any
) -> None:
    write_policy(rights, GOOD)
    until(lambda: status(rights).get("phase") == "Complete")
    write_policy(rights, config)
    seen = written(rights)

    def killed_until_done() -> bool:
        nonlocal seen
        now = written(rights)
        if now != seen:
            seen = now
            process.kill()
            process.start()
        return bool(status(rights).get("phase") == phase)

    until(killed_until_done)
    until(lambda: configs(rights) == [end] * 3)
    assert process.starts > 1
    assert agents.most_in_change <= 1


def written(server: ControlPlane) -> Any:
    """What the operator has written, and nothing of what the agents have."""
    found = [server.ask("GET", f"{PLACEMENTS}/{name}") for name in NAMES]
    nodes = [
        (each["metadata"].get("annotations"), each["spec"].get("policy", {}).get("hash")) for each in found
    ]
    return nodes, (server.ask("GET", f"{POLICIES}/roll").get("status") or {}).get("conditions")
