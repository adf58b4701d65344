"""Match expressions: one test of a container, in the language of cri-resource-manager and nri-plugins.

A key names something of the container or, behind ``pod/``, of its pod:

    name, namespace, qosclass, labels/NAME       of the container (its namespace and class are the pod's)
    pod/name, pod/namespace, pod/qosclass, pod/labels/NAME, pod/id, pod/uid
    :,-pod/namespace,name                        joint: the keys between the first sign, their values
                                                 put together with the second one
    :pod/namespace:name                          joint, with a colon for both

Any other key is the name of a label: of the container, else of its pod. What there is not (``id`` of a
container, ``tags/NAME``) is absent. ``Equals`` and ``In`` take "*" for any value that is there, the operators
of ``Matches`` take globs.

To ask one question of many containers, make it a ``Predicate`` once: its key is then taken apart only once.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Callable, Optional

from policies.model import Container, MatchExpression, Qos

_ONE_VALUE = ("Equals", "NotEqual", "Matches", "MatchesNot")
_NO_VALUES = ("Exists", "NotExists", "NotExist", "AlwaysTrue")
OPERATORS = (*_ONE_VALUE, "In", "NotIn", "MatchesAny", "MatchesNone", *_NO_VALUES)

#: The operators that say the opposite of another one.
_OPPOSITES = {
    "NotEqual": "Equals",
    "NotIn": "In",
    "NotExists": "Exists",
    "NotExist": "Exists",
    "MatchesNot": "Matches",
    "MatchesNone": "MatchesAny",
}

Predicate = Callable[[Container], bool]
#: What a container has under a key; None = nothing.
Getter = Callable[[Container], Optional[str]]

#: As Kubernetes spells them in a pod's status.
_QOS_CLASSES = {Qos.GUARANTEED: "Guaranteed", Qos.BURSTABLE: "Burstable", Qos.BESTEFFORT: "BestEffort"}


def fault_of(condition: MatchExpression) -> str:
    """The fault of a condition, as a phrase; "" if it can be evaluated."""
    operator, count = condition.operator, len(condition.values)
    if operator not in OPERATORS:
        return f'operator "{operator:.40}" is not known, expected one of {", ".join(OPERATORS)}'
    if not condition.key and operator != "AlwaysTrue":
        return f"operator {operator} needs a key"
    if operator in _ONE_VALUE and count != 1:
        return f"operator {operator} takes one value, found {count}"
    if operator in ("Exists", "NotExists", "NotExist") and count:
        return f"operator {operator} takes no values, found {count}"
    if operator.startswith("Matches") and count and _any_glob(condition.values) is None:
        return f"operator {operator} takes globs, found {', '.join(condition.values):.60}"
    return ""


def matches(condition: MatchExpression, container: Container) -> bool:
    """Whether a container is one of those the condition means. A condition with a fault means none."""
    return predicate_of(condition)(container)


def predicate_of(condition: MatchExpression) -> Predicate:
    """The condition as a question to ask of containers."""
    operator = condition.operator
    if operator == "AlwaysTrue":
        return lambda _: True
    if fault_of(condition):
        return lambda _: False
    getter = getter_of(condition.key)
    holds = _value_test(_OPPOSITES.get(operator, operator), condition.values)
    if operator == "NotEqual":  # the one operator to which "*" is a text like any other
        wanted = condition.values[0]
        return lambda container: getter(container) != wanted
    if operator in _OPPOSITES:
        return lambda container: (value := getter(container)) is None or not holds(value)
    return lambda container: (value := getter(container)) is not None and holds(value)


def _value_test(operator: str, wanted: tuple[str, ...]) -> Callable[[str], bool]:
    if operator == "Exists" or (operator in ("Equals", "In") and "*" in wanted):
        return lambda _: True
    if operator in ("Equals", "In"):
        return frozenset(wanted).__contains__
    glob = _any_glob(wanted)
    return lambda value: glob is not None and glob.match(value) is not None


def _any_glob(globs: tuple[str, ...]) -> Optional[re.Pattern[str]]:
    """One expression for all globs: with a thousand containers to ask, fnmatchcase takes twice the time. None = no glob."""
    try:
        return re.compile("|".join(map(fnmatch.translate, globs))) if globs else None
    except re.error:  # Python 3.9 takes a range such as "[z-a]" over as it is
        return None


# ---------------------------------------------------------------------- keys


def getter_of(key: str) -> Getter:
    """A function that reads the value of a key, or the joined values of a joint one."""
    keys, separator = _split(key)
    if len(keys) == 1:
        return _single(keys[0])
    getters = [_single(each) for each in keys]

    def joined(container: Container) -> Optional[str]:
        # As in the originals a part that is absent counts as "", and only all of them absent are nothing.
        values = [getter(container) for getter in getters]
        if all(value is None for value in values):
            return None
        return separator.join([value or "" for value in values])

    return joined


def _split(key: str) -> tuple[list[str], str]:
    """The keys of a joint key, and the separator of their values."""
    if not key.startswith(":") or len(key) < 4:
        return [key], ""
    if _can_separate(key[1]) and _can_separate(key[2]):
        return key[3:].split(key[1]), key[2]
    return key[1:].split(":"), ":"


def _can_separate(sign: str) -> bool:
    return not (sign.isascii() and sign.isalnum()) and sign not in "/."


_OF_CONTAINER: dict[str, Getter] = {
    "name": lambda container: container.name,
    "namespace": lambda container: container.pod.namespace,
    "qosclass": lambda container: _QOS_CLASSES[container.qos],
    # The runtime's id is not known before the container is there, and there are no tags here.
    "id": lambda _: None,
    "pod/name": lambda container: container.pod.name,
    "pod/namespace": lambda container: container.pod.namespace,
    "pod/qosclass": lambda container: _QOS_CLASSES[container.qos],
    "pod/id": lambda container: container.pod.id,
    "pod/uid": lambda container: container.pod.uid,
}


def _single(key: str) -> Getter:
    if key in _OF_CONTAINER:
        return _OF_CONTAINER[key]
    for prefix, labels_of in _LABELS.items():
        if key.startswith(prefix):
            label = key[len(prefix) :]
            return lambda container: labels_of(container).get(label)
    if key.startswith(("pod/", "tags/")):
        return lambda _: None
    return lambda container: container.labels.get(key, container.pod.labels.get(key))


_LABELS: dict[str, Callable[[Container], Mapping[str, str]]] = {
    "labels/": lambda container: container.labels,
    "pod/labels/": lambda container: container.pod.labels,
}
