"""The steps of a simulation: a JSON list, checked as a whole before the first step runs.

One table says which fields each op has. A field that is absent, null or (for names, quantities and lists of
CPUs) "" has its default. What depends on the course of events, such as ids, is checked by the simulation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Callable

from cri_proxy.text.quantity import BadQuantity, parse_bytes, parse_milli
from policies.machine.cpus import NO_CPUS, BadCpuList, parse_cpus
from policies.model import Qos

#: More than any machine has, and what still fits into the 64 bits of CRI's quota and memory fields.
MAX_MILLI, MAX_BYTES = 10**9, 2**60
#: Thirty years.
MAX_SECONDS = 10**9
MAX_ATTEMPT, MAX_EXIT_CODE = 2**32 - 1, 2**31 - 1


class BadScenario(ValueError):
    """The scenario cannot be run. The message names the step, counted from 0, and the field."""


@dataclass(frozen=True)
class ScenarioStep:
    """One step, with a value for every field of its op: milli-CPUs, bytes, CPU lists as sets."""

    number: int
    op: str
    values: Mapping[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def bad(self, field: str, sentence: str) -> BadScenario:
        """The error that something is wrong with a field of this step."""
        return _bad(self.number, field, sentence)


@dataclass(frozen=True)
class ScenarioEdge:
    """Traffic between two containers, by their ids."""

    a: str
    b: str
    bytes_per_s: float
    msgs_per_s: float


def read_scenario(document: Any) -> tuple[ScenarioStep, ...]:
    """Check parsed JSON and read its steps.

    :raises BadScenario: not a list of steps; an unknown op or field; a field of the wrong type or value.
    """
    if not isinstance(document, list):
        raise BadScenario(f"a scenario is a JSON list of steps, this is {_shown(document)}")
    return tuple(_read_step(number, item) for number, item in enumerate(document))


def _read_step(number: int, item: Any) -> ScenarioStep:
    if not isinstance(item, dict):
        raise _bad(number, "op", f"the step is {_shown(item)}, expected an object")
    op = item.get("op")
    if not isinstance(op, str) or op not in FIELDS:
        found = "missing" if op is None else f"{_shown(op)}, which is unknown"
        raise _bad(number, "op", f"it is {found}; known are {', '.join(FIELDS)}")
    fields = FIELDS[op]
    for name in item:
        if name != "op" and name not in fields:
            raise _bad(number, name, f"{op} has no such field; it has {', '.join(fields) or 'none'}")
    values = {}
    for name, field in fields.items():
        given = item.get(name)
        if given is None and field.required:
            raise _bad(number, name, f"{op} needs it")
        try:
            values[name] = field.default if given is None else field.read(given)
        except ValueError as error:
            raise _bad(number, name, str(error)) from None
    return ScenarioStep(number, op, values)


def _bad(number: int, field: str, sentence: str) -> BadScenario:
    # Both ways of counting: the index in the JSON list, which the output shows too, and the plain one.
    return BadScenario(f"step {number} (the {_ordinal(number + 1)}): field {_shown(field)}: {sentence}")


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _shown(value: Any) -> str:
    """A value as it is named in an error: short, whatever it is."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    return repr(value)


# ---------------------------------------------------------------------- kinds of values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it is {_shown(value)}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no text") from None
    return value


def _name(value: Any) -> str:
    if not _text(value):
        raise ValueError("it is empty")
    return _text(value)


def _cpu_list(value: Any) -> frozenset[int]:
    try:
        return parse_cpus(_text(value))
    except BadCpuList as error:
        raise ValueError(str(error)) from None


def _cpus(value: Any) -> Any:
    return _quantity(value, parse_milli, MAX_MILLI)


def _memory(value: Any) -> Any:
    return _quantity(value, parse_bytes, MAX_BYTES)


def _quantity(value: Any, parse: Callable[[Any], int], most: int) -> Any:
    if value == "":
        return None
    try:
        if isinstance(value, (str, float)) or (_is_whole(value) and abs(value) < 10**20):
            number = parse(value)
            if number <= most:
                return number
            raise ValueError(f"{_shown(value)} is more than any machine has")
    except BadQuantity as error:
        raise ValueError(str(error)) from None
    raise ValueError(f'it is {_shown(value)}, expected a quantity such as "2" or "750m"')


