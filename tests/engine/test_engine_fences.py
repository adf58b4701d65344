"""Rule 10: cpusets of others. What the caller sets is a fence; what kubelet gives to one container is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import Admission, ContainerRecord, Host, Management
from cri_proxy.engine.place import OPT_OUT
from cri_proxy.engine.snapshot import read_record, write_record
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import NO_CONSTRAINT, UNTOUCHED, Container, MatchExpression, Qos, Resources
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.scenes import (
    Number,
    Owning,
    constraint,
    engine_on,
    host_of,
    make_container,
    make_pod,
    run,
    told,
    topology,
)


def admit(
    engine: Engine, container: Container, cpus: Optional[str] = None, mems: Optional[str] = None
) -> Admission:
    admission = engine.admit(container, constraint(cpus, mems), 0.0)
    assert broken_invariants(engine) == []
    return admission


def guaranteed(name: str = "own", cpus: Number = 2) -> Container:
    return make_container(name, limit=cpus, qos=Qos.GUARANTEED)


@pytest.fixture
def engine() -> Engine:
    return engine_on(VM_NO_CACHE_INFO)


# ---------------------------------------------------------------------- rule 10: kubelet-exclusive


def test_rule_10_as_many_cpus_as_a_guaranteed_container_asks_for_are_its_own(engine) -> None:
    admission = admit(engine, guaranteed(cpus=2), "2-3")
    assert (admission.stance, admission.placement.cpus) == (Management.KUBELET, frozenset())
    assert engine.node.exclusive == {2, 3}


@pytest.mark.parametrize(
    ("container", "cpus"),
    [
        (guaranteed(cpus=2), "1-3"),
        (guaranteed(cpus=2), "1"),
        (guaranteed(cpus=1.5), "1-2"),
        (make_container("burstable", limit=2, request=2), "2-3"),
        (make_container("besteffort"), "2-3"),
    ],
    ids=["more CPUs", "fewer CPUs", "a fraction", "burstable", "best effort"],
)
def test_rule_10_anything_else_is_a_fence(engine, container, cpus) -> None:
    admission = admit(engine, container, cpus)
    assert admission.stance is Management.PLACED
    assert admission.placement.cpus <= parse_cpus(cpus)
    assert not engine.node.exclusive


def test_rule_10_what_cpu_manager_state_assigns_is_exclusive_whatever_its_size() -> None:
    container = make_container("app", limit=4, request=2)
    assigned = {(container.pod.uid, "app"): parse_cpus("4-6")}
    engine = engine_on(host_of(VM_NO_CACHE_INFO, kubelet_exclusive=assigned))
    assert admit(engine, container, "4-6").stance is Management.KUBELET


def test_rule_10_assigned_cpus_are_nobodys_before_their_container_comes() -> None:
    assigned = {("uid-later", "app"): parse_cpus("0-1")}
    engine = engine_on(host_of(VM_NO_CACHE_INFO, kubelet_exclusive=assigned))
    admission = admit(engine, make_container("other", limit=2))
    assert format_cpus(admission.placement.cpus) == "2-3"


def test_rule_10_others_shrink_before_a_kubelet_exclusive_container_is_created(engine) -> None:
    run(engine, make_container("app", limit=2), "app")
    admission = admit(engine, guaranteed(), "2-3")
    assert told(admission.before) == {"app": "0-1"}


def test_rule_10_others_are_placed_anew_when_kubelet_takes_all_they_have(engine) -> None:
    run(engine, make_container("app", limit=2, memory=1), "app")
    admission = admit(engine, guaranteed(cpus=4), "0-3")
    [update] = admission.before
    assert format_cpus(update.placement.cpus) == "4-7"
    assert format_cpus(update.placement.mems) == "0-1"
    assert update.why.startswith("its CPUs are gone: ")


def test_rule_10_and_go_back_when_kubelets_container_ends(engine) -> None:
    first = run(engine, make_container("app", limit=2, memory=1), "app").placement
    engine.bind(admit(engine, guaranteed(cpus=4), "0-3").ticket, "own", 1.0)
    [update] = engine.exited("own", 0, 2.0)
    assert update.placement == first
    assert update.why == "its first place is there again"
    assert engine.grants["app"].displaced is None


def test_rule_10_with_nothing_left_at_all_a_container_is_left_alone_and_comes_back_later(engine) -> None:
    first = run(engine, make_container("app", limit=1), "app", within=constraint("1-2")).placement
    admission = admit(engine, guaranteed(cpus=4), "0-3")
    assert admission.before == ()
    grant = engine.grants["app"]
    assert (grant.stance, grant.cpus) == (Management.UNTOUCHED, {1, 2})
    assert grant.why == "its CPUs are gone, and there are no others for it"
    # It has been left where it was; told once more, since what its cpuset holds by now is not known for sure.
    (update,) = engine.cancel(admission.ticket, 1.0)
    assert (update.id, update.placement.cpus) == ("app", {1, 2})
    assert engine.grants["app"].placement == first
    assert engine.grants["app"].stance is Management.PLACED


def test_rule_10_kubelet_exclusive_containers_are_never_told_anything(engine) -> None:
    engine.bind(admit(engine, guaranteed("a"), "0-1").ticket, "a", 0.0)
    assert admit(engine, guaranteed("b"), "2-3").before == ()
    assert engine.rehost(host_of(VM_NO_CACHE_INFO, usable="1-7")) == ()


def test_rule_10_kubelet_owns_reserved_cpus_if_it_says_so() -> None:
    engine = engine_on(host_of(VM_NO_CACHE_INFO, reserved="0-1"))
    system = make_container("dns", request=0.1, pod=make_pod("dns", namespace="kube-system"))
    run(engine, system, "dns")
    assert format_cpus(engine.grants["dns"].placement.cpus) == "0-1"
    admission = admit(engine, guaranteed(cpus=1), "1")
    assert told(admission.before) == {"dns": "0"}


def test_rule_10_a_container_being_given_a_reserved_cpu_of_its_own_is_not_sent_there_before() -> None:
    engine = engine_on(host_of(VM_NO_CACHE_INFO, reserved="0"))
    run(engine, make_container("app", limit=1, qos=Qos.GUARANTEED), "app")
    admission = engine.resize("app", engine.grants["app"].container.resources, constraint("0"), 1.0)
    assert admission is not None
    assert (admission.stance, admission.before, admission.after) == (Management.KUBELET, (), ())


# ---------------------------------------------------------------------- rule 10: other fences

FENCES = [
    # limit, the caller's cpuset, what is sent
    (2, "0-127", "0-3,64-67"),
    (2, "2-127", "2-3,64-67"),
    (8, "2-127", "4-7,68-71"),
    # No node has 8 of these CPUs; node 0 and the first CCX of node 1 have them together.
    (8, "4-13", "4-11"),
    (2, "0", "0"),
    (2, "0,200", "0"),
]


@pytest.mark.parametrize(("limit", "given", "sent"), FENCES)
def test_rule_10_what_we_send_is_a_subset_of_what_the_caller_set(limit, given, sent) -> None:
    admission = admit(engine_on(HYGON_7285_2S), make_container("app", limit=limit), given)
    assert admission.stance is Management.PLACED
    assert admission.placement.cpus <= parse_cpus(given)
    assert format_cpus(admission.placement.cpus) == sent


def test_rule_10_kubelets_shared_set_on_every_container_changes_nothing_but_its_bounds() -> None:
    engine, free = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    for i in range(15):
        container = make_container(f"c{i}", limit=6)
        bounded = admit(engine, container, "1-63,65-127").placement
        assert bounded.cpus == admit(free, container).placement.cpus - {0, 64}


def test_rule_10_a_fence_without_usable_cpus_leaves_the_request_untouched() -> None:
    engine = engine_on(host_of(VM_NO_CACHE_INFO, usable="0-3"))
    admission = admit(engine, make_container("app", limit=2), "4-6")
    assert (admission.stance, admission.placement.cpus) == (Management.UNTOUCHED, frozenset())
    assert admission.decision.why == "the caller's cpuset 4-6 holds no usable CPU"
    assert format_cpus(engine.grants[admission.ticket].cpus) == "4-6"


def test_rule_10_a_fence_of_which_all_is_taken_leaves_the_request_untouched(engine) -> None:
    admit(engine, guaranteed(), "0-1")
    admission = admit(engine, make_container("app", limit=1), "0-1")
    assert admission.stance is Management.UNTOUCHED
    assert admission.decision.why == "none of the CPUs the caller allows (0-1) may be used"


# ---------------------------------------------------------------------- the pod's own cgroup

SYSTEM = "/kubepods/system/podx"


def bounding(where: str = VM_NO_CACHE_INFO, **bounds: str) -> Host:
    """A machine on which the cgroups of some pods allow less; "_" in a path stands for "/"."""
    sets = {path.replace("_", "/"): constraint(cpus) for path, cpus in bounds.items()}
    return replace(host_of(where), bounds={"": NO_CONSTRAINT, **sets})


def in_pod(cgroup_parent: str, name: str = "app", **asks: Any) -> Container:
    container = make_container(name, **asks)
    return replace(container, pod=replace(container.pod, cgroup_parent=cgroup_parent))


def test_a_pod_is_fenced_by_its_own_parents_cpus_and_others_are_not() -> None:
    engine = engine_on(bounding(kubepods_system="4-5"))
    assert format_cpus(admit(engine, in_pod(SYSTEM, limit=4)).placement.cpus) == "4-5"
    free = engine_on(VM_NO_CACHE_INFO)
    other = in_pod("/kubepods/burstable/pody", "other", limit=4)
    assert admit(engine, other).placement.cpus == admit(free, other).placement.cpus
    assert engine.grants["ticket-2"].constraint == NO_CONSTRAINT


def test_the_nearest_cgroup_that_is_known_counts_and_for_pods_elsewhere_kubelets() -> None:
    bounds = {"": constraint("0-3"), "kubepods": constraint("0-5"), "kubepods/system": constraint("4-5")}
    host = replace(bounding(), bounds=bounds)
    parents = {
        "/kubepods/burstable/podx": "0-5",
        "kubepods-burstable-podx.slice": "0-3",
        "/kubepods/system/podx": "4-5",
        "/kubepods/systematic/podx": "0-5",
        "/elsewhere/podx": "0-3",
        "": "0-3",
    }
    found = {parent: format_cpus(host.bounded(NO_CONSTRAINT, parent).cpus or ()) for parent in parents}
    assert found == parents


def test_a_cgroups_cpus_are_not_taken_for_kubelets_exclusive_ones_and_the_callers_inside_are() -> None:
    engine = engine_on(bounding(kubepods_system="4-5"))
    own = in_pod(SYSTEM, "own", limit=2, qos=Qos.GUARANTEED)
    assert admit(engine, own).stance is Management.PLACED
    other = in_pod(SYSTEM, "other", limit=1, qos=Qos.GUARANTEED)
    assert admit(engine, other, "5").stance is Management.KUBELET
    assert engine.node.exclusive == {5}


@pytest.mark.parametrize(
    ("caller", "sent", "why"),
    [
        ("3-4", "4", ""),
        ("0-7", "4-5", ""),
        ("0-1", "", "the pod's cgroup (4-5) holds no usable CPU that the caller allows (0-1)"),
    ],
)
def test_callers_and_cgroups_fences_hold_together(caller, sent, why) -> None:
    engine = engine_on(bounding(kubepods_system="4-5"))
    admission = admit(engine, in_pod(SYSTEM, limit=2), caller)
    assert format_cpus(admission.placement.cpus) == sent
    assert not why or admission.decision.why == why
    # A resize keeps both; the state file has the caller's alone.
    engine.bind(admission.ticket, "app", 1.0)
    grant = engine.grants["app"]
    assert grant.constraint.asked == constraint(caller)
    assert read_record("grant", write_record(grant)).constraint == constraint(caller)
    resized = engine.resize("app", Resources(milli_limit=3000), NO_CONSTRAINT, 2.0)
    assert resized is not None
    engine.commit(resized.ticket, 3.0)
    assert format_cpus(engine.grants["app"].placement.cpus) == sent


def test_a_pods_cgroup_without_usable_cpus_leaves_the_request_untouched() -> None:
    engine = engine_on(replace(bounding(kubepods_system="4-5"), usable=parse_cpus("0-3")))
    admission = admit(engine, in_pod(SYSTEM, limit=2))
    assert (admission.stance, admission.decision.why) == (
        Management.UNTOUCHED,
        "the pod's cgroup (4-5) holds no usable CPU",
    )
    assert format_cpus(engine.grants[admission.ticket].cpus) == "4-5"


def test_containers_follow_what_their_pods_cgroup_allows() -> None:
    engine = engine_on(bounding(kubepods_system="2-5"))
    for name, parent in (("app", SYSTEM), ("other", "/kubepods/pody")):
        run(engine, in_pod(parent, name, limit=4), name)
    place = engine.grants["other"].placement
    for allowed, expected in (("4-5", "4-5"), ("6-7", "6-7"), ("2-5", "2-5")):
        updates = engine.rehost(bounding(kubepods_system=allowed))
        assert [u.id for u in updates] == ["app"]
        assert format_cpus(engine.grants["app"].placement.cpus) == expected
        assert broken_invariants(engine) == []
    assert engine.grants["other"].placement == place
    engine.rehost(host_of(VM_NO_CACHE_INFO))
    assert engine.grants["app"].constraint == NO_CONSTRAINT


def test_adopted_and_restored_containers_are_fenced_as_well() -> None:
    before = engine_on(VM_NO_CACHE_INFO)
    run(before, in_pod(SYSTEM, limit=4), "app")
    engine = engine_on(bounding(kubepods_system="4-5"))
    updates = engine.restore(before.grants.values(), (), (), (), {})
    assert [(u.id, format_cpus(u.placement.cpus)) for u in updates] == [("app", "4-5")]
    late = ContainerRecord(
        "late", in_pod(SYSTEM, "late", limit=1), UNTOUCHED, Management.ADOPTED, runs_on=parse_cpus("4-5")
    )
    engine.adopt(late)
    assert engine.grants["late"].constraint.cpus == parse_cpus("4-5")


def test_rule_10_mems_in_a_request_are_a_fence_too(engine) -> None:
    container = make_container("app", limit=2, memory=1)
    assert format_cpus(admit(engine, container, mems="1").placement.mems) == "1"
    assert not admit(engine, replace(container, name="other"), mems="9").placement.mems


def test_rule_10_without_a_cpuset_there_is_no_fence() -> None:
    assert admit(engine_on(VM_NO_CACHE_INFO), make_container("app", limit=8)).placement.cpus == parse_cpus(
        "0-7"
    )


# ---------------------------------------------------------------------- rule 12: opted out

ANNOTATIONS = [
    # annotations, container "app" opts out, container "other" opts out
    ({"cri-resmgr.io/manage": "false"}, True, True),
    ({"cri-resmgr.io/manage": " False "}, True, True),
    ({"cri-resmgr.io/manage": "true"}, False, False),
    ({"cri-resmgr.io/manage": "no idea"}, False, False),
    ({"cri-resmgr.io/manage/pod": "false"}, True, True),
    ({"cri-resmgr.io/manage/container.app": "false"}, True, False),
    ({"cri-resmgr.io/manage": "false", "cri-resmgr.io/manage/container.app": "true"}, False, True),
    ({"manage.cri-resmgr.io": "false"}, True, True),
    ({"manage.cri-resmgr.io/container.app": "false"}, True, False),
    ({"cpu.preserve.resource-policy.nri.io": "true"}, True, True),
    ({"cpu.preserve.resource-policy.nri.io/container.app": "true"}, True, False),
    ({"memory.preserve.resource-policy.nri.io": "true"}, True, True),
    ({"memory.preserve.resource-policy.nri.io": "false"}, False, False),
]


@pytest.mark.parametrize(("annotations", "app", "other"), ANNOTATIONS)
def test_rule_12_annotations_opt_a_pod_or_a_container_out(engine, annotations, app, other) -> None:
    pod = make_pod("web", annotations=annotations)
    for name, out in (("app", app), ("other", other)):
        admission = admit(engine, make_container(name, limit=2, pod=pod))
        assert (admission.stance is Management.OPTED_OUT) is out
        assert bool(admission.placement.cpus) is not out
        assert ("opted out by annotation" in admission.decision.why) is out


def test_rule_12_every_opt_out_is_tried_above() -> None:
    assert set(OPT_OUT) <= {
        key.split("/container.")[0] for annotations, *_ in ANNOTATIONS for key in annotations
    }


@pytest.mark.parametrize(
    ("options", "stance"),
    [
        (EngineOptions(), Management.PLACED),
        (EngineOptions(unmanaged_namespaces=("infra-*",)), Management.OPTED_OUT),
        (EngineOptions(unmanaged_namespaces=("infra",)), Management.PLACED),
        (EngineOptions(unmanaged_handlers=("kata*",)), Management.OPTED_OUT),
        (EngineOptions(unmanaged_handlers=("gvisor",)), Management.PLACED),
        (EngineOptions(preserve=(MatchExpression("name", "In", ("x", "app")),)), Management.OPTED_OUT),
        (EngineOptions(preserve=(MatchExpression("pod/labels/idle", "NotExists"),)), Management.OPTED_OUT),
        (EngineOptions(preserve=(MatchExpression("name", "NotIn", ("app",)),)), Management.PLACED),
    ],
)
def test_rule_12_namespaces_and_runtime_handlers_opt_out_by_configuration(options, stance) -> None:
    engine = engine_on(VM_NO_CACHE_INFO, options=options)
    pod = make_pod("vm", namespace="infra-1", runtime_handler="kata-qemu")
    assert admit(engine, make_container("app", limit=2, pod=pod)).stance is stance


def test_rule_12_the_reason_names_the_condition_that_leaves_a_container_alone() -> None:
    preserve = (MatchExpression("name", "Equals", ("db",)), MatchExpression("name", "In", ("x", "app")))
    engine = engine_on(VM_NO_CACHE_INFO, options=EngineOptions(preserve=preserve))
    admission = admit(engine, make_container("app", limit=2))
    assert admission.decision.why == "left alone by placement.preserve: name In x, app"


def test_rule_12_a_pod_without_a_handler_is_not_matched_by_a_star() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, options=EngineOptions(unmanaged_handlers=("*",)))
    assert admit(engine, make_container("app", limit=2)).stance is Management.PLACED


@pytest.mark.parametrize(("given", "charged"), [(None, "0-7"), ("4-7", "4-7")])
def test_rule_12_opted_out_containers_are_charged_where_they_run(given, charged) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    pod = make_pod("web", annotations={"cri-resmgr.io/manage": "false"})
    admit(engine, make_container("app", request=2, pod=pod), given)
    assert engine.node.charge_milli(parse_cpus(charged)) == 2000


def test_rule_12_cpus_that_kubelet_gave_an_opted_out_container_are_its_own_all_the_same(engine) -> None:
    pod = make_pod("web", annotations={"cri-resmgr.io/manage": "false"})
    admission = admit(engine, replace(guaranteed(), pod=pod), "2-3")
    assert (admission.stance, admission.placement.cpus) == (Management.KUBELET, frozenset())
    assert engine.node.exclusive == {2, 3}


def test_release_is_for_the_attempts_after_too(engine) -> None:
    app = make_container("app", limit=2)
    run(engine, app, "app-0")
    engine.release("app-0")
    engine.exited("app-0", 1, 1.0)
    admission = engine.admit(replace(app, attempt=1), NO_CONSTRAINT, 2.0)
    assert admission.stance is Management.RELEASED
    assert not admission.placement.cpus


# ---------------------------------------------------------------------- rule 10: whose CPUs are is known, not guessed


@pytest.mark.parametrize("call", ["create", "update"])
def test_as_many_cpus_as_it_asks_for_are_a_fence_where_kubelets_file_does_not_say_so(call: str) -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.is_static = False
    run(engine, make_container("other", limit=4), "other")
    if call == "create":
        run(engine, guaranteed(), "own", within=constraint("2-3"))
    else:
        run(engine, guaranteed(), "own")
        admission = engine.resize("own", guaranteed().resources, constraint("2-3"), 1.0)
        assert admission is not None
        engine.commit(admission.ticket, 1.0)
    own = engine.grants["own"]
    assert (own.stance, format_cpus(own.cpus), own.exclusive) == (Management.PLACED, "2-3", frozenset())
    assert format_cpus(engine.grants["other"].cpus) == "0-3"


def test_containers_of_a_pod_that_kubelet_has_given_cpus_share_them_and_no_other_does() -> None:
    pod = make_pod("both")
    assigned = {(pod.uid, ""): parse_cpus("0-2"), (pod.uid, "one"): parse_cpus("0")}
    engine = engine_on(host_of(VM_NO_CACHE_INFO, kubelet_exclusive=assigned))
    engine.is_static = False
    for name, cpus in (("one", "0"), ("two", "1-2"), ("three", "1-2")):
        run(engine, make_container(name, limit=1, pod=pod), name, within=constraint(cpus))
        assert (engine.grants[name].stance, format_cpus(engine.grants[name].cpus)) == (
            Management.KUBELET,
            cpus,
        )
        assert broken_invariants(engine) == []
    run(engine, make_container("other", limit=4), "other")
    assert not engine.grants["other"].cpus & parse_cpus("0-2")


def test_old_kubelets_name_a_container_by_its_id_once_it_runs() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.is_static = False
    run(engine, guaranteed(), "id-1")
    engine.rehost(host_of(VM_NO_CACHE_INFO, kubelet_exclusive={("", "id-1"): parse_cpus("1-2")}))
    assert format_cpus(engine.grants["id-1"].cpus) == "0-3"  # it is told by kubelet
    admission = engine.resize("id-1", guaranteed().resources, constraint("1-2"), 1.0)
    assert admission is not None and admission.stance is Management.KUBELET


def test_an_owner_that_kubelet_has_given_some_of_its_cpus_keeps_them_until_it_is_told() -> None:
    engine = engine_on(VM_NO_CACHE_INFO, policy=Owning(topology(VM_NO_CACHE_INFO)))
    engine.is_static = False
    own = replace(guaranteed(cpus=2), qos=Qos.GUARANTEED)
    first = run(engine, own, "own").exclusive
    assert len(first) == 2
    engine.kubelet_gives(own, format_cpus(first))
    assert (engine.grants["own"].exclusive, broken_invariants(engine)) == (first, [])
    assert engine.mend(1.0).broken == ()
    assert engine.grants["own"].exclusive == first
