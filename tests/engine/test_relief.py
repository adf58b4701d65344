"""Containers that have less than is theirs while there is room have all of it again: at once, by choice, or a look later."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord, Life, Management
from cri_proxy.engine.relief import REST_S, TRIES
from policies.hygon import Hygon
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import (
    NO_CONSTRAINT,
    Constraint,
    Container,
    Placement,
    PlacementPreferences,
    Qos,
    wanted_milli,
)
from policies.settings import EngineOptions, PlacementSettings
from tests.machines import EPYC_NPS1_1S, HYGON_7285_2S
from tests.scenes import engine_on, host_of, listen_in, make_container, run, told

OWNING = PlacementPreferences(ownership="exclusive")


def node_on(where: str = HYGON_7285_2S, max_moves: int = 4) -> Engine:
    host = host_of(where)
    policy = Hygon(host.topology, PlacementSettings())
    return engine_on(host, policy=policy, options=EngineOptions(max_moves=max_moves))


def own(name: str, count: int) -> Container:
    return replace(make_container(name, limit=count, qos=Qos.GUARANTEED, memory=1), preferences=OWNING)


def below_their_limits(node: Engine) -> list[str]:
    """The containers with fewer CPUs than they may use, for which the policy has a place with all of them."""
    found = []
    for key, grant in list(node.grants.items()):
        wanted = wanted_milli(grant.container)
        if grant.stance is Management.PLACED and not grant.exclusive and len(grant.cpus) * 1000 < wanted:
            with node.without([key]):
                anew = node.place(node.request(grant.container, grant.constraint, key))
            found += [key] if len(anew.placement.cpus) * 1000 >= wanted else []
    return found


def some_containers(seed: int) -> list[Container]:
    """Owners of 16 to 25 CPUs together, among containers that share, in no order."""
    dice, found, owned = random.Random(seed), list[Container](), 0
    most = dice.randint(16, 25)
    while owned < most:
        name = f"c{len(found)}"
        if dice.random() < 0.35:
            count = dice.choice([1, 2, 2, 3, 4, 4, 8])
            owned += count
            found.append(own(name, count))
        else:
            limit = dice.choice([1, 2, 4, 4, 8, 16, 24])
            found.append(make_container(name, limit=limit, request=dice.choice([0.1, limit / 10, limit / 4])))
    return found


# ---------------------------------------------------------------------- owners come


@pytest.mark.parametrize("where", [HYGON_7285_2S, EPYC_NPS1_1S])
def test_none_is_below_its_limit_while_cpus_are_free_whatever_comes(where: str) -> None:
    for seed in range(10):
        node = node_on(where)
        for container in some_containers(seed):
            run(node, container, container.name)
            assert below_their_limits(node) == [], seed
        assert broken_invariants(node) == []


@pytest.mark.parametrize("where", [HYGON_7285_2S, EPYC_NPS1_1S])
def test_nor_when_all_that_run_are_placed_by_one_command(where: str) -> None:
    for seed in range(10):
        node = node_on(where)
        everything = node.host.topology.online
        for container in some_containers(seed):
            place = Placement(home=everything)
            node.adopt(
                ContainerRecord(
                    container.name,
                    container,
                    place,
                    Management.ADOPTED,
                    life=Life.RUNNING,
                    runs_on=everything,
                )
            )
        assert node.manage_all(list(node.grants)) == {}
        assert below_their_limits(node) == [], seed
        assert broken_invariants(node) == []
        owners = [grant for grant in node.grants.values() if grant.container.preferences is OWNING]
        assert all(len(g.exclusive) * 1000 == g.container.resources.milli_request for g in owners)


def test_what_is_taken_together_is_placed_in_the_order_of_its_size_owners_first() -> None:
    node = node_on()
    for container in (
        make_container("a", limit=2, request=1),
        own("b", 2),
        make_container("c", limit=30),
        own("d", 8),
    ):
        record = ContainerRecord(
            container.name, container, Placement(home=node.host.usable), Management.ADOPTED, life=Life.RUNNING,
            runs_on=node.host.usable,
        )  # fmt: skip
        node.adopt(record)
    before = node.newest_record
    node.manage_all(["a", "b", "c", "d", "gone"])
    assert [r.id for r in node.history if r.number > before and r.operation == "adopt"] == [
        "d",
        "b",
        "c",
        "a",
    ]


def test_of_two_l3s_an_owner_takes_the_one_in_which_none_goes_short() -> None:
    node = node_on(max_moves=0)
    run(node, make_container("web", limit=8, request=1), "web")
    assert format_cpus(node.grants["web"].cpus) == "0-3,64-67"
    run(node, own("db", 4), "db")
    assert format_cpus(node.grants["db"].exclusive) == "4-5,68-69"
    assert len(node.grants["web"].cpus) == 8


def test_an_owner_is_placed_no_worse_for_it() -> None:
    """It keeps to one L3 and to whole cores; what goes short by that goes elsewhere."""
    node = node_on()
    for number in range(16):
        run(node, make_container(f"web-{number}", limit=8, request=1), f"web-{number}")
    run(node, own("db", 4), "db")
    assert node.grants["db"].placement.level == "ccx"
    assert below_their_limits(node) == []
    (moved,) = [grant for grant in node.grants.values() if "makes room" in grant.why]
    assert len(moved.cpus) == 8 and moved.placement.level == "ccx"


def test_one_that_went_short_is_back_if_the_owner_is_refused() -> None:
    node = node_on()
    for number in range(16):
        run(node, make_container(f"web-{number}", limit=8, request=1), f"web-{number}")
    before = {key: grant.cpus for key, grant in node.grants.items()}
    admission = node.admit(own("db", 4), NO_CONSTRAINT, 1.0)
    assert before != {key: node.grants[key].cpus for key in before}
    node.cancel(admission.ticket, 2.0)
    assert before == {key: grant.cpus for key, grant in node.grants.items()}


# ---------------------------------------------------------------------- a look later


def short_of_cpus() -> Engine:
    """A container with half of its CPUs, which was not moved when they were taken."""
    node = node_on(max_moves=0)
    for number in range(16):
        run(node, make_container(f"web-{number}", limit=8, request=1), f"web-{number}")
    run(node, own("db", 4), "db")
    (short,) = below_their_limits(node)
    node.options = replace(node.options, max_moves=4)
    return node


def test_one_that_is_short_of_cpus_is_moved_by_the_next_look_and_told_why() -> None:
    node = short_of_cpus()
    (short,) = below_their_limits(node)
    assert node.relieve(100.0) == 1
    assert below_their_limits(node) == broken_invariants(node) == []
    assert node.grants[short].why.startswith("it had 4 of the 8 CPUs it may use: ")
    assert node.history[-1].operation == "mend" and node.history[-1].id == short
    assert node.relieve(200.0) == 0


@pytest.mark.parametrize("why", ["frozen", "held"])
def test_one_that_may_not_be_moved_stays(why: str) -> None:
    node = short_of_cpus()
    (short,) = below_their_limits(node)
    if why == "frozen":
        node.set_orders(replace(node.orders, freeze=True))
    else:
        node.exited(short, None, 50.0)
    before = {key: grant.cpus for key, grant in node.grants.items()}
    assert node.relieve(100.0) == 0
    assert before == {key: grant.cpus for key, grant in node.grants.items()}


# ---------------------------------------------------------------------- after a squeeze


def squeezed_by_kubelet() -> Engine:
    """Kubelet's static manager has nearly all CPUs, tells the others so one by one, and takes it back in the same way."""
    node, few = node_on(), parse_cpus("4-5,40-41,68-69")
    most = node.host.usable - few
    for name, limit in (("small", 8), ("large", 16)):
        run(node, make_container(name, limit=limit, request=0.1), name)
    whole = make_container("kubelets", limit=len(most), qos=Qos.GUARANTEED, memory=1)
    run(node, whole, "kubelets", within=Constraint(most))
    assert node.grants["kubelets"].stance is Management.KUBELET
    for fence in (few, node.host.usable - parse_cpus("0-2,64-66")):
        for name in ("small", "large"):
            resources = node.grants[name].container.resources
            admission = node.resize(name, resources, Constraint(fence), 10.0)
            assert admission is not None
            node.commit(admission.ticket, 11.0)
    assert {format_cpus(node.grants[name].cpus) for name in ("small", "large")} == {format_cpus(few)}
    node.remove("kubelets")
    return node