def _number(value: Any) -> float:
    usual = _is_whole(value) or (isinstance(value, float) and isfinite(value))
    if not usual or not 0 <= value <= 10**18:
        raise ValueError(f"it is {_shown(value)}, expected a number of 0 or more")
    return float(value)


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if seconds > MAX_SECONDS:
        raise ValueError(f"{_shown(value)} is more than {MAX_SECONDS} seconds")
    return seconds


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not _is_whole(value) or not least <= value <= most:
            raise ValueError(f"it is {_shown(value)}, expected a whole number from {least} to {most}")
        return int(value)

    return read


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _word(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"it is {_shown(value)}, expected one of {', '.join(filter(None, words))}")
        return _text(value)

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"it is {_shown(value)}, expected true or false")
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"it is {_shown(value)}, expected an object of texts")
    return {_text(key): _text(text) for key, text in value.items()}


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"it is {_shown(value)}, expected a list of texts")
    return tuple(_name(item) for item in value)


_EDGE = ("a", "b", "bytes_per_s", "msgs_per_s")


def _edges(value: Any) -> tuple[ScenarioEdge, ...]:
    if not isinstance(value, list):
        raise ValueError(f"it is {_shown(value)}, expected a list of edges")
    return tuple(_edge(index, item) for index, item in enumerate(value))


def _edge(index: int, item: Any) -> ScenarioEdge:
    where = f"edge {index}"
    if not isinstance(item, dict):
        raise ValueError(f"{where} is {_shown(item)}, expected an object")
    unknown = [name for name in item if name not in _EDGE]
    if unknown:
        raise ValueError(f"{where} has no field {_shown(unknown[0])}; it has {', '.join(_EDGE)}")
    try:
        rates = [_number(item.get(name, 0)) for name in _EDGE[2:]]
        return ScenarioEdge(_name(item.get("a")), _name(item.get("b")), *rates)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


# ---------------------------------------------------------------------- the fields of every op


@dataclass(frozen=True)
class StepField:
    """One field: how it is read (``ValueError`` says what is wrong), and its value where it is not given."""

    read: Callable[[Any], Any]
    default: Any = None
    required: bool = False


_ID = StepField(_name, required=True)
_TEXT, _CPU_LIST, _TEXTS = StepField(_text, ""), StepField(_cpu_list, NO_CPUS), StepField(_texts, {})
_FLAG = StepField(_flag, False)
_CPUS, _MEMORY = StepField(_cpus), StepField(_memory)

FIELDS: dict[str, dict[str, StepField]] = {
    "pod": {
        "id": _ID,
        "namespace": _TEXT,
        "cgroup_parent": _TEXT,
        "cpu_request": _CPUS,
        "cpu_limit": _CPUS,
        "memory_limit": _MEMORY,
        "runtime_handler": _TEXT,
        "annotations": _TEXTS,
        "labels": _TEXTS,
    },
    "create": {
        "id": _ID,
        "pod": _ID,
        "namespace": _TEXT,
        "name": _TEXT,
        "qos": StepField(_word("", *[qos.value for qos in Qos]), ""),
        "cpu_request": _CPUS,
        "cpu_limit": _CPUS,
        "memory_request": _MEMORY,
        "memory_limit": _MEMORY,
        "annotations": _TEXTS,
        "labels": _TEXTS,
        "attempt": StepField(_whole(0, MAX_ATTEMPT), 0),
        "kind": StepField(_word("app", "init", "sidecar"), "app"),
        "cpuset": _CPU_LIST,
        "kubelets": _FLAG,
        "mems": _CPU_LIST,
        "devices": StepField(_names, ()),
        "hugepages": StepField(_names, ()),
        "result": StepField(_word("ok", "refused", "doubt", "start-fails"), "ok"),
    },
    "resize": {
        "id": _ID,
        "cpu_request": _CPUS,
        "cpu_limit": _CPUS,
        "memory_limit": _MEMORY,
        "result": StepField(_word("ok", "refused", "doubt", "lost"), "ok"),
    },
    "resize-pod": {"id": _ID, "cpu_request": _CPUS, "cpu_limit": _CPUS, "memory_limit": _MEMORY},
    "update": {"id": _ID, "cpuset": _CPU_LIST, "kubelets": _FLAG},
    "exit": {"id": _ID, "code": StepField(_whole(-MAX_EXIT_CODE - 1, MAX_EXIT_CODE), 0)},
    "remove": {"id": _ID},
    "remove-pod": {"id": _ID},
    "traffic": {"edges": StepField(_edges, ())},
    "rebalance": {},
    "wait": {"seconds": StepField(_seconds, required=True)},
    "restart": {"state": StepField(_word("kept", "lost", "corrupt"), "kept")},
    "config": {"file": StepField(_name, required=True)},
    "cpus": {"offline": _CPU_LIST, "online": _CPU_LIST},
    "drift": {"id": _ID, "cpus": StepField(_cpu_list, required=True)},
    "state": {},
}
