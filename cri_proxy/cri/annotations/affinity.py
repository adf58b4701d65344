"""Affinity and anti-affinity annotations to terms: the syntax of cri-resource-manager and nri-plugins.

    peter:                        the container whose terms these are
    - scope: {key: pod/namespace, operator: Matches, values: ["prod-*"]}      default: the same pod
      match: {key: name, operator: Equals, values: [sheep]}
      weight: 5                   default 1, at most 1000; an anti-affinity's counts the other way round;
                                  in our own annotation also ``required``: 1000, and traffic does not outvote it
    paul: [ mary, joseph ]        short: containers of the same pod, by name

A term that cannot be understood is left out, with a note that says where it stands; it never fails a container.
"""

from __future__ import annotations

import re

from cri_proxy.text.annotation_value import BadAnnotation, Value, kind_of, read_value
from cri_proxy.text.sources import quote
from policies.affinity.pull.expressions import OPERATORS, fault_of
from policies.frozen import frozen
from policies.model import AffinityTerm, MatchExpression, Pod

MAX_WEIGHT = 1000
#: The weight of a term that holds against traffic; an anti-affinity does so with any.
REQUIRED = "required"
#: Terms and values that are looked at, against annotations that would make every placement slow.
MAX_TERMS, MAX_CONDITION_VALUES = 64, 64

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_TERM_KEYS = ("scope", "match", "weight")
_CONDITION_KEYS = ("key", "operator", "values")


@frozen
class Terms:
    """What an affinity annotation says of one container. ``notes``: phrases about terms that are left out."""

    terms: tuple[AffinityTerm, ...] = ()
    notes: tuple[str, ...] = ()


def read_affinity(text: str, container: str, pod: Pod, sign: int, may_require: bool = False) -> Terms:
    """The terms of one container. ``sign``: +1 for an affinity, -1 for an anti-affinity. ``may_require``: a weight can be
    ``required``, which the originals do not know.

    :raises BadAnnotation: the text as a whole cannot be read.
    """
    document = read_value(text)
    if not isinstance(document, dict):
        raise BadAnnotation(f"found {kind_of(document)}, expected terms by container name")
    given: Value = document.get(container, [])
    if not isinstance(given, list):
        raise BadAnnotation(
            f"{quote(container)} is {kind_of(given)}, expected a list of terms or of containers"
        )
    same_pod = MatchExpression("pod/uid", "Equals", (pod.uid,))
    terms, notes, names = [], [], []
    for index, item in enumerate(given[:MAX_TERMS]):
        try:
            if isinstance(item, str):
                names.append(_name(item))
            else:
                terms.append(_term(item, same_pod, sign, may_require))
        except BadAnnotation as error:
            notes.append(f"term {index + 1} of {quote(container)}: {error}")
    if names:
        match = MatchExpression("name", "In", tuple(dict.fromkeys(names)))
        terms.append(AffinityTerm(same_pod, match, sign))
    if len(given) > MAX_TERMS:
        notes.append(
            f"{quote(container)} has {len(given)} terms, those after the first {MAX_TERMS} are ignored"
        )
    return Terms(tuple(terms), tuple(notes))


def _name(item: str) -> str:
    if not item:
        raise BadAnnotation("found nothing, expected a term or the name of a container")
    return item


def _term(item: Value, same_pod: MatchExpression, sign: int, may_require: bool) -> AffinityTerm:
    if not isinstance(item, dict):
        raise BadAnnotation(f"found {kind_of(item)}, expected a mapping or the name of a container")
    _expect_keys(item, _TERM_KEYS)
    if not item.get("match"):
        raise BadAnnotation("match is missing, expected a condition")
    scope = read_condition(item["scope"], "scope") if item.get("scope") else same_pod
    match, given = read_condition(item["match"], "match"), item.get("weight", "")
    if may_require and isinstance(given, str) and given.lower() == REQUIRED:
        return AffinityTerm(scope, match, sign * MAX_WEIGHT, required=sign > 0)
    return AffinityTerm(scope, match, sign * _weight(given))


def _weight(given: Value) -> int:
    if given == "":
        return 1
    if not isinstance(given, str) or not _NUMBER.fullmatch(given):
        found = quote(given) if isinstance(given, str) else kind_of(given)
        raise BadAnnotation(f"weight is {found}, expected a whole number from -{MAX_WEIGHT} to {MAX_WEIGHT}")
    # As in the originals 0 counts as not given.
    return max(-MAX_WEIGHT, min(MAX_WEIGHT, int(given))) or 1


def read_condition(given: Value, place: str) -> MatchExpression:
    """A match expression: ``{key, operator, values}``. ``place``: what to call it in the error.

    :raises BadAnnotation: it is none.
    """
    if not isinstance(given, dict):
        raise BadAnnotation(
            f"{place} is {kind_of(given)}, expected a mapping of {', '.join(_CONDITION_KEYS)}"
        )
    _expect_keys(given, _CONDITION_KEYS, f"{place}.")
    key, operator, values = given.get("key", ""), given.get("operator", ""), given.get("values") or []
    if isinstance(values, str):
        values = [values]
    if not isinstance(key, str) or not isinstance(operator, str):
        raise BadAnnotation(f"{place}: key and operator are texts, found something else")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadAnnotation(f"{place}.values is not a list of texts")
    if len(values) > MAX_CONDITION_VALUES:
        raise BadAnnotation(
            f"{place}.values has {len(values)} items, expected at most {MAX_CONDITION_VALUES}"
        )
    if not operator:
        raise BadAnnotation(f"{place}.operator is missing, expected one of {', '.join(OPERATORS)}")
    condition = MatchExpression(key, operator, tuple(values))
    fault = fault_of(condition)
    if fault:
        raise BadAnnotation(f"{place}: {fault}")
    return condition


def _expect_keys(given: dict[str, Value], known: tuple[str, ...], prefix: str = "") -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        expected = ", ".join(prefix + key for key in known)
        raise BadAnnotation(f"unknown key {quote(prefix + unknown[0])}, expected {expected}")
