"""The description of a machine as JSON: what ``cri-resmgr topology --json`` prints and ``--topology`` takes."""

from __future__ import annotations

from typing import Any, Optional

from policies.machine.cpus import BadCpuList, format_cpus, parse_cpus
from policies.machine.topology import CORE_TYPES, BadTopology, Cpu, TopologyData


def read_topology(document: Any) -> TopologyData:
    """Read the JSON form of a machine. Only ``cpus`` is needed.

    :raises BadTopology: names the place and the expected value.
    """
    if not isinstance(document, dict) or not isinstance(document.get("cpus"), list):
        raise BadTopology('a topology is a JSON object with a list "cpus"')
    unknown = sorted(set(document) - _TOPOLOGY_KEYS)
    if unknown:
        raise BadTopology(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_TOPOLOGY_KEYS))}")
    return TopologyData(
        cpus=tuple(_read_cpu(index, item) for index, item in enumerate(document["cpus"])),
        distance=_read_distance(document.get("distance")),
        memory={_read_node(node): size for node, size in _read_numbers(document, "memory").items()},
        hugepages=_read_hugepages(document.get("hugepages", {})),
        has_memory=_read_set(document, "has_memory") or None,
        isolated=_read_set(document, "isolated"),
        offline=_read_set(document, "offline"),
        # An empty text means "not told", as in the documented example of parent_cpus.
        parent_cpus=_read_set(document, "parent_cpus") or None,
        parent_mems=_read_set(document, "parent_mems") or None,
        devices=_read_numbers(document, "devices"),
        vendor=str(document.get("vendor", "")),
        core_types=_read_core_types(document.get("core_types", {})),
        memory_bandwidth={
            _read_node(node, "memory_bandwidth"): rate
            for node, rate in _read_numbers(document, "memory_bandwidth").items()
        },
    )


_TOPOLOGY_KEYS = frozenset(
    [
        "cpus",
        "distance",
        "memory",
        "hugepages",
        "has_memory",
        "isolated",
        "offline",
        "parent_cpus",
        "parent_mems",
        "devices",
        "vendor",
        "core_types",
        "memory_bandwidth",
    ]
)


def write_topology(data: TopologyData) -> dict[str, Any]:
    """The JSON form of a machine; ``read_topology`` reads it back."""
    document: dict[str, Any] = {"cpus": [_write_cpu(c) for c in sorted(data.cpus, key=lambda c: c.cpu)]}
    if data.distance is not None:
        document["distance"] = [list(row) for row in data.distance]
    document["memory"] = {str(node): size for node, size in sorted(data.memory.items())}
    if data.hugepages:
        document["hugepages"] = {
            str(node): {str(size): count for size, count in sorted(pool.items())}
            for node, pool in sorted(data.hugepages.items())
        }
    document["isolated"] = format_cpus(data.isolated)
    document["offline"] = format_cpus(data.offline)
    if data.has_memory is not None:
        document["has_memory"] = format_cpus(data.has_memory)
    if data.parent_cpus is not None:
        document["parent_cpus"] = format_cpus(data.parent_cpus)
    if data.parent_mems is not None:
        document["parent_mems"] = format_cpus(data.parent_mems)
    document["devices"] = dict(sorted(data.devices.items()))
    document["vendor"] = data.vendor
    if data.core_types:
        document["core_types"] = {kind: format_cpus(cpus) for kind, cpus in sorted(data.core_types.items())}
    if data.memory_bandwidth:
        document["memory_bandwidth"] = {
            str(node): rate for node, rate in sorted(data.memory_bandwidth.items())
        }
    return document


def _read_cpu(index: int, item: Any) -> Cpu:
    if not isinstance(item, dict) or not _is_id(item.get("cpu")):
        raise BadTopology(f'cpus[{index}]: expected an object with a number "cpu", found {item!r:.60}')
    number = item["cpu"]
    values: dict[str, Optional[int]] = {
        "cpu": number,
        "core": number,
        "l3": None,
        "cluster": None,
        "die": 0,
        "numa": 0,
        "socket": 0,
    }
    for key, value in item.items():
        if key not in values:
            raise BadTopology(
                f"cpus[{index}] (CPU {number}): unknown key {key!r}; known are {', '.join(values)}"
            )
        if not _is_id(value) and not (key in ("l3", "cluster") and value is None):
            raise BadTopology(
                f"cpus[{index}] (CPU {number}): {key} is {value!r}, expected a number of 0 or more"
            )
        values[key] = value
    return Cpu(**values)  # type: ignore[arg-type]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _write_cpu(cpu: Cpu) -> dict[str, int]:
    item = {
        "cpu": cpu.cpu,
        "core": cpu.core,
        "l3": cpu.l3,
        "cluster": cpu.cluster,
        "die": cpu.die,
        "numa": cpu.numa,
        "socket": cpu.socket,
    }
    return {key: value for key, value in item.items() if value is not None}


def _read_distance(rows: Any) -> Optional[tuple[tuple[int, ...], ...]]:
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise BadTopology(f"distance: expected a list of lists of numbers, found {rows!r:.60}")
    for index, row in enumerate(rows):
        wrong = [value for value in row if not _is_id(value)]
        if wrong:
            raise BadTopology(f"distance[{index}]: {wrong[0]!r} is not a number of 0 or more")
    return tuple(tuple(row) for row in rows)


def _read_numbers(document: dict[str, Any], key: str) -> dict[str, int]:
    numbers = document.get(key, {})
    if not isinstance(numbers, dict):
        raise BadTopology(f"{key}: expected an object of numbers, found {numbers!r:.60}")
    for name, value in numbers.items():
        if not _is_id(value):
            raise BadTopology(f"{key}[{name!r}] is {value!r}, expected a number of 0 or more")
    return dict(numbers)


def _read_hugepages(pools: Any) -> dict[int, dict[int, int]]:
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        raise BadTopology(f"hugepages: expected numbers of pages by size, by NUMA node, found {pools!r:.60}")
    found: dict[int, dict[int, int]] = {}
    for node, pool in pools.items():
        wrong = [size for size in pool if not (size.isascii() and size.isdigit() and int(size))]
        if wrong:
            raise BadTopology(f"hugepages[{node!r}]: {wrong[0]!r} is not the size of a page in bytes")
        counts = {int(size): count for size, count in _read_numbers(pools, node).items()}
        found[_read_node(node, "hugepages")] = counts
    return found


def _read_core_types(types: Any) -> dict[str, frozenset[int]]:
    if not isinstance(types, dict) or not types.keys() <= set(CORE_TYPES):
        raise BadTopology(
            f"core_types: expected lists of CPUs by {' and '.join(CORE_TYPES)}, found {types!r:.60}"
        )
    return {kind: _read_set(types, kind) for kind in types}


def _read_node(text: str, key: str = "memory") -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadTopology(f"{key}: {text!r} is not the number of a NUMA node")
    return int(text)


def _read_set(document: dict[str, Any], key: str) -> frozenset[int]:
    text = document.get(key, "")
    if not isinstance(text, str):
        raise BadTopology(f'{key} is {text!r}, expected a list such as "0-7"')
    try:
        return parse_cpus(text)
    except BadCpuList as error:
        raise BadTopology(f"{key}: {error}") from None
