"""Block I/O: which weight and limits a container has on which disks, and in which files the kernel has them. Pure.

The classes are goresctrl's (Intel's ``blockio``). Of a class:

1. An entry without devices gives the weight on all disks; of several the last counts.
2. An entry with devices gives weight and limits on each disk that one of its globs names now; of several entries that
   name one disk the last counts, value by value. 0 is no limit. What no entry names stays as it is.
3. A partition has no limits of its own: its disk has them.
4. A weight is blkio's, 10 to 1000. io.weight (iocost) has 1 to 10000, and is given what runc gives it.

Then rubik's annotation, where the section lists it: its values count before those of the class.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Optional

from cri_proxy.cri.annotations.keys import BLKIO_LIMIT
from cri_proxy.isolation.model import FILE, IsolatedContainer, Setting
from cri_proxy.isolation.named import QOS_NAMES, named_class
from cri_proxy.isolation.notes import not_configured, some
from cri_proxy.text.quantity import BadQuantity, parse_bytes
from cri_proxy.text.sources import quote
from policies.frozen import frozen

SUBJECT = "disks"
#: What is limited on a disk, in the words of io.max: bytes and operations a second.
RBPS, WBPS, RIOPS, WIOPS = LIMITS = ("rbps", "wbps", "riops", "wiops")
LEAST_WEIGHT, MOST_WEIGHT = 10, 1000
#: The kernel has 32 bits for operations a second, all of them set for no limit.
_MOST_IOPS = (1 << 32) - 1
#: Of cgroup v1, by limit.
_THROTTLES = {
    RBPS: "blkio.throttle.read_bps_device",
    WBPS: "blkio.throttle.write_bps_device",
    RIOPS: "blkio.throttle.read_iops_device",
    WIOPS: "blkio.throttle.write_iops_device",
}
MAX = "io.max"
#: One of these is in every cgroup whose parent has the controller on.
CONTROLLED = (MAX, _THROTTLES[RBPS])
#: Weights by file: the schedulers whose it is, whether it counts as io.weight does, and where a device's is on cgroup v1.
_COST, _BFQ, _CFQ = "iocost", "bfq", "cfq"
_WEIGHTS = {
    "io.weight": (_COST, True, ""),
    "io.bfq.weight": (_BFQ, False, ""),
    "blkio.weight": (_CFQ, False, "blkio.weight_device"),
    "blkio.bfq.weight": (_BFQ, False, "blkio.bfq.weight_device"),
    "blkio.cost.weight": (_COST, False, ""),
}
#: Files of a container's cgroup that are written where they are there.
FILES = (*CONTROLLED, *_WEIGHTS, "blkio.weight_device", "blkio.bfq.weight_device")
#: The linear model of a disk, and how far its speed may be corrected, in the kernel's words.
MODEL = ("rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops")
QOS = ("rpct", "rlat", "wpct", "wlat", "min", "max")
#: As rubik has it: the model as it is.
_QOS_AS_RUBIK = {"min": "100.00", "max": "100.00"}
#: rubik's words in its annotation.
_OF_ANNOTATION = {
    "device_read_bps": RBPS,
    "device_write_bps": WBPS,
    "device_read_iops": RIOPS,
    "device_write_iops": WIOPS,
}
#: More than any pod names.
_MOST_ENTRIES = 64


# ---------------------------------------------------------------------- what is written


@frozen
class DiskShare:
    """One entry of a class. ``devices``: globs below /dev, or numbers ("8:0"); None: all disks, which have no limits.

    ``weight``: 10 to 1000, None = not said. ``limits``: by the words of io.max, 0 = no limit.
    """

    devices: Optional[tuple[str, ...]] = None
    weight: Optional[int] = None
    limits: Mapping[str, int] = field(default_factory=dict)


@frozen
class DiskCost:
    """What iocost knows of the disks that ``devices`` name. ``model`` empty: the kernel's own."""

    devices: tuple[str, ...]
    model: Mapping[str, int] = field(default_factory=dict)
    qos: Mapping[str, str] = field(default_factory=lambda: _QOS_AS_RUBIK)


@frozen
class BlockIoSection:
    """A section. ``annotations``: those that pods may have limits by. ``by_qos``: a class that is called like a QoS class is
    that of its containers. ``written``: as a file has it, in one line."""

    classes: Mapping[str, tuple[DiskShare, ...]] = field(default_factory=dict)
    annotations: frozenset[str] = frozenset()
    costs: tuple[DiskCost, ...] = ()
    by_qos: bool = True
    written: str = "{}"

    @property
    def has_classes(self) -> bool:
        return bool(self.classes or self.annotations or self.costs)


#: What the option's default says.
EMPTY = BlockIoSection()


# ---------------------------------------------------------------------- what is there


@frozen
class Device:
    """A block device. ``number``: "8:0"; of a partition that of its disk, whose path is then ``disk``."""

    path: str
    number: str
    disk: str = ""
    scheduler: str = ""


