"""Claims and answers with something else in some places: they are read, or there is one sentence that says why not."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.reader import Unreadable
from cluster.dra.claims import ClaimName, ClaimUnusable, check_uid, prepare_arguments, prepared_devices
from cluster.dra.health import device_states
from tests.cluster.api.values import JUNK
from tests.cluster.dra.objects import DRIVER, NODE, UID, claim, config, result

FUZZ = settings(max_examples=150, derandomize=True, deadline=None, database=None)
CLAIM = claim(
    result("a/small"),
    result("b", "l3-1-whole", None, adminAccess=False),
    configs=[config("FromClass", "a", smt="any"), config(l3="one")],
)
ASKED = prepare_arguments(CLAIM, DRIVER, NODE)
ANSWER = {"parts": [{"request": "a/small", "cdi": "k=a", "cpus": "0-3"}, {"request": "b", "cdi": "k=b"}]}
ROW = {
    "namespace": "shop",
    "name": "four",
    "devices": ["l3-0"],
    "cpus": "0-3",
    "healthy": True,
    "moved": False,
}


@st.composite
def mutated(draw: Any, document: Any) -> Any:
    """The document with up to three of its values replaced or taken away."""
    found = deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        value, places = found, []
        while isinstance(value, (dict, list)) and value and (not places or draw(st.integers(0, 5))):
            key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
            places.append((value, key))
            value = value[key]
        if not places:
            return deepcopy(draw(st.sampled_from(JUNK)))
        where, key = places[-1]
        if isinstance(where, dict) and draw(st.booleans()):
            del where[key]
        else:
            where[key] = deepcopy(draw(st.sampled_from(JUNK)))
    return found


def check(error: Exception) -> None:
    assert str(error) and len(str(error)) < 2000 and str(error).isprintable()


@FUZZ
@given(mutated(CLAIM))
def test_a_claim_is_read_or_refused_with_a_sentence(found: Any) -> None:
    try:
        check_uid(found if isinstance(found, dict) else {}, ClaimName("shop", "four", UID))
        arguments = prepare_arguments(found, DRIVER, NODE)
    except ClaimUnusable as error:
        check(error)
        return
    assert arguments["results"] and json.loads(json.dumps(arguments)) == arguments
    assert all(each["cpus"] is None or each["cpus"] >= 1 for each in arguments["results"])


@FUZZ
@given(mutated(ANSWER))
def test_an_answer_of_the_daemon_is_read_or_refused_with_a_sentence(found: Any) -> None:
    try:
        devices = prepared_devices(ASKED, found, NODE)
    except ClaimUnusable as error:
        check(error)
        return
    assert [each.device for each in devices] == ["l3-0", "l3-1-whole"]


@FUZZ
@given(mutated({"devices": [{"name": "l3-0"}]}), mutated({"claims": [ROW, {**ROW, "moved": True}]}))
def test_health_is_made_of_documents_only(devices: Any, claims: Any) -> None:
    try:
        states = device_states(devices, claims)
    except Unreadable as error:
        check(error)
        return
    assert len({each.device for each in states}) == len(states)
    assert all(each.message.isprintable() for each in states)
