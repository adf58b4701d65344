"""Classes of memory, and what of the kernel's ``memory.*`` files follows from them. Pure.

A class is that of nri-plugins' memory-qos with more keys. ``high`` begins to slow a container that has so much and reclaims
from it; ``low`` and ``min`` are kept for it when others need memory, ``min`` even if something is killed for that.

1. The class: the annotation ``cri-resmgr.io/memory-class``, memory-qos's ``class.memory-qos.nri.io``, then as in ``named``.
   A protected container without a class keeps what it has asked for (``low`` of 100 %).
2. memory-qos's annotations of single values come before the class, where ``unifiedannotations`` lists them.
3. What the runtime has set itself (kubelet's MemoryQoS) is the least that ``low`` and ``min`` are; ``high`` is left to it.
4. All that is kept must be there: what the containers have of ``min`` and ``low`` together is at most what the node can
   promise, else all have less in proportion. ``min`` comes first.
5. The kernel keeps for a cgroup at most what is kept for the one above it: pod, QoS class and kubepods have the sum of what
   is below them.
6. A container that uses more than its ``high``, file cache aside, would stand still until that much is swapped out or
   written back: it gets its ``high`` when it uses less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Optional

from cri_proxy.cri.annotations.keys import MEMORY_QOS
from cri_proxy.isolation.model import FILE, PROTECTED, IsolatedContainer, Setting
from cri_proxy.isolation.named import named_class
from cri_proxy.isolation.notes import not_configured
from cri_proxy.text.quantity import BadQuantity, parse_bytes
from cri_proxy.text.sources import quote
from policies.frozen import frozen

SUBJECT = "memory"
HIGH, LOW, MIN, SWAP_MAX = "memory.high", "memory.low", "memory.min", "memory.swap.max"
#: What a pod may set by annotation, where the section lists it. A limit (memory.max) is the runtime's and kubelet's.
UNIFIED = (HIGH, LOW, MIN, SWAP_MAX)
_PERCENT = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?%")
#: No limit, as the kernel writes it.
MAX = "max"


@frozen
class Amount:
    """Bytes, or a part of what the container has (``part``, 1.0 = all of it). Neither: no limit."""

    size_bytes: Optional[int] = None
    part: Optional[float] = None

    def of(self, whole_bytes: int) -> Optional[int]:
        """In bytes; -1: no limit; None: it is a part, and the whole is not known."""
        if self.part is None:
            return -1 if self.size_bytes is None else self.size_bytes
        return int(whole_bytes * self.part) if whole_bytes else None


def read_amount(text: str) -> Amount:
    """``80%``, ``512Mi``, ``max``.

    :raises ValueError: it is none of these; says what is expected.
    """
    text = text.strip()
    if text == MAX:
        return Amount()
    try:
        if not text.endswith("%"):
            return Amount(size_bytes=parse_bytes(text))
        part = float(text[:-1]) / 100 if _PERCENT.fullmatch(text) else 2.0
    except BadQuantity:
        part = 2.0
    if part > 1:
        raise ValueError('a percentage such as "80%", memory such as "512Mi", or max')
    return Amount(part=part)


@frozen
class MemoryClass:
    """One class. None: not set. ``high`` and ``swap_max`` in percent are of the limit, ``low`` and ``min`` of the request,
    or of the limit of a container without one."""

    name: str
    high: Optional[Amount] = None
    low: Optional[Amount] = None
    min: Optional[Amount] = None
    swap_max: Optional[Amount] = None


@frozen
class MemorySection:
    """The option ``control.memory``. ``unified``: which of ``UNIFIED`` pods may set. ``written``: it in one line."""

    classes: tuple[MemoryClass, ...] = ()
    unified: tuple[str, ...] = ()
    written: str = "{}"

    @property
    def has_classes(self) -> bool:
        """Whether anything follows from it."""
        return bool(self.classes or self.unified)


#: Of a protected container that no class is for.
_PROTECTED = MemoryClass(PROTECTED, low=Amount(part=1.0))


@frozen
class MemoryCgroup:
    """A container's cgroup. ``path``: from the mount. ``files``: those that are there, and where. ``before``: what they had
    before the first write of ours. ``now``: what they have. ``used_bytes``: in use, file cache that is not used aside."""

    path: str
    files: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    now: Mapping[str, str] = field(default_factory=dict)
    used_bytes: int = 0
    is_there: bool = True


@frozen
class MemoryParent:
    """A cgroup above containers; fields as of ``MemoryCgroup``."""

    path: str
    files: Mapping[str, str]
    before: Mapping[str, str]


@frozen
class MemoryWish:
    """What one container is to have, in bytes; -1: no limit; None: left as it is."""

    high: Optional[int] = None
    low: int = 0
    min: int = 0
    swap_max: Optional[int] = None
    why: str = ""


def memory_wishes(
    containers: Iterable[IsolatedContainer], section: MemorySection, notes: list[str]
) -> dict[str, MemoryWish]:
    """What containers are to have, by their keys; those for which nothing is written are left out."""
    found = ((each.key, _wish(each, section, notes)) for each in containers)
    return {key: wish for key, wish in found if wish is not None}


def memory_settings(
    containers: Iterable[tuple[IsolatedContainer, MemoryWish, MemoryCgroup]],
    parents: Sequence[MemoryParent],
    promised_bytes: Optional[int],
    notes: list[str],
) -> list[Setting]:
    """What should be there. ``promised_bytes``: what all may keep together; None: not known. ``notes``: what cannot be."""
    wishes: dict[str, MemoryWish] = {}
    cgroups: dict[str, tuple[IsolatedContainer, MemoryCgroup]] = {}
    for each, wish, cgroup in containers:
        if _can(cgroup, wish, notes):
            wishes[each.key], cgroups[each.key] = wish, (each, cgroup)
    befores = {key: cgroup.before for key, (_, cgroup) in cgroups.items()}
    kept = within(
        {key: (wish.min, wish.low) for key, wish in wishes.items()},
        {key: (_bytes(before, MIN), _bytes(before, LOW)) for key, before in befores.items()},
        promised_bytes,
    )
    asked = sum(max(wish.min, wish.low) for wish in wishes.values())
    if promised_bytes is not None and sum(map(max, kept.values())) < asked:
        notes.append(
            f"containers ask to keep {asked} bytes of memory, and the node can promise {promised_bytes}: each keeps less, "
            "in proportion"
        )
    found = [
        setting
        for key, wish in wishes.items()
        for setting in _of_container(*cgroups[key], wish, kept[key], notes)
    ]
    found += _of_parents(parents, {cgroups[key][1].path: (key, *kept[key]) for key in wishes})
    return found


def within(
    wanted: Mapping[str, tuple[int, int]],
    floors: Mapping[str, tuple[int, int]],
    promised_bytes: Optional[int],
) -> dict[str, tuple[int, int]]:
    """``min`` and ``low`` of each container: no more than is promised is kept. ``floors``: what stays in any case."""
    least = {key: max(one, floors[key][0]) for key, (one, _) in wanted.items()}
    low = {key: max(one, floors[key][1]) for key, (_, one) in wanted.items()}
    if promised_bytes is None:
        return {key: (least[key], low[key]) for key in wanted}
    floor = {key: max(floors[key]) for key in wanted}
    room = max(promised_bytes - sum(floor.values()), 0)
    # 1. Of min, what is more than stays in any case.
    more = _scaled({key: max(least[key] - floor[key], 0) for key in wanted}, room)
    least = {key: min(least[key], floor[key] + more[key]) for key in wanted}
    # 2. Of low, what is more than min has by then.
    base = {key: max(floor[key], least[key]) for key in wanted}
    rest = _scaled({key: max(low[key] - base[key], 0) for key in wanted}, room - sum(more.values()))
    return {key: (least[key], min(low[key], base[key] + rest[key])) for key in wanted}


def _scaled(amounts: Mapping[str, int], room: int) -> dict[str, int]:
    total = sum(amounts.values())
    return dict(amounts) if total <= room else {key: each * room // total for key, each in amounts.items()}


# ---------------------------------------------------------------------- one container


def _wish(each: IsolatedContainer, section: MemorySection, notes: list[str]) -> Optional[MemoryWish]:
    container = each.container
    if container is None:
        return None
    classes = {one.name: one for one in section.classes}
    said = _annotations(container.pod.annotations, container.name)
    asked = container.preferences.memory_class or said.pop("class", "")
    said.pop("class", None)
    if asked and asked not in classes:
        notes += not_configured("memory", [asked])
    name = named_class(classes, each, asked)
    found = classes[name] if name is not None else _PROTECTED if each.cls == PROTECTED else None
    own = _own(each.path, said, section, notes)
    if found is None and not own:
        return None
    limit = container.resources.memory_limit_bytes
    request = container.resources.memory_request_bytes or limit
    values = {
        HIGH: _of(found.high if found else None, limit),
        LOW: _of(found.low if found else None, request),
        MIN: _of(found.min if found else None, request),
        SWAP_MAX: _of(found.swap_max if found else None, limit),
    }
    if found is not None and found.high is not None and values[HIGH] is None:
        notes.append(
            f"{each.path} has no memory limit, and the high of its class {found.name} is a part of that"
        )
    values.update({key: amount.of(limit) for key, amount in own.items()})
    why = f"{each.path} has the memory class {name}" if name is not None else f"{each.path} is {each.cls}"
    most = limit or _MOST
    kept = {key: most if values[key] == -1 else min(values[key] or 0, most) for key in (LOW, MIN)}
    return MemoryWish(values[HIGH], kept[LOW], kept[MIN], values[SWAP_MAX], why)


_MOST = 1 << 50


def _of(amount: Optional[Amount], whole_bytes: int) -> Optional[int]:
    return None if amount is None else amount.of(whole_bytes)


def _annotations(annotations: Mapping[str, str], name: str) -> dict[str, str]:
    """memory-qos's annotations of a container, by what is before its suffix; those of the container before the pod's."""
    found: dict[str, str] = {}
    for suffix in (MEMORY_QOS, f"{MEMORY_QOS}/{name}"):
        found.update({key[: -len(suffix)]: text for key, text in annotations.items() if key.endswith(suffix)})
    return found


def _own(path: str, said: Mapping[str, str], section: MemorySection, notes: list[str]) -> dict[str, Amount]:
    found = {}
    for key, text in sorted(said.items()):
        if key not in section.unified:
            notes.append(
                f"{path}: the annotation {quote(key + MEMORY_QOS)} is not allowed by unifiedannotations of control.memory"
            )
            continue
        try:
            amount = read_amount(text)
        except ValueError as error:
            notes.append(
                f"{path}: the annotation {quote(key + MEMORY_QOS)} is {quote(text)}, expected {error}"
            )
        else:
            found[key] = amount
    return found


def _can(cgroup: MemoryCgroup, wish: MemoryWish, notes: list[str]) -> bool:
    """Whether the kernel has any of the files; what it has not is noted."""
    wanted = {
        HIGH: wish.high is not None,
        LOW: wish.low > 0,
        MIN: wish.min > 0,
        SWAP_MAX: wish.swap_max is not None,
    }
    for name, is_wanted in wanted.items():
        if is_wanted and cgroup.is_there and name not in cgroup.files:
            notes.append(f"{name} is not there on this node: cgroup v1 has no such file")
    return any(is_wanted and name in cgroup.files for name, is_wanted in wanted.items())


def _of_container(
    each: IsolatedContainer, cgroup: MemoryCgroup, wish: MemoryWish, kept: tuple[int, int], notes: list[str]
) -> Iterable[Setting]:
    values: dict[str, int] = {}
    if wish.high is not None and cgroup.before.get(HIGH, MAX) == MAX:
        is_there = cgroup.now.get(HIGH) == _text(wish.high) or wish.high < 0
        if is_there or cgroup.used_bytes <= wish.high or _is_above(cgroup.now.get(HIGH, MAX), wish.high):
            values[HIGH] = wish.high
        else:
            notes.append(
                f"{each.path} uses {cgroup.used_bytes} bytes: it gets its memory.high of {wish.high} when it uses less"
            )
            if cgroup.now.get(HIGH, MAX) != MAX:
                values[HIGH] = _bytes(cgroup.now, HIGH)
    values.update(
        {name: value for name, value in zip((MIN, LOW), kept) if value > _bytes(cgroup.before, name)}
    )
    if wish.swap_max is not None:
        values[SWAP_MAX] = wish.swap_max
    for name, value in values.items():
        if name in cgroup.files:
            yield Setting(
                SUBJECT, f"{FILE}{cgroup.files[name]}", _text(value), wish.why, (each.key,), is_shared=True
            )


def _is_above(now: str, high: int) -> bool:
    """Whether what is there is less than that: more does no harm."""
    return now.isdecimal() and int(now) <= high


def _of_parents(
    parents: Sequence[MemoryParent], kept: Mapping[str, tuple[str, int, int]]
) -> Iterable[Setting]:
    """What is kept for the cgroups above: at least what is kept for all below them."""
    for parent in parents:
        below = [found for path, found in kept.items() if path.startswith(f"{parent.path}/")]
        keys = tuple(sorted(key for key, _, _ in below))
        for name, value in ((MIN, sum(each[1] for each in below)), (LOW, sum(each[2] for each in below))):
            if name in parent.files and value > _bytes(parent.before, name):
                why = f"what is kept for {len(below)} containers below is kept here"
                yield Setting(SUBJECT, f"{FILE}{parent.files[name]}", _text(value), why, keys, is_shared=True)


def _text(value: int) -> str:
    return MAX if value < 0 else str(value)


def _bytes(values: Mapping[str, str], name: str) -> int:
    """What a file has, as a number; no limit is more than there is."""
    text = values.get(name, "0")
    return _MOST if text == MAX else int(text) if text.isdecimal() else 0