@frozen
class SeenDisks:
    """What this machine has. ``devices``: what each glob names now. ``costed``: numbers of those on which iocost is on.

    ``root``: the folder of the hierarchy that has block I/O, "" = none has. ``has_cost``: whether its files are there.
    """

    root: str = ""
    is_v2: bool = True
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    costed: frozenset[str] = frozenset()
    has_cost: bool = False


@frozen
class Treatment:
    """What a container should have. ``names``: the classes and annotations that say so."""

    key: str
    path: str
    shares: tuple[DiskShare, ...]
    names: tuple[str, ...]

    @property
    def why(self) -> str:
        return f"{self.path} has {' and '.join(self.names)}"


# ---------------------------------------------------------------------- what is wanted


def treatments(
    section: BlockIoSection, containers: Iterable[IsolatedContainer], notes: list[str]
) -> dict[str, Treatment]:
    """What containers should have, by key; one that is to be as it is, is not here."""
    found: dict[str, Treatment] = {}
    unknown: set[str] = set()
    faults: list[str] = []
    for each in containers:
        preferences = each.container.preferences if each.container is not None else None
        asked = preferences.blockio_class if preferences is not None else ""
        if asked and asked not in section.classes:
            unknown.add(asked)
        name = named_class(_names(section, asked), each, asked)
        shares = section.classes[name] if name is not None else ()
        names = [f"the class {name} of block I/O"] if name is not None else []
        limits = _annotated(section, each, faults)
        if limits:
            shares, names = (*shares, *limits), [*names, f"the annotation {BLKIO_LIMIT}"]
        if shares:
            found[each.key] = Treatment(each.key, each.path, shares, tuple(names))
    notes += [*some(faults), *not_configured("block I/O", unknown)]
    return found


def _names(section: BlockIoSection, asked: str) -> Collection[str]:
    if section.by_qos:
        return section.classes
    return [name for name in section.classes if name not in QOS_NAMES or name == asked]


def globs(section: BlockIoSection, found: Iterable[Treatment]) -> frozenset[str]:
    """All that names devices: what ``SeenDisks.devices`` must have."""
    listed = [share.devices or () for each in found for share in each.shares]
    return frozenset(name for names in (*listed, *(cost.devices for cost in section.costs)) for name in names)


def settings_of(
    treatment: Treatment, folder: str, files: Collection[str], seen: SeenDisks, notes: set[str]
) -> Iterator[Setting]:
    """What the files of a container's cgroup should say. ``files``: those of ``FILES`` that are there."""
    weight: Optional[int] = None
    weights: dict[str, tuple[int, Device]] = {}
    limits: dict[tuple[str, str], tuple[int, Device]] = {}
    for share in treatment.shares:
        if share.devices is None:
            weight = weight if share.weight is None else share.weight
            continue
        for device in _disks(share.devices, seen, notes):
            if share.weight is not None:
                weights[device.number] = share.weight, device
            limits.update({(device.number, word): (limit, device) for word, limit in share.limits.items()})

    def setting(place: str, value: str, device: Optional[Device] = None) -> Setting:
        why = treatment.why if device is None else f"{treatment.why} on {device.disk or device.path}"
        return Setting(SUBJECT, f"{FILE}{folder}/{place}", value, why, (treatment.key,))

    for name in files if weight is not None else ():
        if name in _WEIGHTS:
            yield setting(f"{name}#default" if _has_default(name) else name, _weight(name, weight or 0))
    for number, (value, device) in weights.items():
        places = list(_device_weights(device, files, seen))
        if not places:
            notes.add(
                f"{device.disk or device.path} has no weights: its scheduler is {device.scheduler or 'none'}, expected "
                "bfq, or costs for iocost"
            )
        for name, file in places:
            yield setting(f"{file}#{number}", _weight(name, value), device)
    for (number, word), (limit, device) in limits.items():
        if word in (RIOPS, WIOPS) and limit >= _MOST_IOPS:
            limit = 0
        if seen.is_v2:
            yield setting(f"{MAX}#{number} {word}", str(limit) if limit else "max", device)
        else:
            yield setting(f"{_THROTTLES[word]}#{number}", str(limit), device)


def cost_settings(section: BlockIoSection, seen: SeenDisks, notes: set[str]) -> Iterator[Setting]:
    """What iocost should know of the node's disks: of one that several entries name, the last counts."""
    if section.costs and not seen.has_cost:
        notes.add("this kernel has no iocost: costs are not set (CONFIG_BLK_CGROUP_IOCOST)")
        return
    file = f"{FILE}{seen.root}/{'io' if seen.is_v2 else 'blkio'}.cost"
    found = {
        device.number: (device.disk or device.path, cost)
        for cost in section.costs
        for device in _disks(cost.devices, seen, notes)
    }
    for number, (path, cost) in found.items():
        why = f"costs of {path} are configured"
        if cost.model:
            yield Setting(
                SUBJECT, f"{file}.model#{number}", f"ctrl=user model=linear {_words(cost.model)}", why
            )
        yield Setting(SUBJECT, f"{file}.qos#{number}", f"enable=1 ctrl=user {_words(cost.qos)}", why)


