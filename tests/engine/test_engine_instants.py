"""Kill -9 at every instant: between any two things that happen, the records that are left change no cpuset.

A busy minute of a node is played once; its steps are what the daemon does one after another: the engine's change and
its write, the request at the runtime, the reply. After each step the daemon ends, and another one starts from what was
written by then. Where the disk hangs, that is what was written up to any earlier step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import CpusetUpdate, ListedContainer
from cri_proxy.engine.resync import Listing, unknown_ids
from policies.hygon import TopologyAware
from policies.model import NO_CONSTRAINT, Container, Placement, Qos
from tests.machines import HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, Shadow, again, engine_on, make_container, make_pod, topology
from tests.told_at_once import resync

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
        admission = self.engine.admit(container, NO_CONSTRAINT, self.now_s)
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
        admission = self.engine.admit(container, NO_CONSTRAINT, self.now_s)
        self.store.follow(self.engine)
        yield "written"
        self.tell(admission.before)
        yield "others have made room"
        updates = self.engine.cancel(admission.ticket, self.now_s)
        yield "refused"
        self.store.follow(self.engine)
        yield "written"
        self.tell(updates)
        yield "others are told"

    def end(self, key: str) -> Iterator[str]:
        container, cpus, _ = self.runtime[key]
        self.runtime[key] = container, cpus, "exited"
        yield "exited"
        updates = self.engine.exited(key, 1, self.now_s)
        self.store.follow(self.engine)
        yield "known to have exited"
        self.tell(updates)
        yield "others are told"

    def remove(self, key: str) -> Iterator[str]:
        del self.runtime[key]
        yield "removed"
        updates = self.engine.remove(key)
        self.store.follow(self.engine)
        yield "known to be removed"
        self.tell(updates)
        yield "others are told"

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

    def tell(self, updates: Iterable[CpusetUpdate]) -> None:
        """Updates arrive at the runtime."""
        for update in updates:
            container, _, state = self.runtime[update.id]
            self.runtime[update.id] = container, update.placement.cpus, state

    def cpusets(self) -> dict[str, frozenset[int]]:
        return {key: cpus for key, (_, cpus, state) in self.runtime.items() if state != "exited"}


def restored(world: World, engine: Engine) -> tuple[CpusetUpdate, ...]:
    """Another daemon takes over what was written; the updates it sends."""
    tables = world.store.tables
    return engine.restore(
        list(tables.get("grant", {}).values()),  # type: ignore[arg-type]
        list(tables.get("ticket", {}).values()),  # type: ignore[arg-type]
        list(tables.get("pod", {}).values()),  # type: ignore[arg-type]
        sorted(tables.get("record", {}).values(), key=lambda r: r.number),  # type: ignore[attr-defined, arg-type]
        {},
    )


def looked(world: World, engine: Engine, is_newer: bool = False) -> tuple[CpusetUpdate, ...]:
    """A comparison with the runtime; the updates it sends. ``is_newer``: the last daemon had records that were not saved."""
    seen = {
        key: ListedContainer(
            key, c.pod.id, c.pod.uid, c.name, c.attempt, state == "running", state == "exited", None, cpus
        )
        for key, (c, cpus, state) in world.runtime.items()
    }
    details = {key: world.runtime[key][0] for key in unknown_ids(engine, seen.values())}
    now_s = world.now_s + 1
    return resync(engine, Listing(seen, now_s, details, is_newer=is_newer), now_s).updates


def started_anew(world: World) -> tuple[Engine, list[CpusetUpdate]]:
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


# ---------------------------------------------------------------------- the disk hangs


class Stuck(Shadow):
    """A store whose disk hangs after so many steps."""

    is_stuck = False

    def follow(self, engine: Engine) -> None:
        if self.is_stuck:
            engine.drain()
        else:
            super().follow(engine)


def shared_minute() -> tuple[World, Iterator[str]]:
    world = World(store=Stuck())
    return world, world.minute()


def owning_minute() -> tuple[World, Iterator[str]]:
    """Containers with CPUs of their own come and go; one is replaced by a next attempt, which was refused at first."""
    world = World(engine=owning_engine(), store=Stuck())

    def steps() -> Iterator[str]:
        for key, container in NEIGHBOURS.items():
            yield from world.create(key, container)
        yield from world.create("big-0", BIG)
        yield from world.end("big-0")
        yield from world.refused(again(BIG, 1))
        yield from world.create("big-2", again(BIG, 2))
        yield from world.remove("big-0")
        yield from world.end("owner-0")
        yield from world.remove("owner-0")

    return world, steps()


MINUTES = {"shared": shared_minute, "owning": owning_minute}


def until_unsaved(minute: str, stuck_at: int) -> Iterator[tuple[World, str]]:
    """The world at each instant from when the disk hangs."""
    world, steps = MINUTES[minute]()
    assert isinstance(world.store, Stuck)
    for number, step in enumerate(steps):
        world.store.is_stuck = number >= stuck_at
        if world.store.is_stuck:
            yield world, f"written until {stuck_at}, killed at {number}: {step}"


@pytest.mark.parametrize("minute", MINUTES)
def test_records_that_were_not_saved_change_no_cpuset(minute: str) -> None:
    length = sum(1 for _ in MINUTES[minute]()[1])
    assert length > 40
    for stuck_at in range(length):
        for world, at in until_unsaved(minute, stuck_at):
            engine = world_engine(world)
            # Nothing is written yet: it is one take-over after another.
            updates = [*restored(world, engine), *looked(world, engine, is_newer=True)]
            assert updates == [], at
            assert broken_invariants(engine) == [], at
            found = {key: grant.cpus for key, grant in engine.grants.items() if key in world.cpusets()}
            assert found == world.cpusets(), at
            _stays_exclusive(world, engine, at)


def world_engine(world: World) -> Engine:
    """A new engine of the kind a world has."""
    return owning_engine() if world.engine.policy.owns_exclusively else engine_on(HYGON_7285_2S)


def _stays_exclusive(world: World, engine: Engine, at: str) -> None:
    """What a container owned is given to none that comes, and those that are there do not grow into it."""
    owned = {
        key: grant.exclusive
        for key, grant in world.engine.grants.items()
        if grant.exclusive and world.runtime.get(key, ("", "", ""))[2] == "running"
    }
    new = engine.admit(
        make_container("new", limit=90, request=1, pod=make_pod("new")), NO_CONSTRAINT, world.now_s
    )
    later = looked(world, engine)
    for key, cpus in owned.items():
        assert engine.grants[key].exclusive == cpus, (at, key)
        places = [new.placement, *(update.placement for update in (*new.before, *later) if update.id != key)]
        assert all(place.cpus.isdisjoint(cpus) for place in places), (at, key)
