"""A random search for what must not be: many short sequences on small machines, where everything is in everything's way.

The rules are those of ``test_engine_properties``, called with numbers from a seeded generator, and some that change the
world behind the engine's back: the policy, resources while it is away, containers that are not its own. Beside the
invariants it is held that no container is left without a CPU while one is free, and that ``mend`` finds nothing to do.

A hit prints its seed and the steps that are left when those without which it fails as well are taken out, for
``tests/data/random_search/found.json``. One seed again: ``SEARCH_SEED=4711 pytest tests/engine/test_random_search.py``.
A dimension is a rule: add it to ``STEPS``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Callable, Optional

import pytest

from cri_proxy.engine.invariants import broken_invariants, crowded_by, crowded_out
from cri_proxy.engine.model import Life, ListedContainer, Management, Override, resident_of
from policies.balloons.policy import Balloons
from policies.balloons.types import BalloonSettings, BalloonType
from policies.exclusive.place import ask_of
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology
from policies.model import Placement, PlacementRefused, Qos, Resources
from policies.policy import Policy
from policies.settings import PlacementSettings
from tests.engine import test_engine_properties
from tests.engine.test_engine_properties import (
    CLAIMS,
    CLAIMS_OF,
    LIMITS,
    MACHINES,
    NAMES,
    PODS,
    WISHES,
    Node_,
    Running,
)
from tests.machines import GIB, ONE_CPU, SNC_2S, UNEVEN_CCX, VM_NO_CACHE_INFO
from tests.scenes import engine_on


def one_pool(tree: Topology, settings: PlacementSettings) -> Policy:
    """All containers of a namespace own the same CPUs."""
    types = BalloonSettings((BalloonType("pool", namespaces=("default",), max_balloons=1),))
    return Balloons(tree, replace(settings, balloons=types))


POLICIES = {**test_engine_properties.POLICIES, "one-pool": one_pool}
#: Mostly machines on which few containers are many.
WHERE = (VM_NO_CACHE_INFO, VM_NO_CACHE_INFO, VM_NO_CACHE_INFO, UNEVEN_CCX, SNC_2S, ONE_CPU, *MACHINES)
STEPS_LEAST, STEPS_MOST = 8, 50
SEQUENCES, SEQUENCES_LONG, CHUNKS = 200, 20_000, 20

FENCES = ("", "", "half", "few", "few", "kubelet", "mems", "nowhere")

#: The size of huge pages there may be, in bytes.
HUGE = 2 << 20

Step = tuple[str, dict[str, Any]]


class Searched(Node_):
    """One node whose surroundings change as well."""

    def __init__(self) -> None:
        super().__init__()
        #: What containers hold of memory, by NUMA node; the cgroups of others that they run in.
        self.held: dict[str, tuple[tuple[int, int], ...]] = {}
        self.outside: dict[str, str] = {}
        #: The sizes of the huge pages that the next new container may have.
        self.hugepage_sizes: frozenset[int] = NO_CPUS

    def _seen(self, key: str, there: Running) -> ListedContainer:
        # An empty cpuset is inherited: from the pod's cgroup, which has all.
        inherited = NO_CPUS if there.cpus else self._everything()
        told = {"held": self.held.get(key), "runs_in": self.outside.get(key, "")}
        return replace(super()._seen(key, there), inherited=inherited, **told)

    def _resources(self, request: int, limit: Optional[int], memory_bytes: int) -> Resources:
        return replace(super()._resources(request, limit, memory_bytes), hugepage_sizes=self.hugepage_sizes)

    def switch(self, policy: str) -> None:
        """Another policy, by a reload."""
        type(self).make_policy = staticmethod(POLICIES[policy])  # type: ignore[assignment]
        host = self.engine.host
        self._send(
            self.engine.rehost(host, POLICIES[policy](host.topology, self.settings), self.engine.options)
        )

    def take_away(self, which: int, where: int, stance: int) -> None:
        """A container becomes one that is not ours: found to be another writer's, released, or opted out."""
        key = self._pick(which)
        if key is None or key not in self.engine.grants or any(c.target == key for c in self.calls):
            return
        stances = (Management.FOREIGN, Management.OPTED_OUT, Management.RELEASED, Management.ADOPTED)
        cpus = self._fence("few", where, 0, Qos.BURSTABLE).cpus
        assert cpus is not None
        self.runtime[key].cpus = cpus
        grant = replace(self.engine.grants[key], stance=stances[stance % len(stances)], runs_on=cpus)
        if grant.stance is Management.ADOPTED:  # what it has is all that is known
            mems = self.runtime[key].mems
            grant = replace(grant, placement=Placement(home=cpus), displaced=None, runs_on_mems=mems)
        self._send(self.engine.amend(grant))
        self.unknown.add(key)
        self.resync()

    def resize_away(self, which: int, limit: Optional[int]) -> None:
        """A resize that passes while the daemon is away: it starts again, and finds other resources."""
        key = self._pick(which)
        if key is None or self.calls or self.engine.tickets:
            return
        container = self.runtime[key].container
        request = limit or 0 if container.qos is Qos.GUARANTEED else min(limit or 500, 500)
        resources = replace(container.resources, milli_request=request, milli_limit=limit)
        self.restart()
        self.runtime[key].container = replace(container, resources=resources)
        self.resync()

    def lose_state(self) -> None:
        """The state file is lost: all containers are found as they run."""
        if self.calls or self.engine.tickets:
            return
        old = self.engine
        self.engine = engine_on(old.host, policy=old.policy, options=old.options)
        self.engine.given = old.given
        self.shadow = type(self.shadow)()
        self.unknown = set(self.runtime)
        self.resync()

    def lose_records(self, which: int, share: int) -> None:
        """The daemon starts again with a state file of which some records cannot be read: these containers are found."""
        if self.calls or self.engine.tickets:
            return
        self.shadow.follow(self.engine)
        for table in ("grant", "pod", "distrust"):
            keys = sorted(self.shadow.tables.get(table, {}))
            for number, key in enumerate(keys):
                if (number + which) % share == 0:
                    del self.shadow.tables[table][key]
        old, tables = self.engine, self.shadow.tables
        self.engine = engine_on(old.host, policy=old.policy, options=old.options)
        self.engine.given = old.given
        self.engine.set_orders(old.orders)
        distrusted = {tuple(key.split("\n")): until_s for key, until_s in tables.get("distrust", {}).items()}
        history = sorted(tables.get("record", {}).values(), key=lambda record: record.number)[-1000:]
        grants = list(tables.get("grant", {}).values())
        pods = tables.get("pod", {}).values()
        self._send(self.engine.restore(list(grants), [], list(pods), history, distrusted))
        self.unknown |= self.runtime.keys() - self.engine.grants.keys()
        self.resync()

    # ------------------------------------------------------------------ what people ask of the node

    def freeze(self, on: bool) -> None:
        """No container that runs is moved from now on, or they may be again."""
        self._send(self.engine.set_orders(replace(self.engine.orders, freeze=on)))

    def pin(self, which: int, where: int, at_once: bool) -> None:
        """A container, and what comes after it under its name, belongs into a zone; all that are elsewhere are moved."""
        key, zones = self._pick(which), self.engine.zones
        if key is None:
            return
        container = self.runtime[key].container
        pod = container.pod
        override = Override(pod.namespace, pod.name, container.name, zones[where % len(zones)].name)
        orders = self.engine.orders
        self.engine.set_orders(replace(orders, overrides=(override, *orders.overrides[:3])))
        if at_once:
            self.carry_out()

    def carry_out(self) -> None:
        """Containers are moved into the zones they are pinned to, unless they are frozen."""
        homes = {key: grant.placement.home for key, grant in self.engine.grants.items()}
        plan = self.engine.pinning_plan(self.engine.pinned_outside(), self.now_s)
        self._send(self.engine.apply(plan))
        moved = {k for k, g in self.engine.grants.items() if k in homes and g.placement.home != homes[k]}
        assert not (moved and self.engine.orders.freeze)
        for key in moved & {move.id for move in plan.moves}:
            override = self.engine.pin_of(self.engine.grants[key].container)
            assert override is not None
            assert self.engine.grants[key].cpus <= self.engine.zone_cpus[override.zone]

    # ------------------------------------------------------------------ cgroups and memory

    def empty(self, which: int) -> None:
        """Something has emptied the cpuset of a container's cgroup (v2)."""
        key = self._pick(which)
        if key is not None and not any(call.target == key for call in self.calls):
            self.runtime[key].cpus = NO_CPUS
            self.unknown.add(key)
            self.resync()
            # One whose cpuset is not ours stays so: it runs on what it inherits.
            there = self.runtime[key]
            there.cpus = there.cpus or self._everything()

    def go_outside(self, which: int) -> None:
        """A container is found to run in another cgroup (a sandbox), or in its own again. No cpuset of it is drift then."""
        key = self._pick(which, ("running",))
        if key is None or any(call.target == key for call in self.calls):
            return
        if self.outside.pop(key, None) is None:
            self.outside[key] = "/system.slice/a-shim"
        self.unknown.add(key)
        self.resync()
        grant = self.engine.grants.get(key)
        assert grant is None or grant.runs_in == self.outside.get(key, "")

    def hold(self, which: int, memory_node: int, mib: int) -> None:
        """A container has that much memory that it cannot give back."""
        key, nodes = self._pick(which, ("running",)), sorted(self.engine.host.topology.memory_nodes)
        if key is not None and nodes:
            self.held[key] = ((nodes[memory_node % len(nodes)], mib << 20),)
            self.resync()

    def memory_now(self, memory_node: int, pages: int, free_gib: int) -> None:
        """A pool of huge pages of another size, and as much free memory, on a NUMA node."""
        host = self.engine.host
        nodes = sorted(host.topology.memory_nodes)
        node = nodes[memory_node % len(nodes)]
        self.full = replace(self.full, hugepages={**self.full.hugepages, node: {HUGE: pages}})
        tree = Topology(replace(host.topology.data, hugepages=self.full.hugepages))
        free = {**host.free_memory, node: free_gib * GIB}
        self._send(self.engine.rehost(replace(host, topology=tree, free_memory=free)))

    def admit_with_pages(self, **asked: Any) -> None:
        """A container that may have huge pages: no node that has some is kept from it."""
        before = set(self.engine.grants)
        self.hugepage_sizes = frozenset([HUGE])
        try:
            self.admit(**asked)
        finally:
            self.hugepage_sizes = NO_CPUS
        node = self.engine.node
        pools = self.engine.host.topology.data.hugepages
        with_pages = frozenset(n for n, sizes in pools.items() if sizes.get(HUGE)) & node.mems
        for key in self.engine.grants.keys() - before:
            grant = self.engine.grants[key]
            if grant.container.resources.hugepage_sizes and grant.stance is Management.PLACED:
                allowed = with_pages if grant.constraint.mems is None else with_pages & grant.constraint.mems
                again = grant.why.startswith("the place of attempt")
                assert again or not grant.placement.mems or allowed <= grant.placement.mems, grant.why

    def look_and_mend(self) -> None:
        self.resync()
        self._send(self.engine.mend(self.now_s).updates)

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        assert broken_invariants(self.engine) == []
        self.the_journal_tells_all()
        self.unknown |= self.outside.keys()  # nothing is repaired there
        self.the_runtime_has_what_we_say()
        self.the_books_are_those_of_the_records()

    def the_books_are_those_of_the_records(self) -> None:
        """What was entered once for many is what entering each from the beginning comes to."""
        state = self.engine
        anew, node = state.new_node(state.host), state.node
        for key, grant in state.grants.items():
            anew.add(key, resident_of(grant))
        assert (node.capacity(), node.claims, node.claims_alone) == (
            anew.capacity(),
            anew.claims,
            anew.claims_alone,
        )
        for count in (1, 4):
            for leaf in node.topology.leaves:
                assert node.shortfall_milli(leaf.cpus, count) == anew.shortfall_milli(leaf.cpus, count)
                assert node.containers_on(leaf.cpus) == anew.containers_on(leaf.cpus)

    def admit(self, **asked: Any) -> None:
        """As it is; what is given to the newcomer is not the last CPU of another container while one is free."""
        before = crowded_by(self.engine).keys()
        super().admit(**asked)
        newest = next(reversed(self.engine.grants), "")
        for key, owners in crowded_by(self.engine).items():
            if key not in before and key != newest:
                self._assert_needed(key, owners & {newest})

    def resize(self, which: int, limit: Optional[int], **asked: Any) -> None:
        """As it is; but no caller's cpuset becomes as large as a request: those are kubelet's, which has given them once."""
        grant = self.engine.grants.get(self._pick(which) or "")
        if grant is None or grant.constraint.cpus is None or len(grant.constraint.cpus) * 1000 != limit:
            super().resize(which=which, limit=limit, **asked)

    def check_mended(self) -> None:
        """After a comparison: a container that has no CPU left has none because none is free."""
        mended = self.engine.mend(self.now_s)
        assert mended.updates == (), mended
        for key, owners in crowded_by(self.engine).items():
            if self.engine.grants[key].life is not Life.CREATING:
                self._assert_needed(key, owners)

    def _assert_needed(self, key: str, owners: Set[str]) -> None:
        """No owner of whole CPUs could have one that is free instead, and is not another's last one."""
        node, settings = self.engine.node, self.engine.policy.settings
        here = self.engine.grants[key].runs_on & node.usable
        for owner in owners & self.engine.grants.keys() - self._resized():
            grant = self.engine.grants[owner]
            ask = ask_of(grant.container, settings, bool(node.reserved))
            is_plain = grant.container.preferences == WISHES[0] and not grant.placement.group
            if grant.stance is not Management.PLACED or not is_plain or ask.full != len(grant.exclusive):
                continue
            free = node.shared - node.reserved - node.isolated - here
            free = free if grant.constraint.cpus is None else free & grant.constraint.cpus
            bound = [bounds & node.shared for bounds, _ in node.bounds]
            free -= frozenset().union(*[cpus for cpus in bound if len(cpus) == 1])
            assert not free or ask.milli_shared, (
                f"{crowded_out(self.engine)}; {owner} could have {format_cpus(free)}"
            )

    def _resized(self) -> set[str]:
        return {t.target for t in self.engine.tickets.values()}


