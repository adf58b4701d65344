"""Kill -9 at every instant: between any two things that happen, the records that are left change no cpuset.

A busy minute of a node is played once; its steps are what the daemon does one after another: the engine's change and
its write, the request at the runtime, the reply. After each step the daemon ends, and another one starts from what was
written by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Seen, Update
from cri_proxy.core.invariants import broken_invariants
from cri_proxy.core.resync import Listing, resync, unknown_ids
from policies.model import NO_FENCE, Container, Placement, Qos
from policies.topology_aware import TopologyAware
from tests.machines import HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, Shadow, again, engine_on, make_container, make_pod, topology

#: Which of a create's two writes is lost, as if it came only after what follows it.
LOST = ("", "bind")


@dataclass
class World:
    """A daemon, its state file, and the runtime with the cpuset of each container."""

    lost: str = ""
    engine: Engine = field(default_factory=lambda: engine_on(HYGON_7285_2S))
    store: Shadow = field(default_factory=Shadow)
    runtime: dict[str, tuple[Container, frozenset[int], str]] = field(default_factory=dict)
    now_s: float = 100.0

    def create(self, key: str, container: Container) -> Iterator[str]:
        admission = self.engine.admit(container, NO_FENCE, self.now_s)
        yield "decided"
        self.store.follow(self.engine)
        yield "written"
        self.tell(admission.before)
        yield "others have made room"
        self.runtime[key] = container, admission.placement.cpus, "created"
        yield "at the runtime"
        assert self.engine.bind(admission.ticket, key, self.now_s) == ()
        if self.lost != "bind":
            self.store.follow(self.engine)
        yield "bound"
        self.runtime[key] = container, admission.placement.cpus, "running"
        yield "running"
        self.engine.started(key)
        if self.lost != "bind":
            self.store.follow(self.engine)
        yield "known to run"

    def refused(self, container: Container) -> Iterator[str]:
        admission = self.engine.admit(container, NO_FENCE, self.now_s)
        self.store.follow(self.engine)
        yield "written"
        self.engine.cancel(admission.ticket, self.now_s)
        yield "refused"
        self.store.follow(self.engine)
        yield "written"

    def end(self, key: str) -> Iterator[str]:
        container, cpus, _ = self.runtime[key]
        self.runtime[key] = container, cpus, "exited"
        yield "exited"
        self.engine.exited(key, 1, self.now_s)
        self.store.follow(self.engine)
        yield "known to have exited"

    def remove(self, key: str) -> Iterator[str]:
        del self.runtime[key]
        yield "removed"
        self.engine.remove(key)
        self.store.follow(self.engine)
        yield "known to be removed"

    def minute(self) -> Iterator[str]:
        """Creates of several sizes, one that is refused, a restart, an end."""
        web, database = make_pod("web"), make_pod("database")
        app = make_container("app", limit=8, request=2, pod=web)
        yield from self.create("app-0", app)
        yield from self.create("db-0", make_container("db", limit=12, request=4, pod=database, memory=1))
        yield from self.refused(make_container("sidecar", limit=2, pod=web))
        yield from self.create("sidecar-0", make_container("sidecar", limit=2, pod=web))
        yield from self.end("app-0")
        yield from self.refused(again(app, 1))
        yield from self.create("app-2", again(app, 2))
        yield from self.remove("app-0")
        yield from self.create("lazy-0", make_container("lazy"))
        yield from self.end("db-0")
        yield from self.remove("db-0")

    def tell(self, updates: Iterable[Update]) -> None:
        """Updates arrive at the runtime."""
        for update in updates:
            container, _, state = self.runtime[update.id]
            self.runtime[update.id] = container, update.placement.cpus, state

    def cpusets(self) -> dict[str, frozenset[int]]:
        return {key: cpus for key, (_, cpus, state) in self.runtime.items() if state != "exited"}


def restored(world: World, engine: Engine) -> tuple[Update, ...]:
    """Another daemon takes over what was written; the updates it sends."""
    tables = world.store.tables
    return engine.restore(
        list(tables.get("grant", {}).values()),  # type: ignore[arg-type]
        list(tables.get("ticket", {}).values()),  # type: ignore[arg-type]
        list(tables.get("pod", {}).values()),  # type: ignore[arg-type]
        sorted(tables.get("record", {}).values(), key=lambda r: r.number),  # type: ignore[attr-defined, arg-type]
        {},
    )


def looked(world: World, engine: Engine) -> tuple[Update, ...]:
    """A comparison with the runtime; the updates it sends."""
    seen = {
        key: Seen(
            key, c.pod.id, c.pod.uid, c.name, c.attempt, state == "running", state == "exited", None, cpus
        )
        for key, (c, cpus, state) in world.runtime.items()
    }
    details = {key: world.runtime[key][0] for key in unknown_ids(engine, seen.values())}
    now_s = world.now_s + 1
    return resync(engine, Listing(seen, now_s, details), now_s).updates


def started_anew(world: World) -> tuple[Engine, list[Update]]:
    """Another daemon, from what was written, once it has compared that with the runtime; the updates it sends."""
    engine = engine_on(HYGON_7285_2S)
    return engine, [*restored(world, engine), *looked(world, engine)]


@pytest.mark.parametrize("lost", LOST, ids=["all is written", "what follows a reply is lost"])
def test_rule_8_a_kill_at_any_instant_changes_no_cpuset(lost: str) -> None:
    world, instants = World(lost), 0
    for step in world.minute():
        instants += 1
        at = f"instant {instants}, {step}"
        engine, updates = started_anew(world)
        assert updates == [], at
        assert broken_invariants(engine) == [], at
        placed = {key: g.placement for key, g in engine.grants.items() if key in world.cpusets()}
        assert {key: place.cpus for key, place in placed.items()} == world.cpusets(), at
        assert all(_is_placed(place) for place in placed.values()), at
    assert instants > 40


def _is_placed(place: Placement) -> bool:
    """Not adopted as it ran: its rung and its whole domain are known."""
    return place.level != "none" and place.cpus <= place.home


# ---------------------------------------------------------------------- kubelet tries again

#: Whole CPUs of its own, cut out of what its neighbours share.
BIG = make_container("big", limit=6, qos=Qos.GUARANTEED)
NEIGHBOURS = {
    "wide-0": make_container("wide", limit=100, request=1),
    "near-0": make_container("near", limit=8, request=1),
    "owner-0": make_container("owner", limit=4, qos=Qos.GUARANTEED),
}


def owning_engine() -> Engine:
    return engine_on(HYGON_7285_2S, policy=TopologyAware(topology(HYGON_7285_2S), TOPOLOGY_AWARE))


def played(steps: Iterator[str], until: str = "") -> bool:
    """Let things happen up to a step, or to the end; False if there is no such step."""
    return any(step == until for step in steps)


def inhabited(lost: str = "") -> World:
    """A node with neighbours."""
    world = World(lost, owning_engine())
    for key, container in NEIGHBOURS.items():
        played(world.create(key, container))
    world.store.follow(world.engine)
    return world


def retry(world: World) -> str:
    """What kubelet does about a create without a reply: a container that is there has had its attempt."""
    there = [c.attempt for c, _, _ in world.runtime.values() if c.name == BIG.name]
    attempt = max(there, default=-1) + 1
    key = f"big-{attempt}"
    played(world.create(key, again(BIG, attempt)))
    return key


@pytest.mark.parametrize("lost", LOST, ids=["all is written", "what follows a reply is lost"])
@pytest.mark.parametrize("is_looked_at", [True, False], ids=["the list comes first", "the retry comes first"])
@pytest.mark.parametrize("end", ["kill", "doubt"])
@pytest.mark.parametrize(
    "instant", ["decided", "written", "others have made room", "at the runtime", "bound"]
)
def test_kubelets_retry_of_a_create_without_a_reply_gets_its_cpus_and_no_others(
    instant: str, end: str, is_looked_at: bool, lost: str
) -> None:
    undisturbed = inhabited()
    played(undisturbed.create("big-0", BIG))
    expected = undisturbed.cpusets()
    world = inhabited(lost)
    assert played(world.create("big-0", BIG), until=instant)
    if end == "kill":
        world.engine = owning_engine()
        assert restored(world, world.engine) == ()
    else:  # its client has gone, its deadline has passed, a connection is lost
        for ticket in list(world.engine.tickets):
            world.tell(world.engine.doubt(ticket))
    if is_looked_at:
        world.tell(looked(world, world.engine))
    key = retry(world)
    for _ in range(3):
        updates = looked(world, world.engine)
        # A neighbour that was not told to make room before is told now.
        assert all(update.placement.cpus == expected[update.id] for update in updates)
        world.tell(updates)
        assert world.cpusets() == {**expected, key: expected["big-0"]}
        assert looked(world, world.engine) == ()
        assert broken_invariants(world.engine) == []
        assert [k for k, g in world.engine.grants.items() if g.container.name == BIG.name] == [key]
        world.store.follow(world.engine)
        world.engine = owning_engine()
        assert restored(world, world.engine) == ()
