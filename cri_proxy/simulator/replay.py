"""``cri-resmgr simulate``: replays a scenario through the daemon's own reader, engine and writer.

A step is one method here: it says to the simulated node what happens, and one line tells what came of it.
The clock is a number that ``wait`` and ``traffic`` move on. The same input gives the same output, to the
byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, Union

from cri_proxy.config.config import BadConfig, Config, LoadedConfig
from cri_proxy.engine.model import Life, Management
from cri_proxy.engine.report import domain_pools, engine_cpus, engine_sentence, engine_status
from cri_proxy.engine.resync import Resync
from cri_proxy.simulator.daemon import CallResult, SimulatedShell, sent_with
from cri_proxy.simulator.node import (
    Process,
    create_request,
    resize_pod_request,
    sandbox_request,
    update_request,
)
from cri_proxy.simulator.scenario import BadScenario, ScenarioStep, read_scenario
from cri_proxy.text.terminal import stance_text
from policies.machine.cpus import format_cpus
from policies.machine.topology import BadTopology, Topology, TopologyData
from policies.reasons import plain

__all__ = ["BadScenario", "read_scenario", "run_simulation", "simulate", "write_line"]

#: One sample of the observer.
TRAFFIC_S = 10.0

Line = dict[str, Any]
LoadConfig = Callable[[str], Union[Config, LoadedConfig]]


def simulate(
    topology: TopologyData,
    config: Union[Config, LoadedConfig],
    steps: Any,
    load_config: LoadConfig,
    warnings: Sequence[str] = (),
) -> Iterator[Line]:
    """Run the steps (parsed JSON): one output object for each, made when it is asked for.

    ``load_config`` reads the file of a ``config`` step; it may raise ``BadConfig`` or ``OSError``. ``warnings``: what of the
    machine could not be read; these, and those of a ``LoadedConfig``, are in the lines as well.

    :raises BadScenario: at once for what is wrong with the steps themselves, in its turn for an unknown id.
    :raises BadTopology: the machine contradicts itself.
    """
    scenario = read_scenario(steps)
    simulation = Simulation(topology, config, load_config, warnings)
    return (simulation.run(step) for step in scenario)


def write_line(line: Line) -> str:
    """A line of ``simulate`` as compact JSON, without its end."""
    return json.dumps(line, separators=(",", ":"))


def run_simulation(
    topology: TopologyData, config: Union[Config, LoadedConfig], steps: Any, load_config: LoadConfig
) -> Iterator[str]:
    """``simulate`` as ``write_line`` writes it."""
    return map(write_line, simulate(topology, config, steps, load_config))


@dataclass(frozen=True)
class PlaceText:
    """Where a container runs, as texts; "" = not set."""

    cpus: str = ""
    mems: str = ""
    exclusive: str = ""
    level: str = "none"

    @property
    def sets(self) -> tuple[str, str, str]:
        """What it is to be elsewhere; the level is but a name for it."""
        return self.cpus, self.mems, self.exclusive


class Simulation:
    """One simulated node, and what was last told of it."""

    def __init__(
        self,
        topology: TopologyData,
        config: Union[Config, LoadedConfig],
        load_config: LoadConfig,
        warnings: Sequence[str] = (),
    ) -> None:
        loaded = _loaded(config)
        self._shell = SimulatedShell(topology, loaded.config, warnings)
        self._load_config = load_config
        self._config_warnings = loaded.warnings
        #: What was told before of the node: the daemon's log says it once, too.
        self._told: tuple[str, ...] = ()
        #: Where each container was after the step before.
        self._places: dict[str, PlaceText] = {}

    def run(self, step: ScenarioStep) -> Line:
        """Carry out one step; returns its line."""
        answer = _OPS[step.op](self, step)
        self._shell.save()
        own = self._containers.get(step["id"]) if step.op in _OF_CONTAINERS else None
        moved = self._moved(own)
        place = PlaceText() if own is None else self._remember(own)
        shown = PlaceText() if answer.error else place
        line: Line = {
            "step": step.number,
            "op": step.op,
            "id": step.values.get("id", ""),
            "cpus": shown.cpus,
            "mems": shown.mems,
            "exclusive": shown.exclusive,
            "cpu_quota": 0 if own is None else own.linux.cpu_quota,
            "cpu_shares": 0 if own is None else own.linux.cpu_shares,
            "level": shown.level,
            "sent": answer.sent,
            "why": plain(answer.why),
            "moved": moved,
            "error": answer.error,
            "notes": self._notes(),
        }
        if step.op == "state":
            line.update(self._state())
        return line

    def _notes(self) -> list[str]:
        """What the node's status and log say of it since this step: its CPUs, and what an operator should look at."""
        shell = self._shell
        cpus = engine_sentence(engine_cpus(shell.engine, shell.config["policy.Active"]))
        sentences = (cpus, *self._config_warnings, *shell.warnings)
        news = [sentence for sentence in sentences if sentence not in self._told]
        self._told = sentences
        return news

    def _moved(self, own: Any) -> list[Line]:
        """Other containers that run, and elsewhere than before; in the order they were created."""
        others = [self._containers[key] for key in self._shell.touched if key in self._containers]
        self._shell.touched.clear()
        rows = []
        for process in sorted(others, key=lambda p: p.number):
            if process is own:
                continue
            before = self._places.get(process.id)
            place = self._remember(process)
            if before is not None and before.sets != place.sets and not process.exited:
                rows.append({"id": process.id, **vars(place)})
        return rows

    def _remember(self, process: Process) -> PlaceText:
        place = self._places[process.id] = self._place(process)
        return place

    # ------------------------------------------------------------------ pods and containers

    def _pod(self, step: ScenarioStep) -> CallResult:
        if step["id"] in self._shell.runtime.sandboxes:
            raise step.bad("id", f"there is a pod {step['id']!r} already")
        pod = self._shell.run_sandbox(step["id"], sandbox_request(step))
        size = "its size is not known" if pod.size is None else f"{pod.size.milli_request}m requested in all"
        return CallResult(f"pod {pod.namespace}/{pod.name}, {size}")

    def _resize_pod(self, step: ScenarioStep) -> CallResult:
        sandbox = self._shell.runtime.sandboxes.get(step["id"])
        if sandbox is None:
            raise step.bad("id", f"there is no pod {step['id']!r}")
        self._shell.resize_pod(step["id"], resize_pod_request(step, sandbox.config))
        return CallResult("the pod has other resources")

    def _create(self, step: ScenarioStep) -> CallResult:
        old = self._containers.get(step["id"])
        if old is not None and not old.exited:
            raise step.bad("id", f"there is a container {step['id']!r} already")
        sandboxes = self._shell.runtime.sandboxes
        if step["pod"] not in sandboxes:
            self._shell.run_sandbox(step["pod"], sandbox_request(step))
        name = self._shell.runtime.default_name(step["pod"], step["id"])
        message = create_request(step, sandboxes[step["pod"]].config, self._shell.memory_bytes, name)
        return self._shell.create(step["id"], message, step["result"], step["kubelets"])

    def _update(self, step: ScenarioStep) -> CallResult:
        process = self._known(step, "id", step["id"])
        result, is_kubelets = step.values.get("result", "ok"), step.values.get("kubelets", False)
        return self._shell.update(process, update_request(step), result, is_kubelets)

    def _exit(self, step: ScenarioStep) -> CallResult:
        process = self._known(step, "id", step["id"])
        if process.exited:
            return CallResult("it had ended before")
        self._shell.exit(process, step["code"])
        grant = self._shell.engine.grants.get(process.id)
        if grant is None or grant.life is not Life.HELD:
            return CallResult("no place is held for it")
        return CallResult(f"its place is held for {grant.hold_until_s - self._shell.now_s:g} s")

    def _remove(self, step: ScenarioStep) -> CallResult:
        self._shell.remove(self._known(step, "id", step["id"]))
        return CallResult("it is gone, and its place is free")

    def _remove_pod(self, step: ScenarioStep) -> CallResult:
        if step["id"] not in self._shell.runtime.sandboxes:
            raise step.bad("id", f"there is no pod {step['id']!r}")
        gone = self._shell.remove_sandbox(step["id"])
        return CallResult("the pod is gone" + (f", with {', '.join(gone)}" if gone else ""))

    # ------------------------------------------------------------------ the node

    def _wait(self, step: ScenarioStep) -> CallResult:
        found = self._shell.pass_time(step["seconds"])
        return CallResult(_join(f"{step['seconds']:g} s have passed", _told(found)))

    def _traffic(self, step: ScenarioStep) -> CallResult:
        for edge in step["edges"]:
            self._known(step, "edges", edge.a)
            self._known(step, "edges", edge.b)
        found = self._shell.pass_time(TRAFFIC_S, step["edges"])
        return CallResult(_join(f"{TRAFFIC_S:g} s of traffic were seen", _told(found)))

    def _rebalance(self, step: ScenarioStep) -> CallResult:
        return CallResult(self._shell.rebalance())

    def _restart(self, step: ScenarioStep) -> CallResult:
        told, found = self._shell.restart(step["state"])
        return CallResult(_join(told, _told(found)))

    def _config(self, step: ScenarioStep) -> CallResult:
        try:
            loaded = _loaded(self._load_config(step["file"]))
        except BadConfig as error:
            return CallResult(error=f"the configuration before it stays: {error.errors[0]}")
        except OSError as error:
            raise step.bad("file", str(error)) from None
        mode = self._shell.mode
        self._config_warnings = loaded.warnings
        self._shell.rehost(loaded.config, self._shell.machine.topology)
        # As the daemon: what went on while the engine was not asked is found out when it is asked again.
        found = Resync() if mode == self._shell.mode else self._shell.look()
        in_force = f"mode {self._shell.mode}, policy {self._shell.engine.policy.name}"
        return CallResult(_join(in_force, _told(found)))

    def _cpus(self, step: ScenarioStep) -> CallResult:
        topology = self._shell.machine.topology
        for field in ("offline", "online"):
            unknown = step[field] - topology.cpus.keys()
            if unknown:
                raise step.bad(field, f"the machine has no CPUs {format_cpus(unknown)}")
        both = step["offline"] & step["online"]
        if both:
            raise step.bad("online", f"CPUs {format_cpus(both)} are to go offline as well")
        offline = (topology.data.offline | step["offline"]) - step["online"]
        try:
            changed = Topology(replace(topology.data, offline=offline))
        except BadTopology as error:
            return CallResult(error=str(error))
        self._shell.rehost(self._shell.config, changed)
        return CallResult(f"online: {format_cpus(changed.online)}")

    def _drift(self, step: ScenarioStep) -> CallResult:
        process = self._known(step, "id", step["id"])
        if process.exited:
            return CallResult("it has ended: there is no cpuset to change")
        process.linux.cpuset_cpus = format_cpus(step["cpus"])
        found = self._shell.look()
        repairs = [update for update in self._shell.told if update.id == process.id]
        if repairs:
            return CallResult(f"repaired: {repairs[0].why}", sent_with(repairs[-1]))
        grant = self._shell.engine.grants.get(process.id)
        if process.id in found.foreign and grant is not None:
            return CallResult(f"left alone from now on: {grant.why}")
        return CallResult(
            "nothing to repair" + ("" if grant is None else f": it is {stance_text(grant.stance.value)}")
        )

    def _tell(self, step: ScenarioStep) -> CallResult:
        return CallResult()

    # ------------------------------------------------------------------ telling

    @property
    def _containers(self) -> dict[str, Process]:
        return self._shell.runtime.containers

    def _known(self, step: ScenarioStep, field: str, container_id: str) -> Process:
        process = self._containers.get(container_id)
        if process is None:
            raise step.bad(field, f"there is no container {container_id!r}")
        return process

    def _place(self, process: Process) -> PlaceText:
        grant = self._shell.grant(process)
        if process.exited and grant is None:
            return PlaceText()
        constraint = process.constraint
        cpus, mems = format_cpus(constraint.cpus or ()), format_cpus(constraint.mems or ())
        if grant is None:
            return PlaceText(cpus, mems)
        level = grant.placement.level if grant.stance is Management.PLACED else "none"
        return PlaceText(cpus, mems, format_cpus(grant.exclusive), level)

    def _state(self) -> Line:
        node = self._shell.engine.node
        return {
            "containers": [
                {
                    "id": process.id,
                    "pod": process.sandbox.id,
                    "name": process.request.config.metadata.name,
                    **vars(self._place(process)),
                    "state": self._state_of(process),
                }
                for process in self._containers.values()
            ],
            "free": {
                pools.name: {"cpus": format_cpus(pools.cpus & node.shared), "free_milli": pools.free_milli}
                for pools in domain_pools(node)
            },
            "invariants": "; ".join(self._shell.broken()) or "ok",
            "status": engine_status(
                self._shell.engine, self._shell.config["policy.Active"], self._shell.now_s
            ),
        }

    def _state_of(self, process: Process) -> str:
        grant = self._shell.grant(process)
        if grant is not None and grant.life is Life.HELD:
            return "held"
        return "in doubt" if grant is not None and grant.life is Life.CREATING else process.state