def test_after_a_squeeze_each_goes_back_to_its_smallest_domain_once() -> None:
    node = squeezed_by_kubelet()
    assert node.grants["small"].placement.level == "machine"
    assert "squeezed" in node.grants["small"].why
    assert node.relieve(100.0) == 2
    levels = {name: node.grants[name].placement.level for name in ("small", "large")}
    assert levels == {"small": "ccx", "large": "numa"}
    assert node.grants["small"].why.startswith(
        "squeezed no more, there is room again: 8 CPUs wanted: one CCX"
    )
    assert broken_invariants(node) == []
    for now_s in (200.0, 300.0):
        assert node.relieve(now_s) == 0


def test_it_stays_while_there_is_no_room() -> None:
    node = node_on()
    run(node, own("all", 124), "all")
    run(node, make_container("small", limit=8, request=0.1), "small")
    assert node.grants["small"].placement.squeezed
    assert node.relieve(100.0) == 0
    node.remove("all")
    assert node.relieve(200.0) == 1
    assert node.grants["small"].placement.level == "ccx"


def test_one_that_had_to_share_goes_on_sharing() -> None:
    node = node_on()
    run(node, own("all", 124), "all")
    run(node, own("late", 8), "late")
    assert node.grants["late"].placement.squeezed and not node.grants["late"].exclusive
    node.remove("all")
    assert node.relieve(200.0) == 1
    late = node.grants["late"]
    assert (late.placement.level, len(late.cpus), late.exclusive) == ("ccx", 8, frozenset())


