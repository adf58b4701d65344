"""Pods with resources of their own (``spec.resources``): what kubelet 1.36 writes, and what is made of it.

Of a pod's update kubelet tells the sandbox before the containers where it grows, after them where it shrinks, limit and
request apart (kuberuntime_manager.go: doPodResizeAction).
"""

from __future__ import annotations

from itertools import permutations
from typing import Any, Optional

import pytest

from cri_proxy.simulator.replay import simulate
from policies.machine.cpus import parse_cpus
from tests.machines import HYGON_7285_2S, machine
from tests.simulator.simulations import CCX, NUMA, STATE, config, run

TOPOLOGY_AWARE = "policy: {Active: topology-aware}"
POLICIES = ("hygon", "topology-aware", "balloons", "none")
Steps = list[dict[str, Any]]


def pod(request: Any, limit: Any, **fields: Any) -> dict[str, Any]:
    return {"op": "pod", "id": "p", "cpu_request": request, "cpu_limit": limit, **fields}


def create(name: str, request: Any, limit: Any, **fields: Any) -> dict[str, Any]:
    told = {"cpu_request": request, "cpu_limit": limit, "qos": "burstable", **fields}
    return {"op": "create", "id": name, "name": name, "pod": "p", **told}


def guaranteed(name: str, cpus: Any, **fields: Any) -> dict[str, Any]:
    return create(name, cpus, cpus, qos="guaranteed", memory_limit="1Gi", **fields)


def resize(name: str, request: Any, limit: Any) -> dict[str, Any]:
    return {"op": "resize", "id": name, "cpu_request": request, "cpu_limit": limit}


def resize_pod(request: Any, limit: Any) -> dict[str, Any]:
    return {"op": "resize-pod", "id": "p", "cpu_request": request, "cpu_limit": limit}


def exits(name: str) -> dict[str, Any]:
    return {"op": "exit", "id": name, "code": 0}


def after(*steps: dict[str, Any], text: str = "{}") -> dict[str, Any]:
    """The state after some steps."""
    return run(*steps, STATE, text=text)[-1]


def places(state: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["id"]: (c["cpus"], c["exclusive"]) for c in state["containers"] if c["state"] == "running"}


def charged(state: dict[str, Any]) -> int:
    """Milli-CPUs that the machine is charged; CPUs that are owned count as such."""
    machine = state["free"]["the machine"]
    return 128_000 - int(machine["free_milli"])


def is_in(where: str) -> tuple[str, str]:
    return where, ""


# ---------------------------------------------------------------------- created

CREATED = {
    "requests 2, limits 8": ([pod(2, 8), create("a", 8, 8), create("b", 8, 8)], CCX[0], 2000),
    "requests 2, limits 32": ([pod(2, 32), *[create(n, 32, 32) for n in "abc"]], "0-15,64-79", 2000),
    "limits only": ([pod(8, 8), create("a", 8, 8), create("b", 8, 8)], CCX[0], 8000),
    "requests only": ([pod(2, None), create("a", 0, None), create("b", 0, None)], NUMA[0], 2000),
    "one with its own, first": ([pod(2, 8), create("a", 1, 8), create("b", 8, 8)], CCX[0], 2000),
    "one with its own, last": ([pod(2, 8), create("b", 8, 8), create("a", 1, 8)], CCX[0], 2000),
    "wider than a node, one with its own": ([pod(2, 32), create("b", 32, 32), create("a", 1, 32)], "0-15,64-79", 2000),
    "Guaranteed": ([pod(4, 4, memory_limit="1Gi"), guaranteed("a", 4), guaranteed("b", 4)], CCX[0], 4000),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "where", "milli"), CREATED.values(), ids=CREATED)
def test_a_pod_is_charged_once_and_in_one_domain(steps: Steps, where: str, milli: int) -> None:
    state = after(*steps)
    assert set(places(state).values()) == {is_in(where)}
    assert charged(state) == milli


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("steps", [steps for steps, _, _ in CREATED.values()], ids=CREATED)
def test_every_policy_charges_a_pod_no_more_than_it_has(policy: str, steps: Steps) -> None:
    text = config(f"policy: {{Active: {policy}}}")
    *_, state = simulate(machine(HYGON_7285_2S), text, [*steps, STATE], lambda name: text)
    assert state["invariants"] == "ok"
    if policy == "balloons":  # what is charged there is what it owns
        own = frozenset().union(*[parse_cpus(c["exclusive"]) for c in state["containers"]])
        assert len(own) == steps[0]["cpu_request"]
    else:
        assert charged(state) <= 1000 * steps[0]["cpu_request"]