def _loaded(config: Union[Config, LoadedConfig]) -> LoadedConfig:
    return config if isinstance(config, LoadedConfig) else LoadedConfig(config)


def _told(found: Resync) -> str:
    """What a look at the runtime has found, in words."""
    topics = ("bound", "adopted", "removed", "drifted", "resized", "foreign", "cancelled")
    news = {topic: getattr(found, topic) for topic in topics}
    return _join(*[f"{stance_text(topic)}: {', '.join(ids)}" for topic, ids in news.items() if ids])


def _join(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)


_OPS: dict[str, Callable[[Simulation, ScenarioStep], CallResult]] = {
    "pod": Simulation._pod,
    "create": Simulation._create,
    "resize": Simulation._update,
    "resize-pod": Simulation._resize_pod,
    "update": Simulation._update,
    "exit": Simulation._exit,
    "remove": Simulation._remove,
    "remove-pod": Simulation._remove_pod,
    "traffic": Simulation._traffic,
    "rebalance": Simulation._rebalance,
    "wait": Simulation._wait,
    "restart": Simulation._restart,
    "config": Simulation._config,
    "cpus": Simulation._cpus,
    "drift": Simulation._drift,
    "state": Simulation._tell,
}
_OF_CONTAINERS = frozenset(["create", "resize", "update", "exit", "remove", "drift"])
