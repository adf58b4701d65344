"""Machines and sections for the tests of the ``rdt`` section: described, and made up by chance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from cri_proxy.config.sections.rdt import read_section
from cri_proxy.isolation.model import (
    MBPS,
    PERCENT,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    ResctrlInfo,
)
from cri_proxy.isolation.rdt import RdtSection, Resolved, resolve
from cri_proxy.text.sources import Remark, SettingsSource, read_entries

#: Sections on machines that are described in a few words, with what goresctrl makes of them; test_rdt_peer.py compares.
CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("rdt_cases.json").read_text())
MOST_MBPS = (1 << 32) - 1
IN_PERCENT = BandwidthInfo(minimum=10, step=10, no_limit=100)
IN_MBPS = BandwidthInfo(minimum=10, step=10, no_limit=MOST_MBPS, unit=MBPS)


def machine(
    *,
    l3: Optional[CacheInfo] = None,
    l2: Optional[CacheInfo] = None,
    bandwidth: Optional[BandwidthInfo] = None,
    ids: Sequence[int] = (0, 1),
    divides_code: bool = False,
) -> ResctrlInfo:
    """A machine with these caches, each with the same ids. ``divides_code``: L3 has masks for code and data (CDP)."""
    caches = {} if l2 is None else {"L2": l2}
    for name in () if l3 is None else ("L3CODE", "L3DATA") if divides_code else ("L3",):
        caches[name] = l3
    domains = tuple(CacheDomain(number, frozenset((number,))) for number in ids)
    resources = [*caches, *(["MB"] if bandwidth else [])]
    return ResctrlInfo(caches, bandwidth, dict.fromkeys(resources, domains))


def described(what: Mapping[str, Any]) -> ResctrlInfo:
    """The machine of a case in rdt_cases.json: bits of L3 and L2, the least of a mask, the unit of bandwidth."""

    def cache(bits: int) -> Optional[CacheInfo]:
        return CacheInfo((1 << bits) - 1, what.get("min_bits", 1)) if bits else None

    units = {"": None, "percent": IN_PERCENT, "MBps": IN_MBPS}
    return machine(
        l3=cache(what.get("l3", 0)),
        l2=cache(what.get("l2", 0)),
        bandwidth=units[what.get("bandwidth", "")],
        ids=what.get("ids", (0, 1)),
        divides_code=what.get("divides_code", False),
    )


def section(document: Mapping[str, Any]) -> tuple[Optional[RdtSection], list[str]]:
    """A section as it is read where it counts, and what is wrong with it."""
    (entry,), _ = read_entries(
        SettingsSource("c.yaml", values={"control.rdt": {"enable": True, **document}}), ()
    )
    errors: list[str] = []
    remarks: list[Remark] = []
    found = read_section({"": entry}, errors, remarks.append)
    return None if errors else found, errors


def resolved(document: Mapping[str, Any], info: ResctrlInfo) -> Resolved:
    """The classes of a section on a machine; what is wrong with it as it is written is an error as well."""
    found, errors = section(document)
    return Resolved(errors=tuple(errors)) if found is None else resolve(found, info)


def files(info: ResctrlInfo) -> dict[str, str]:
    """The tree that a kernel shows of a machine, by path below resctrl: as much as goresctrl reads."""
    found = {"tasks": "1\n"}
    lines = []
    for name, cache in info.caches.items():
        found |= {
            f"info/{name}/cbm_mask": f"{cache.full_mask:x}\n",
            f"info/{name}/min_cbm_bits": f"{cache.min_bits}\n",
            f"info/{name}/num_closids": f"{cache.closids}\n",
            f"info/{name}/shareable_bits": f"{cache.shareable:x}\n",
        }
        lines.append((name, f"{cache.full_mask:x}"))
    if info.bandwidth:
        found |= {
            "info/MB/bandwidth_gran": f"{info.bandwidth.step}\n",
            "info/MB/delay_linear": "1\n",
            "info/MB/min_bandwidth": f"{info.bandwidth.minimum}\n",
            "info/MB/num_closids": f"{info.bandwidth.closids}\n",
        }
        lines.append(("MB", str(info.bandwidth.no_limit)))
    found["schemata"] = "".join(
        f"{name}:{';'.join(f'{each.id}={value}' for each in info.domains[name])}\n" for name, value in lines
    )
    return found


def mounts(path: str, info: ResctrlInfo) -> str:
    """The line of /proc/mounts."""
    is_in_mbps = info.bandwidth is not None and info.bandwidth.unit == MBPS
    return f"resctrl {path} resctrl rw,relatime{',mba_MBps' if is_in_mbps else ''} 0 0\n"


def as_the_kernel_takes(text: str, info: ResctrlInfo) -> dict[str, dict[int, str]]:
    """Schemata as they read after goresctrl has written them: the kernel rounds percentages of bandwidth up to its steps."""
    found: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        values = {int(number): value for number, value in (part.split("=") for part in rest.split(";"))}
        if name == "MB" and info.bandwidth is not None and info.bandwidth.unit == PERCENT:
            step = info.bandwidth.step
            values = {number: str(-(-int(value) // step) * step) for number, value in values.items()}
        found[name] = values
    return found


# ---------------------------------------------------------------------- by chance


def machine_of_chance(chance: random.Random) -> ResctrlInfo:
    """A machine of any kind that goresctrl knows."""

    def cache(least: int, most: int) -> CacheInfo:
        return CacheInfo((1 << chance.randint(least, most)) - 1, chance.choice((1, 1, 1, 1, 2, 3)), 15)

    has_l3 = chance.random() < 0.9
    return machine(
        l3=cache(4, 20) if has_l3 else None,
        l2=cache(6, 16) if chance.random() < 0.3 or not has_l3 else None,
        bandwidth=chance.choice((None, IN_PERCENT, IN_PERCENT, IN_MBPS)),
        ids=sorted(chance.sample(range(9), chance.randint(1, 4))),
        divides_code=chance.random() < 0.3,
    )


def section_of_chance(chance: random.Random, info: ResctrlInfo) -> dict[str, Any]:
    """A section that mostly fits a machine: of all that may be written, with some that is wrong."""
    names = chance.sample(("system", "shared", "exclusive", "batch", "Z", "a"), chance.randint(1, 4))
    classes = iter(
        chance.sample(("", "system/default", "Guaranteed", "Burstable", "BestEffort", "x y", "c.1", "ü"), 8)
    )
    partitions: dict[str, Any] = {name: {} for name in names}
    for level in ("l2", "l3"):
        if chance.random() < (0.85 if level == "l3" else 0.35):
            for name, allocation in zip(names, _partition_caches(chance, info, level, len(names))):
                partitions[name][f"{level}Allocation"] = allocation
    for name in names:
        if chance.random() < 0.6:
            partitions[name]["mbAllocation"] = _bandwidth(chance, info)
        partitions[name]["classes"] = {
            next(classes): _class(chance, info, partitions[name]) for _ in range(chance.randint(0, 2))
        }
        if chance.random() < 0.03:
            partitions[name].pop("l3Allocation", None)
    optional = {
        each: {"optional": chance.random() < 0.8} for each in ("l2", "l3", "mb") if chance.random() < 0.8
    }
    return {"options": optional, "partitions": partitions}


def _partition_caches(chance: random.Random, info: ResctrlInfo, level: str, count: int) -> Iterator[Any]:
    """An allocation a partition: all by percentages, or all by masks that lie side by side."""
    in_masks, by_kind, by_id = chance.random() < 0.3, chance.random() < 0.2, chance.random() < 0.3
    shares = [_shares(chance, info, level, count, in_masks) for _ in range(6)]
    if chance.random() < 0.03:
        shares[0][0] = chance.choice(("0xf", "50%", "10-20%"))
    keys = [_ids(chance), "all"] if by_id else ["all"]
    for index in range(count):
        of_id = {}
        for at, key in enumerate(keys):
            kinds = ("unified", "code", "data") if by_kind else ("unified",)
            parts = {kind: shares[3 * at + place][index] for place, kind in enumerate(kinds)}
            of_id[key] = parts if by_kind or chance.random() < 0.3 else parts["unified"]
        yield of_id["all"] if isinstance(of_id["all"], str) and not by_id else of_id


def _shares(chance: random.Random, info: ResctrlInfo, level: str, count: int, in_masks: bool) -> list[str]:
    bits = _bits(info, level)
    if in_masks:
        least = 2 * count <= bits and chance.random() < 0.9
        cuts = sorted(
            chance.sample(range(bits + 1), 2 * count)
            if least
            else chance.choices(range(bits + 1), k=2 * count)
        )
        masks = [((1 << high) - 1) & ~((1 << low) - 1) for low, high in zip(cuts[::2], cuts[1::2])]
        chance.shuffle(masks)
        return [_mask(chance, mask) for mask in masks]
    total = chance.choice((100, 100, 100, 80, 80, 60, 30, 101))
    cuts = [0, *sorted(chance.choices(range(total + 1), k=count - 1)), total]
    return [f"{high - low}%" for low, high in zip(cuts, cuts[1:])]


def _bits(info: ResctrlInfo, level: str) -> int:
    upper = level.upper()
    return next((cache.bits for name, cache in info.caches.items() if name.startswith(upper)), 11)


def _mask(chance: random.Random, mask: int) -> str:
    low, high = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
    if chance.random() < 0.5 or low < 0:
        return f"{mask:#x}"
    return f"{low}-{high}" if low < high else str(low)


def _class(
    chance: random.Random, info: ResctrlInfo, partition: Mapping[str, Any]
) -> Optional[dict[str, Any]]:
    found: dict[str, Any] = {}
    for level in ("l2", "l3"):
        if (f"{level}Allocation" in partition and chance.random() < 0.7) or chance.random() < 0.02:
            parts = [_class_part(chance, info, level) for _ in range(3)]
            if chance.random() < 0.2:
                found[f"{level}Allocation"] = {
                    "all": dict(zip(("unified", "code", "data"), parts)),
                    _ids(chance): parts[0],
                }
            elif chance.random() < 0.2:
                found[f"{level}Allocation"] = {_ids(chance): parts[0]}
            else:
                found[f"{level}Allocation"] = parts[0]
    if ("mbAllocation" in partition and chance.random() < 0.7) or chance.random() < 0.02:
        found["mbAllocation"] = _bandwidth(chance, info)
    return found or chance.choice((None, {}))


def _class_part(chance: random.Random, info: ResctrlInfo, level: str) -> str:
    kind = chance.random()
    if kind < 0.5:
        return f"{chance.choice((100, 100, chance.randint(1, 100)))}%"
    low, high = sorted((chance.randint(0, 100), chance.randint(1, 100)))
    if kind < 0.75:
        return f"{low}-{high}%"
    bits = _bits(info, level)
    low = chance.randint(0, max(1, bits // 8))
    return _mask(chance, ((1 << chance.randint(1, max(2, bits // 4))) - 1) << low)


def _bandwidth(chance: random.Random, info: ResctrlInfo) -> Any:
    both = [f"{chance.randint(0, 100)}%", f"{chance.choice((100, 5000, 1000000, MOST_MBPS))}MBps"]
    wrong = chance.random() < 0.03
    value = both[: 1 if wrong else 2]
    if chance.random() < 0.3:
        chance.shuffle(value)
    if chance.random() < 0.3:
        return {"all": value, _ids(chance): [f"{chance.randint(1, 100)}%", "700MBps"]}
    return {_ids(chance): value} if chance.random() < 0.1 else value


def _ids(chance: random.Random) -> str:
    return chance.choice(("0", "1-2", "0,2,4-7", "3", "8", "0-8"))
