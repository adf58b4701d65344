"""Words of isolation: what a container is to others, what the kernel offers, and what is wanted of it.

A *class* is what a container is to the others; a *treatment* is what the node does about it. A *domain* is the part of the
machine that a control of the kernel acts on: of caches one L3, a CCX on Hygon and AMD, a socket on Intel.

The words of resctrl are the kernel's (Documentation/filesystems/resctrl.rst): a *group* is a folder below its mount and
takes one class of service (CLOSID), ``schemata`` has a line a resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Optional

from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS
from policies.model import BATCH as BATCH
from policies.model import PROTECTED as PROTECTED
from policies.model import Container

#: What a container is to the others; the other two are the policies'.
STANDARD = "standard"
CLASSES = (PROTECTED, STANDARD, BATCH)


@frozen
class IsolationClass:
    """What a container is to the others: ``kind``, one of ``CLASSES``, and what says so, such as "namespace/batch-*"."""

    kind: str
    why: str


#: What a subject may do: nothing; say what it would do; do it.
OFF, OBSERVE, ENFORCE = "off", "observe", "enforce"

#: The resources of a group's schemata, and which of them are caches.
L2, L3, MB = "L2", "L3", "MB"
CACHES = ("L2", "L2CODE", "L2DATA", "L3", "L3CODE", "L3DATA")

#: The group that is always there, and that every task begins in.
ROOT = ""
#: What the names of all our groups begin with.
PREFIX = "cri-resmgr."
#: Folders beside groups, in the root's folder and in theirs.
NO_GROUPS = frozenset(("info", "mon_groups", "mon_data"))


def is_ours(name: str) -> bool:
    """Whether a group, or a monitoring group, is one that this program has made."""
    return name.startswith(PREFIX)


# ---------------------------------------------------------------------- what the kernel offers


@frozen
class CacheDomain:
    """A part of the machine that has a cache of its own, by the cache's ``id`` in sysfs."""

    id: int
    cpus: frozenset[int]


@frozen
class CacheInfo:
    """What may be asked of one cache resource (``info/L3``). ``full_mask``: every bit; ``shareable``: bits that devices use.

    ``is_sparse``: a mask may have gaps. ``closids``: groups there may be, the root counts.
    """

    full_mask: int
    min_bits: int = 1
    closids: int = 16
    shareable: int = 0
    is_sparse: bool = False

    @property
    def bits(self) -> int:
        """How many bits a mask has at most."""
        return self.full_mask.bit_length()


#: Units of a bandwidth: a percentage (Intel), MB/s (the mount option mba_MBps), and eighths of GB/s (AMD, Hygon).
PERCENT, MBPS, EIGHTHS = "percent", "MBps", "eighth GB/s"


@frozen
class BandwidthInfo:
    """What may be asked of memory bandwidth (``info/MB``); all numbers are in ``unit``.

    ``no_limit`` is the value of a group that is not limited. ``closids``: as of a cache.
    """

    minimum: int
    step: int
    no_limit: int
    unit: str = PERCENT
    closids: int = 16


@frozen
class ResctrlInfo:
    """What one kernel's resctrl offers: ``caches`` and ``bandwidth`` (None = not there).

    ``domains``: of each resource, those that its schemata line names.
    ``monitors``: the files of ``mon_data``; ``rmids``: monitoring groups there may be.
    """

    caches: Mapping[str, CacheInfo] = field(default_factory=dict)
    bandwidth: Optional[BandwidthInfo] = None
    domains: Mapping[str, tuple[CacheDomain, ...]] = field(default_factory=dict)
    monitors: tuple[str, ...] = ()
    rmids: int = 0

    @property
    def closids(self) -> int:
        """How many groups there may be, the root counts."""
        of_bandwidth = [self.bandwidth.closids] if self.bandwidth else []
        return min([cache.closids for cache in self.caches.values()] + of_bandwidth, default=1)


#: Of a group: resource -> domain id -> what its schemata line has there, "ff" or "2048".
Schemata = Mapping[str, Mapping[int, str]]


@frozen
class SeenGroups:
    """What is in the kernel's tree. ``schemata``: of the root group and of ours, by name. ``others``: all other groups.

    ``other_monitors``: how many monitoring groups there are that are not ours, in the root group and in ours.
    """

    schemata: Mapping[str, Schemata] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    other_monitors: int = 0


