"""Pods with resources of their own in the records: what is charged follows from what is there, whatever came first.

Kubelet's numbers: see policies/pod_share.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cli.placement_text import explain_text
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord, ListedContainer, Management
from cri_proxy.engine.reconcile import reconcile
from cri_proxy.engine.report import placement_row
from cri_proxy.engine.resources import CgroupReading, has_news, resources_read, size_read
from cri_proxy.engine.resync import Listing
from cri_proxy.engine.snapshot import everything, read_records, write_record
from policies.machine.cpus import format_cpus, parse_cpus
from policies.model import (
    NO_CONSTRAINT,
    POD_CGROUP,
    SANDBOX_RESOURCES,
    Constraint,
    Container,
    PlacementPreferences,
    PlacementRefused,
    Pod,
    PodSize,
    Qos,
    Quota,
    Resources,
)
from tests.machines import GIB, HYGON_7285_2S
from tests.scenes import TOPOLOGY_AWARE, dump, engine_on, make_pod, told
from tests.told_at_once import resync

Told = tuple[int, Optional[int]]


def size(request: int, limit: Optional[int]) -> PodSize:
    return PodSize(request, limit, SANDBOX_RESOURCES)


def sized(request: int, limit: Optional[int], name: str = "p") -> Pod:
    pod = make_pod(name)
    return Pod(pod.id, pod.uid, name, pod.namespace, size=size(request, limit))


def container(pod: Pod, name: str, told: Told, qos: Qos = Qos.BURSTABLE, attempt: int = 0) -> Container:
    return Container(pod, name, attempt, qos, Resources(*told, memory_limit_bytes=GIB))


def engine_with(pod: Pod, *told: Told, qos: Qos = Qos.BURSTABLE, owning: bool = False) -> Engine:
    engine = engine_on(HYGON_7285_2S, TOPOLOGY_AWARE) if owning else engine_on(HYGON_7285_2S)
    engine.add_pod(pod)
    for name, each in zip("abcd", told):
        start(engine, container(engine.pods[pod.id], name, each, qos))
    return engine


def start(engine: Engine, started: Container) -> ContainerRecord:
    key = f"{started.pod.name}-{started.name}-{started.attempt}"
    admission = engine.admit(started, NO_CONSTRAINT, 0.0)
    engine.bind(admission.ticket, key, 0.0)
    engine.started(key)
    return engine.grants[key]


def update(engine: Engine, key: str, told: Told) -> None:
    admission = engine.resize(key, Resources(*told, memory_limit_bytes=GIB), NO_CONSTRAINT, 1.0)
    assert admission is not None
    engine.commit(admission.ticket, 1.0)


def charges(engine: Engine, pod: str = "p") -> dict[str, int]:
    return {
        grant.container.name: engine.node.residents[key].milli_request
        for key, grant in engine.grants.items()
        if grant.container.pod.name == pod
    }


def restarted(engine: Engine, texts: Optional[Iterable[tuple[str, str, str]]] = None) -> Engine:
    """The engine of a daemon that begins with what the one before has written down."""
    written = [(kind, key, write_record(value)) for (kind, key), value in everything(engine).items()]
    found = read_records(written if texts is None else texts)
    assert not found.dropped
    grants = sorted(found.records.get("grant", {}).values(), key=lambda g: (g.since_s, g.key))
    again = Engine(engine.host, engine.policy, engine.options)
    records = found.records
    again.restore(
        grants, records.get("ticket", {}).values(), records.get("pod", {}).values(), [], dict[tuple[str, str], float]()
    )  # fmt: skip
    return again


def test_what_its_demand_refuses_stays_where_it_is_when_its_pod_is_resized() -> None:
    """Of a tidy-up no caller can be told: each of these has its CPUs, and the policy would not give it as many now."""
    engine = engine_on(HYGON_7285_2S, TOPOLOGY_AWARE)
    pod = sized(8000, 8000)
    engine.add_pod(pod)
    demand = PlacementPreferences(l3="exclusive")
    wanting = replace(container(pod, "a", (8000, 8000), Qos.GUARANTEED), preferences=demand)
    own = start(engine, wanting).exclusive
    for request in (1600, 4000, 12_000, 128_000):
        engine.resize_pod("sandbox-p", size(request, 128_000), 0, 1.0)
        assert own and broken_invariants(engine) == []


def test_of_a_pod_that_no_record_tells_of_its_size_is_the_one_its_newest_container_was_told() -> None:
    """After an end whose records were lost: containers of the pod know it as it was when they came."""
    engine = engine_with(sized(12_000, 12_000), *[(12_000, 12_000)] * 4)
    for number, grant in enumerate(list(engine.grants.values())):
        pod = sized(3000 * (number + 1), 12_000)
        engine.put(replace(grant, since_s=float(number), container=replace(grant.container, pod=pod)))
    del engine.pods["sandbox-p"]
    reconcile(engine, force=True)
    assert sum(charges(engine).values()) == 12_000


# ---------------------------------------------------------------------- requests under way


def test_a_refused_container_leaves_no_trace_in_its_pod() -> None:
    engine = engine_with(sized(2000, 8000), (8000, 8000))
    before = dump(engine)
    admission = engine.admit(container(engine.pods["sandbox-p"], "b", (8000, 8000)), NO_CONSTRAINT, 1.0)
    assert charges(engine) == {"a": 1000, "b": 1000}
    engine.cancel(admission.ticket, 1.0)
    assert dump(engine) == before


def test_a_refused_resize_leaves_no_trace_in_its_pod() -> None:
    engine = engine_with(sized(4000, 8000), (8000, 8000), (1000, 8000))
    before = dump(engine)
    admission = engine.resize("p-b-0", Resources(3000, 8000, memory_limit_bytes=GIB), NO_CONSTRAINT, 1.0)
    assert admission is not None
    assert engine.grants["p-a-0"].container.resources.milli_request == 1000
    engine.cancel(admission.ticket, 1.0)
    assert dump(engine) == before


def test_those_that_own_together_make_room_before_the_create() -> None:
    engine = engine_with(sized(4000, 4000), (4000, 4000), qos=Qos.GUARANTEED, owning=True)
    admission = engine.admit(
        container(engine.pods["sandbox-p"], "b", (2000, 2000), Qos.GUARANTEED), NO_CONSTRAINT, 1.0
    )
    assert told(admission.before) == {"p-a-0": "0,64"}
    assert format_cpus(admission.placement.exclusive) == "1,65"
    back = engine.cancel(admission.ticket, 1.0)
    assert told(back) == {"p-a-0": "0-1,64-65"}
    assert broken_invariants(engine) == []


def test_those_that_own_together_give_way_to_kubelets_own_assignment_together() -> None:
    engine = engine_with(sized(3000, 3000), (3000, 3000), (3000, 3000), qos=Qos.GUARANTEED, owning=True)
    before = engine.grants["p-a-0"].exclusive
    assert before == engine.grants["p-b-0"].exclusive and len(before) == 3
    other = container(make_pod("q"), "k", (3000, 3000), Qos.GUARANTEED)
    admission = engine.admit(other, Constraint(before), 1.0)
    engine.bind(admission.ticket, "k", 1.0)
    assert engine.grants["k"].stance is Management.KUBELET
    assert broken_invariants(engine) == []
    after = engine.grants["p-a-0"].exclusive
    assert after == engine.grants["p-b-0"].exclusive and len(after) == 3 and after.isdisjoint(before)


def test_an_error_undoes_what_was_shared_out() -> None:
    engine = engine_with(sized(4000, 4000), (4000, 4000), qos=Qos.GUARANTEED, owning=True)
    before = dump(engine)
    demanding = container(engine.pods["sandbox-p"], "b", (2000, 2000), Qos.GUARANTEED)
    with pytest.raises(PlacementRefused):
        engine.admit(_refusing(demanding), NO_CONSTRAINT, 1.0)
    assert dump(engine) == before
    assert broken_invariants(engine) == []


def _refusing(each: Container) -> Container:
    return replace(each, preferences=replace(each.preferences, refusal="it cannot be understood"))


def test_where_nothing_may_be_sent_the_pods_containers_are_placed_later() -> None:
    engine = engine_with(sized(16000, 16000), (16000, 16000), (16000, 16000))
    cpus = engine.grants["p-a-0"].cpus
    assert engine.resize_pod("sandbox-p", size(4000, 4000), 0, 1.0, enforce=False) == ()
    assert charges(engine) == {"a": 2000, "b": 2000}
    assert {engine.grants[key].cpus for key in engine.grants} == {cpus}
    assert all(grant.is_outgrown for grant in engine.grants.values())


def test_a_pod_that_is_resized_tells_its_containers() -> None:
    engine = engine_with(sized(16000, 16000), (16000, 16000), (16000, 16000))
    updates = engine.resize_pod("sandbox-p", size(4000, 4000), 0, 1.0)
    assert told(updates) == {"p-a-0": "0-3,64-67", "p-b-0": "0-3,64-67"}
    # A quota that were to be given back is the one that its caller has set.
    assert engine.grants["p-a-0"].quota == Quota(1_600_000, 100_000)
    assert [record.outcome for record in engine.history][-2:] == ["its pod was resized"] * 2


def test_a_memory_limit_alone_moves_no_container() -> None:
    engine = engine_with(sized(2000, 8000), (8000, 8000), (8000, 8000))
    assert engine.resize_pod("sandbox-p", None, 8 * GIB, 1.0) == ()
    assert engine.grants["p-a-0"].container.pod.memory_limit_bytes == 8 * GIB


# ---------------------------------------------------------------------- restart, adoption


def test_after_a_restart_the_books_are_the_same() -> None:
    engine = engine_with(sized(3000, 8000), (8000, 8000), (1000, 8000), (8000, 8000))
    again = restarted(engine)
    assert charges(again) == charges(engine) == {"a": 1000, "b": 1000, "c": 1000}
    assert {k: g.placement for k, g in again.grants.items()} == {
        k: g.placement for k, g in engine.grants.items()
    }


def test_what_an_older_version_has_written_is_shared_out_when_it_is_read() -> None:
    """It knows no containers that share."""
    engine = engine_with(sized(2000, 8000), (8000, 8000), (8000, 8000))
    texts = [
        (kind, key, _as_before(write_record(value))) for (kind, key), value in everything(engine).items()
    ]
    assert charges(restarted(engine, texts)) == {"a": 1000, "b": 1000}


def test_an_older_version_reads_what_the_caller_has_told() -> None:
    engine = engine_with(sized(2000, 8000), (8000, 8000), (8000, 8000))
    document = json.loads(write_record(engine.grants["p-a-0"]))
    assert document["container"]["resources"][:2] == [8000, 8000]
    assert document["container"]["pod"]["size"] == [2000, 8000, SANDBOX_RESOURCES]


def _as_before(text: str) -> str:
    document: Any = json.loads(text)
    if isinstance(document, dict):
        for pod in (document, document.get("container", {}).get("pod", {})):
            pod.pop("size_overhead", None)
            pod.pop("size_is_past", None)
        for name in ("is_of_pod", "tells_own"):
            document.get("container", {}).pop(name, None)
    return json.dumps(document)


@pytest.mark.parametrize("told_by", ["the sandbox", "the pod's cgroup"])
def test_adopted_containers_are_charged_as_their_pod(engine, told_by) -> None:
    pod = sized(2000, 8000) if told_by == "the sandbox" else make_pod("p")
    details = {name: container(pod, name, (8000, 8000)) for name in "ab"}
    seen = {
        name: ListedContainer(name, pod.id, pod.uid, name, 0, True, False, cpus=parse_cpus("0-3,64-67"))
        for name in "ab"
    }
    resync(engine, Listing(seen, 1.0, details), 1.0)
    if told_by == "the pod's cgroup":
        # 2 CPUs of requests and a quota of 8, as kubelet has written them (cm/helpers_linux.go: ResourceConfigForPod).
        found = size_read(None, CgroupReading(shares=2048, quota_us=800_000, period_us=100_000))
        assert found == PodSize(2000, 8000, POD_CGROUP)
        engine.resize_pod(pod.id, found, 0, 2.0)
    assert charges(engine) == {"a": 1000, "b": 1000}
    assert {grant.stance for grant in engine.grants.values()} == {Management.ADOPTED}


def test_a_pods_cgroup_without_a_quota_tells_its_request() -> None:
    known = PodSize(2000, None, SANDBOX_RESOURCES)
    assert size_read(known, CgroupReading(shares=2048, quota_us=-1)) is known
    assert size_read(known, CgroupReading(shares=4096, quota_us=-1)) == PodSize(4000, None, POD_CGROUP)
    assert size_read(None, CgroupReading(shares=2, quota_us=-1)) is None


def test_what_its_cgroup_says_is_compared_with_what_it_was_told() -> None:
    engine = engine_with(sized(2000, 8000), (8000, 8000), (8000, 8000))
    grant = engine.grants["p-a-0"]
    reading = CgroupReading(shares=8192, quota_us=800_000, period_us=100_000, memory_limit_bytes=GIB)
    assert not has_news(grant, reading)
    assert resources_read(grant, reading, cri.LinuxContainerResources()) == grant.container.told


def test_explain_says_that_the_request_is_the_pods() -> None:
    engine = engine_with(sized(2000, 8000), (8000, 8000), (8000, 8000))
    row = placement_row(engine.host.topology, engine.grants["p-a-0"])
    row.update(fence_cpus=None, domains=[], memory_charge=[], memory=[])
    text = explain_text({"containers": [row], "history": []})
    assert "request 1000m, limit 8000m" in text
    assert "the request is the pod's: 2000m, which 2 containers share" in text


# ---------------------------------------------------------------------- any sequence

SIZES = [1000, 2000, 4000, 6000, 8000, 16000, 40000]
OPERATIONS = [
    "create",
    "create",
    "resize",
    "resize",
    "resize own",
    "exit",
    "fail",
    "remove",
    "restart",
    "refuse",
]
ORDERS = st.permutations(["pod", "a", "b", "c"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS),
        st.sampled_from("abc"),
        st.sampled_from(SIZES),
        st.sampled_from(SIZES),
        ORDERS,
    ),
    max_size=12,
)


class Kubelet:
    """One pod with resources of its own; ``c`` has a request of its own, of half of the pod's at most."""

    def __init__(self, owning: bool, request: int, limit: int) -> None:
        self.engine = engine_on(HYGON_7285_2S, TOPOLOGY_AWARE) if owning else engine_on(HYGON_7285_2S)
        self.request, self.limit = min(request, limit), limit
        self.own = self.request // 2000 * 1000
        self.qos = Qos.GUARANTEED if self.request == self.limit else Qos.BURSTABLE
        self.engine.add_pod(sized(self.request, self.limit))
        self.attempts: dict[str, int] = {}
        self.running: dict[str, str] = {}

    def told(self, name: str, is_update: bool = False) -> Told:
        if name == "c":
            return self.own, self.own if self.qos is Qos.GUARANTEED else self.limit
        return (0 if is_update else self.limit), self.limit

    def step(self, operation: str, name: str, request: int, limit: int, order: list[str]) -> None:
        engine, is_there = self.engine, name in self.running
        if operation in ("create", "refuse") and not is_there and not (name == "c" and not self.own):
            attempt = self.attempts[name] = self.attempts.get(name, -1) + 1
            made = container(engine.pods["sandbox-p"], name, self.told(name), self.qos, attempt)
            if operation == "create":
                self.running[name] = start(engine, made).key
            else:
                engine.cancel(engine.admit(made, NO_CONSTRAINT, 0.0).ticket, 0.0)
        elif operation == "resize":
            self._resize(limit if self.qos is Qos.GUARANTEED else min(request, limit), limit, order)
        elif operation == "resize own" and "c" in self.running and self.request >= 2000:
            self.own = request // 2000 * 1000 % (self.request // 2000 * 1000) + 1000
            update(engine, self.running["c"], self.told("c"))
        elif operation in ("exit", "fail") and is_there:
            engine.exited(self.running.pop(name), int(operation == "fail"), 0.0)
        elif operation == "remove" and is_there:
            engine.remove(self.running.pop(name))
        elif operation == "restart":
            self.engine = restarted(engine)

    def _resize(self, request: int, limit: int, order: list[str]) -> None:
        if "c" in self.running and request < 2000:
            return  # what it has of its own cannot be taken away in place
        self.request, self.limit = request, limit
        self.own = min(self.own, request // 2000 * 1000)
        for what in order:
            if what == "pod":
                self.engine.resize_pod("sandbox-p", size(request, limit), 0, 1.0)
            elif what in self.running:
                update(self.engine, self.running[what], self.told(what, is_update=True))


@given(owning=st.booleans(), request=st.sampled_from(SIZES), limit=st.sampled_from(SIZES), steps=STEPS)
def test_a_pod_is_never_charged_more_than_it_has(owning, request, limit, steps) -> None:
    kubelet = Kubelet(owning, request, limit)
    for step in steps:
        kubelet.step(*step)
        engine = kubelet.engine
        assert broken_invariants(engine) == []
        found = charges(engine)
        assert sum(found.values()) <= kubelet.request
        sharers = [g for g in engine.grants.values() if g.container.pod_share is not None]
        if sharers and all(g.container.name in kubelet.running for g in engine.grants.values()):
            assert sum(found.values()) == kubelet.request
        # Those that share have one place.
        assert len({(g.placement.home, g.exclusive) for g in sharers}) <= 1
        owners = {g.exclusive for g in sharers if g.exclusive}
        for own in owners:
            assert len(own) * 1000 <= sharers[0].container.pod_share.milli_pod  # type: ignore[union-attr]


@given(
    owning=st.booleans(), before=st.sampled_from(SIZES), now=st.sampled_from(SIZES), one=ORDERS, other=ORDERS
)
def test_either_order_gives_the_same_books(owning, before, now, one, other) -> None:
    books = []
    for order in (one, other):
        kubelet = Kubelet(owning, before, before)
        for name in "abc":
            kubelet.step("create", name, 0, 0, [])
        kubelet.step("resize", "a", now, now, order)
        books.append(
            (charges(kubelet.engine), {k: len(g.exclusive) for k, g in kubelet.engine.grants.items()})
        )
    assert books[0] == books[1]
