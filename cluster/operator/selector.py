"""Label selectors as Kubernetes has them (LabelSelector of apimachinery): requirements that all must hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: Operators, and whether they need values.
OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


class SelectorError(ValueError):
    """What is wrong, beginning with the place inside the selector."""


class Requirement(NamedTuple):
    """One demand on a label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        # A node without the label is selected by NotIn, as everywhere in Kubernetes.
        return (labels.get(self.key) in self.values) == (self.operator == "In")


def read_selector(found: Any) -> tuple[Requirement, ...]:
    """The requirements of a LabelSelector; none, or an empty one, selects everything. SelectorError with the place."""
    if found is None:
        return ()
    if not isinstance(found, Mapping):
        raise SelectorError(
            f": {json.dumps(found)} is not a label selector with matchLabels or matchExpressions"
        )
    for key in found:
        if key not in ("matchLabels", "matchExpressions"):
            raise SelectorError(f".{key}: no such key, known are matchLabels and matchExpressions")
    return (*_labels(found.get("matchLabels") or {}), *_expressions(found.get("matchExpressions") or []))


def selects(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    return all(requirement.holds(labels) for requirement in requirements)


def _labels(found: Any) -> list[Requirement]:
    if not isinstance(found, Mapping):
        raise SelectorError(f".matchLabels: {json.dumps(found)} is not a map of labels")
    for key, value in found.items():
        if not isinstance(value, str):
            raise SelectorError(f".matchLabels.{key}: {json.dumps(value)} is not a text")
    return [Requirement(key, "In", frozenset([value])) for key, value in found.items()]


def _expressions(found: Any) -> list[Requirement]:
    if not isinstance(found, list):
        raise SelectorError(f".matchExpressions: {json.dumps(found)} is not a list")
    return [_expression(f".matchExpressions[{index}]", each) for index, each in enumerate(found)]


def _expression(place: str, found: Any) -> Requirement:
    if not isinstance(found, Mapping) or not isinstance(found.get("key"), str) or not found["key"]:
        raise SelectorError(f"{place}.key: the name of a label is missing")
    operator = found.get("operator")
    if operator not in OPERATORS:
        raise SelectorError(f"{place}.operator: {json.dumps(operator)} is not one of {', '.join(OPERATORS)}")
    values = found.get("values") or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SelectorError(f"{place}.values: {json.dumps(values)} is not a list of texts")
    if bool(values) != OPERATORS[operator]:
        need = "at least one value" if OPERATORS[operator] else "no values"
        raise SelectorError(f"{place}.values: {operator} takes {need}")
    return Requirement(found["key"], operator, frozenset(values))