def read_schemata(text: str) -> Schemata:
    """The schemata of a group as the kernel prints them, with masks as in ``Group``: neither padded nor prefixed."""
    found: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        resource, _, values = line.strip().partition(":")
        pairs = (pair.partition("=") for pair in values.split(";") if "=" in pair)
        found[resource] = {int(number): written_value(resource, value) for number, _, value in pairs}
    return found


def written_value(resource: str, text: str) -> str:
    """A value as we write it: the kernel pads masks with zeros and numbers with blanks."""
    return f"{int(text, 16):x}" if resource in CACHES else str(int(text))


# ---------------------------------------------------------------------- what is to be isolated


@frozen
class IsolatedContainer:
    """What isolation sees of a container. ``cls``: one of ``CLASSES``; ``why``: what said so.

    ``cpus``: where it may run; ``owned``: those of them that no other may. ``runs``: its processes are there.
    ``rdt_class``: the class of the configured ``rdt`` section that it belongs to, "" = none. ``balloon``: the type of its
    balloon, "" = none. ``container``: what its caller said of it; only tests leave it out. ``scheduling``: how an NRI plugin
    has asked for its threads to be scheduled (``scheduling.write_class``), "" = none has. ``parts``: of a composite balloon
    the type of each part, and its CPUs.
    """

    key: str
    path: str
    cls: str
    why: str
    cpus: frozenset[int]
    owned: frozenset[int] = NO_CPUS
    rdt_class: str = ""
    runs: bool = True
    balloon: str = ""
    container: Optional[Container] = None
    scheduling: str = ""
    parts: tuple[tuple[str, frozenset[int]], ...] = ()


@frozen
class Step:
    """What batch has in one domain where a protected container runs: parts of the whole, 0 to 1. None: as configured."""

    cache: Optional[float] = None
    bandwidth: Optional[float] = None


# ---------------------------------------------------------------------- what is wanted


@frozen
class Group:
    """A group that should be there. ``name``: "" is the root's. ``members``: the keys of the containers in it.

    ``schemata`` names every domain of the resources that it names; a resource that it does not name is left alone.
    ``why``: domain id -> the sentence that says why it is not the whole there.
    """

    name: str
    schemata: Schemata
    members: frozenset[str] = frozenset()
    why: Mapping[int, str] = field(default_factory=dict)


@frozen
class Wanted:
    """The groups that should be there, most important first: the last ones go without where CLOSIDs are used up.

    ``notes``: sentences about what cannot be had. ``without``: groups for which no class of service is left.
    """

    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()
    without: tuple[Group, ...] = ()

    def group_of(self, key: str) -> str:
        """The name of the group that a container belongs to."""
        return next((group.name for group in self.groups if key in group.members), ROOT)


#: What begins the place of a setting: a file of its own, or a value of a resctrl group.
FILE, RESCTRL = "file:", "resctrl:"


@frozen
class Setting:
    """One value that should be at one place, whatever it is about; what the reconciler compares with what is there.

    ``subject``: the folder or module it comes from, such as "caches". ``place``: "file:/sys/…/cpu.idle", a line of such a
    file or a word of it (``places``), or "resctrl:GROUP#L3:0" for one domain in the schemata of a group. ``keys``: the
    containers it is there for. ``final``: error numbers with which the kernel refuses for good: it is not tried again, and
    no warning.
    ``beside``: places that the kernel changes along with it; what they had is written back after it. ``is_shared``: the
    runtime and kubelet write there in the ordinary course of things: it is written again without a word, and what they
    wrote last is what is put back.
    """

    subject: str
    place: str
    value: str
    why: str = ""
    keys: tuple[str, ...] = ()
    final: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()
    is_shared: bool = False


def resctrl_place(group: str, resource: str, number: int) -> str:
    """The place of one domain's value in a group's schemata."""
    return f"{RESCTRL}{group}#{resource}:{number}"


def is_value_of(place: str, group: str) -> bool:
    """Whether a place is one of the values of a group. Names of groups may have any sign but a slash."""
    return place.startswith(RESCTRL) and "#" in place and place_parts(place)[0] == group


def place_parts(place: str) -> tuple[str, str, int]:
    """Group, resource and domain of a place that ``resctrl_place`` has made."""
    group, _, value = place[len(RESCTRL) :].rpartition("#")
    resource, _, number = value.partition(":")
    return group, resource, int(number) if number.isdigit() else -1
