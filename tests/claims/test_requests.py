"""What the agent asks about a claim: read with care, and made into what the engine is asked for."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api.claims import claim_key, part_name
from cri_proxy.claims.devices import ClaimDevice, devices_of, find_device
from cri_proxy.claims.parameters import API_VERSION, KIND, BadParameters, CpuParameters, ParametersEntry
from cri_proxy.claims.requests import (
    BadClaim,
    ClaimRequest,
    DeviceResult,
    parts_of,
    read_claim,
    read_uid,
)
from cri_proxy.engine.model import ClaimPart
from policies.model import PlacementPreferences
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on

#: That of the machine's L3s.
L3_CPUS = 8


def arguments(**more: Any) -> dict[str, Any]:
    results = [{"request": "cpus", "device": "l3-0", "cpus": 2, "share": "s"}]
    return {"uid": "u-1", "namespace": "default", "name": "c", "results": results, **more}


def of(**more: Any) -> dict[str, Any]:
    """Arguments with one result."""
    return arguments(results=[{"request": "cpus", "device": "l3-0", "cpus": 2, **more}])


def test_a_claim_is_read_with_what_a_newer_agent_says_besides_passed_over() -> None:
    value = {"apiVersion": API_VERSION, "kind": KIND, "smt": "hide"}
    told = arguments(parameters=[{"requests": ["cpus"], "value": value, "source": "x"}], pods=[], more=1)
    assert read_claim(told) == ClaimRequest(
        "u-1", "default", "c", (DeviceResult("cpus", "l3-0", 2),), (ParametersEntry(("cpus",), CpuParameters(smt="hide")),)
    )  # fmt: skip
    assert read_claim(of(request="cpus/large", cpus=None)).results == (DeviceResult("cpus/large", "l3-0"),)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({}, "uid is null, expected the UID of a claim"),
        (arguments(uid="a_b"), 'uid is "a_b", expected the UID of a claim'),
        (arguments(uid="../etc"), 'uid is "../etc", expected the UID of a claim'),
        (arguments(uid=7), "uid is 7, expected the UID of a claim"),
        (arguments(namespace=""), 'namespace is "", expected a name of 1 to 253 characters'),
        (arguments(name="a\nb"), 'name is "a\\nb", expected a name of 1 to 253 characters'),
        (arguments(results=None), "results is null, expected a list of at most 32"),
        (arguments(results=[{}] * 33), "results is of another kind, expected a list of at most 32"),
        (arguments(results=[7]), "results[0] is 7, expected an object with request, device and cpus"),
        (of(request="A"), 'results[0].request is "A", expected the name of a request'),
        (of(request="a/b/c"), 'results[0].request is "a/b/c", expected the name of a request'),
        (of(device=None), "results[0].device is null, expected the name of a device"),
        (of(cpus=0), "results[0].cpus is 0, expected a whole number of CPUs from 1 on, or null"),
        (of(cpus=True), "results[0].cpus is true, expected a whole number of CPUs from 1 on, or null"),
        (of(cpus=2.5), "results[0].cpus is 2.5, expected a whole number of CPUs from 1 on, or null"),
        (of(cpus="2"), 'results[0].cpus is "2", expected a whole number of CPUs from 1 on, or null'),
        (arguments(parameters={}), "parameters is of another kind, expected a list of at most 64"),
        (
            arguments(parameters=[[]]),
            "parameters[0] is of another kind, expected an object with requests and value",
        ),
        (arguments(parameters=[{"requests": [1]}]), "parameters[0] is of another kind, expected an object"),
        (
            arguments(parameters=[{}]),
            "the claim's parameters is None, expected an object with apiVersion and kind",
        ),
    ],
)
def test_what_cannot_be_read_is_named(told: dict[str, Any], sentence: str) -> None:
    with pytest.raises((BadClaim, BadParameters)) as refused:
        read_claim(told)
    assert str(refused.value).startswith(sentence)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("uid", "namespace", "name", "results", "parameters"), _JSON)
    )
)
def test_whatever_is_asked_is_read_or_refused_in_a_sentence(told: dict[str, Any]) -> None:
    for read in (read_claim, read_uid):
        try:
            read(told)
        except (BadClaim, BadParameters) as refused:
            assert "expected" in str(refused) or "unknown" in str(refused)


# ---------------------------------------------------------------------- parts


def parts(*results: DeviceResult, engine: Any = None, **said: str) -> tuple[ClaimPart, ...]:
    engine = engine or engine_on(HYGON_7285_2S)
    entries = (ParametersEntry((), CpuParameters(**said)),)
    claim = ClaimRequest("u-1", "default", "c", results, entries)
    return parts_of(claim, lambda name: find_device(engine, name), engine.grants)


def device(name: str) -> ClaimDevice:
    return next(d for d in devices_of(engine_on(HYGON_7285_2S)) if d.name == name)


def test_a_part_is_made_of_each_request() -> None:
    first, second = parts(
        DeviceResult("a", "l3-0", 2), DeviceResult("b", "l3-1-whole"), smt="hide", isolation="batch"
    )
    preferences = PlacementPreferences(ownership="exclusive", smt="hide", isolation_class="batch")
    assert first == ClaimPart("a", 2, device("l3-0").bounds, preferences, ("l3-0",))
    assert second.devices == ("l3-1-whole",) and second.cpus == device("l3-1").bounds


def test_a_request_of_one_device_twice_has_the_sum() -> None:
    [part] = parts(DeviceResult("a", "l3-0", 2), DeviceResult("a", "l3-0", 3))
    assert (part.count, part.devices) == (5, ("l3-0",))


def test_whole_devices_of_one_request_are_one_part_with_all_that_may_be_owned_there() -> None:
    [part] = parts(DeviceResult("a", "l3-1-whole"), DeviceResult("a", "l3-0-whole"))
    assert (part.count, part.devices) == (2 * L3_CPUS, ("l3-0-whole", "l3-1-whole"))
    assert part.cpus == device("l3-0").bounds | device("l3-1").bounds


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        (
            [DeviceResult("a", "l3-99", 1)],
            "the request a was allocated l3-99, and this node has no such device",
        ),
        ([DeviceResult("a", "l3-0")], "the allocation of the request a does not say how many CPUs of l3-0"),
        (
            [DeviceResult("a", "l3-1", 1), DeviceResult("a", "l3-0", 1)],
            "the request a was allocated parts of 2 devices (l3-0, l3-1); name a request for each of them",
        ),
        (
            [DeviceResult("a", "l3-1-whole"), DeviceResult("a", "l3-0", 1)],
            "the request a was allocated parts of 2 devices (l3-0, l3-1-whole); name a request for each of them",
        ),
    ],
)
def test_an_allocation_that_fits_no_device_is_refused(results: list[DeviceResult], sentence: str) -> None:
    with pytest.raises(BadClaim) as refused:
        parts(*results)
    assert str(refused.value).startswith(sentence)


def test_a_whole_device_that_was_prepared_is_asked_for_as_it_was() -> None:
    engine = engine_on(HYGON_7285_2S)
    asked = parts(DeviceResult("a", "l3-0-whole"), engine=engine)
    engine.prepare("u-1", "default", "c", asked, 0.0)
    grant = engine.grants[claim_key(part_name("u-1", "a"))]
    host = engine.host
    engine.rehost(type(host)(host.topology, host.usable - {min(grant.cpus)}, host.mems))
    assert parts(DeviceResult("a", "l3-0-whole"), engine=engine) == asked


def test_of_a_device_without_a_cpu_to_give_it_is_said(monkeypatch: Any) -> None:
    engine = engine_on(HYGON_7285_2S)
    host = engine.host
    engine.rehost(type(host)(host.topology, host.usable - device("l3-0").bounds, host.mems))
    found: Optional[ClaimDevice] = find_device(engine, "l3-0-whole")
    assert found is not None and not found.cpus
    with pytest.raises(
        BadClaim, match="no CPU of l3-0-whole can be given to a claim now: all are reserved, offline"
    ):
        parts(DeviceResult("a", "l3-0-whole"), engine=engine)