# ---------------------------------------------------------------------- which steps, by which numbers

Draw = Callable[[Random], dict[str, Any]]


def _index(random: Random) -> int:
    return random.randrange(10_000)


def _admit(random: Random) -> dict[str, Any]:
    return {
        "pod": random.randrange(PODS),
        "name": random.choice(NAMES),
        "limit": random.choice(LIMITS),
        "share": random.choice([0, 0.1, 1]),
        "memory": random.choice([0, 1, 3, 70]),
        "qos": random.choice(list(Qos)),
        "kube_system": random.random() < 0.2,
        "constraint": random.choice(FENCES),
        "enforce": random.random() < 0.9,
        "where": _index(random),
        "at_once": random.random() < 0.8,
        "asks": random.randrange(len(WISHES)),
        "claims": random.choice(CLAIMS_OF),
    }


def _habits(random: Random) -> dict[str, Any]:
    """What all containers of a sequence have in common: rare things need several of one kind."""
    habits: dict[str, Any] = {}
    if random.random() < 0.6:
        habits["asks"] = [0]
    if random.random() < 0.6:
        habits["kube_system"] = [False]
    if random.random() < 0.5:
        habits["claims"] = random.choice([[()], [("a",), ("a",), ("a", "b")]])
    if random.random() < 0.6:
        habits["enforce"] = [True]
    if random.random() < 0.7:
        habits["qos"] = random.sample([Qos.GUARANTEED, Qos.GUARANTEED, *Qos], 2)
    if random.random() < 0.7:
        habits["limit"] = random.sample([1000, 1000, 2000, 2000, 3000, 4000, 6000, *LIMITS], 3)
    if random.random() < 0.7:
        habits["constraint"] = random.sample(["", "", "few", *FENCES], 2)
    return habits


