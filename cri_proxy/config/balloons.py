"""The list of balloon types in a configuration: one table of keys, by which the list is read, written and documented.

Keys are read whatever their case, so that both spellings do: Intel's (``MinCPUs``) and nri-plugins' (``minCPUs``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Optional

import voluptuous as vol

from cri_proxy.config.checks import (
    FALSE_WORDS,
    TRUE_WORDS,
    Check,
    flag,
    list_of,
    names,
    whole,
    write_list,
    write_text,
)
from cri_proxy.config.load_classes import load_names
from cri_proxy.text.sources import Raw, Remark, SourceEntry, Table, describe, meaningless, rows, show_key
from policies.affinity.pull.expressions import OPERATORS, fault_of
from policies.balloons.composites import MAX_DEPTH, MAX_PARTS
from policies.balloons.types import (
    ALL,
    BALANCE,
    DEFAULT,
    IRQ_MODES,
    PER_LEVELS,
    RESERVED,
    SHARE_LEVELS,
    BalloonType,
)
from policies.frozen import frozen
from policies.machine.topology import CORE_TYPES
from policies.model import MatchExpression

#: More types than any node has CPUs for; a list of aliases to lists could be endless otherwise.
MAX_TYPES = 200
MAX_CPUS = 65536
#: More than one type of a policy of the cluster needs.
MAX_DEVICES, MAX_CONDITIONS = 32, 32

#: What nri-plugins' and Intel's types may say besides, in lower case, and why nothing here depends on it.
MEANINGLESS: Mapping[str, str] = {
    "preferfarfromdevices": "their own resources have no such key",
}

_MEMORY_TYPES = ("DRAM", "HBM", "PMEM")
_PRIORITIES = ("high", "normal", "low", "none")
_SHARE_WORDS = {"l2cache": "core", "thread": "core", "socket": "package", "machine": "system", "off": ""}


@frozen
class BalloonSpec:
    """A balloon type as a file has it. ``given``: the fields it names; the others are inherited or default."""

    type: BalloonType
    given: frozenset[str] = frozenset()


@frozen
class BalloonField:
    """One key of a balloon type; ``name`` is the field of ``BalloonType``. ``default``: in words."""

    key: str
    name: str
    check: Check
    default: str
    help: str


def _text(raw: Raw) -> str:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise vol.Invalid("")
    return raw.strip()


def _read_name(raw: Raw) -> str:
    text = _text(raw)
    if " " in text or "[" in text or "]" in text:
        raise vol.Invalid("")
    return text


def _read_priority(raw: Raw) -> int:
    word = _text(raw).lower()
    if word in _PRIORITIES:
        return _PRIORITIES.index(word)
    if word not in ("0", "1", "2", "3"):
        raise vol.Invalid("")
    return int(word)


def _read_share(raw: Raw) -> str:
    word = raw.strip().lower() if isinstance(raw, str) else _text(raw)
    word = _SHARE_WORDS.get(word, word)
    if word and word not in SHARE_LEVELS:
        raise vol.Invalid("")
    return word


def _read_per(raw: Raw) -> str:
    word = _read_share(raw)
    if word and word not in PER_LEVELS:
        raise vol.Invalid("")
    return word


def _read_memory(raw: Raw) -> str:
    word = _text(raw).lower()
    if word in TRUE_WORDS:
        return "prefer"
    if word in FALSE_WORDS:
        return "off"
    if word not in ("prefer", "pin"):
        raise vol.Invalid("")
    return word


def _read_core_type(raw: Raw) -> str:
    word = _text(raw).lower()
    if word not in (*CORE_TYPES, "any"):
        raise vol.Invalid("")
    return "" if word == "any" else word


def _read_memory_types(raw: Raw) -> frozenset[str]:
    found = (raw,) if isinstance(raw, str) else raw
    if not isinstance(found, tuple) or not {word.strip().upper() for word in found} <= set(_MEMORY_TYPES):
        raise vol.Invalid("")
    return frozenset(word.strip().lower() for word in found)


def _read_devices(raw: Raw) -> tuple[str, ...]:
    found = (raw,) if isinstance(raw, str) else raw
    if not isinstance(found, tuple):
        raise vol.Invalid("")
    return tuple(_text(item) for item in found)


def _read_patterns(raw: Raw) -> tuple[str, ...]:
    found = _read_devices(raw)
    for pattern in found:
        if len(pattern) > 253 or len(found) > MAX_CONDITIONS:
            raise vol.Invalid("")
        if "[" in pattern or "\\" in pattern:
            # Types with interrupts are few.
            from cri_proxy.isolation.interrupts import pattern_fault

            if pattern_fault(pattern):
                raise vol.Invalid("")
    return found


def _read_irq_mode(raw: Raw) -> str:
    word = raw.strip().lower() if isinstance(raw, str) else _text(raw)
    word = "" if word in FALSE_WORDS else word
    if word and word not in IRQ_MODES:
        raise vol.Invalid("")
    return word


def _read_components(raw: Raw) -> tuple[str, ...]:
    if raw == ():
        return ()
    if not isinstance(raw, Table):
        raise vol.Invalid("")
    found = tuple(_component(place, fields) for place, fields, _ in islice(rows(raw), MAX_PARTS + 1))
    if len(found) > MAX_PARTS:
        raise vol.Invalid("")
    return found


def _component(place: str, fields: Optional[tuple[SourceEntry, ...]]) -> str:
    given = {entry.key.lower(): entry.raw for entry in fields or ()}
    name = given.pop("balloontype", None)
    if not isinstance(name, str) or not name.strip() or given:
        raise vol.Invalid("expected BalloonType and a name, and nothing else", [place])
    return name.strip()


def _read_creation(raw: Raw) -> str:
    word = raw.strip().lower() if isinstance(raw, str) else _text(raw)
    if word not in ("", ALL, BALANCE):
        raise vol.Invalid("")
    return word or ALL


def _read_conditions(raw: Raw) -> tuple[MatchExpression, ...]:
    if raw == ():
        return ()
    if not isinstance(raw, Table):
        raise vol.Invalid("")
    return tuple(_condition(place, fields) for place, fields, _ in rows(raw))


def _condition(place: str, fields: Optional[tuple[SourceEntry, ...]]) -> MatchExpression:
    given = {entry.key.lower(): entry.raw for entry in fields or ()}
    key, operator, values = given.get("key") or "", given.get("operator"), given.get("values") or ()
    values = (values,) if isinstance(values, str) else values
    if not isinstance(key, str) or not isinstance(operator, str) or not isinstance(values, tuple):
        raise vol.Invalid("expected key and operator as texts, values as a list of texts", [place])
    others = sorted(given.keys() - {"key", "operator", "values"})
    condition = MatchExpression(key, operator, values)
    fault = f"{show_key(others[0])} is not known" if others else fault_of(condition)
    if fault:
        raise vol.Invalid(fault, [place])
    return condition


def _write_conditions(found: tuple[MatchExpression, ...]) -> str:
    items = (
        f"{{key: {write_text(c.key)}, operator: {c.operator}, values: {write_list(c.values)}}}" for c in found
    )
    return f"[{', '.join(items)}]"


_LABEL = {"type": "string", "minLength": 1, "maxLength": 253}
_NAME = Check(
    "a name without spaces and brackets",
    _read_name,
    write_text,
    {"type": "string", "minLength": 1, "maxLength": 63, "pattern": r"^[^ \[\]]+$"},
)
_TEXT = Check("a text", _text, write_text, _LABEL)
_PRIORITY = Check(
    "high, normal, low or none, or 0 (high) to 3",
    _read_priority,
    lambda v: _PRIORITIES[v],
    {"type": "string", "enum": list(_PRIORITIES)},
)
_SHARE = Check(
    f"{', '.join(SHARE_LEVELS)}, or off",
    _read_share,
    lambda level: level or "off",
    {"type": "string", "enum": [*SHARE_LEVELS, "off"]},
)
_PER = Check(
    f"{', '.join(PER_LEVELS)}, or off",
    _read_per,
    lambda level: level or "off",
    {"type": "string", "enum": [*PER_LEVELS, "off"]},
)
_MEMORY = Check(
    "true, false or pin",
    _read_memory,
    {"prefer": "true", "off": "false", "pin": "pin"}.__getitem__,
    {"type": "string", "enum": ["true", "false", "pin"]},
)
_CORE_TYPE = Check(
    f"{', '.join(CORE_TYPES)} or any",
    _read_core_type,
    lambda kind: kind or "any",
    {"type": "string", "enum": [*CORE_TYPES, "any"]},
)
_MEMORY_KINDS = Check(
    f"a list of {', '.join(_MEMORY_TYPES)}",
    _read_memory_types,
    lambda kinds: write_list(tuple(sorted(kind.upper() for kind in kinds))),
    list_of({"type": "string", "enum": list(_MEMORY_TYPES)}, len(_MEMORY_TYPES)),
)
_DEVICES = Check(
    "a list of PCI addresses, paths under /sys or podresourceapi:RESOURCE",
    _read_devices,
    write_list,
    list_of(
        {
            **_LABEL,
            "pattern": r"^(/sys(/[0-9A-Za-z_:@-][0-9A-Za-z_.:@-]*)+|[0-9A-Fa-f.:]+|podresourceapi:[!-~]+)$",
        },
        MAX_DEVICES,
    ),
)
#: Match expressions: a tuple of ``MatchExpression``.
CONDITIONS = Check(
    "a list of {key: ..., operator: ..., values: [...]}",
    _read_conditions,
    _write_conditions,
    list_of(
        {
            "type": "object",
            "description": "One condition on a container.",
            "required": ["operator"],
            "properties": {
                "key": {
                    **_LABEL,
                    "description": "What is looked at, such as name, namespace, qosclass or labels/app.",
                    "expected": "a text",
                },
                "operator": {
                    "type": "string",
                    "enum": list(OPERATORS),
                    "description": "How it is compared with the values.",
                    "expected": "an operator such as In or Exists",
                },
                "values": {
                    **list_of({"type": "string", "maxLength": 253}, MAX_CONDITIONS),
                    "description": "What it is compared with.",
                    "expected": "a list of texts",
                },
            },
        },
        MAX_CONDITIONS,
    ),
)

_PATTERNS = Check(
    "a list of numbers and patterns",
    _read_patterns,
    write_list,
    list_of(_LABEL, MAX_CONDITIONS),
)
_IRQ_MODE = Check(
    "sink, isolate or off",
    _read_irq_mode,
    lambda mode: mode or "off",
    {"type": "string", "enum": [*IRQ_MODES, "off"]},
)
_COMPONENTS = Check(
    f"a list of at most {MAX_PARTS} {{BalloonType: NAME}}",
    _read_components,
    lambda found: f"[{', '.join(f'{{BalloonType: {write_text(name)}}}' for name in found)}]",
    list_of(
        {
            "type": "object",
            "description": "One component.",
            "required": ["BalloonType"],
            "properties": {
                "BalloonType": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 63,
                    "description": "The type it is of.",
                    "expected": "a name of a type",
                }
            },
        },
        MAX_PARTS,
    ),
)
_CREATION = Check(
    f"{ALL} or {BALANCE}",
    _read_creation,
    write_text,
    {"type": "string", "enum": [ALL, BALANCE]},
)

FIELDS: tuple[BalloonField, ...] = (
    BalloonField("Name", "name", _NAME, "required", "Its name; reserved and default change the two that are built in."),
    BalloonField("Namespaces", "namespaces", names(), "[]", "Namespaces (globs) whose containers are of this type."),
    BalloonField("MatchExpressions", "match", CONDITIONS, "[]", "Containers for which one of these holds are, too."),
    BalloonField("GroupBy", "group_by", _TEXT, '""', 'Containers for which this text, such as "${pod/labels/app}", '
          "comes out the same share a balloon."),
    BalloonField("MinCPUs", "min_cpus", whole(0, MAX_CPUS), "0", "A balloon never has fewer CPUs."),
    BalloonField("MaxCPUs", "max_cpus", whole(-1, MAX_CPUS), "0",
          "Nor more; 0: no limit; -1: containers of this type are refused."),
    BalloonField("MinBalloons", "min_balloons", whole(0, MAX_CPUS), "0", "As many are made at once, and stay."),
    BalloonField("MaxBalloons", "max_balloons", whole(0, MAX_CPUS), "0", "No more are made; 0: no limit."),
    BalloonField("OneBalloonPer", "one_per", _PER, "off",
          "Each package, die, NUMA node or L3 has one balloon of this type inside of it, and containers are spread over "
          "these; of the type reserved also over the reserved CPUs. MinBalloons and MaxBalloons do not count then."),
    BalloonField("AllocatorPriority", "allocator_priority", _PRIORITY, "high",
          "The order in which the balloons of MinBalloons are made."),
    BalloonField("PreferNewBalloons", "prefer_new_balloons", flag(), "false",
          "A balloon of its own for each container, while there are CPUs for that."),
    BalloonField("PreferSpreadingPods", "prefer_spreading_pods", flag(), "false",
          "Containers of a pod go to different balloons, rather than into one."),
    BalloonField("PreferPerNamespaceBalloon", "prefer_per_namespace_balloon", flag(), "false",
          "Each namespace has a balloon of its own."),
    BalloonField("PreferSpreadOnPhysicalCores", "prefer_spread_on_physical_cores", flag(),
          "policy.balloons.PreferSpreadOnPhysicalCores", "One thread of many cores, rather than whole cores."),
    BalloonField("AllocatorTopologyBalancing", "allocator_topology_balancing", flag(),
          "policy.balloons.AllocatorTopologyBalancing",
          "Balloons are made where most CPUs are free, rather than packed."),
    BalloonField("HideHyperthreads", "hide_hyperthreads", flag(), "false",
          "Containers see one thread of each core; the others stay idle."),
    BalloonField("PreferIsolCpus", "prefer_isolated_cpus", flag(), "false", "CPUs of isolcpus= come first."),
    BalloonField("PreferCoreType", "prefer_core_type", _CORE_TYPE, "any",
          "On a machine with fast and slow cores those of this type come first, and balloons of other types avoid them."),
    BalloonField("PreferCloseToDevices", "prefer_close_to_devices", _DEVICES, "[]",
          "Balloons are made near these devices, the first of them first. podresourceapi:nvidia.com/gpu, or a glob, is the "
          "device that kubelet has given to the container that a balloon is made for."),
    BalloonField("ShareIdleCPUsInSame", "share_idle_cpus_in_same", _SHARE, "off",
          "Containers may also run on CPUs that are in no balloon, in the same ..."),
    BalloonField("IrqClaim", "irq_claim", _PATTERNS, "[]",
          "Interrupts (numbers, or patterns of their names) that the CPUs of its balloons handle (isolation.interrupts)."),
    BalloonField("IrqMode", "irq_mode", _IRQ_MODE, "off",
          "isolate: its CPUs handle no interrupts but claimed ones; sink: they handle all that no type claims."),
    BalloonField("Loads", "loads", load_names(), "[]",
          "Load classes (policy.balloons.LoadClasses): its balloons avoid the cores, caches and other domains in which "
          "other balloons have the same load. The first counts most."),
    BalloonField("Components", "components", _COMPONENTS, "[]",
          "Its balloons are composite: made of a part for each of these types, with CPUs as that type has them."),
    BalloonField("ComponentCreation", "component_creation", _CREATION, ALL,
          "all: of all Components, evenly; balance-balloons: of the one that the fewest balloons are made of."),
    BalloonField("CpuClass", "cpu_class", _TEXT, '""', "The class of control.cpu that its containers are of."),
    BalloonField("PinMemory", "memory", _MEMORY, "placement.memory",
          "true: as placement.memory prefer; pin: as its pin; false: memory nodes are not set."),
    BalloonField("MemoryTypes", "memory_types", _MEMORY_KINDS, "[]",
          "The kinds of memory of containers whose annotations ask for none. A NUMA node with CPUs is DRAM; of those "
          "without, HBM is what reads faster than DRAM by firmware (HMAT), else what is smaller. Where there is none of a "
          "kind, it counts as not asked for."),
    BalloonField("ShowContainersInNrt", "show_containers_in_nrt", flag(), "policy.balloons.ShowContainersInNrt",
          "Balloons of this type and their containers are zones of the node's NodeResourceTopology."),
    BalloonField("SchedulingClass", "scheduling_class", _TEXT, '""',
          "The class of control.scheduling that its containers have."),
)  # fmt: skip

_BY_KEY = {field.key.lower(): field for field in FIELDS}
_BY_NAME = {field.name: field for field in FIELDS}


def balloon_types() -> Check:
    """What the option holds: a tuple of ``BalloonSpec``. Lists with anything in them go to ``read_types``."""

    def read(raw: Raw) -> tuple[BalloonSpec, ...]:
        if raw != ():
            raise vol.Invalid("")
        return ()

    return Check(
        "a list of balloon types", read, lambda specs: f"[{', '.join(map(_write_type, specs))}]", _schema()
    )


def _schema() -> dict[str, Any]:
    properties = {
        f.key: {**f.check.schema, "description": f.help, "expected": f.check.expected} for f in FIELDS
    }
    one = {"type": "object", "required": ["Name"], "properties": properties}
    return list_of({**one, "description": "One type of balloons."}, MAX_TYPES)


def read_types(
    table: Table, errors: list[str], remark: Callable[[Remark], None]
) -> Optional[tuple[BalloonSpec, ...]]:
    """The types of a list; None where there was an error. Every error and remark names file and line."""
    before = len(errors)
    specs: dict[str, BalloonSpec] = {}
    places: dict[str, str] = {}
    for place, fields, found in rows(table):
        if fields is None:
            errors.append(f"{place}: a balloon type is {found}, expected a mapping with Name and others")
            continue
        spec = _read_type(place, fields, errors, remark)
        if spec is not None and spec.type.name in specs:
            errors.append(f"{place}: a balloon type is named {spec.type.name}, expected a name of its own")
        elif spec is not None:
            specs[spec.type.name], places[spec.type.name] = spec, place
        if len(specs) > MAX_TYPES or len(errors) > before + MAX_TYPES:
            errors.append(f"{place}: expected at most {MAX_TYPES} balloon types")
            break
    if len(errors) == before:
        errors += [f"{places[name]}: {fault}" for name in specs if (fault := _composite_fault(name, specs))]
    return None if len(errors) > before else tuple(specs.values())


#: What a composite type says nothing of: CPUs are chosen as the components say.
_OF_COMPONENTS = (
    "prefer_spread_on_physical_cores",
    "allocator_topology_balancing",
    "prefer_close_to_devices",
    "prefer_isolated_cpus",
    "prefer_core_type",
    "cpu_class",
)


def _composite_fault(name: str, specs: Mapping[str, BalloonSpec]) -> str:
    """What makes no balloons of a type with components; "" where nothing is wrong."""
    spec = specs[name]
    kind = spec.type
    if not kind.components:
        if "component_creation" in spec.given and kind.component_creation != ALL:
            return f"ComponentCreation is {kind.component_creation}, expected Components besides"
        return ""
    for field in _OF_COMPONENTS:
        if field in spec.given and getattr(kind, field):
            return (
                f"{_BY_NAME[field].key} is given for a type with Components, expected for the types of these"
            )
    try:
        parts, _ = _parts_within(name, specs, (), {})
    except vol.Invalid as error:
        return f"Components of {name}: {error.msg}"
    if 0 < kind.max_cpus < parts:
        return f"MaxCPUs is {kind.max_cpus}, expected at least {parts}, a CPU for each part of a balloon"
    return ""


def _parts_within(
    name: str, specs: Mapping[str, BalloonSpec], above: tuple[str, ...], known: dict[str, tuple[int, int]]
) -> tuple[int, int]:
    """The most parts that a balloon of a type has, and how many types are inside each other. ``known``: of types seen.

    :raises vol.Invalid: it has no end, or too many.
    """
    if name in above:
        raise vol.Invalid(f"expected no circle: {' > '.join((*above[above.index(name) :], name))}")
    if name not in specs and name not in (RESERVED, DEFAULT):
        raise vol.Invalid(f"there is no type {show_key(name)}")
    if name in known:
        return known[name]
    kind = specs[name].type if name in specs else BalloonType(name)
    parts, depth = 1, 0
    if kind.components:
        found = [_parts_within(part, specs, (*above, name), known) for part in kind.components]
        counts = [count for count, _ in found]
        parts = sum(counts) if kind.component_creation == ALL else max(counts)
        depth = 1 + max(inner for _, inner in found)
    if parts > MAX_PARTS:
        raise vol.Invalid(f"expected at most {MAX_PARTS} parts")
    if depth > MAX_DEPTH:
        raise vol.Invalid(f"expected at most {MAX_DEPTH} types inside each other")
    known[name] = parts, depth
    return known[name]


def _read_type(
    place: str, fields: tuple[SourceEntry, ...], errors: list[str], remark: Callable[[Remark], None]
) -> Optional[BalloonSpec]:
    before = len(errors)
    values: dict[str, Any] = {}
    for entry in fields:
        field = _BY_KEY.get(entry.key.lower())
        if field is None:
            remark(_unknown(entry))
        elif entry.raw is None:
            remark(Remark(f"{entry.origin}: {entry.key} has no value; it counts as not given"))
        elif field.name in values:
            remark(Remark(f"{entry.origin}: {entry.key} is given twice; the earlier value counts"))
        else:
            _read_field(entry, field, values, errors)
    if len(errors) > before:
        return None
    if "name" not in values:
        errors.append(f"{place}: a balloon type has no Name, expected one")
        return None
    for least, most in (("min_cpus", "max_cpus"), ("min_balloons", "max_balloons")):
        if 0 < values.get(most, 0) < values.get(least, 0):
            low, high = _BY_NAME[least].key, _BY_NAME[most].key
            errors.append(
                f"{place}: {low} is {values[least]}, expected at most {high}, which is {values[most]}"
            )
    return BalloonSpec(BalloonType(**values), frozenset(values)) if len(errors) == before else None


def _read_field(entry: SourceEntry, field: BalloonField, values: dict[str, Any], errors: list[str]) -> None:
    try:
        values[field.name] = field.check(entry.raw)
    except vol.Invalid as error:
        if error.path:  # it knows its own place
            errors.append(f"{error.path[0]}: {entry.key}: {error.msg}")
        else:
            expected = f"expected {field.check.expected}"
            errors.append(f"{entry.origin}: {entry.key} is {describe(entry.raw)}, {expected}")


def _unknown(entry: SourceEntry) -> Remark:
    key = show_key(entry.key)
    if entry.key.lower() in MEANINGLESS:
        return meaningless(entry.origin, f"{key} of a balloon type", MEANINGLESS[entry.key.lower()])
    import difflib  # names are misspelt seldom: half a millisecond of a start

    nearest = difflib.get_close_matches(entry.key[:60].lower(), _BY_KEY, n=1)
    hint = f"; did you mean {_BY_KEY[nearest[0]].key}?" if nearest else ""
    return Remark(f"{entry.origin}: unknown key {key} of a balloon type{hint}")


def _write_type(spec: BalloonSpec) -> str:
    given = [field for field in FIELDS if field.name in spec.given]
    return "{" + ", ".join(f"{f.key}: {f.check.write(getattr(spec.type, f.name))}" for f in given) + "}"