def test_others_keep_what_the_pod_does_not_need() -> None:
    """Seen: 96 of 128 CPUs charged for a pod that requests 2."""
    steps = [pod(2, 32), *[create(n, 32, 32) for n in "abc"]]
    others = [{**create(f"x{n}", 14, 14), "pod": f"q{n}"} for n in range(8)]
    state = after(*steps, *others)
    assert charged(state) == 2000 + 8 * 14000
    assert {places(state)[f"x{n}"][0] for n in range(8)} == set(NUMA)


# ---------------------------------------------------------------------- CPUs of one's own


@pytest.mark.parametrize("asks", [{}, {"annotations": {"cri-resmgr.io/cpus": "exclusive"}}])
def test_the_pod_owns_and_its_containers_share_what_it_owns(asks: dict[str, Any]) -> None:
    text = "{}" if asks else TOPOLOGY_AWARE
    own = "0-1,64-65"
    state = after(pod(4, 4), guaranteed("a", 4, **asks), guaranteed("b", 4, **asks), text=text)
    assert places(state) == {"a": (own, own), "b": (own, own)}
    assert charged(state) == 4000


def test_a_container_with_whole_cpus_of_its_own_owns_them_out_of_the_pods() -> None:
    steps = [pod(4, 4), guaranteed("b", 4), guaranteed("a", 2), guaranteed("c", 4)]
    state = after(*steps, text=TOPOLOGY_AWARE)
    assert places(state) == {"a": ("1,65", "1,65"), "b": ("0,64", "0,64"), "c": ("0,64", "0,64")}
    # It ends: the others have the pod's again.
    state = after(*steps, exits("a"), {"op": "wait", "seconds": 60}, text=TOPOLOGY_AWARE)
    own = "0-1,64-65"
    assert places(state) == {"b": (own, own), "c": (own, own)}


def test_a_refused_container_leaves_the_pods_cpus_to_the_others() -> None:
    steps = [pod(4, 4), guaranteed("b", 4), {**guaranteed("a", 2), "result": "refused"}]
    assert places(after(*steps, text=TOPOLOGY_AWARE)) == {"b": ("0-1,64-65", "0-1,64-65")}


def test_a_full_machine_has_a_pods_cpus_for_its_containers() -> None:
    """What others leave free is less than the container's own: the pod's CPUs are the only ones there are."""
    others = [{**guaranteed(f"x{n}", 8), "pod": f"q{n}"} for n in range(15)]
    steps = [pod(4, 4), guaranteed("b", 4), guaranteed("a", 2)]
    extra = {**guaranteed("y", 3), "pod": "z"}
    state = after(*others, steps[0], steps[1], extra, steps[2], text=TOPOLOGY_AWARE)
    owned = {name: set(own) for name, (_, own) in places(state).items()}
    assert places(state)["a"][1] and places(state)["b"][1]
    assert len(owned) == 18


def test_only_requests_own_nothing() -> None:
    """Which of them has a request of its own is known only once all are there."""
    asks = {"annotations": {"cri-resmgr.io/cpus": "exclusive"}}
    state = after(pod(4, None), create("a", 0, None, **asks), create("b", 4, None, **asks))
    assert places(state)["a"][1] == ""
    assert len(places(state)["b"][1]) > 0


# ---------------------------------------------------------------------- resized


def in_place(before: int, now: int) -> dict[str, Steps]:
    """A resize of ``spec.resources``, in kubelet's order and in others."""
    containers = [resize("a", 0, now), resize("b", 0, now)]
    limit_first, request_first = resize_pod(before, now), resize_pod(now, before)
    last = resize_pod(now, now)
    sandbox = [limit_first if now > before else request_first, last]
    return {
        "sandbox first": [*sandbox, *containers],
        "containers first": [*containers, *sandbox],
        "one before, one after": [containers[0], *sandbox, containers[1]],
        "between limit and request": [sandbox[0], *containers, sandbox[1]],
    }


