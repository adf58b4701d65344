"""Short ways to say: this machine, this pod, this container, placed by this policy.

CPUs are given as people write them: a limit of ``1.5`` is 1,500 milli-CPUs. What is left out has the least
telling value: no limit, no request, a pod of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Optional, Union, cast

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate, Host
from policies.hygon import Hygon
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Topology, TopologyData
from policies.model import (
    NO_CONSTRAINT,
    Affinity,
    Constraint,
    Container,
    Decision,
    Hint,
    Placement,
    PlacementPreferences,
    PlacementRequest,
    Pod,
    PodSize,
    Qos,
    Resident,
    Resources,
    wanted_milli,
)
from policies.node import Node
from policies.policy import Policy
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import GIB, machine
from tests.told_at_once import ToldAtOnce

Number = Union[int, float]

HYGON = PlacementSettings()
TOPOLOGY_AWARE = PlacementSettings(ownership="exclusive")
NO_PREFERENCES = PlacementPreferences()


@cache
def topology(name: str) -> Topology:
    return Topology(machine(name))


def node_of(
    where: Union[str, Topology], usable: Optional[str] = None, reserved: str = "", mems: Optional[str] = None
) -> Node:
    """Empty books of a machine."""
    tree = topology(where) if isinstance(where, str) else where
    cpus = tree.online if usable is None else parse_cpus(usable)
    nodes = tree.memory_nodes if mems is None else parse_cpus(mems)
    return Node(tree, cpus, nodes, parse_cpus(reserved))


def make_pod(
    name: str = "pod",
    namespace: str = "default",
    size: Optional[tuple[Number, Optional[Number]]] = None,
    annotations: Optional[Mapping[str, str]] = None,
    runtime_handler: str = "",
) -> Pod:
    """``size``: CPU request and limit of the whole pod, where its source tells them."""
    told = (
        None if size is None else PodSize(milli(size[0]), None if size[1] is None else milli(size[1]), "test")
    )
    return Pod(
        id=f"sandbox-{name}",
        uid=f"uid-{name}",
        name=name,
        namespace=namespace,
        size=told,
        annotations=annotations or {},
        runtime_handler=runtime_handler,
    )


def make_container(
    name: str = "app",
    limit: Optional[Number] = None,
    request: Optional[Number] = None,
    pod: Optional[Pod] = None,
    qos: Optional[Qos] = None,
    memory: int = 0,
    attempt: int = 0,
    preferences: PlacementPreferences = NO_PREFERENCES,
    hints: tuple[Hint, ...] = (),
) -> Container:
    """``request`` defaults to nothing, or to ``limit`` where that makes the container Guaranteed. ``memory``: GiB."""
    wanted = request if request is not None else limit if qos is Qos.GUARANTEED else 0
    asks_nothing = limit is None and not wanted
    return Container(
        pod=pod or make_pod(f"pod-of-{name}"),
        name=name,
        attempt=attempt,
        qos=qos or (Qos.BESTEFFORT if asks_nothing else Qos.BURSTABLE),
        resources=Resources(
            milli_request=milli(wanted or 0),
            milli_limit=None if limit is None else milli(limit),
            memory_limit_bytes=memory * GIB,
        ),
        preferences=preferences,
        hints=hints,
    )


def milli(cpus: Number) -> int:
    return round(cpus * 1000)


def constraint(cpus: Optional[str] = None, mems: Optional[str] = None) -> Constraint:
    return Constraint(None if cpus is None else parse_cpus(cpus), None if mems is None else parse_cpus(mems))


# ---------------------------------------------------------------------- a policy and its node


class Scene:
    """A node and the default policy. ``place`` decides; ``put`` decides and enters it into the books."""

    def __init__(
        self,
        where: Union[str, Topology],
        settings: PlacementSettings = HYGON,
        usable: Optional[str] = None,
        reserved: str = "",
        mems: Optional[str] = None,
    ) -> None:
        self.node = node_of(where, usable, reserved, mems)
        self.policy = Hygon(self.node.topology, settings)
        self._count = 0

    def place(
        self,
        container: Container,
        within: Constraint = NO_CONSTRAINT,
        affinity: Optional[Affinity] = None,
    ) -> Decision:
        return self.policy.place(self.node, PlacementRequest(container, within, affinity))

    def put(self, container: Container, within: Constraint = NO_CONSTRAINT, key: str = "") -> Decision:
        decision = self.place(container, within)
        self.book(container, decision.placement, key)
        return decision

    def book(self, container: Container, placement: Placement, key: str = "") -> str:
        self._count += 1
        key = key or f"c{self._count}"
        resources = container.resources
        self.node.add(
            key,
            Resident(
                container.pod.uid,
                resources.milli_request,
                wanted_milli(container),
                placement.cpus,
                placement.exclusive,
                placement.memory_charge,
                container,
            ),
        )
        return key

    def occupy(self, cpus: str, request: Number = 0, pod: str = "others", exclusive: bool = False) -> str:
        """Somebody else's container on these CPUs."""
        self._count += 1
        key = f"occupant-{self._count}"
        here = parse_cpus(cpus)
        charged = milli(request)
        self.node.add(key, Resident(f"uid-{pod}", charged, charged, here, here if exclusive else NO_CPUS))
        return key


def shown(placement: Placement) -> tuple[str, str]:
    """Level and CPUs, as a table can hold them."""
    return placement.level, format_cpus(placement.cpus)


# ---------------------------------------------------------------------- an engine