def test_they_go_back_a_few_at_a_time() -> None:
    node = node_on(max_moves=2)
    run(node, own("all", 124), "all")
    for number in range(5):
        run(node, make_container(f"small-{number}", limit=8, request=0.1), f"small-{number}")
    node.remove("all")
    assert [node.relieve(100.0 + number) for number in range(4)] == [2, 2, 1, 0]


def test_one_that_was_moved_just_now_rests() -> None:
    node = squeezed_by_kubelet()
    grant = node.grants["small"]
    node.amend(replace(grant, moved_s=90.0))
    assert node.relieve(100.0) == 1
    assert node.relieve(90.0 + REST_S) == 1


def test_a_wide_place_by_its_own_limit_or_by_a_configuration_of_before_is_no_squeeze() -> None:
    node = node_on()
    run(node, make_container("wide", limit=100, request=1), "wide")
    run(node, make_container("unlimited", request=1), "unlimited")
    assert not any(grant.placement.squeezed for grant in node.grants.values())
    before = {key: grant.cpus for key, grant in node.grants.items()}
    policy = Hygon(node.host.topology, PlacementSettings(unlimited="ccx"))
    node.rehost(node.host, policy)
    assert node.relieve(100.0) == 0
    assert before == {key: grant.cpus for key, grant in node.grants.items()}


def test_that_it_is_squeezed_outlives_a_restart() -> None:
    node = squeezed_by_kubelet()
    heir = node_on()
    heir.restore(node.grants.values(), [], [], node.history, {})
    assert heir.relieve(100.0) == 2
    assert told(heir.pending()).keys() <= {"small", "large"}


def test_a_look_tries_a_few_kinds_and_the_next_looks_the_others() -> None:
    asked: list[str] = []
    host = host_of(HYGON_7285_2S)
    policy = Hygon(host.topology, PlacementSettings())
    node = engine_on(host, policy=policy, options=EngineOptions(max_moves=4))
    listen_in(node, lambda request: asked.append(request.container.name))
    run(node, own("all", 124), "all")
    names = [f"small-{number}" for number in range(3 * TRIES - 1)]
    for number, name in enumerate(names):
        run(node, make_container(name, limit=5 + number / 100, request=0.1), name)
    for _ in range(2):
        looks = []
        for now_s in range(3):
            asked.clear()
            assert node.relieve(float(now_s)) == 0
            looks.append(len(asked))
        assert looks == [TRIES, TRIES, TRIES - 1]
    node.remove("all")
    while node.relieve(1000.0):
        pass
    assert all(node.grants[name].placement.level == "ccx" for name in names)