def _one(random: Random) -> dict[str, Any]:
    return {"which": _index(random)}


#: How often each step comes, and what it is called with.
STEPS: dict[str, tuple[int, Draw]] = {
    "admit": (30, _admit),
    "accepted": (8, lambda r: {"which": _index(r), "took_s": r.choice([0.1, 5.0])}),
    "refused": (3, _one),
    "nobody_knows": (3, lambda r: {"which": _index(r), "arrived": r.random() < 0.5}),
    "resize": (14, lambda r: {"which": _index(r), "limit": r.choice(LIMITS), "memory": r.choice([None, 0, 2, 80]),
                             "constraint": r.choice(["", "", "half", "few", "mems", "kubelet"]), "where": _index(r)}),
    "start": (2, _one),
    "fail_to_start": (1, _one),
    "exit": (5, lambda r: {"which": _index(r), "code": r.choice([0, 1, None])}),
    "remove": (4, _one),
    "vanish": (1, lambda r: {"which": _index(r), "really": True}),
    "end_pod": (2, lambda r: {"pod": r.randrange(PODS)}),
    "wait": (2, lambda r: {"seconds": r.choice([1.0, 31.0, 130.0, 301.0])}),
    "release": (1, lambda r: {"which": _index(r), "really": True}),
    "manage": (1, _one),
    "apply": (2, lambda r: {"which": _index(r), "leaf": _index(r), "other": _index(r), "stale": r.random() < 0.3}),
    "rehost": (4, lambda r: {"start": _index(r), "off": r.choice([0, 0, 1, 1, 4]), "not_ours": r.choice([0, 0, 2]),
                             "reserved": r.choice([0, 0, 1500]), "memory": r.choice(["", "", "first", "last"])}),
    "drift": (2, lambda r: {"which": _index(r), "where": _index(r)}),
    "resync": (2, lambda r: {}),
    "restart": (2, lambda r: {}),
    # Containers that can go nowhere else, policies that are switched, resizes while the daemon is away, lost state.
    "take_away": (4, lambda r: {"which": _index(r), "where": _index(r), "stance": _index(r)}),
    "switch": (10, lambda r: {"policy": r.choice(list(POLICIES))}),
    "resize_away": (3, lambda r: {"which": _index(r), "limit": r.choice(LIMITS)}),
    "lose_state": (1, lambda r: {}),
    "look_and_mend": (5, lambda r: {}),
    # Records that cannot be read; nested, emptied and strange cgroups; memory that is held, gone, or in huge pages.
    "lose_records": (2, lambda r: {"which": _index(r), "share": r.choice([1, 2, 3, 5])}),
    "empty": (2, _one),
    "go_outside": (2, _one),
    "hold": (2, lambda r: {"which": _index(r), "memory_node": _index(r), "mib": r.choice([1, 100, 5000, 90_000])}),
    "memory_now": (2, lambda r: {"memory_node": _index(r), "pages": r.choice([0, 512, 4096]),
                                 "free_gib": r.choice([0, 1, 60])}),
    "admit_with_pages": (4, _admit),
    # What people ask of the node.
    "freeze": (2, lambda r: {"on": r.random() < 0.6}),
    "pin": (3, lambda r: {"which": _index(r), "where": _index(r), "at_once": r.random() < 0.7}),
    "carry_out": (2, lambda r: {}),
    # Claims of CPUs.
    "prepare": (8, lambda r: {"uid": r.choice(CLAIMS), "where": _index(r), "count": r.choice([1, 2, 2, 4, 8]),
                              "smt": r.choice(["", "", "full-core", "hide"]), "spans": r.choice([1, 1, 2])}),
    "unprepare": (3, lambda r: {"uid": r.choice(CLAIMS)}),
}  # fmt: skip
#: Steps that are nothing without a request on its way.
OF_CALLS = ("accepted", "refused", "nobody_knows")


