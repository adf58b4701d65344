"""Where a container gets CPUs of its own: in which of several domains, beside which others, around what it has already."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.exclusive.place import RANKS
from policies.hygon import TopologyAware
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import (
    NO_CONSTRAINT,
    Constraint,
    Container,
    Decision,
    Hint,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    PlacementRequest,
    Qos,
    Resident,
)
from policies.node import Node
from policies.settings import PlacementSettings
from tests.scenes import TOPOLOGY_AWARE, Number, constraint, make_container, make_pod, node_of

#: Two NUMA nodes of two L3s of four cores: CPUs 0-3, 4-7 and 8-11, 12-15.
TREE = Topology(TopologyData(tuple(Cpu(i, i, i // 4, 0, i // 8, 0) for i in range(16))))
#: The same with cores of two threads.
THREADS = Topology(TopologyData(tuple(Cpu(i, i // 2, i // 4, 0, i // 8, 0) for i in range(16))))
L3S = [leaf.cpus for leaf in TREE.leaves]
NODES = [domain.cpus for domain in TREE.at("numa")]


class Pull:
    """Draws every container to some CPUs: each of its own CPUs elsewhere costs as much."""

    def __init__(self, cpus: str) -> None:
        self._cpus = parse_cpus(cpus)

    def cost(self, container: Container, cpus: frozenset[int]) -> float:
        return float(len(cpus - self._cpus))

    def fault(self, container: Container, cpus: frozenset[int]) -> int:
        return 0


class Scene:
    """The machine above, with containers on it."""

    def __init__(
        self, settings: PlacementSettings = TOPOLOGY_AWARE, reserved: str = "", tree: Topology = TREE
    ) -> None:
        self.node: Node = node_of(tree, reserved=reserved)
        self._policy = TopologyAware(tree, settings)
        self._count = 0

    def add(self, cpus: str, request: Number = 0, pod: str = "", own: bool = False, limit: Number = 0) -> str:
        self._count += 1
        key = f"other-{self._count}"
        here, milli = parse_cpus(cpus), round(request * 1000)
        container = make_container(key, limit=limit or request, request=request, pod=make_pod(pod or key))
        place = Placement(here, level="ccx", home=here, exclusive=here if own else NO_CPUS)
        owned = here if own else NO_CPUS
        uid, wanted = container.pod.uid, max(milli, round(limit * 1000))
        self.node.add(key, Resident(uid, milli, wanted, here, owned, container=container, placement=place))
        return key

    def place(self, cpus: Number, within: Constraint = NO_CONSTRAINT, **more: Any) -> Decision:
        """``more``: of the request, or of the container."""
        asked = {name: more.pop(name) for name in ("affinity", "near", "keep") if name in more}
        container = make_container("own", limit=cpus, qos=Qos.GUARANTEED, **more)
        return self._policy.place(self.node, PlacementRequest(container, within, **asked))

    def owned(self, cpus: Number, within: Constraint = NO_CONSTRAINT, **more: Any) -> str:
        return format_cpus(self.place(cpus, within, **more).placement.exclusive)


def device_at(node: int) -> tuple[Hint, ...]:
    return (Hint("devices", "/dev/gpu", frozenset([node])),)


# ---------------------------------------------------------------------- which of domains of one size


def test_on_an_empty_machine_it_is_the_first() -> None:
    assert Scene().owned(2) == "0-1"


@pytest.mark.parametrize(
    ("member", "own"), [("0", "1-2"), ("5", "4,6"), ("9", "8,10"), ("12-13", "14-15"), ("8-11", "12-13")]
)
def test_it_is_near_its_pod(member, own) -> None:
    scene = Scene()
    scene.add(member, request=len(parse_cpus(member)), pod="mine", own=True)
    assert scene.owned(2, pod=make_pod("mine")) == own


def test_nearness_to_its_pod_does_not_cost_it_a_smaller_domain() -> None:
    scene = Scene()
    scene.add("8-10", request=3, pod="mine", own=True)
    scene.add("12-14", request=3, own=True)
    # One CPU is free in each L3 of its pod's node: two would be in two.
    place = scene.place(2, pod=make_pod("mine")).placement
    assert (format_cpus(place.exclusive), place.level) == ("0-1", "ccx")


@pytest.mark.parametrize(("at", "own"), [("4-7", "4-5"), ("8-15", "8-9"), ("12-15", "12-13")])
def test_it_is_near_its_peers(at, own) -> None:
    assert Scene().owned(2, affinity=Pull(at)) == own


@pytest.mark.parametrize(("node", "own"), [(0, "0-1"), (1, "8-9")])
def test_it_is_near_its_devices(node, own) -> None:
    assert Scene().owned(2, hints=device_at(node)) == own


def test_peers_count_before_devices_and_devices_before_those_that_share() -> None:
    scene = Scene()
    assert scene.owned(2, hints=device_at(0), affinity=Pull("12-15")) == "12-13"
    for l3 in ("8-11", "12-15"):
        scene.add(l3, request=3)
    assert scene.owned(2, hints=device_at(1)) == "8-9"


@pytest.mark.parametrize(
    ("requests", "own"),
    [
        ([3, 0, 0, 0], "4-5"),
        ([3, 3, 0, 0], "8-9"),
        ([3, 3, 3, 0], "12-13"),
        # None has two CPUs to spare: where fewest are missing.
        ([4, 4, 3, 4], "8-9"),
    ],
)
def test_it_is_where_containers_that_share_lose_least(requests, own) -> None:
    scene = Scene()
    for l3, request in zip(("0-3", "4-7", "8-11", "12-15"), requests):
        if request:
            scene.add(l3, request=request)
    assert scene.owned(2) == own


def test_it_stays_near_the_home_it_had() -> None:
    assert Scene().owned(2, near=parse_cpus("8-11")) == "8-9"
    scene = Scene()
    scene.add("8-10", request=3, own=True)
    assert scene.owned(2, near=parse_cpus("8-11")) == "12-13"


def test_an_l3_and_a_node_in_part_use_come_before_unused_ones() -> None:
    scene = Scene()
    scene.add("12-13", request=2, own=True)
    assert scene.owned(2) == "14-15"
    assert scene.owned(3) == "8-10"


# ---------------------------------------------------------------------- a part of it shared


def mixed(scene: Scene, **more: Any) -> tuple[str, str, str]:
    """1,500m: what it owns, what it shares, and its level."""
    place = scene.place(1.5, **more).placement
    return format_cpus(place.exclusive), format_cpus(place.cpus - place.exclusive), place.level


def test_it_shares_the_rest_of_its_l3() -> None:
    assert mixed(Scene()) == ("0", "1-3", "ccx")


@pytest.mark.parametrize(
    ("requests", "l3"),
    [
        # 500m beside the one CPU: no room in the first, where 2,600m of 4,000m are asked for.
        ([2.6, 0, 4, 4], 1),
        ([2.5, 4, 4, 4], 0),
        ([4, 4, 4, 2.5], 3),
        ([4, 4, 2.5, 2.6], 2),
    ],
)
def test_there_is_room_for_what_it_shares(requests, l3) -> None:
    scene = Scene()
    for cpus, request in zip(L3S, requests):
        if request:
            scene.add(format_cpus(cpus), request=request)
    own, shared, _ = mixed(scene)
    assert parse_cpus(own) | parse_cpus(shared) == L3S[l3]


@pytest.mark.parametrize(("settings", "own"), [(TOPOLOGY_AWARE, "2"), (PlacementSettings(), "4")])
def test_it_goes_where_fewest_are_left_where_owning_is_the_rule_else_to_the_least_loaded(
    settings, own
) -> None:
    scene = Scene(settings)
    scene.add("0-1", request=2, own=True)
    scene.add("2-3", request=0.5)
    assert mixed(scene, preferences=PlacementPreferences(ownership="exclusive"))[0] == own


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ([("0-2", True)], ("4", "5-7", "ccx")),
        # Its L3 has one CPU, its own: it shares those of its node.
        ([("0-2", True), ("8-15", True), ("4-6", True)], ("3", "7", "numa")),
        ([("0-2", True), ("4-7", True), ("8-11", True)], ("12", "13-15", "ccx")),
    ],
)
def test_it_shares_the_smallest_domain_around_that_has_room(used, expected) -> None:
    scene = Scene()
    for cpus, own in used:
        scene.add(cpus, request=len(parse_cpus(cpus)), own=own)
    assert mixed(scene) == expected


def test_it_shares_no_cpu_that_its_caller_does_not_let_it_use() -> None:
    assert mixed(Scene(), within=constraint("1,8-15")) == ("8", "9-11", "ccx")
    assert mixed(Scene(), within=constraint("1-2")) == ("1", "2", "ccx")


# ---------------------------------------------------------------------- what may be owned


def test_reserved_cpus_and_those_outside_its_bound_are_never_owned() -> None:
    assert Scene(reserved="0-5").owned(2) == "6-7"
    assert Scene().owned(2, constraint("3,6-15")) == "6-7"
    assert Scene().owned(2, constraint("3,15")) == "3,15"


@pytest.mark.parametrize(("cpus", "others"), [(16, ""), (15, "0"), (8, "0-7")])
def test_the_last_cpus_of_the_others_are_not_owned(cpus, others) -> None:
    scene = Scene()
    if others:
        scene.add(others, request=len(parse_cpus(others)), own=True)
    decision = scene.place(cpus)
    assert not decision.placement.exclusive
    assert "would leave none for others" in decision.why
    assert len(parse_cpus(scene.owned(cpus - 1))) == cpus - 1


def test_what_does_not_fit_shares_and_says_how_many_are_free() -> None:
    scene = Scene()
    scene.add("0-12", request=13, own=True)
    decision = scene.place(4)
    assert not decision.placement.exclusive
    assert "4 exclusive CPUs are wanted, 3 are free" in decision.why


@pytest.mark.parametrize(
    ("preferences", "words"),
    [
        (PlacementPreferences(l3="require"), "wants 4 CPUs in one L3; the largest free L3 has 3"),
        (
            PlacementPreferences(l3="exclusive"),
            "wants 4 CPUs in L3s to itself; the L3s that are wholly free have 0$",
        ),
        (
            PlacementPreferences(l3="exclusive", numa="require"),
            "wants 4 CPUs in L3s of one NUMA node to itself; the L3s of one that are wholly free have 0$",
        ),
        (PlacementPreferences(isolated="require"), "demands 4 isolated CPUs; 0 are free"),
    ],
)
def test_a_demand_that_cannot_be_met_is_refused_with_what_is_free(preferences, words) -> None:
    scene = Scene()
    for cpus in ("0", "4-5", "8-9", "12-14"):
        scene.add(cpus, request=len(parse_cpus(cpus)), own=True)
    with pytest.raises(PlacementRefused, match=words):
        scene.place(4, preferences=preferences)


@given(
    tree=st.sampled_from([TREE, THREADS]),
    owned=st.frozensets(st.integers(0, 15), max_size=12),
    has=st.frozensets(st.integers(0, 15), max_size=3),
    count=st.integers(1, 10),
    l3=st.sampled_from(["prefer", "require", "exclusive"]),
    numa=st.sampled_from(["", "require"]),
    smt=st.sampled_from(["", "full-core", "hide", "spread"]),
)
def test_what_is_free_by_a_refusal_is_less_than_what_is_wanted(
    tree, owned, has, count, l3, numa, smt
) -> None:
    scene = Scene(tree=tree)
    if owned:
        scene.add(format_cpus(owned), request=len(owned), own=True)
    more: dict[str, Any] = {"keep": having(format_cpus(has - owned))} if has - owned else {}
    try:
        why = scene.place(count, preferences=PlacementPreferences(l3=l3, numa=numa, smt=smt), **more).why
    except PlacementRefused as refusal:
        why = str(refusal)
    if told := re.search(r"wants (\d+) CPUs .* ha(?:s|ve) (\d+)(.*)", why) or re.search(
        r"^(\d+) exclusive CPUs are wanted, (\d+) are free(.*)", why
    ):
        assert int(told[2]) < int(told[1]) or "keeps" in told[3]


def test_devices_that_must_be_near_are_or_the_container_is_refused() -> None:
    strict = PlacementPreferences(strict_hints=True)
    scene = Scene()
    assert scene.owned(2, hints=device_at(1), preferences=strict) == "8-9"
    scene.add("8-14", request=7, own=True)
    with pytest.raises(PlacementRefused, match="near its devices .NUMA node 1.; 2 are not free there"):
        scene.place(2, hints=device_at(1), preferences=strict)


@pytest.mark.parametrize(
    ("used", "fits"), [("", True), ("0-1,4-5,8-9,12-13", True), ("0-2,4-6,8-10,12-14", False)]
)
def test_it_does_not_fit_where_its_domain_is_larger_than_on_an_empty_machine(used, fits) -> None:
    scene = Scene()
    if used:
        scene.add(used, request=len(parse_cpus(used)), own=True)
    assert scene.place(2).fits is fits


@pytest.mark.parametrize(
    ("settings", "preferences", "cpus", "lifted"),
    [
        (TOPOLOGY_AWARE, PlacementPreferences(), 2, False),
        (TOPOLOGY_AWARE, PlacementPreferences(cfs_quota="lift"), 2, True),
        (replace(TOPOLOGY_AWARE, cfs_quota="lift"), PlacementPreferences(), 2, True),
        (replace(TOPOLOGY_AWARE, cfs_quota="lift"), PlacementPreferences(cfs_quota="keep"), 2, False),
        # A part of it is shared: the quota bounds that.
        (TOPOLOGY_AWARE, PlacementPreferences(cfs_quota="lift"), 1.5, False),
    ],
)
def test_the_quota_is_lifted_of_what_owns_all_its_cpus(settings, preferences, cpus, lifted) -> None:
    assert Scene(settings).place(cpus, preferences=preferences).placement.lift_quota is lifted


# ---------------------------------------------------------------------- what it has already


def having(cpus: str, *grown: str) -> Placement:
    here = parse_cpus(cpus)
    return Placement(
        here, exclusive=here, level="ccx", home=here, grown=tuple(parse_cpus(step) for step in grown)
    )


@pytest.mark.parametrize(
    ("has", "grown", "count", "owned", "steps"),
    [
        ("8-9", (), 2, "8-9", ()),
        ("8-9", (), 4, "8-11", ("10-11",)),
        ("9-10", ("10",), 3, "8-10", ("10", "8")),
        # The newest is given back first, a part of it last.
        ("4-7", ("5", "6-7"), 3, None, ("5", "one")),
        ("4-7", ("5", "6-7"), 2, "4-5", ("5",)),
        ("4-7", ("5", "6-7"), 1, "4", ()),
        ("12-15", ("12-13",), 2, "14-15", ()),
    ],
)
def test_it_keeps_what_it_has_and_gives_the_newest_back(has, grown, count, owned, steps) -> None:
    place = Scene().place(count, keep=having(has, *grown)).placement
    assert len(place.exclusive) == count
    if owned is not None:
        assert format_cpus(place.exclusive) == owned
    assert [len(step) for step in place.grown] == [1 if s == "one" else len(parse_cpus(s)) for s in steps]
    assert frozenset().union(*place.grown) <= place.exclusive


def test_what_its_caller_has_taken_from_it_is_not_kept() -> None:
    assert Scene().owned(2, constraint("9-15"), keep=having("8-9")) == "9-10"


@pytest.mark.parametrize(
    ("used", "owned"),
    [
        # Of its L3 none is free: as a whole it fits into the other L3 of its node.
        ("2-3", "4-7"),
        # That one is used too: one of the other node.
        ("2-5", "8-11"),
        # None has room for all of it: it keeps what it has.
        ("2-4,8,12", "0-1,5-6"),
    ],
)
def test_what_has_grown_out_of_its_l3_goes_where_all_of_it_fits(used, owned) -> None:
    scene = Scene()
    scene.add(used, request=len(parse_cpus(used)), own=True)
    assert scene.owned(4, keep=having("0-1")) == owned


# ---------------------------------------------------------------------- always


@given(
    owned=st.frozensets(st.integers(0, 15), max_size=12),
    shared=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=3),
    count=st.integers(1, 8),
    bound=st.one_of(st.none(), st.frozensets(st.integers(0, 15), min_size=4)),
    pod=st.one_of(st.none(), st.integers(0, 15)),
    device=st.one_of(st.none(), st.integers(0, 1)),
    peers=st.one_of(st.none(), st.integers(0, 3)),
)
def test_what_is_near_never_costs_a_larger_domain(owned, shared, count, bound, pod, device, peers) -> None:
    def placed(is_near: bool) -> Placement:
        scene = Scene()
        if owned:
            scene.add(format_cpus(owned), request=len(owned), own=True)
        for l3, request in shared:
            scene.add(format_cpus(L3S[l3]), request=request)
        if pod is not None:
            scene.add(str(pod), request=0.1, pod="mine" if is_near else "not mine")
        more: dict[str, Any] = {}
        if is_near and device is not None:
            more["hints"] = device_at(device)
        if is_near and peers is not None:
            more["affinity"] = Pull(format_cpus(L3S[peers]))
        return scene.place(count, Constraint(bound), pod=make_pod("mine"), **more).placement

    near, anywhere = placed(True), placed(False)
    assert bool(near.exclusive) is bool(anywhere.exclusive)
    allowed: Optional[frozenset[int]] = bound
    if near.exclusive:
        assert len(near.exclusive) == count
        assert near.exclusive <= (TREE.online if allowed is None else allowed) - owned
        assert RANKS[near.level] == RANKS[anywhere.level]
