"""Whatever happens in whatever order: the invariants hold, the journal tells all, and the runtime has what we say.

A model of the runtime is kept beside the engine. It gets what a shell would send, and nothing else; the
listings for ``resync`` come from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Optional

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cri_api.claims import claim_key, part_name
from cri_proxy.engine.claims import keys_of
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import (
    Admission,
    ClaimPart,
    CpusetUpdate,
    Host,
    Life,
    ListedContainer,
    Management,
    Move,
    Plan,
)
from cri_proxy.engine.resync import Listing, unknown_ids
from policies.balloons.policy import Balloons
from policies.balloons.types import BALANCE, BalloonSettings, BalloonType, LoadClass
from policies.hygon import Hygon, TopologyAware
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Topology, remember
from policies.model import Constraint, Container, PlacementPreferences, PlacementRefused, Qos, Resources
from policies.node import Node
from policies.policy import Policy
from policies.reserved import Reservation, reserve
from policies.settings import EngineOptions, PlacementSettings
from tests import machines
from tests.scenes import Owning, Shadow, dump, engine_on, make_pod
from tests.told_at_once import ToldAtOnce, resync

MACHINES = (
    machines.HYGON_7285_2S,
    machines.EPYC_NPS1_1S,
    machines.SNC_2S,
    machines.VM_NO_CACHE_INFO,
    machines.UNEVEN_CCX,
    machines.OFFLINE_CPUS,
    machines.MEMORYLESS_NODE,
    machines.ONE_CPU,
    machines.CPULESS_MEMORY_NODE,
    machines.NODE_INTERLEAVED,
)


def topology_aware(tree: Topology, settings: PlacementSettings) -> Policy:
    return TopologyAware(tree, replace(settings, ownership="exclusive"))


def balloons(tree: Topology, settings: PlacementSettings) -> Policy:
    types = (
        BalloonType("own", namespaces=("default",), max_cpus=4, max_balloons=3, prefer_new_balloons=True),
        BalloonType("idle", namespaces=("other",), min_cpus=1, share_idle_cpus_in_same="numa"),
        BalloonType("reserved", one_per="package"),
    )
    return Balloons(tree, replace(settings, balloons=BalloonSettings(types)))


def composite(tree: Topology, settings: PlacementSettings) -> Policy:
    """Balloons with loads, and such as are made of parts."""
    types = (
        BalloonType("both", namespaces=("default",), components=("spread", "small"), max_balloons=3),
        BalloonType(
            "either",
            namespaces=("other",),
            prefer_new_balloons=True,
            components=("both", "spread"),
            component_creation=BALANCE,
            share_idle_cpus_in_same="l3cache",
        ),
        BalloonType("spread", prefer_spread_on_physical_cores=True, loads=("heavy",)),
        BalloonType("small", min_cpus=1, max_cpus=4, loads=("memory",)),
    )
    loads = (LoadClass("heavy", "core", overloads=True), LoadClass("memory", "l3cache"))
    return Balloons(tree, replace(settings, balloons=BalloonSettings(types, loads=loads)))


POLICIES: dict[str, Callable[[Topology, PlacementSettings], Policy]] = {
    "hygon": Hygon,
    "owning": Owning,
    "topology-aware": topology_aware,
    "balloons": balloons,
    "composite": composite,
}
#: What annotations may ask; most ask nothing.
WISHES = (
    *[PlacementPreferences()] * 8,
    PlacementPreferences(ownership="exclusive"),
    PlacementPreferences(ownership="exclusive", smt="full-core"),
    PlacementPreferences(ownership="exclusive", smt="hide"),
    PlacementPreferences(ownership="exclusive", l3="spread"),
    PlacementPreferences(l3="exclusive"),
    PlacementPreferences(l3="require"),
    PlacementPreferences(numa="require"),
    PlacementPreferences(isolated="prefer"),
    PlacementPreferences(smt="spread"),
    PlacementPreferences(reserved=True, cfs_quota="lift"),
)

#: The claims that there may be, and those that a container has: most have none.
CLAIMS = ("a", "b", "c")
CLAIMS_OF = (*[()] * 6, ("a",), ("a",), ("b",), ("a", "b"), ("b", "c", "d"))
IN_FLIGHT = 4
PODS, NAMES = 5, ("init", "app", "sidecar")
LIMITS = (None, 250, 1000, 2000, 3500, 8000, 12_000, 40_000)
index = st.integers(0, 10_000)


@dataclass
class Running:
    """A container as the runtime has it."""

    container: Container
    cpus: frozenset[int]
    mems: frozenset[int]
    state: str = "created"
    exit_code: int = 0


@dataclass
class Call:
    """A request on its way: what it would do."""

    admission: Admission
    container: Container
    constraint: Constraint
    target: str = ""


class Node_(RuleBasedStateMachine):
    """One engine, one runtime; ``name`` and ``make_policy`` are set by the test."""

    name = machines.HYGON_7285_2S
    make_policy: Callable[[Topology, PlacementSettings], Policy] = Hygon

    def __init__(self) -> None:
        super().__init__()
        self.full = machines.machine(self.name)
        self.now_s = 1000.0
        self.count = 0
        self.settings = PlacementSettings(size="demand", memory_only_nodes=frozenset([2]))
        self.host = self._host(Topology(self.full), NO_CPUS, 0)
        policy = type(self).make_policy(self.host.topology, self.settings)
        options = EngineOptions(move_exclusive=True)
        self.engine: ToldAtOnce = engine_on(self.host, policy=policy, options=options)
        self.runtime: dict[str, Running] = {}
        self.calls: list[Call] = []
        self.attempts: dict[tuple[str, str], int] = {}
        #: Containers whose CPUs the engine does not know: it takes a resync.
        self.unknown: set[str] = set()
        self.shadow = Shadow()

    # ------------------------------------------------------------------ the world

    def _host(self, tree: Topology, not_ours: frozenset[int], reserved_milli: int) -> Host:
        usable = (tree.online - not_ours) or tree.online
        reserved = reserve(tree, usable, Reservation(milli=reserved_milli)).cpus
        return Host(tree, usable, tree.memory_nodes, usable, reserved)

    def _send(self, updates: tuple[CpusetUpdate, ...]) -> None:
        """What the shell does with updates. Each must be for a living container, and be news to it."""
        assert len({u.id for u in updates}) == len(updates)
        unknown = self.unknown | {c.target for c in self.calls}
        for update in updates:
            there = self.runtime.get(update.id)
            if there is None:
                continue  # it was never created, or was removed behind our back
            if not update.placement.cpus and update.give_back is not None:
                continue  # only its quota comes back
            assert update.placement.cpus, f"an empty cpuset for {update.id}"
            lost = (there.cpus - update.placement.cpus) & self.engine.host.topology.online
            if lost and update.id not in unknown:
                assert update.shrink, f"{update.id} loses CPUs, and is not told first"
            there.cpus = update.placement.cpus
            there.mems = update.placement.mems or there.mems

    def _pick(self, which: int, states: tuple[str, ...] = ("created", "running")) -> Optional[str]:
        keys = sorted(k for k, r in self.runtime.items() if r.state in states)
        return keys[which % len(keys)] if keys else None

    def _everything(self) -> frozenset[int]:
        return self.engine.host.parent_cpus

    # ------------------------------------------------------------------ creating

    @rule(
        pod=st.integers(0, PODS - 1),
        name=st.sampled_from(NAMES),
        limit=st.sampled_from(LIMITS),
        share=st.sampled_from([0, 0.1, 1]),
        memory=st.sampled_from([0, 1, 3, 70]),
        qos=st.sampled_from(list(Qos)),
        kube_system=st.booleans(),
        constraint=st.sampled_from(["", "", "", "half", "few", "kubelet", "mems", "nowhere"]),
        enforce=st.sampled_from([True, True, True, True, False]),
        where=index,
        at_once=st.sampled_from([True, True, False]),
        is_refused=st.sampled_from([False, False, False, True]),
        asks=st.integers(0, len(WISHES) - 1),
        claims=st.sampled_from(CLAIMS_OF),
    )
    def admit(
        self,
        pod: int,
        name: str,
        limit: Optional[int],
        share: float,
        memory: int,
        qos: Qos,
        kube_system: bool,
        constraint: str,
        enforce: bool,
        where: int,
        at_once: bool,
        asks: int,
        is_refused: bool = False,
        claims: tuple[str, ...] = (),
    ) -> None:
        preferences = WISHES[asks]
        if len(self.calls) >= IN_FLIGHT and not at_once:
            return
        request = round((limit or 1000) * (1 if qos is Qos.GUARANTEED else share))
        pod_ = make_pod(f"{pod}", namespace="kube-system" if kube_system else "default")
        attempt = self.attempts.get((pod_.uid, name), -1) + 1
        self.attempts[pod_.uid, name] = attempt
        resources = self._resources(request, limit, memory * machines.GIB)
        container = Container(pod_, name, attempt, qos, resources, preferences=preferences)
        if claims:
            container = replace(container, claims=tuple(claim_key(part_name(uid, "cpus")) for uid in claims))
        within = self._fence(constraint, where, request, qos)
        try:
            admission = self.engine.admit(container, within, self.now_s, enforce)
        except PlacementRefused:
            assert "require" in (preferences.l3, preferences.numa) or preferences.l3 == "exclusive"
            assert self.engine.grants == self.engine.as_asked
            self._send(self.engine.tell_all())  # what kubelet has written down stands
            return
        assert bool(admission.placement.cpus) == (admission.stance is Management.PLACED)
        self._send(admission.before)
        if is_refused:
            self._send(self.engine.cancel(admission.ticket, self.now_s))
            assert self.engine.grants == self.engine.as_asked, "a refused create has left a trace"
            self._send(self.engine.tell_all())
            return
        self.calls.append(Call(admission, container, within))
        if at_once:
            self.accepted(len(self.calls) - 1, 0.1)
            self.runtime[f"id-{self.count}"].state = "running"
            self.engine.started(f"id-{self.count}")

    def _resources(self, request: int, limit: Optional[int], memory_bytes: int) -> Resources:
        """What a new container asks for."""
        return Resources(request, limit, 0, memory_bytes)

    def _fence(self, kind: str, where: int, request: int, qos: Qos) -> Constraint:
        cpus = sorted(self._everything())
        start = where % len(cpus)
        around = cpus[start:] + cpus[:start]
        if kind in ("half", "few"):
            shared = frozenset(around[: len(cpus) // 2 + 1 if kind == "half" else 3])
            # As many CPUs as a Guaranteed container asks for would be its own.
            return (
                Constraint()
                if qos is Qos.GUARANTEED and len(shared) * 1000 == request
                else Constraint(shared)
            )
        if kind == "mems":
            return Constraint(
                mems=frozenset([sorted(self.engine.node.mems)[where % len(self.engine.node.mems)]])
            )
        if kind == "nowhere":
            return Constraint(frozenset(range(4000, 4007)))
        if kind == "kubelet" and qos is Qos.GUARANTEED and request % 1000 == 0:
            # Kubelet does not know of our exclusive CPUs, but never gives one of its own away twice.
            aside = [g for t in self.engine.tickets.values() for g in t.replaces]
            known = [*self.engine.grants.values(), *aside]
            own = [g.runs_on for g in known if g.stance is Management.KUBELET]
            free = [c for c in around if c not in frozenset().union(*own)]
            if 0 < request // 1000 < len(free):
                return Constraint(frozenset(free[: request // 1000]))
        return Constraint()

    def _arrive(self, call: Call) -> str:
        self.count += 1
        key = f"id-{self.count}"
        sent = call.admission.placement
        cpus = sent.cpus or call.constraint.cpus or self._everything()
        self.runtime[key] = Running(call.container, cpus, sent.mems or call.constraint.mems or NO_CPUS)
        return key

    def _take(self, which: int) -> Call:
        return self.calls.pop(which % len(self.calls))

    @precondition(lambda self: self.calls)
    @rule(which=index, took_s=st.sampled_from([0.1, 5.0]))
    def accepted(self, which: int, took_s: float) -> None:
        call = self._take(which)
        self.now_s += took_s
        if call.target:
            if call.target in self.runtime:
                there, sent = self.runtime[call.target], call.admission.placement
                there.container = call.container
                there.cpus = sent.cpus or call.constraint.cpus or there.cpus
                there.mems = sent.mems or call.constraint.mems or there.mems
            if call.admission.ticket not in self.engine.tickets:
                self.unknown.add(call.target)  # its container was taken for gone meanwhile
            updates = self.engine.commit(call.admission.ticket, self.now_s)
        else:
            updates = self.engine.bind(call.admission.ticket, self._arrive(call), self.now_s)
        self._send(updates)

    @precondition(lambda self: self.calls)
    @rule(which=index)
    def refused(self, which: int) -> None:
        call = self._take(which)
        self._send(self.engine.cancel(call.admission.ticket, self.now_s))

    @precondition(lambda self: not self.calls and not self.engine.tickets)
    @rule(asked=st.lists(st.tuples(index, st.sampled_from(LIMITS), st.sampled_from(list(Qos)), st.booleans()), min_size=2, max_size=4), order=st.permutations(range(4)))  # fmt: skip
    def refused_together(self, asked: list[tuple[int, Optional[int], Qos, bool]], order: list[int]) -> None:
        """Requests that are under way together and all refused, in whatever order, leave all as it was."""
        before = self._places()
        for number, (which, limit, qos, is_resize) in enumerate(asked):
            if is_resize:
                self.resize(which, limit, None, "", 0)
            else:
                self.admit(number, "app", limit, 0.1, 0, qos, False, "", True, 0, False, which % len(WISHES))
            self.start(which)
        for number in order:
            if number < len(self.calls):
                self._send(self.engine.cancel(self.calls[number].admission.ticket, self.now_s))
        self.calls.clear()
        assert self._places() == before

    def _places(self) -> dict[str, tuple[object, ...]]:
        return {
            key: (grant.stance, grant.cpus, grant.exclusive, grant.placement.home, grant.placement.mems)
            for key, grant in self.engine.grants.items()
            if grant.life in (Life.CREATED, Life.RUNNING)
        }

    @precondition(lambda self: self.calls)
    @rule(which=index, arrived=st.booleans())
    def nobody_knows(self, which: int, arrived: bool) -> None:
        call = self._take(which)
        self._send(self.engine.doubt(call.admission.ticket))
        self.unknown.add(call.target)
        if call.target and arrived and call.target in self.runtime:
            there, sent = self.runtime[call.target], call.admission.placement
            there.container = call.container
            there.cpus = sent.cpus or call.constraint.cpus or there.cpus
            there.mems = sent.mems or call.constraint.mems or there.mems
        elif not call.target and arrived:
            self._arrive(call)

    # ------------------------------------------------------------------ living

    @rule(which=index, limit=st.sampled_from(LIMITS), memory=st.sampled_from([None, 0, 2, 80]), constraint=st.sampled_from(["", "", "half", "few", "mems", "kubelet"]), where=index)  # fmt: skip
    def resize(
        self, which: int, limit: Optional[int], memory: Optional[int], constraint: str, where: int
    ) -> None:
        key = self._pick(which)
        if key is None or key not in self.engine.grants or any(c.target == key for c in self.calls):
            return
        container = self.engine.grants[key].container
        old = container.resources
        request = (
            limit or 0 if container.qos is Qos.GUARANTEED else min(limit or 500, old.milli_request or 500)
        )
        bytes_ = old.memory_limit_bytes if memory is None else memory * machines.GIB
        within = self._fence(constraint, where, request, container.qos)
        try:
            resources = Resources(request, limit, 0, bytes_)
            admission = self.engine.resize(key, resources, within, self.now_s)
        except PlacementRefused:
            assert container.preferences != PlacementPreferences()
            self._send(self.engine.tell_all())
            return
        if admission is None:
            return
        self._send(tuple(u for u in admission.before if u.id != key))
        assert all(u.id != key for u in (*admission.before, *admission.after)), "it is told twice"
        self.calls.append(Call(admission, replace(container, resources=resources), within, key))

    @rule(which=index, limit=st.sampled_from(LIMITS), memory=st.sampled_from([0, 2, 80]))
    def resize_past_us(self, which: int, limit: Optional[int], memory: int) -> None:
        """A client of the runtime's own, or kubelet while we are away: only a comparison tells."""
        key = self._pick(which)
        if key is not None and not any(c.target == key for c in self.calls):
            there = self.runtime[key]
            request = limit or 0 if there.container.qos is Qos.GUARANTEED else min(limit or 500, 500)
            resources = Resources(request, limit, 0, memory * machines.GIB)
            there.container = replace(there.container, resources=resources)

    @rule(which=index)
    def start(self, which: int) -> None:
        key = self._pick(which, ("created",))
        if key is not None:
            self.runtime[key].state = "running"
            self.engine.started(key)

    @rule(which=index)
    def fail_to_start(self, which: int) -> None:
        key = self._pick(which, ("created",))
        if key is not None:
            self.engine.start_failed(key, "runc: cpuset.cpus: invalid argument", self.now_s)

    @rule(which=index, code=st.sampled_from([0, 1, None]))
    def exit(self, which: int, code: Optional[int]) -> None:
        key = self._pick(which, ("running",))
        if key is not None:
            self.runtime[key].state, self.runtime[key].exit_code = "exited", code or 0
            self._send(self.engine.exited(key, code, self.now_s))

    @rule(which=index)
    def remove(self, which: int) -> None:
        key = self._pick(which, ("exited", "created"))
        if key is not None:
            del self.runtime[key]
            self._send(self.engine.remove(key))

    @rule(which=index, really=st.sampled_from([True, False, False]))
    def vanish(self, which: int, really: bool) -> None:
        key = self._pick(which, ("exited", "created", "running"))
        if key is not None and really:
            del self.runtime[key]

    @rule(pod=st.integers(0, 3 * PODS))
    def end_pod(self, pod: int) -> None:
        sandbox = make_pod(f"{pod}").id
        for key in [k for k, r in self.runtime.items() if r.container.pod.id == sandbox]:
            del self.runtime[key]
        self._send(self.engine.end_pod(sandbox))

    @rule(pod=st.integers(0, PODS - 1))
    def add_pod(self, pod: int) -> None:
        self.engine.add_pod(make_pod(f"{pod}"))

    @rule(seconds=st.sampled_from([1.0, 1.0, 31.0, 130.0, 301.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._send(self.engine.tick(self.now_s))

    # ------------------------------------------------------------------ by command

    @rule(which=index, really=st.sampled_from([True, False]))
    def release(self, which: int, really: bool) -> None:
        key = self._pick(which)
        if key is not None and really:
            update = self.engine.release(key)
            self._send(() if update is None else (update,))
            self._send(self.engine.tick(self.now_s))

    @rule(which=index)
    def manage(self, which: int) -> None:
        key = self._pick(which)
        if key is not None:
            try:
                self._send(self.engine.manage(key))
            except PlacementRefused:
                assert self.engine.grants[key].container.preferences != PlacementPreferences()
            self._send(self.engine.tick(self.now_s))

    @rule(which=index, leaf=index, other=index, stale=st.booleans())
    def apply(self, which: int, leaf: int, other: int, stale: bool) -> None:
        leaves = self.engine.host.topology.leaves
        moves = [
            Move(key, leaves[place % len(leaves)].cpus, "ccx")
            for key, place in ((self._pick(which), leaf), (self._pick(which + 1), other))
            if key is not None and not any(c.target == key for c in self.calls)
        ]
        moves = moves[:1] if len({m.id for m in moves}) < len(moves) else moves
        self._send(self.engine.apply(Plan(self.engine.version - int(stale), tuple(moves))))

    @rule(which=index, to=index)
    def size(self, which: int, to: int) -> None:
        """A set becomes larger or smaller, as the controller asks for it."""
        sets = self.engine.sized_sets()
        if not sets:
            return
        sized = sets[which % len(sets)]
        step = to % len(sized.steps)
        milli = None if step == len(sized.steps) - 1 else sized.steps[step - 1] + 1 if step else 1
        updates = self.engine.size(sized.key, milli, "by demand", self.now_s)
        grant = self.engine.grants[sized.key]
        if updates is None:
            assert len(grant.cpus) * 1000 == sized.milli_set
            return
        self._send(updates)
        resources = grant.container.resources
        most = sized.milli_set if resources.milli_limit is None else resources.milli_limit
        within = self.engine.node.shared
        if grant.constraint.cpus is not None:
            within &= grant.constraint.cpus
        assert len(grant.cpus) * 1000 >= min(resources.milli_request, most, len(within) * 1000)
        assert grant.container.milli_size == milli

    # ------------------------------------------------------------------ claims

    @rule(
        uid=st.sampled_from(CLAIMS),
        where=index,
        count=st.sampled_from([1, 2, 3, 4, 8]),
        smt=st.sampled_from(["", "", "full-core", "hide"]),
        spans=st.sampled_from([1, 1, 2]),
    )
    def prepare(self, uid: str, where: int, count: int, smt: str, spans: int) -> None:
        leaves = self.engine.host.topology.caches
        chosen = [leaves[(where + number) % len(leaves)] for number in range(spans)]
        cpus = NO_CPUS.union(*[leaf.cpus for leaf in chosen])
        names = tuple(dict.fromkeys(leaf.name for leaf in chosen))
        part = ClaimPart("cpus", count, cpus, PlacementPreferences(smt=smt), names)
        before = dict(self.engine.grants)
        try:
            (record,) = self.engine.prepare(uid, "default", f"claim-{uid}", [part], self.now_s)
        except PlacementRefused as refusal:
            assert str(refusal).startswith(f"claim default/claim-{uid} ")
            assert self.engine.grants == before, "a refused claim has left a trace"
        else:
            assert record.exclusive <= cpus
        self._send(self.engine.tell_all())

    @rule(uid=st.sampled_from(CLAIMS))
    def unprepare(self, uid: str) -> None:
        self.engine.unprepare(uid, self.now_s)
        assert not keys_of(self.engine, uid)
        self._send(self.engine.tell_all())

    # ------------------------------------------------------------------ the node

    @rule(start=index, off=st.sampled_from([0, 1, 1, 4, 8, 33]), not_ours=st.sampled_from([0, 0, 2, 9]), reserved=st.sampled_from([0, 0, 1500]), memory=st.sampled_from(["", "", "first", "last"]))  # fmt: skip
    def rehost(self, start: int, off: int, not_ours: int, reserved: int, memory: str) -> None:
        cpus = [c.cpu for c in self.full.cpus]
        around = cpus[start % len(cpus) :] + cpus[: start % len(cpus)]
        gone = around[: min(off, len(cpus) - 1)]
        tree = Topology(remember(self.engine.host.topology, machines.take_offline(self.full, gone)))
        host = self._host(tree, frozenset(around[-not_ours:]) if not_ours else NO_CPUS, reserved)
        if memory and len(host.mems) > 1:
            host = replace(host, mems=host.mems - {min(host.mems) if memory == "first" else max(host.mems)})
        policy = type(self).make_policy(tree, self.settings)
        self._send(self.engine.rehost(host, policy, EngineOptions()))

    @rule(which=index, where=index)
    def drift(self, which: int, where: int) -> None:
        key = self._pick(which)
        if key is not None and not any(c.target == key for c in self.calls):
            cpus = self._fence("few", where, 0, Qos.BURSTABLE).cpus
            assert cpus is not None
            self.runtime[key].cpus = cpus
            self.unknown.add(key)
            self.resync()

    def _seen(self, key: str, there: Running) -> ListedContainer:
        """A container as a comparison finds it."""
        container, is_over = there.container, there.state == "exited"
        code = there.exit_code if is_over else None
        return ListedContainer(key, container.pod.id, container.pod.uid, container.name, container.attempt,
                    there.state == "running", is_over, code, there.cpus, there.mems or None,
                    resources=container.resources)  # fmt: skip

    @rule(enforce=st.sampled_from([True, True, True, False]))
    def resync(self, enforce: bool = True) -> None:
        seen = [self._seen(key, there) for key, there in sorted(self.runtime.items())]
        self.now_s += 0.5
        details = {key: self.runtime[key].container for key in unknown_ids(self.engine, seen)}
        busy = frozenset(c.target for c in self.calls)
        result = resync(
            self.engine,
            Listing(
                {s.id: s for s in seen}, self.now_s - 0.2, details, pending=frozenset(busy), enforce=enforce
            ),
            self.now_s,
        )
        for key in [k for k, r in self.runtime.items() if r.state != "exited" and k not in busy]:
            grant = self.engine.grants.get(key)
            if grant is not None and grant.life is not Life.HELD:
                assert grant.container.resources == self.runtime[key].container.resources, key
                assert not (enforce and grant.is_outgrown), key
        if not enforce:  # nothing is sent: the next one finds it out
            self.unknown |= {update.id for update in self.engine.lacking()}
            return
        for update in result.updates:
            self._send((update,))
        self.unknown = {k for k in self.unknown if k in busy or k not in self.engine.grants}

    @rule()
    def restart(self) -> None:
        """Kill -9 and start again: everything comes back from what was journalled, and nothing moves."""
        if self.engine.tickets or self.calls:  # calls end with the daemon that has made them
            return
        self.shadow.follow(self.engine)
        tables = self.shadow.tables
        old, before = self.engine, dump(self.engine)
        self.engine = engine_on(old.host, policy=old.policy, options=old.options)
        self.engine.given = old.given
        self.engine.set_orders(old.orders)
        updates = self.engine.restore(
            list(tables.get("grant", {}).values()),  # type: ignore[arg-type]
            list(tables.get("ticket", {}).values()),  # type: ignore[arg-type]
            list(tables.get("pod", {}).values()),  # type: ignore[arg-type]
            sorted(tables.get("record", {}).values(), key=lambda r: r.number)[-1000:],  # type: ignore[attr-defined, arg-type]
            {tuple(k.split("\n")): v for k, v in tables.get("distrust", {}).items()},  # type: ignore[misc]
        )
        assert not updates
        after = dump(self.engine)
        after["start failures"] = before["start failures"]
        assert after == before
        self.shadow.follow(self.engine)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def the_invariants_hold(self) -> None:
        assert broken_invariants(self.engine) == []

    @invariant()
    def the_journal_tells_all(self) -> None:
        self.shadow.follow(self.engine)
        assert self.shadow.differs_from(self.engine) == []

    @invariant()
    def the_indexes_find_what_a_look_at_all_grants_does(self) -> None:
        state = self.engine
        grants = self.engine.grants
        assert state.members == {key for key, grant in grants.items() if grant.container.claims}
        assert state.held == {key for key, grant in grants.items() if grant.life is Life.HELD}
        assert state.displaced == {key for key, grant in grants.items() if grant.displaced is not None}
        assert state.kubelets == {key for key, grant in grants.items() if grant.stance is Management.KUBELET}
        places: dict[tuple[frozenset[int], frozenset[int]], set[str]] = {}
        for key, grant in grants.items():
            if not grant.placement.group:
                place = grant.placement.home, grant.placement.exclusive
                places.setdefault(place, set()).add(key)
        assert {place: set(keys) for place, keys in state.places.items()} == places
        tree = self.engine.host.topology
        for domain in (*tree.leaves, *tree.at("numa"), *tree.at("socket")):
            movable = [
                (grant.container.resources.milli_request, key)
                for key, grant in self.engine.grants.items()
                if grant.stance is Management.PLACED
                and grant.container.resources.milli_request
                and not grant.placement.group
                and grant.placement.level != "reserved"
                and not grant.placement.claimed
                and grant.placement.home <= domain.cpus
            ]
            movable.sort(key=lambda pair: (-pair[0], pair[1]))
            homes = self.engine.node.homes
            assert list(homes.largest(domain.cpus)) == [key for _, key in movable]
            enough = [key for milli, key in movable if milli >= 1000]
            assert list(homes.at_least(domain.cpus, 1000)) == enough[::-1]

    @invariant()
    def the_runtime_has_what_we_say(self) -> None:
        waiting = {u.id for c in self.calls for u in c.admission.after} | {c.target for c in self.calls}
        for key, there in self.runtime.items():
            grant = self.engine.grants.get(key)
            if (
                grant is None
                or grant.life not in (Life.CREATED, Life.RUNNING)
                or key in waiting | self.unknown
            ):
                continue
            if grant.stance is Management.PLACED:
                assert there.cpus == grant.placement.cpus, f"{key}: {grant.why}"
                assert not grant.placement.mems or there.mems == grant.placement.mems, f"{key}: {grant.why}"
            elif grant.stance is Management.ADOPTED:
                assert there.cpus == grant.runs_on, f"{key}: {grant.why}"
            if grant.stance in (Management.PLACED, Management.ADOPTED):
                assert self.engine.told[key].cpus == there.cpus, key

    def teardown(self) -> None:
        for call in self.calls:
            self.engine.cancel(call.admission.ticket, self.now_s)
        while self.engine.tickets:
            self.engine.cancel(next(iter(self.engine.tickets)), self.now_s)
        for uid in CLAIMS:
            self.engine.unprepare(uid, self.now_s)
        for key in list(self.engine.grants):
            self.engine.remove(key)
        assert broken_invariants(self.engine) == []
        node = self.engine.node
        empty = Node(node.topology, node.usable, node.mems, node.reserved, node.isolated)
        assert node.residents == {}
        assert node.capacity() == empty.capacity()
        assert node.charge_milli(node.topology.cpus) == 0
        assert all(node.memory_charged(n) == 0 for n in node.topology.node_ids)
        assert not self.engine.names and not self.engine.sandboxes
        self.engine.tick(self.now_s)
        assert not self.engine.told
        self.shadow.follow(self.engine)
        assert not self.shadow.tables.get("grant") and not self.shadow.tables.get("ticket")


def run_machine(name: str, policy: str, examples: int, steps: int, derandomize: bool) -> None:
    kind = type("Node", (Node_,), {"name": name, "make_policy": staticmethod(POLICIES[policy])})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MACHINES)
def test_a_few_hundred_random_steps(name: str, policy: str) -> None:
    run_machine(name, policy, examples=20, steps=50, derandomize=True)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MACHINES)
def test_ten_thousand_random_steps(name: str, policy: str) -> None:
    run_machine(name, policy, examples=100, steps=100, derandomize=False)