def is_same(seen: str, value: str) -> bool:
    """Whether what the kernel says has every word of a value, numbers by what they are worth."""
    there = dict(word.partition("=")[::2] for word in seen.split())
    return all(
        name in there and _worth(there[name]) == _worth(wanted)
        for name, _, wanted in (word.partition("=") for word in value.split())
    )


def costed(qos: str) -> frozenset[str]:
    """The devices on which iocost is on, of what io.cost.qos says."""
    lines = (line.split() for line in qos.splitlines())
    return frozenset(words[0] for words in lines if "enable=1" in words)


def _worth(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _words(numbers: Mapping[str, object]) -> str:
    return " ".join(f"{name}={number}" for name, number in numbers.items())


def _disks(names: Sequence[str], seen: SeenDisks, notes: set[str]) -> Iterator[Device]:
    """The disks that globs name now."""
    for name in names:
        for device in seen.devices.get(name, ()):
            if device.disk:
                notes.add(
                    f"{device.path} is a partition, which has no limits of its own: they are those of {device.disk}"
                )
            yield device


def _weight(name: str, weight: int) -> str:
    if not _WEIGHTS[name][1]:
        return str(weight)
    # As runc, crun and so every runtime has it: 10 to 1000 become 1 to 10000.
    return str(1 + (weight - LEAST_WEIGHT) * 9999 // (MOST_WEIGHT - LEAST_WEIGHT))


def _has_default(name: str) -> bool:
    """Whether a file has a line for all devices beside those of single ones; else it is one number."""
    return not _WEIGHTS[name][2]


def _device_weights(device: Device, files: Collection[str], seen: SeenDisks) -> Iterator[tuple[str, str]]:
    """The files that take a weight for a device: whose weight it is, and its name. Others would refuse."""
    for name, (scheduler, _, of_devices) in _WEIGHTS.items():
        file = of_devices or name
        has = device.number in seen.costed if scheduler == _COST else device.scheduler == scheduler
        if has and file in files:
            yield name, file


# ---------------------------------------------------------------------- rubik's annotation


def _annotated(
    section: BlockIoSection, each: IsolatedContainer, faults: list[str]
) -> Optional[tuple[DiskShare, ...]]:
    if each.container is None or BLKIO_LIMIT not in section.annotations:
        return None
    text = each.container.pod.annotations.get(BLKIO_LIMIT)
    if not text:
        return None
    try:
        return read_limits(text)
    except ValueError as error:
        faults.append(f"{each.path}: annotation {BLKIO_LIMIT} is {quote(text)}, expected {error}")
        return None


def read_limits(text: str) -> tuple[DiskShare, ...]:
    """The limits in rubik's words: ``{"device_read_bps": [{"device": "/dev/sda", "value": "10485760"}], …}``.

    :raises ValueError: it is something else; the message says what was expected.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object with {', '.join(_OF_ANNOTATION)}")
    shares: list[DiskShare] = []
    for name, entries in found.items():
        if name not in _OF_ANNOTATION:
            raise ValueError(f"no other keys than {', '.join(_OF_ANNOTATION)}")
        if not isinstance(entries, list) or len(entries) + len(shares) > _MOST_ENTRIES:
            raise ValueError(f"in {name} a list, of at most {_MOST_ENTRIES} devices in all")
        shares += [_read_limit(name, entry) for entry in entries]
    return tuple(shares)


def _read_limit(name: str, entry: Any) -> DiskShare:
    if not isinstance(entry, dict) or not {"device", "value"} <= entry.keys():
        raise ValueError(f"in {name} a device and a value each")
    device, value = entry["device"], entry["value"]
    if not isinstance(device, str) or not is_device(device) or any(sign in device for sign in "*?[\\"):
        raise ValueError(f"in {name} devices such as /dev/sda or 8:0")
    try:
        limit = parse_bytes(value)
    except BadQuantity:
        raise ValueError(f"in {name} a number for {device}") from None
    return DiskShare((device,), limits={_OF_ANNOTATION[name]: limit})


def is_device(name: str) -> bool:
    """Whether a text can name devices: a path or a glob below /dev, or a number such as "8:0"."""
    if name.startswith("/dev/"):
        parts = name.split("/")[2:]
        # Elsewhere is a file system that may not answer.
        return name.isprintable() and len(name) <= 1024 and all(part not in ("", ".", "..") for part in parts)
    major, colon, minor = name.partition(":")
    return bool(colon) and all(
        part.isdecimal() and part.isascii() and len(part) <= 7 for part in (major, minor)
    )
