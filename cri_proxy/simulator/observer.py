"""The observer and the planner of a simulated node: the same graph, fed by the steps of a scenario.

Each stretch of time is one sample: of ``traffic`` with what it names, of all else with nothing, so that traffic
that has stopped fades as it does on a node. The observer is a process of its own: it outlives the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cri_proxy.affinity.moves import describe, plan_of
from cri_proxy.affinity.problem import snapshot_of
from cri_proxy.affinity.settings import affinity_settings, graph_settings
from cri_proxy.config.config import Config
from cri_proxy.engine.engine import Engine
from cri_proxy.simulator.node import Process
from cri_proxy.simulator.scenario import ScenarioEdge
from policies.affinity.graph.graph import EndpointIdentity, Graph
from policies.affinity.pull.owners import owner_of

#: Moves that are explained one by one in a line of the output.
EXPLAINED = 10


@dataclass(frozen=True)
class _Flow:
    """What two containers have said to each other in a sample."""

    a: str
    b: str
    bytes_ab: int
    messages: int
    bytes_ba: int = 0
    kind: str = "tcp"


class SimulatedObserver:
    """The graph of a simulated node."""

    def __init__(self, config: Config) -> None:
        self._graph = Graph(graph_settings(config))
        self._is_blind = config["affinity.provider"] == "declared"

    def configure(self, config: Config) -> None:
        """Take over another configuration."""
        self._graph.settings = graph_settings(config)
        self._is_blind = config["affinity.provider"] == "declared"
        self._graph.refresh()

    def observe(
        self, seconds: float, edges: Iterable[ScenarioEdge], containers: Mapping[str, Process]
    ) -> None:
        """One sample: what was said in the last ``seconds``, among those that run."""
        alive = {process.id: _identity(process) for process in containers.values() if not process.exited}
        flows = [
            _Flow(edge.a, edge.b, round(edge.bytes_per_s * seconds), round(edge.msgs_per_s * seconds))
            for edge in edges
            if edge.a != edge.b and edge.a in alive and edge.b in alive and not self._is_blind
        ]
        self._graph.forget({*self._graph.endpoints} - alive.keys())
        self._graph.observe(seconds, flows, alive)

    def tell(self, engine: Engine) -> None:
        """Give the engine the picture as it is now."""
        engine.set_traffic(self._graph.traffic())


def _identity(process: Process) -> EndpointIdentity:
    pod, name = process.sandbox.config, process.request.config.metadata.name
    namespace = pod.metadata.namespace
    owner = owner_of(namespace, pod.metadata.name, dict(pod.labels), name)
    return EndpointIdentity(process.id, pod.metadata.uid, namespace, pod.metadata.name, name, owner)


def rebalance(engine: Engine, config: Config, now_s: float) -> str:
    """Plan and make the moves at once, whatever the token bucket says; returns what happened in words."""
    # The planner is a process of its own in the daemon; nothing of it is loaded until it is needed.
    from policies.affinity.planner.planner import plan

    question = snapshot_of(engine, affinity_settings(config), now_s)
    proposal = plan(question.problem)
    rows = {row["id"]: row for row in describe(question, proposal)}
    moves = plan_of(engine, question, proposal, len(proposal.moves), now_s)
    before = {move.id: engine.grants[move.id].placement.home for move in moves.moves}
    engine.apply(moves)
    made = [key for key, home in before.items() if engine.grants[key].placement.home != home]
    words = [f"{key} to {rows[key]['to']} {rows[key]['why']}" for key in made[:EXPLAINED]]
    dropped = len(before) - len(made)
    note = [f"{dropped} of these moves did not hold"] if dropped else []
    return "; ".join([proposal.why, *words, *note])
