"""What must never be is mended by the next comparison, and only containers that are involved are touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import TRIES, broken_invariants, crowded_out
from cri_proxy.engine.model import Management
from policies.balloons.policy import Balloons
from policies.balloons.types import BalloonSettings, BalloonType
from policies.hygon import TopologyAware
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import NO_CONSTRAINT, PlacementRefused, PlacementRequest, Qos, Resources
from policies.settings import PlacementSettings
from tests.machines import HYGON_7285_2S
from tests.scenes import (
    TOPOLOGY_AWARE,
    constraint,
    dump,
    engine_on,
    host_of,
    listen_in,
    make_container,
    make_pod,
    run,
    told,
    topology,
)

#: 8 CPUs in two L3s of one NUMA node.
TWO_L3S = Topology(TopologyData(tuple(Cpu(i, i, i // 4, 0, 0, 0) for i in range(8))))
POOL = BalloonType("pool", namespaces=("default",), max_balloons=1)


def aware(tree: Topology = TWO_L3S) -> Engine:
    return engine_on(host_of(tree), policy=TopologyAware(tree, TOPOLOGY_AWARE))


def own(node: Engine, name: str, count: int) -> None:
    run(node, make_container(name, limit=count, qos=Qos.GUARANTEED), name)


def cpus_of(node: Engine) -> dict[str, str]:
    return {key: format_cpus(grant.cpus) for key, grant in node.grants.items()}


# ---------------------------------------------------------------------- a switch of the policy


def three_in_a_balloon() -> Engine:
    tree = topology(HYGON_7285_2S)
    settings = PlacementSettings(balloons=BalloonSettings((POOL,)))
    node = engine_on(host_of(tree), policy=Balloons(tree, settings))
    for index in range(3):
        own(node, f"c{index}", 1)
    assert set(cpus_of(node).values()) == {"0-1,64-65"}
    assert node.rehost(node.host, TopologyAware(tree, TOPOLOGY_AWARE)) == ()
    return node


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_container_of_a_balloon_that_is_resized_after_a_switch_leaves_its_mates_what_they_have(
    count: int,
) -> None:
    node = three_in_a_balloon()
    admission = node.resize("c0", Resources(1000 * count, 1000 * count, 1), NO_CONSTRAINT, 5.0)
    assert admission is not None
    assert broken_invariants(node) == []
    node.commit(admission.ticket, 6.0)
    assert broken_invariants(node) == []
    assert cpus_of(node)["c1"] == cpus_of(node)["c2"] == "0-1,64-65"
    if count > 1:
        assert len(node.grants["c0"].exclusive) == count and not node.grants["c0"].placement.group
        assert node.grants["c0"].exclusive.isdisjoint(parse_cpus("0-1,64-65"))


def test_what_an_older_version_has_mixed_up_is_told_apart() -> None:
    node = three_in_a_balloon()
    mixed = parse_cpus("0-2,64-66")
    grant = node.grants["c0"]
    place = replace(grant.placement, cpus=mixed, exclusive=mixed, home=mixed, group="", level="ccx")
    resources = Resources(6000, 6000)
    container = replace(grant.container, resources=resources)
    node.put(replace(grant, container=container, placement=place, since_s=9.0))
    assert "CPU 0 is exclusive to c0, pool[0]" in broken_invariants(node)
    mended = node.mend(10.0)
    assert "CPU 0 is exclusive to c0, pool[0]" in mended.broken
    assert broken_invariants(node) == []
    assert told(mended.updates).keys() == {"c0"}
    # Beside those of its CPUs that were no other container's there is no room for the rest: it has all of them in one L3.
    assert node.grants["c0"].exclusive == parse_cpus("4-6,68-70")
    assert node.mend(11.0).broken == ()


def test_a_container_of_a_balloon_does_not_go_back_to_a_place_that_its_mates_have_now() -> None:
    node = three_in_a_balloon()
    first = replace(node.grants["c0"].placement, group="", level="ccx")
    node.amend(replace(node.grants["c0"], displaced=first))
    node.rehost(node.host, node.policy)
    assert broken_invariants(node) == []


# ---------------------------------------------------------------------- records that contradict each other


def busy() -> Engine:
    node = aware()
    own(node, "a", 2)
    own(node, "b", 1)
    run(node, make_container("shared", limit=2, request=0.1), "shared", within=constraint("3-5"))
    run(node, make_container("other", limit=2, request=0.1), "other")
    return node


def change(node: Engine, key: str, **changes: frozenset[int]) -> None:
    grant = node.grants[key]
    node.put(replace(grant, placement=replace(grant.placement, **changes)))


def same_cpu(node: Engine) -> None:
    cpus = node.grants["a"].exclusive
    change(node, "b", cpus=cpus, exclusive=cpus, home=cpus)


def no_ticket(node: Engine) -> None:
    admission = node.admit(make_container("lost", limit=1), NO_CONSTRAINT, 1.0)
    node.drop_ticket(admission.ticket)


BREACHES: dict[str, Callable[[Engine], None]] = {
    "two owners": same_cpu,
    "shared on an owner's": lambda e: change(
        e, "other", cpus=e.grants["other"].cpus | e.grants["a"].exclusive
    ),
    "not usable": lambda n: change(n, "other", cpus=parse_cpus("1,99")),
    "empty": lambda n: change(n, "other", cpus=NO_CPUS),
    "outside the fence": lambda n: change(n, "shared", cpus=parse_cpus("6-7")),
    "home outside of everything": lambda n: change(n, "shared", cpus=parse_cpus("6"), home=parse_cpus("99")),
    "memory": lambda n: change(n, "other", mems=parse_cpus("7")),
    "the accounts": lambda e: e.node.add("other ", e.node.remove("other")),
    "half of a pair": no_ticket,
}


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES)
def test_every_breach_is_mended(breach: Callable[[Engine], None]) -> None:
    node = busy()
    before = cpus_of(node)
    breach(node)
    assert broken_invariants(node)
    mended = node.mend(10.0)
    assert mended.broken
    assert broken_invariants(node) == []
    # No container is moved that was not involved.
    moved = {key for key, cpus in cpus_of(node).items() if before.get(key, cpus) != cpus}
    assert len(moved) <= 1
    assert node.mend(11.0).broken == ()


def test_where_nothing_is_broken_nothing_changes() -> None:
    node = busy()
    before, version = dump(node), node.version
    assert node.mend(10.0).updates == ()
    assert (dump(node), node.version) == (before, version)


# ---------------------------------------------------------------------- no CPU left


def opted_out(node: Engine, here: str) -> None:
    pod = make_pod("pod-of-web", annotations={"cri-resmgr.io/manage": "false"})
    run(node, make_container("web", request=0.1, pod=pod), "web", within=constraint(here))
    assert node.grants["web"].stance is Management.OPTED_OUT


def test_an_owner_takes_another_cpu_for_the_only_one_of_a_container_that_came_later() -> None:
    node = aware()
    own(node, "three", 3)
    here = sorted(node.grants["three"].exclusive)
    opted_out(node, str(here[0]))
    assert crowded_out(node) == [
        f"default/pod-of-web/web (opted out) may run only on CPUs {here[0]}, exclusive to three"
    ]
    mended = node.mend(10.0)
    assert crowded_out(node) == broken_invariants(node) == []
    (update,) = mended.updates
    assert update.id == "three" and update.placement.cpus >= set(here[1:]) and len(update.placement.cpus) == 3
    assert f"CPU {here[0]} is needed by default/pod-of-web/web" in update.why


def test_and_a_container_that_was_left_untouched_is_placed_there() -> None:
    node = aware()
    own(node, "three", 3)
    here = sorted(node.grants["three"].exclusive)
    run(node, make_container("web", request=0.1), "web", within=constraint(format_cpus(here[:2])))
    assert node.grants["web"].stance is Management.UNTOUCHED
    mended = node.mend(10.0)
    assert told(mended.updates).keys() == {"three", "web"}
    assert node.grants["web"].stance is Management.PLACED
    assert len(node.grants["web"].cpus) == 1 and len(node.grants["three"].exclusive) == 3
    assert crowded_out(node) == broken_invariants(node) == []


def test_where_no_cpu_is_free_it_is_told_and_no_container_is_moved() -> None:
    node = aware()
    own(node, "four", 4)
    own(node, "three", 3)
    last = next(iter(TWO_L3S.online - node.node.exclusive))
    run(node, make_container("log", request=0.1), "log", within=constraint(str(last)))
    here = sorted(node.grants["three"].exclusive)
    opted_out(node, str(here[0]))
    before = cpus_of(node)
    assert node.mend(10.0).updates == ()
    assert cpus_of(node) == before
    (sentence,) = crowded_out(node)
    assert "exclusive to three" in sentence


def test_containers_that_have_the_whole_machine_are_not_crowded_out() -> None:
    node = aware()
    opted_out(node, "0-7")
    own(node, "four", 4)
    own(node, "three", 3)
    assert crowded_out(node) == []


# ---------------------------------------------------------------------- the work it takes


class Listener:
    """``asked``: how often an owner was to have another CPU for one of its own; ``is_stubborn``: none gets one."""

    def __init__(self, is_stubborn: bool) -> None:
        self.is_stubborn, self.asked = is_stubborn, 0

    def __call__(self, request: PlacementRequest) -> None:
        self.asked += request.keep is not None
        if request.keep is not None and self.is_stubborn:
            raise PlacementRefused("it stays where it is")


def crowd(listener: Listener, owners: int, crowded: int) -> Engine:
    """Owners of a CPU each, and containers each of which may run on one of these CPUs only."""
    host = host_of(HYGON_7285_2S)
    node = engine_on(host, policy=TopologyAware(host.topology, TOPOLOGY_AWARE))
    listen_in(node, listener)
    node.is_quiet = True
    for index in range(owners):
        own(node, f"own-{index}", 1)
    pod = make_pod("pod-of-web", annotations={"cri-resmgr.io/manage": "false"})
    for index in range(crowded):
        (cpu,) = node.grants[f"own-{index}"].exclusive
        within = constraint(str(cpu))
        run(node, make_container(f"web-{index}", request=0.1, pod=pod), f"web-{index}", within=within)
    assert len(crowded_out(node)) == crowded
    return node


def test_where_no_cpu_is_free_none_is_looked_for() -> None:
    listener = Listener(is_stubborn=True)
    node = crowd(listener, 126, 60)
    for cpu in sorted(node.node.usable - node.node.exclusive):
        run(node, make_container(f"log-{cpu}", request=0.1), f"log-{cpu}", within=constraint(str(cpu)))
    version = node.version
    assert len(node.mend(10.0).broken) == 60
    assert (listener.asked, node.version) == (0, version)


def test_what_was_in_vain_is_tried_again_when_a_cpu_has_come_free_and_not_before() -> None:
    listener = Listener(is_stubborn=True)
    node = crowd(listener, 100, 40)
    history = len(node.history)
    for _ in range(3):
        assert len(node.mend(10.0).broken) == 40
        assert listener.asked == 40
    assert len(node.history) == history  # of what was tried nothing is told
    node.remove("own-99")
    node.mend(11.0)
    assert listener.asked == 80
    run(node, make_container("newcomer", limit=2, request=0.1), "newcomer")
    node.mend(12.0)
    assert listener.asked == 80


@pytest.mark.parametrize("is_stubborn", [True, False])
def test_a_slice_tries_a_few_ways_and_helps_one_container_at_most(is_stubborn: bool) -> None:
    listener = Listener(is_stubborn)
    node = crowd(listener, 60, 40)
    left = 40
    for _ in node.mend_slices(10.0):
        assert listener.asked <= TRIES and left - len(crowded_out(node)) <= 1
        assert broken_invariants(node) == []
        listener.asked, left = 0, len(crowded_out(node))
    assert left == (40 if is_stubborn else 0)
