"""Scenarios that cannot be run: the sentence names step and field, and comes before the first step runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.simulator.replay import simulate
from cri_proxy.simulator.scenario import FIELDS, BadScenario, read_scenario
from policies.machine.cpus import NO_CPUS
from tests.machines import ONE_CPU, VM_NO_CACHE_INFO, machine
from tests.simulator.simulations import config, create

OK = {"op": "wait", "seconds": 1}

# ---------------------------------------------------------------- what is wrong with the steps themselves

BAD: dict[str, tuple[Any, str]] = {
    "not a list": ({"op": "wait"}, "a scenario is a JSON list of steps, this is an object"),
    "not a list, but null": (None, "a scenario is a JSON list of steps, this is null"),
    "a step that is no object": ([OK, 5], "step 1 (the 2nd): field 'op': the step is 5, expected an object"),
    "no op": (
        [OK, OK, {"id": "a"}],
        "step 2 (the 3rd): field 'op': it is missing; known are pod, create, resize, ",
    ),
    "an unknown op": (
        [{"op": "jump"}],
        "step 0 (the 1st): field 'op': it is 'jump', which is unknown; known are ",
    ),
    "an op of another type": (
        [{"op": ["pod"]}],
        "step 0 (the 1st): field 'op': it is a list, which is unknown; ",
    ),
    "an unknown field": (
        [OK, {"op": "exit", "id": "a", "status": 0}],
        "step 1 (the 2nd): field 'status': exit has no such field; it has id, code",
    ),
    "a field of another op": (
        [{"op": "state", "id": "a"}],
        "step 0 (the 1st): field 'id': state has no such field; it has none",
    ),
    "a field that is missing": (
        [{"op": "create", "id": "a"}],
        "step 0 (the 1st): field 'pod': create needs it",
    ),
    "a field that is null": ([{"op": "remove", "id": None}], "step 0 (the 1st): field 'id': remove needs it"),
    "an empty id": ([{"op": "remove", "id": ""}], "field 'id': it is empty"),
    "an id that is no text": ([{"op": "remove", "id": 7}], "field 'id': it is 7, expected a text"),
    "half a character": (
        [create("\ud800", 1)],
        "field 'id': it holds half of a surrogate pair, which is no text",
    ),
    "a bad quantity": ([create("a", "4 CPUs")], "field 'cpu_request': '4 CPUs' is not a quantity of CPUs"),
    "a negative quantity": ([create("a", -1)], "field 'cpu_request': -1 is not a quantity of CPUs"),
    "a quantity that is none": ([create("a", True)], "field 'cpu_request': it is true, expected a quantity"),
    "more CPUs than there are": (
        [create("a", "1e9")],
        "field 'cpu_request': '1e9' is more than any machine has",
    ),
    "more than can be counted": (
        [create("a", 10**30)],
        "it is a number of more than 20 digits, expected a quantity",
    ),
    "a bad size": (
        [create("a", memory_limit="2GB")],
        "field 'memory_limit': '2GB' is not a quantity of memory",
    ),
    "a bad list": (
        [create("a", cpuset="3-1")],
        "field 'cpuset': '3-1' is not a CPU list: the range '3-1' runs backwards",
    ),
    "a bad word": (
        [create("a", result="maybe")],
        "field 'result': it is 'maybe', expected one of ok, refused, doubt, start-fails",
    ),
    "a result a resize cannot have": (
        [{"op": "resize", "id": "a", "result": "start-fails"}],
        "field 'result': it is 'start-fails', expected one of ok, refused, doubt, lost",
    ),
    "a bad class": (
        [create("a", qos="best")],
        "field 'qos': it is 'best', expected one of guaranteed, burstable, besteffort",
    ),
    "a bad kind": (
        [create("a", kind="cron")],
        "field 'kind': it is 'cron', expected one of app, init, sidecar",
    ),
    "a negative attempt": (
        [create("a", attempt=-1)],
        "field 'attempt': it is -1, expected a whole number from 0 to 4294967295",
    ),
    "a fraction of an attempt": (
        [create("a", attempt=1.5)],
        "field 'attempt': it is 1.5, expected a whole number",
    ),
    "labels that are no texts": ([create("a", labels={"x": 1})], "field 'labels': it is 1, expected a text"),
    "annotations that are a list": (
        [create("a", annotations=[])],
        "field 'annotations': it is a list, expected an object",
    ),
    "devices that are one": (
        [create("a", devices="0000:41:00.0")],
        "field 'devices': it is '0000:41:00.0', expected a list",
    ),
    "a wait without end": (
        [{"op": "wait", "seconds": float("inf")}],
        "field 'seconds': it is inf, expected a number",
    ),
    "a wait for yesterday": (
        [{"op": "wait", "seconds": -1}],
        "field 'seconds': it is -1, expected a number of 0 or more",
    ),
    "a wait for ever": (
        [{"op": "wait", "seconds": 10**12}],
        "field 'seconds': 1000000000000 is more than 1000000000 seconds",
    ),
    "an edge that is none": (
        [{"op": "traffic", "edges": [1]}],
        "field 'edges': edge 0 is 1, expected an object",
    ),
    "an edge with one end": (
        [{"op": "traffic", "edges": [{"a": "x"}]}],
        "field 'edges': edge 0: it is null, expected a text",
    ),
    "an unknown field of an edge": (
        [{"op": "traffic", "edges": [{"a": "x", "b": "y", "mbit": 1}]}],
        "field 'edges': edge 0 has no field 'mbit'; it has a, b, bytes_per_s, msgs_per_s",
    ),
    "edges that are an object": (
        [{"op": "traffic", "edges": {}}],
        "field 'edges': it is an object, expected a list of edges",
    ),
    "a state nobody knows": (
        [{"op": "restart", "state": "new"}],
        "field 'state': it is 'new', expected one of kept, lost, corrupt",
    ),
}


@pytest.mark.parametrize(("document", "sentence"), BAD.values(), ids=BAD.keys())
def test_a_scenario_is_refused_as_a_whole(document: Any, sentence: str) -> None:
    with pytest.raises(BadScenario) as caught:
        simulate(machine(ONE_CPU), config(), document, config)
    assert sentence in str(caught.value)


def test_what_is_not_given_has_its_default() -> None:
    (step,) = read_scenario([{"op": "create", "id": "a", "pod": "p", "cpuset": None}])
    assert dict(step.values) == {
        "id": "a",
        "pod": "p",
        "namespace": "",
        "name": "",
        "qos": "",
        "cpu_request": None,
        "cpu_limit": None,
        "memory_request": None,
        "memory_limit": None,
        "annotations": {},
        "labels": {},
        "attempt": 0,
        "kind": "app",
        "cpuset": NO_CPUS,
        "kubelets": False,
        "mems": NO_CPUS,
        "devices": (),
        "hugepages": (),
        "result": "ok",
    }


def test_steps_are_read_into_units() -> None:
    (step,) = read_scenario([create("a", "1500m", memory_limit="2Gi", cpuset="0-2", devices=["x"])])
    values = [step[field] for field in ("cpu_limit", "memory_limit", "cpuset", "devices")]
    assert values == [1500, 2 * 1024**3, {0, 1, 2}, ("x",)]


# ---------------------------------------------------------------- what is found out on the way

UNKNOWN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "exit": ([{"op": "exit", "id": "x"}], "step 1 (the 2nd): field 'id': there is no container 'x'"),
    "remove": ([{"op": "remove", "id": "x"}], "field 'id': there is no container 'x'"),
    "resize": ([{"op": "resize", "id": "x"}], "field 'id': there is no container 'x'"),
    "update": ([{"op": "update", "id": "x", "cpuset": "0"}], "field 'id': there is no container 'x'"),
    "drift": ([{"op": "drift", "id": "x", "cpus": "0"}], "field 'id': there is no container 'x'"),
    "traffic": (
        [{"op": "traffic", "edges": [{"a": "a", "b": "x"}]}],
        "field 'edges': there is no container 'x'",
    ),
    "remove-pod": ([{"op": "remove-pod", "id": "x"}], "field 'id': there is no pod 'x'"),
    "removed before": (
        [{"op": "remove", "id": "a"}, {"op": "exit", "id": "a"}],
        "step 2 (the 3rd): field 'id': there is no container 'a'",
    ),
    "gone with its pod": (
        [{"op": "remove-pod", "id": "pod-of-a"}, {"op": "exit", "id": "a"}],
        "step 2 (the 3rd): field 'id': there is no container 'a'",
    ),
    "a container that is there": ([create("a", 1)], "field 'id': there is a container 'a' already"),
    "a pod that is there": (
        [{"op": "pod", "id": "pod-of-a"}],
        "field 'id': there is a pod 'pod-of-a' already",
    ),
    "CPUs nobody has": ([{"op": "cpus", "offline": "6-9"}], "field 'offline': the machine has no CPUs 8-9"),
    "CPUs both ways": (
        [{"op": "cpus", "offline": "1-2", "online": "2-3"}],
        "field 'online': CPUs 2 are to go offline as well",
    ),
}


@pytest.mark.parametrize(("steps", "sentence"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_id_ends_the_run_at_its_step(steps: list[dict[str, Any]], sentence: str) -> None:
    lines = simulate(machine(VM_NO_CACHE_INFO), config(), [create("a", 1), *steps], config)
    for _ in steps:
        next(lines)
    with pytest.raises(BadScenario) as caught:
        next(lines)
    assert sentence in str(caught.value)


# ---------------------------------------------------------------- whatever it is

_TEXTS = st.sampled_from(["a", "b", "p", "0-3", "2", "750m", "1Gi", "ok", "doubt", "lost", ""]) | st.text(
    max_size=4
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS
_ANYTHING = st.recursive(
    _SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(_TEXTS, x, max_size=3), max_leaves=6
)
_FIELDS = sorted({field for fields in FIELDS.values() for field in fields})


@st.composite
def almost_steps(draw: st.DrawFn) -> dict[str, Any]:
    """A step of a known op, mostly with fields it has, with values of any kind."""
    op = draw(st.sampled_from(sorted(FIELDS)))
    names = st.sampled_from(sorted(FIELDS[op]) or ["id"])
    given = draw(st.dictionaries(names, _TEXTS | _TEXTS | _ANYTHING, max_size=5))
    required = {name: draw(_TEXTS) for name, field in FIELDS[op].items() if field.required}
    return {"op": op, **required, **given}


@given(st.lists(almost_steps() | almost_steps() | almost_steps() | _ANYTHING, max_size=5) | _ANYTHING)
def test_whatever_a_scenario_is_it_runs_or_is_refused(document: Any) -> None:
    def no_files(name: str) -> Any:
        raise FileNotFoundError(2, "No such file", name)

    steps = [*document, {"op": "state"}] if isinstance(document, list) else document
    try:
        lines = list(simulate(machine(VM_NO_CACHE_INFO), config(), steps, no_files))
    except BadScenario:
        return
    assert lines[-1]["invariants"] == "ok"


def test_each_op_has_its_fields_checked() -> None:
    for op in FIELDS:
        for name in _FIELDS:
            if name not in FIELDS[op]:
                with pytest.raises(BadScenario, match=f"'{name}': {op} has no such field"):
                    read_scenario([{"op": op, name: "x"}])