class Owning(Policy):
    """A policy that gives whole CPUs to Guaranteed containers and shares the rest by the ladder; for tests only.

    It takes the lowest CPUs of the least loaded leaf. A fraction (1,500m) becomes one CPU of its own and the
    leaf's shared CPUs.
    """

    name = "owning"
    owns_exclusively = True
    moves_others = True

    def __init__(self, tree: Topology, settings: PlacementSettings = HYGON) -> None:
        super().__init__(tree, settings)
        self._shared = Hygon(tree, settings)

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        container, constraint = request.container, request.constraint
        whole = container.resources.milli_request // 1000
        capacity = node.capacity(constraint.cpus)
        rooms = [(capacity.share_nano([i]), i) for i, cpus in enumerate(capacity.cpus) if len(cpus) > whole]
        shares = container.qos is not Qos.GUARANTEED or container.preferences.ownership == "shared"
        if shares or not whole or not rooms or not node.shared - node.reserved:
            return self._shared.place(node, request)
        leaf = capacity.cpus[min(rooms)[1]]
        own = frozenset(sorted(leaf)[:whole])
        mixed = container.resources.milli_request % 1000 > 0
        home = node.topology.leaves[min(rooms)[1]].cpus if mixed else own
        home = home if constraint.cpus is None else home & constraint.cpus
        placement = Placement(cpus=leaf if mixed else own, exclusive=own, home=home, level="ccx")
        return Decision(placement, f"{whole} exclusive CPUs")


def host_of(
    where: Union[str, Topology, TopologyData],
    usable: Optional[str] = None,
    reserved: str = "",
    kubelet_exclusive: Optional[Mapping[tuple[str, str], frozenset[int]]] = None,
) -> Host:
    tree = (
        where
        if isinstance(where, Topology)
        else topology(where)
        if isinstance(where, str)
        else Topology(where)
    )
    cpus = tree.online if usable is None else parse_cpus(usable) & tree.online
    return Host(tree, cpus, tree.memory_nodes, cpus, parse_cpus(reserved), kubelet_exclusive or {})


def engine_on(
    where: Union[str, Topology, Host],
    settings: PlacementSettings = HYGON,
    options: Optional[EngineOptions] = None,
    policy: Optional[Policy] = None,
) -> Any:
    """A ``ToldAtOnce``."""
    host = where if isinstance(where, Host) else host_of(where)
    return ToldAtOnce(host, policy or Hygon(host.topology, settings), options or EngineOptions())


def listen_in(engine: Any, heard: Callable[[PlacementRequest], None]) -> None:
    """Have each question of an engine to its policy heard before it is answered; what that raises is the answer.

    A policy may be compiled, and then has no subclass in Python.
    """
    place = engine.place

    def asked(request: PlacementRequest) -> Decision:
        heard(request)
        return cast(Decision, place(request))

    engine.place = asked


def run(
    engine: Engine,
    container: Container,
    key: str,
    now_s: float = 0.0,
    within: Constraint = NO_CONSTRAINT,
) -> ContainerRecord:
    """Create and start a container; returns its grant."""
    admission = engine.admit(container, within, now_s)
    engine.bind(admission.ticket, key, now_s)
    engine.started(key)
    return engine.grants[key]


def told(updates: Iterable[CpusetUpdate]) -> dict[str, str]:
    """The CPUs the runtime is told, by container; none is told twice."""
    listed = list(updates)
    assert len({u.id for u in listed}) == len(listed)
    return {u.id: format_cpus(u.placement.cpus) for u in listed}


def cpus_of(engine: Engine) -> dict[str, str]:
    return {key: format_cpus(grant.cpus) for key, grant in engine.grants.items()}


def again(container: Container, attempt: int) -> Container:
    """The next attempt of a container."""
    return replace(container, attempt=attempt)


def dump(engine: Engine) -> dict[str, object]:
    """Everything an engine knows but its history and counters; equal dumps are equal states."""
    node = engine.node
    return {
        "grants": dict(engine.grants),
        "tickets": dict(engine.tickets),
        "pods": dict(engine.pods),
        "distrusted": dict(engine.distrusted),
        "start failures": dict(engine.start_failures),
        "host": engine.host,
        "policy": engine.policy,
        "options": engine.options,
        "residents": dict(node.residents),
        "shared": node.shared,
        "exclusive": node.exclusive,
        "capacity": node.capacity(),
        "memory": {n: node.memory_charged(n) for n in node.topology.node_ids},
        "on each leaf": [node.containers_on(leaf.cpus) for leaf in node.topology.leaves],
        "names": {name: set(keys) for name, keys in engine.names.items()},
        "sandboxes": {name: set(keys) for name, keys in engine.sandboxes.items()},
    }


class Shadow:
    """What a store would hold: only what the engine's journal has told it."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, object]] = {}

    def follow(self, engine: Engine) -> None:
        for (kind, key), value in engine.drain().items():
            if value is None:
                self.tables.get(kind, {}).pop(key, None)
            else:
                self.tables.setdefault(kind, {})[key] = value

    def differs_from(self, engine: Engine) -> list[str]:
        """The kinds of records that are not what the engine has; the history as far as it reaches."""
        records = {str(r.number): r for r in engine.history}
        truth: dict[str, Mapping[str, object]] = {
            "grant": engine.grants,
            "ticket": engine.tickets,
            "pod": engine.pods,
            "distrust": {"\n".join(who): until for who, until in engine.distrusted.items()},
        }
        wrong = [kind for kind, table in truth.items() if self.tables.get(kind, {}) != table]
        kept = self.tables.get("record", {})
        return wrong + ["record" for number, record in records.items() if kept.get(number) != record]