def sequence_of(seed: int) -> tuple[str, str, list[Step]]:
    """Machine, policy and steps of one seed. Each has some kinds of steps only, and those more often."""
    random = Random(seed)
    where, policy = random.choice(WHERE), random.choice(list(POLICIES))
    habits = _habits(random)
    kinds = ["admit", *[name for name in STEPS if name != "admit" and random.random() < 0.5]]
    often = [STEPS[name][0] for name in kinds]
    steps = []
    for name in random.choices(kinds, often, k=random.randint(STEPS_LEAST, STEPS_MOST)):
        arguments = STEPS[name][1](random)
        for field, values in habits.items():
            if field in arguments and name in ("admit", "admit_with_pages", "resize"):
                arguments[field] = random.choice(values)
        steps.append((name, arguments))
    return where, policy, steps


def failure_of(where: str, policy: str, steps: Sequence[Step]) -> Optional[AssertionError]:
    """What goes wrong in a sequence; None if all is well."""
    made = {"name": where, "make_policy": staticmethod(POLICIES[policy])}
    node = type("Searched_", (Searched,), made)()
    try:
        for name, arguments in steps:
            if name in OF_CALLS and not node.calls:
                continue
            getattr(node, name)(**arguments)
            node.check()
            if name == "look_and_mend":
                node.check_mended()
        node.teardown()
    except PlacementRefused as error:
        return AssertionError(f"refused: {error}")
    except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
        return AssertionError(f"{type(error).__name__}: {error}")
    return None