@pytest.mark.parametrize("order", in_place(8, 16))
@pytest.mark.parametrize(("before", "now"), [(8, 16), (16, 4), (4, 8), (16, 40), (40, 2)])
def test_a_resized_pod_is_one_place_whatever_comes_first(before: int, now: int, order: str) -> None:
    started = [pod(before, before), guaranteed("a", before), guaranteed("b", before)]
    state = after(*started, *in_place(before, now)[order])
    assert charged(state) == 1000 * now
    assert len(set(places(state).values())) == 1
    fresh = after(pod(now, now), guaranteed("a", now), guaranteed("b", now))
    assert places(state) == places(fresh)


@pytest.mark.parametrize("order", in_place(8, 16))
@pytest.mark.parametrize(("before", "now"), [(4, 8), (8, 4), (8, 16), (16, 4)])
def test_cpus_that_a_pod_owns_grow_and_shrink_with_it(before: int, now: int, order: str) -> None:
    started = [pod(before, before), guaranteed("a", before), guaranteed("b", before)]
    state = after(*started, *in_place(before, now)[order], text=TOPOLOGY_AWARE)
    own = {places(state)["a"], places(state)["b"]}
    assert len(own) == 1
    assert charged(state) == 1000 * now


ROLES: dict[str, Optional[int]] = {"a": None, "b": None, "c": 1}


@pytest.mark.parametrize("order", list(permutations(["pod", "a", "b"])))
def test_beside_one_with_its_own_the_others_have_the_rest(order: tuple[str, ...]) -> None:
    started = [pod(4, 8), create("a", 8, 8), create("c", 1, 8), create("b", 8, 8)]
    told = {"pod": resize_pod(6, 12), "a": resize("a", 0, 12), "b": resize("b", 0, 12)}
    state = after(*started, *[told[name] for name in order], resize("c", 1, 12))
    assert charged(state) == 6000
    assert {where for where, _ in places(state).values()} == {NUMA[0]}


def test_a_restart_changes_nothing_and_a_lost_state_no_charge() -> None:
    steps = [pod(2, 8), create("a", 8, 8), create("b", 8, 8), create("c", 1, 8)]
    before = after(*steps)
    kept = after(*steps, {"op": "restart"})
    lost = after(*steps, {"op": "restart", "state": "lost"})
    assert (places(kept), charged(kept)) == (places(before), charged(before))
    assert ({c for c, _ in places(lost).values()}, charged(lost)) == ({CCX[0]}, charged(before))


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_so_after_a_resize(state: str) -> None:
    steps = [pod(8, 8), guaranteed("a", 8), guaranteed("b", 8), *in_place(8, 16)["sandbox first"]]
    there = after(*steps, {"op": "restart", "state": state})
    assert charged(there) == 16000
    assert {cpus for cpus, _ in places(there).values()} == {NUMA[0]}


def test_the_next_attempt_shares_as_the_one_before_did() -> None:
    steps = [pod(8, 8), guaranteed("a", 8), guaranteed("b", 8), *in_place(8, 16)["sandbox first"]]
    again = [{"op": "exit", "id": "a", "code": 1}, {**guaranteed("a2", 16), "name": "a", "attempt": 1}]
    there = after(*steps, *again)
    assert charged(there) == 16000
    assert set(places(there).values()) == {is_in(NUMA[0])}


# ---------------------------------------------------------------------- pods without resources of their own


def test_an_init_container_that_is_over_does_not_part_the_pod() -> None:
    """Sidecar 1, init container 16, app 4: the sandbox says 17, which is the init container's."""
    steps = [pod(17, 17), create("sidecar", 1, 1, kind="sidecar"), create("init", 16, 16, kind="init")]
    state = after(*steps, exits("init"), create("app", 4, 4), create("other", 2, 2))
    assert {cpus for cpus, _ in places(state).values()} == {CCX[0]}


def test_while_the_init_container_is_the_smaller_the_size_is_that_of_the_apps() -> None:
    steps = [pod(12, 12), create("init", 2, 2, kind="init"), exits("init"), create("a", 6, 6)]
    state = after(*steps, create("b", 6, 6))
    assert {cpus for cpus, _ in places(state).values()} == {CCX[0], CCX[1]}
