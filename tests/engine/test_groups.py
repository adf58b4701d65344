"""What a group owns is entered once: whatever happens, that is the same as giving it to each of its containers.

The engine beside another one, whose policy names every container; and beside what the journal tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.records import CpusetUpdate
from policies.balloons.policy import Balloons
from policies.balloons.types import BalloonSettings, BalloonType
from policies.groups import group_of
from policies.machine.cpus import format_cpus
from policies.model import (
    NO_CONSTRAINT,
    CpusetConstraint,
    Decision,
    Placement,
    PlacementRequest,
    Resources,
    altered,
)
from policies.node import Node
from policies.settings import PlacementSettings
from tests.engine.test_engine_balloons import asks, balloons_on, restarted, run
from tests.engine.test_random_search import Searched, sequence_of
from tests.machines import HYGON_7285_2S, SNC_2S, UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import Shadow, engine_on, host_of

TYPES = (
    BalloonType("idle", namespaces=("idle",), share_idle_cpus_in_same="numa", max_balloons=2),
    BalloonType("hide", namespaces=("hide",), hide_hyperthreads=True, share_idle_cpus_in_same="package"),
    BalloonType("own", namespaces=("own",), max_balloons=1),
)
NAMESPACES = ("default", "default", "idle", "hide", "own")


class Named(Balloons):
    """The policy that names each container of a group where the other names the group."""

    def place(self, node: Node, request: PlacementRequest) -> Decision:
        decision = super().place(node, request)
        return replace(decision, others=named(node, decision.others))

    def tidy(self, node: Node) -> Mapping[str, Placement]:
        return named(node, super().tidy(node))


def named(node: Node, places: Mapping[str, Placement]) -> dict[str, Placement]:
    found = {key: place for key, place in places.items() if not group_of(key)}
    for key, place in places.items():
        group, own = node.groups.get(group_of(key)), place.exclusive
        stay = () if group is None or not group.own <= own else group.twins()
        for member in group or ():
            if group is not None and member not in group.apart and member not in (*stay, *found):
                was = node.resident(member).placement
                assert was is not None
                found[member] = altered(was, exclusive=own)
    return found


class Pair:
    """Two engines that get the same requests: one enters what groups own once, the other for each container."""

    def __init__(self, where: str) -> None:
        host = host_of(where)
        settings = PlacementSettings(balloons=BalloonSettings(TYPES))
        policies = Balloons(host.topology, settings), Named(host.topology, settings)
        self.engines = tuple(engine_on(host, policy=policy) for policy in policies)
        self.shadow = Shadow()

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def both(self, transition: str, *arguments: Any) -> Any:
        """Call both; what they return to be sent must be the same. Returns what the first one has returned."""
        once, each = (getattr(engine, transition)(*arguments) for engine in self.engines)
        assert told(once) == told(each), transition
        assert state_of(self.engines[0]) == state_of(self.engines[1]), transition
        assert broken_invariants(self.engine) == []
        self.shadow.follow(self.engine)
        assert self.shadow.differs_from(self.engine) == []
        return once


def told(returned: Any) -> Any:
    """What is sent, without why."""
    if isinstance(returned, tuple):
        return [told(one) for one in returned]
    if isinstance(returned, CpusetUpdate):
        return returned.id, returned.placement, returned.shrink
    parts = ("ticket", "placement", "before", "after")
    return [told(getattr(returned, part)) for part in parts] if hasattr(returned, "ticket") else returned


def state_of(engine: Engine) -> dict[str, object]:
    node = engine.node
    return {
        "grants": {key: replace(grant, why="") for key, grant in engine.grants.items()},
        "tickets": {key: (t.sent, t.in_doubt, t.waiting, t.target) for key, t in engine.tickets.items()},
        "claims": (node.claims, node.claims_alone, node.shared, node.survey()),
        "shown": {key: format_cpus(grant.exclusive) for key, grant in engine.grants.items()},
    }


@pytest.mark.parametrize("where", [VM_NO_CACHE_INFO, UNEVEN_CCX, SNC_2S])
@pytest.mark.parametrize("seed", range(25))
def test_what_a_group_owns_is_told_and_kept_as_if_each_of_its_containers_had_been_given_it(
    where: str, seed: int
) -> None:
    random, pair = Random(seed), Pair(where)
    flying: list[tuple[str, str]] = []
    count = 0
    for step in range(60):
        now_s = float(step)
        living = [key for key, grant in pair.engine.grants.items() if not key.startswith("ticket-")]
        what = random.choice(("create",) * 5 + ("answer",) * 4 + ("resize",) * 3 + ("remove", "exit", "tick"))
        if what == "create":
            count += 1
            attempt = random.choice(living) if living and random.random() < 0.2 else ""
            name = asks(
                f"c{count}", random.choice((0, 0.1, 1, 2.5)), random.choice(NAMESPACES), f"pod-{count % 7}"
            )
            if attempt:
                before = pair.engine.grants[attempt].container
                name = replace(before, attempt=before.attempt + 1)
            usable = sorted(pair.engine.node.usable)
            few = CpusetConstraint(frozenset(usable[count % len(usable) :][:3]))
            within = few if random.random() < 0.15 else NO_CONSTRAINT
            admission = pair.both("admit", name, within, now_s)
            flying.append((admission.ticket, f"id-{count}"))
        elif what == "answer" and flying:
            ticket, key = flying.pop(random.randrange(len(flying)))
            how = random.choice(("ok", "ok", "ok", "cancel", "doubt"))
            if how == "ok":
                pair.both("commit", ticket, now_s) if key == "" else pair.both("bind", ticket, key, now_s)
            else:
                pair.both(how, *((ticket, now_s) if how == "cancel" else (ticket,)))
        elif what == "resize" and living:
            key = random.choice(living)
            resized = pair.both(
                "resize", key, Resources(random.choice((0, 500, 1500, 3000))), NO_CONSTRAINT, now_s
            )
            if resized is not None:
                flying.append((resized.ticket, ""))
        elif what == "remove" and living:
            pair.both("remove", random.choice(living))
        elif what == "exit" and living:
            pair.both("exited", random.choice(living), random.choice((0, 1)), now_s)
        elif what == "tick":
            pair.both("tick", now_s + random.choice((0, 400)))
    while pair.engine.tickets:  # some come back with one that is cancelled
        pair.both("cancel", next(iter(pair.engine.tickets)), 100.0)
    for key in list(pair.engine.grants):
        pair.both("remove", key)
    assert not pair.shadow.tables.get("grant") and not pair.shadow.tables.get("group")
    assert pair.engine.node.exclusive == frozenset()


def pooled(members: int) -> Engine:
    engine = balloons_on(HYGON_7285_2S)
    for number in range(members):
        run(engine, asks(f"c{number}", 0.01, "default"), f"c{number}")
    engine.drain()
    return engine


def written(engine: Engine) -> set[str]:
    """The keys of the containers whose records have changed."""
    return {key for kind, key in engine.drain() if kind == "grant"}


@pytest.mark.parametrize("members", [10, 200])
def test_a_balloon_that_grows_writes_as_many_records_however_many_containers_it_has(members: int) -> None:
    engine = pooled(members)
    before = engine.grants["c0"].exclusive
    admission = engine.admit(asks("new", 2, "default"), NO_CONSTRAINT, 0.0)
    assert admission.before + admission.after + engine.bind(admission.ticket, "new", 0.0) == ()
    assert written(engine) == {"new", admission.ticket}
    own = engine.grants["new"].exclusive
    assert own > before and {grant.exclusive for grant in engine.grants.values()} == {own}
    assert engine.remove("new") == () and written(engine) == {"new"}
    left = engine.grants["c0"].exclusive
    assert len(left) == len(before) and engine.node.exclusive == left
    after, updates = restarted(engine)
    assert updates == () and {grant.exclusive for grant in after.grants.values()} == {left}
    assert broken_invariants(engine) == broken_invariants(after) == []


def test_a_transition_that_is_cut_short_leaves_a_group_with_what_it_owned() -> None:
    engine = pooled(5)
    before = state_of(engine)
    real, engine.record = engine.record, _fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        engine.admit(asks("new", 2, "default"), NO_CONSTRAINT, 0.0)
    engine.record = real  # type: ignore[method-assign]
    assert state_of(engine) == before and broken_invariants(engine) == []
    shadow = Shadow()
    shadow.tables["grant"] = dict(engine.grants)
    assert "grant" not in shadow.differs_from(engine)


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def default_pool(tree: Any, settings: PlacementSettings) -> Balloons:
    """All containers are in one balloon, which shares the idle CPUs around it."""
    return Balloons(tree, replace(settings, balloons=BalloonSettings()))


@pytest.mark.parametrize("seeds", [range(10), range(10, 20)], ids=str)
def test_all_that_can_happen_to_the_one_balloon_of_a_node(seeds: range) -> None:
    for seed in seeds:
        where, _, steps = sequence_of(seed)
        node = type("One", (Searched,), {"name": where, "make_policy": staticmethod(default_pool)})()
        for name, arguments in steps:
            if name == "switch" or (name in ("accepted", "refused", "nobody_knows") and not node.calls):
                continue
            getattr(node, name)(**arguments)
            node.check()
        node.teardown()