def smallest(where: str, policy: str, steps: list[Step]) -> list[Step]:
    """The steps without those that are not needed for it to fail, one after the other from the end."""
    at = len(steps) - 1
    while at >= 0:
        less = steps[:at] + steps[at + 1 :]
        if failure_of(where, policy, less) is not None:
            steps = less
        at -= 1
    return steps


def search(seeds: Sequence[int]) -> None:
    print(f"seeds {seeds[0]} to {seeds[-1]}")
    for seed in seeds:
        where, policy, steps = sequence_of(seed)
        if failure_of(where, policy, steps) is not None:
            left = smallest(where, policy, steps)
            lines = ",\n".join(f"    {json.dumps(step)}" for step in left)
            pytest.fail(f"seed {seed} on {where} under {policy}: {failure_of(where, policy, left)}\n{lines}")


#: What it has found, in the steps that were left: written down since a seed means other steps once a rule is added.
FOUND = json.loads((Path(__file__).parents[1] / "data" / "random_search" / "found.json").read_text())


@pytest.mark.parametrize("found", FOUND, ids=[found["what"] for found in FOUND])
def test_what_was_found_is_gone(found: dict[str, Any]) -> None:
    steps = [
        (name, {key: Qos(value) if key == "qos" else value for key, value in given.items()})
        for name, given in found["steps"]
    ]
    assert failure_of(found["machine"], found["policy"], steps) is None


def test_a_few_hundred_sequences() -> None:
    if "SEARCH_SEED" in os.environ:
        return search([int(os.environ["SEARCH_SEED"])])
    return search(range(SEQUENCES))


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_twenty_thousand_sequences(chunk: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Others at every run: the seeds are printed."""
    count = SEQUENCES_LONG // CHUNKS
    first = int(os.environ.get("SEARCH_SEED", 0)) or int(time.time()) // 86_400 * SEQUENCES_LONG
    with capsys.disabled():
        search(range(first + chunk * count, first + (chunk + 1) * count))
