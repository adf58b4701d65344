"""The policy balloons, asked directly: types, CPUs, sizes, and what is said when there are too few CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from policies.balloons.cpus import BalloonCpus
from policies.balloons.policy import Balloons
from policies.balloons.types import BalloonSettings, BalloonType, LoadClass
from policies.hygon import Hygon
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.model import (
    NO_CONSTRAINT,
    Constraint,
    Container,
    Decision,
    Placement,
    PlacementPreferences,
    PlacementRefused,
    PlacementRequest,
    Resident,
    wanted_milli,
)
from policies.settings import PlacementSettings
from tests import machines
from tests.scenes import Number, constraint, make_container, make_pod, node_of

DB = BalloonType("db", namespaces=("db",))
NO_PREFERENCES = PlacementPreferences()


class Pools:
    """A node with balloons; ``put`` does with a decision what the engine does."""

    def __init__(
        self,
        where: str,
        *types: BalloonType,
        reserved: str = "",
        memory: str = "prefer",
        loads: tuple[LoadClass, ...] = (),
    ) -> None:
        self.node = node_of(where, reserved=reserved)
        settings = PlacementSettings(balloons=BalloonSettings(types, loads=loads), memory=memory)
        self.policy = Balloons(self.node.topology, settings)
        self.constraints: dict[str, Constraint] = {}

    def put(self, container: Container, within: Constraint = NO_CONSTRAINT) -> Decision:
        decision = self.policy.place(self.node, PlacementRequest(container, within))
        self.constraints[container.name] = within
        self.book(container.name, container, decision)
        for key, placement in decision.others.items():
            self._move(key, placement)
        return decision

    def book(self, key: str, container: Container, decision: Decision) -> None:
        place, request = decision.placement, container.resources.milli_request
        self.node.add(key, Resident(container.pod.uid, request, wanted_milli(container), place.cpus, place.exclusive,
                                    place.memory_charge, container, place))  # fmt: skip

    def _move(self, key: str, placement: Placement) -> None:
        was, fenced = self.node.remove(key), self.constraints[key].cpus
        cpus = placement.cpus if fenced is None else placement.cpus & fenced
        placement = replace(placement, cpus=cpus)
        self.node.add(key, replace(was, cpus=cpus, exclusive=placement.exclusive, placement=placement))

    def remove(self, name: str) -> None:
        self.node.remove(name)
        for key, placement in self.policy.tidy(self.node, 1e9).items():
            self._move(key, placement)
        assert self.policy.tidy(self.node, 1e9) == {}

    def own(self, name: str) -> str:
        place = self.node.residents[name].placement
        return "" if place is None else format_cpus(place.exclusive)


def asks(
    name: str,
    request: Number,
    namespace: str = "db",
    pod: str = "",
    preferences: PlacementPreferences = NO_PREFERENCES,
    labels: Optional[dict[str, str]] = None,
    memory: int = 0,
) -> Container:
    of = replace(make_pod(pod or f"pod-{name}", namespace=namespace), labels=labels or {})
    return replace(make_container(name, request=request, pod=of, memory=memory), preferences=preferences)


@pytest.fixture
def pools() -> Pools:
    return Pools(machines.HYGON_7285_2S, DB)


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("kind", "requests", "size"),
    [
        pytest.param(DB, [0], 2, id="a container that requests nothing has a core"),
        pytest.param(DB, [1.2, 0.7], 2, id="the sum of the requests is rounded up, not each"),
        pytest.param(DB, [2, 1], 4, id="to whole cores"),
        pytest.param(
            replace(DB, prefer_spread_on_physical_cores=True), [3], 3, id="but where it is spread over them"
        ),
        pytest.param(replace(DB, min_cpus=4), [1], 4, id="never below MinCPUs"),
        pytest.param(
            replace(DB, hide_hyperthreads=True, max_cpus=3), [3], 2, id="nor above it for the hidden ones"
        ),
        pytest.param(replace(DB, max_cpus=3, max_balloons=1), [2, 2], 3, id="never above MaxCPUs"),
        pytest.param(replace(DB, hide_hyperthreads=True), [3], 4, id="whole cores where threads are hidden"),
    ],
)
def test_a_balloon_is_as_large_as_its_containers_request(kind, requests, size) -> None:
    pools = Pools(machines.HYGON_7285_2S, kind)
    for number, request in enumerate(requests):
        decision = pools.put(asks(f"c{number}", request))
    assert len(decision.placement.exclusive) == size
    assert decision.placement.group == "db[0]"
    assert decision.placement.level == "balloon:db[0]"


def test_containers_of_a_balloon_have_the_same_cpus_and_nobody_else_has_them(pools) -> None:
    pools.put(asks("a", 2))
    second = pools.put(asks("b", 3))
    assert second.others["a"].cpus == second.placement.cpus == second.placement.exclusive
    assert pools.node.shared.isdisjoint(second.placement.cpus)
    assert pools.own("a") == pools.own("b")


@pytest.mark.parametrize(
    ("requests", "cpus"),
    [
        pytest.param([2, 2], "0-1,64-65", id="inside its CCX"),
        pytest.param([6, 2], "0-3,64-67", id="until that is full"),
        pytest.param([6, 6], "0-5,64-69", id="then inside its NUMA node"),
        pytest.param([6, 10], "0-7,64-71", id="until that is full"),
    ],
)
def test_a_balloon_grows_inside_its_ccx_then_inside_its_numa_node(requests, cpus) -> None:
    pools = Pools(machines.HYGON_7285_2S, DB)
    for number, request in enumerate(requests):
        decision = pools.put(asks(f"c{number}", request))
    assert format_cpus(decision.placement.cpus) == cpus


def test_a_balloon_grows_into_its_own_socket_before_the_other(pools) -> None:
    pools.put(asks("a", 16))
    decision = pools.put(asks("b", 8))
    assert {pools.node.topology.cpus[c].socket for c in decision.placement.cpus} == {0}


def test_a_balloon_that_loses_a_container_gives_cpus_back_and_the_last_one_takes_it_away(pools) -> None:
    pools.put(asks("a", 6))
    pools.put(asks("b", 6))
    pools.remove("a")
    assert len(parse_cpus(pools.own("b"))) == 6
    pools.remove("b")
    assert pools.node.exclusive == frozenset()


def test_whole_ccxs_are_kept_whole() -> None:
    pools = Pools(machines.EPYC_NPS1_1S, replace(DB, prefer_new_balloons=True))
    sets = [pools.put(asks(f"c{i}", request)).placement.cpus for i, request in enumerate((5, 3, 8))]
    assert [format_cpus(cpus) for cpus in sets] == ["0-4", "5-7", "8-15"]


def test_balancing_takes_the_branch_with_most_free_cpus() -> None:
    kind = replace(DB, prefer_new_balloons=True, allocator_topology_balancing=True)
    pools = Pools(machines.HYGON_7285_2S, kind)
    places = [pools.put(asks(f"c{i}", 2)).placement.cpus for i in range(4)]
    assert [pools.node.topology.nodes_of(cpus) for cpus in places] == [{0}, {4}, {1}, {5}]


def test_balancing_crosses_no_numa_node_or_l3_that_it_need_not() -> None:
    kind = replace(DB, prefer_new_balloons=True, allocator_topology_balancing=True)
    tree = node_of(machines.HYGON_7285_2S).topology
    first, second = tree.at("socket")
    l3 = max(tree.at("l3"), key=lambda domain: min(domain.cpus & second.cpus, default=-1))
    # In the first socket there is more, a little in each L3; in the second there is one L3.
    little = [
        sorted(domain.cpus)[: len(l3.cpus) // 2] for domain in tree.at("l3") if domain.cpus <= first.cpus
    ]
    free = l3.cpus.union(*little)
    assert l3.cpus <= second.cpus and len(free & first.cpus) > len(l3.cpus)
    assert BalloonCpus(tree, (kind,)).grown(kind, NO_CPUS, len(l3.cpus), free) == l3.cpus
    # Where both are as good the emptier branch has it still.
    few = BalloonCpus(tree, (kind,)).grown(kind, NO_CPUS, 2, free)
    assert few <= first.cpus


# ---------------------------------------------------------------------- too few CPUs


def test_a_balloon_that_cannot_grow_takes_the_container_anyway_and_says_so() -> None:
    pools = Pools(machines.VM_NO_CACHE_INFO, replace(DB, max_balloons=1))
    pools.put(asks("a", 6))
    decision = pools.put(asks("b", 6))
    assert not decision.fits
    assert len(decision.placement.cpus) == 8
    assert "too few for the 12000m requested: overcommitted" in decision.why


def test_cpus_that_come_free_go_to_the_balloon_that_lacks_them() -> None:
    pools = Pools(machines.VM_NO_CACHE_INFO, DB, replace(DB, name="web", namespaces=("web",)))
    pools.put(asks("web", 6, "web"))
    pools.put(asks("db", 4))
    assert len(parse_cpus(pools.own("db"))) == 2
    pools.remove("web")
    assert len(parse_cpus(pools.own("db"))) == 4


def test_where_no_cpu_is_left_a_container_joins_the_default_balloon() -> None:
    pools = Pools(machines.ONE_CPU, DB)
    pools.put(asks("first", 1, "default"))
    decision = pools.put(asks("second", 1))
    assert decision.placement.group == "default[0]"
    assert not decision.fits
    assert decision.why.startswith("no balloon of type db has a CPU it may use, nor can get one")


def test_the_last_cpu_is_left_to_containers_in_no_balloon() -> None:
    pools = Pools(machines.VM_NO_CACHE_INFO, replace(DB, max_balloons=1))
    pools.put(asks("db", 1))
    outside = asks("outside", 0)
    pools.book(
        "outside",
        outside,
        Hygon(pools.node.topology, PlacementSettings()).place(pools.node, PlacementRequest(outside)),
    )
    pools.put(asks("large", 20))
    assert len(pools.node.shared) == 1


# ---------------------------------------------------------------------- reserved, default, refused


def test_reserved_namespaces_run_on_the_reserved_cpus_and_get_a_balloon_beyond() -> None:
    pools = Pools(machines.HYGON_7285_2S, DB, reserved="0,64")
    first = pools.put(asks("dns", 1.5, "kube-system"))
    beyond = pools.put(asks("proxy", 1, "kube-system"))
    assert (first.placement.level, format_cpus(first.placement.cpus)) == ("reserved", "0,64")
    assert beyond.placement.group == "reserved[0]"
    assert beyond.why.startswith("the reserved CPUs 0,64 have 500m left of 2 CPUs")


@pytest.mark.parametrize(
    ("reserved", "places"),
    [
        ("0,32,64,96", ["0,64", "32,96", "0,64", "32,96"]),
        ("0,64", ["0,64"] * 4),
    ],
    ids=["in both sockets", "in one socket"],
)
@pytest.mark.parametrize("request_", [0, 0.25])
def test_reserved_namespaces_are_spread_over_the_reserved_cpus_of_the_sockets(
    reserved: str, places: list[str], request_: Number
) -> None:
    kind = BalloonType("reserved", one_per="package")
    pools = Pools(machines.HYGON_7285_2S, kind, reserved=reserved)
    found = [pools.put(asks(name, request_, "kube-system")) for name in "abcd"]
    assert [format_cpus(decision.placement.cpus) for decision in found] == places
    assert {decision.placement.level for decision in found} == {"reserved"}


def test_one_that_the_reserved_cpus_of_no_socket_have_room_for_is_in_the_balloon_of_a_socket() -> None:
    kind = BalloonType("reserved", one_per="package")
    pools = Pools(machines.HYGON_7285_2S, kind, reserved="0,32,64,96")
    decision = pools.put(asks("a", 3, "kube-system"))
    assert decision.placement.group == "reserved[0]"
    assert decision.why.startswith("the reserved CPUs 32,96 have 2000m left of 2 CPUs")


# ---------------------------------------------------------------------- one balloon a domain


@pytest.mark.parametrize(
    ("level", "groups", "own"),
    [
        ("package", [0, 1, 0, 1, 0], ["0-1,64-65", "32,96"]),
        ("numa", [0, 1, 2, 3, 4], ["0,64", "8,72", "16,80", "24,88", "32,96"]),
        ("l3cache", [0, 1, 2, 3, 4], ["0,64", "4,68", "8,72", "12,76", "16,80"]),
    ],
)
def test_there_is_one_in_each_domain_and_containers_are_spread_over_them(
    level: str, groups: list[int], own: list[str]
) -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, one_per=level))
    found = [pools.put(asks(name, 1)) for name in "abcde"]
    assert [decision.placement.group for decision in found] == [f"db[{number}]" for number in groups]
    assert list(dict.fromkeys(pools.own(name) for name in "abcde")) == own


def test_without_requests_they_are_spread_by_count() -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, one_per="package"))
    assert [pools.put(asks(name, 0)).placement.group for name in "abcd"] == ["db[0]", "db[1]"] * 2


def test_a_pod_is_kept_together_unless_it_is_to_be_spread() -> None:
    for spreading, groups in ((False, ["db[0]", "db[0]"]), (True, ["db[0]", "db[1]"])):
        kind = replace(DB, one_per="package", prefer_spreading_pods=spreading)
        pools = Pools(machines.HYGON_7285_2S, kind)
        assert [pools.put(asks(name, 1, pod="p")).placement.group for name in "ab"] == groups


def test_none_leaves_its_domain_whatever_is_asked_for() -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, one_per="package"))
    places = [pools.put(asks(name, 30)) for name in "abcdef"]
    sockets = [frozenset(range(32)) | frozenset(range(64, 96))]
    sockets.append(frozenset(range(128)) - sockets[0])
    for number, decision in enumerate(places):
        assert decision.placement.exclusive <= sockets[number % 2]
    assert not places[-1].fits and places[3].fits
    for name in "ace":
        pools.remove(name)
    assert parse_cpus(pools.own("b")) <= sockets[1]


def test_min_cpus_are_set_aside_in_each_of_them() -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, one_per="package", min_cpus=2))
    pools.put(asks("other", 1, "elsewhere"))
    assert pools.own("other") == "1,65"
    assert [format_cpus(pools.put(asks(name, 0)).placement.exclusive) for name in "ab"] == ["0,64", "32,96"]


def test_those_of_domains_there_are_none_of_are_not_joined() -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, prefer_new_balloons=True))
    for name in "abc":
        pools.put(asks(name, 1))
    kind = replace(DB, one_per="package")
    settings = PlacementSettings(balloons=BalloonSettings((kind,)))
    pools.policy = Balloons(pools.node.topology, settings)
    assert [pools.put(asks(name, 1)).placement.group for name in "defg"] == ["db[0]", "db[1]"] * 2


# ---------------------------------------------------------------------- default


def test_no_balloon_takes_reserved_cpus() -> None:
    pools = Pools(machines.VM_NO_CACHE_INFO, DB, reserved="0-5")
    assert format_cpus(pools.put(asks("a", 4)).placement.cpus) == "6-7"


def test_who_matches_nothing_is_in_the_default_balloon_and_runs_on_all_cpus_of_its_node_in_no_balloon(
    pools,
) -> None:
    pools.put(asks("db", 2))
    place = pools.put(asks("other", 0, "shop")).placement
    assert (place.group, len(place.exclusive)) == ("default[0]", 2)
    assert place.cpus == parse_cpus("0-7,64-71") - parse_cpus(pools.own("db"))


def test_a_listed_default_type_is_as_it_is_listed() -> None:
    pools = Pools(machines.HYGON_7285_2S, BalloonType("default", min_cpus=4))
    place = pools.put(asks("other", 0, "shop")).placement
    assert len(place.cpus) == 4


@pytest.mark.parametrize(
    ("container", "types", "message"),
    [
        pytest.param(
            asks("app", 1, preferences=PlacementPreferences(balloon="nope")),
            (DB,),
            'db/pod-app/app asks by annotation for a balloon of type "nope"; there are reserved, db, default',
            id="a type there is none of",
        ),
        pytest.param(
            asks("app", 1),
            (replace(DB, max_cpus=-1),),
            "db/pod-app/app is for balloons of type db, which are banned on this node (MaxCPUs is -1)",
            id="a banned type",
        ),
        pytest.param(asks("app", 1, preferences=PlacementPreferences(refusal="no")), (DB,), "no",
                     id="a demand that is not understood"),
    ],
)  # fmt: skip
def test_refused_with_the_reason(container, types, message) -> None:
    with pytest.raises(PlacementRefused) as refusal:
        Pools(machines.HYGON_7285_2S, *types).put(container)
    assert str(refusal.value) == message


# ---------------------------------------------------------------------- what containers see


def test_one_container_that_hides_threads_leaves_the_others_theirs(pools) -> None:
    pools.put(asks("a", 2))
    hiding = pools.put(asks("b", 2, preferences=PlacementPreferences(smt="hide")))
    assert format_cpus(hiding.placement.cpus) == "0-1"
    assert format_cpus(hiding.others["a"].cpus) == "0-1,64-65"


def test_idle_cpus_around_a_balloon_may_be_used_as_far_as_the_type_says() -> None:
    sharing = replace(DB, share_idle_cpus_in_same="l3cache")
    pools = Pools(machines.HYGON_7285_2S, sharing, BalloonType("web", namespaces=("web",)))
    place = pools.put(asks("a", 2)).placement
    assert (format_cpus(place.cpus), format_cpus(place.exclusive)) == ("0-3,64-67", "0,64")
    pools.put(asks("w", 2, "web"))
    assert (
        format_cpus(pools.policy.place(pools.node, PlacementRequest(asks("b", 0))).placement.cpus)
        == "0,2-3,64,66-67"
    )


def test_memory_is_that_of_the_balloons_own_cpus() -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, share_idle_cpus_in_same="system"))
    assert pools.put(asks("a", 2, memory=1)).placement.mems == {0}
    off = Pools(machines.HYGON_7285_2S, replace(DB, memory="off"))
    assert off.put(asks("a", 2, memory=1)).placement.mems == frozenset()


def test_memory_nodes_are_added_when_a_balloon_grows_out_of_its_node(pools) -> None:
    first = pools.put(asks("a", 12, memory=1))
    grown = pools.put(asks("b", 8))
    assert first.placement.mems == {0}
    assert grown.others["a"].mems == pools.node.topology.nodes_of(grown.placement.cpus)
    assert grown.others["a"].memory_charge == ((0, machines.GIB),)


@pytest.mark.parametrize(
    ("types", "asked", "mems"),
    [
        pytest.param(("hbm",), (), {2}, id="a node without CPUs, which is smaller than the others"),
        pytest.param(("dram", "hbm"), (), {0}, id="the nearest of both"),
        pytest.param(("hbm",), ("dram",), {0}, id="an annotation counts before the type"),
        pytest.param((), (), {0}, id="by default never"),
    ],
)
def test_memory_is_of_the_kinds_of_the_type(types: Any, asked: Any, mems: set[int]) -> None:
    pools = Pools(machines.CPULESS_MEMORY_NODE, replace(DB, memory_types=frozenset(types)))
    preferences = PlacementPreferences(memory_types=frozenset(asked))
    assert pools.put(asks("a", 2, memory=1, preferences=preferences)).placement.mems == mems
    # Nor does a balloon that grows into another NUMA node bring others.
    grown = pools.put(asks("b", 40)).others["a"].mems
    assert grown == (mems if mems == {2} else mems | {1})


# ---------------------------------------------------------------------- the caller's cpuset


def test_a_fenced_container_gets_a_balloon_inside_its_fence(pools) -> None:
    pools.put(asks("a", 2))
    fenced = pools.put(asks("b", 2), constraint("32-63"))
    assert fenced.placement.group == "db[1]"
    assert fenced.placement.cpus <= parse_cpus("32-63")


def test_a_fenced_container_may_join_a_balloon_it_can_partly_use() -> None:
    pools = Pools(machines.MONOLITHIC_2S, replace(DB, max_balloons=1))
    pools.put(asks("a", 4))
    fenced = pools.put(asks("b", 0), constraint("0,20"))
    assert (fenced.placement.group, format_cpus(fenced.placement.cpus)) == ("db[0]", "0")


def test_a_shrinking_balloon_keeps_a_cpu_for_a_fenced_container() -> None:
    pools = Pools(machines.MONOLITHIC_2S, replace(DB, max_balloons=1))
    pools.put(asks("a", 6))
    pools.put(asks("fenced", 0), constraint("34"))
    pools.put(asks("c", 1))
    pools.remove("a")
    assert 34 in parse_cpus(pools.own("fenced"))


# ---------------------------------------------------------------------- resizing


def test_a_resized_container_stays_in_its_balloon() -> None:
    pools = Pools(machines.HYGON_7285_2S, replace(DB, prefer_new_balloons=True))
    for name in ("a", "b", "c"):
        pools.put(asks(name, 2))
    keep = pools.node.residents["b"].placement
    pools.node.remove("b")
    decision = pools.policy.place(pools.node, PlacementRequest(asks("b", 4), keep=keep))
    assert decision.placement.group == "db[1]"
    assert keep is not None and keep.exclusive < decision.placement.exclusive


def test_isolated_cpus_come_first_only_where_the_type_says_so() -> None:
    pools = Pools(
        machines.OFFLINE_CPUS, replace(DB, prefer_isolated_cpus=True), BalloonType("web", namespaces=("web",))
    )
    assert format_cpus(pools.put(asks("a", 2)).placement.cpus) == "3,35"
    assert pools.put(asks("w", 20, "web")).placement.cpus.isdisjoint(parse_cpus("3,35"))
