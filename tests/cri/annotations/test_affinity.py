"""Affinity annotations: the full form, the short one, and what is left out with a note."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.cri.annotations.affinity import MAX_CONDITION_VALUES, MAX_TERMS, read_affinity, read_condition
from cri_proxy.text.annotation_value import BadAnnotation
from policies.affinity.pull.expressions import OPERATORS
from policies.model import AffinityTerm, MatchExpression
from tests.scenes import make_pod

POD = make_pod("farm")
SAME_POD = MatchExpression("pod/uid", "Equals", ("uid-farm",))
SHEEP = MatchExpression("name", "Equals", ("sheep",))
PROD = MatchExpression("pod/namespace", "Matches", ("prod-*",))

FULL = """
peter:
- scope: {key: pod/namespace, operator: Matches, values: ["prod-*"]}
  match: {key: name, operator: Equals, values: [sheep]}
  weight: 5
wolf:
- match: {key: name, operator: Equals, values: [sheep]}
"""


def terms(text: str, container: str = "app", sign: int = 1) -> tuple[AffinityTerm, ...]:
    read = read_affinity(text, container, POD, sign)
    assert not read.notes
    return read.terms


def test_the_full_form_has_scope_match_and_weight() -> None:
    assert terms(FULL, "peter") == (AffinityTerm(PROD, SHEEP, 5),)


def test_the_scope_is_the_same_pod_if_none_is_given() -> None:
    assert terms(FULL, "wolf") == (AffinityTerm(SAME_POD, SHEEP, 1),)


def test_required_is_a_weight_of_our_own_annotation() -> None:
    text = "app: [{match: {key: name, operator: Equals, values: [sheep]}, weight: required}]"
    near = read_affinity(text, "app", POD, 1, may_require=True)
    assert near.terms == (AffinityTerm(SAME_POD, SHEEP, 1000, required=True),)
    far = read_affinity(text, "app", POD, -1, may_require=True)
    assert far.terms == (AffinityTerm(SAME_POD, SHEEP, -1000),), "it holds with any weight"
    theirs = read_affinity(text, "app", POD, 1)
    assert theirs.terms == ()
    assert 'weight is "required", expected a whole number' in theirs.notes[0]


def test_only_the_containers_own_terms_count() -> None:
    assert terms(FULL, "sheep") == ()


def test_the_short_form_names_containers_of_the_pod() -> None:
    assert terms("container3: [ container2, container1, container2 ]", "container3") == (
        AffinityTerm(SAME_POD, MatchExpression("name", "In", ("container2", "container1")), 1),
    )


def test_both_forms_may_be_mixed() -> None:
    text = "app:\n- db\n- match: {key: name, operator: Equals, values: sheep}\n  weight: 2\n"
    assert terms(text) == (
        AffinityTerm(SAME_POD, SHEEP, 2),
        AffinityTerm(SAME_POD, MatchExpression("name", "In", ("db",)), 1),
    )


def test_json_is_as_good() -> None:
    text = '{"app": [{"match": {"key": "name", "operator": "Equals", "values": ["sheep"]}, "weight": 7}]}'
    assert terms(text) == (AffinityTerm(SAME_POD, SHEEP, 7),)


# As it is written, in an affinity, in an anti-affinity.
WEIGHTS = [
    ("", 1, -1),
    ("weight: 0", 1, -1),
    ("weight: 5", 5, -5),
    ("weight: -5", -5, 5),
    ("weight: +5", 5, -5),
    ("weight: 1000", 1000, -1000),
    ("weight: 1001", 1000, -1000),
    ("weight: -4000000000", -1000, 1000),
]


@pytest.mark.parametrize(("text", "affinity", "anti_affinity"), WEIGHTS)
def test_weights_are_clamped_and_an_anti_affinitys_count_the_other_way_round(
    text: str, affinity: int, anti_affinity: int
) -> None:
    document = f"app:\n- match: {{key: name, operator: Exists}}\n  {text}\n"
    assert [term.weight for term in terms(document, sign=1)] == [affinity]
    assert [term.weight for term in terms(document, sign=-1)] == [anti_affinity]


CONDITIONS = [
    ({"key": "k", "operator": "Equals", "values": ["v"]}, MatchExpression("k", "Equals", ("v",))),
    ({"key": "k", "operator": "Equals", "values": "v"}, MatchExpression("k", "Equals", ("v",))),
    ({"key": "k", "operator": "In", "values": ["v", "w"]}, MatchExpression("k", "In", ("v", "w"))),
    ({"key": "k", "operator": "Exists"}, MatchExpression("k", "Exists")),
    ({"key": "k", "operator": "NotExist", "values": ""}, MatchExpression("k", "NotExist")),
    ({"operator": "AlwaysTrue"}, MatchExpression("", "AlwaysTrue")),
]


@pytest.mark.parametrize(("given", "condition"), CONDITIONS)
def test_a_condition_is_key_operator_and_values(given: Any, condition: MatchExpression) -> None:
    assert read_condition(given, "match") == condition


KNOWN = ", ".join(OPERATORS)
BAD_TERMS = [
    ("[a]", "found a list, expected a mapping or the name of a container"),
    ('""', "found nothing, expected a term or the name of a container"),
    ("{weight: 5}", "match is missing, expected a condition"),
    (
        "{match: {key: name, operator: Exists}, wieght: 5}",
        'unknown key "wieght", expected scope, match, weight',
    ),
    (
        "{match: {key: name, operator: Exists}, weight: 1.5}",
        'weight is "1.5", expected a whole number from -1000 to 1000',
    ),
    (
        "{match: {key: name, operator: Exists}, weight: [1]}",
        "weight is a list, expected a whole number from -1000 to 1000",
    ),
    ("{match: sheep}", "match is a text, expected a mapping of key, operator, values"),
    (
        "{match: {key: name, op: Exists}}",
        'unknown key "match.op", expected match.key, match.operator, match.values',
    ),
    ("{match: {key: name}}", f"match.operator is missing, expected one of {KNOWN}"),
    ("{match: {key: name, operator: Is}}", f'match: operator "Is" is not known, expected one of {KNOWN}'),
    ("{match: {operator: Exists}}", "match: operator Exists needs a key"),
    ("{match: {key: [a], operator: Exists}}", "match: key and operator are texts, found something else"),
    ("{match: {key: a, operator: Equals}}", "match: operator Equals takes one value, found 0"),
    (
        "{match: {key: a, operator: Equals, values: [b, c]}}",
        "match: operator Equals takes one value, found 2",
    ),
    ("{match: {key: a, operator: Exists, values: [b]}}", "match: operator Exists takes no values, found 1"),
    ("{match: {key: a, operator: In, values: [[b]]}}", "match.values is not a list of texts"),
    ("{match: {key: a, operator: In, values: {b: c}}}", "match.values is not a list of texts"),
    (
        "{match: {key: name, operator: Exists}, scope: here}",
        "scope is a text, expected a mapping of key, operator, values",
    ),
]


@pytest.mark.parametrize(("term", "phrase"), BAD_TERMS)
def test_a_term_that_is_not_understood_is_left_out_with_a_note(term: str, phrase: str) -> None:
    read = read_affinity(f"app:\n- good\n- {term}\n", "app", POD, 1)
    assert read.terms == (AffinityTerm(SAME_POD, MatchExpression("name", "In", ("good",)), 1),)
    assert read.notes == (f'term 2 of "app": {phrase}',)


def test_too_many_terms_and_values_are_not_looked_at() -> None:
    many = ["- match: {key: name, operator: Exists}"] * (MAX_TERMS + 1)
    read = read_affinity("app:\n" + "\n".join(many), "app", POD, 1)
    assert len(read.terms) == MAX_TERMS
    assert read.notes == (f'"app" has {MAX_TERMS + 1} terms, those after the first {MAX_TERMS} are ignored',)
    values = ["v"] * (MAX_CONDITION_VALUES + 1)
    with pytest.raises(BadAnnotation, match="match.values has 65 items, expected at most 64"):
        read_condition({"key": "k", "operator": "In", "values": values}, "match")


def test_a_text_that_is_no_mapping_of_containers_is_an_error() -> None:
    with pytest.raises(BadAnnotation, match="found a list, expected terms by container name"):
        read_affinity("[a]", "app", POD, 1)
