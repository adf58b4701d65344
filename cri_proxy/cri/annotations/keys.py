"""The table of annotations that ask for a placement, and which keys under our own namespace are none of them.

A key of a pod's annotation has one slash at most, so that ours are written like those of nri-plugins; the most
special one counts (``spellings`` has them in that order):

    l3.cri-resmgr.io/container.NAME      for one container
    l3.cri-resmgr.io/pod                 for the others of the pod
    l3.cri-resmgr.io                     the same
    cri-resmgr.io/l3                     the same, as people expect it

    cri-resource-manager and nri-plugins: KEY.NAMESPACE/container.NAME, KEY.NAMESPACE/pod, KEY.NAMESPACE
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable, Optional

from cri_proxy.cri.annotations.values import (
    Reader,
    bool_as,
    one_of,
    read_bool,
    read_hint_kinds,
    read_memory_types,
    read_name,
    read_paths,
)
from cri_proxy.text.sources import quote
from policies.frozen import frozen

OURS, NRI, INTEL = "cri-resmgr.io", "resource-policy.nri.io", "cri-resource-manager.intel.com"
#: Of classes of caches and bandwidth, as containerd and CRI-O read it.
RDT = "rdt.resources.beta.kubernetes.io"
#: The same of block I/O.
BLOCKIO = "blockio.resources.beta.kubernetes.io"
#: On a pod whose containers' CPU quotas may be raised for a while, as rubik reads it.
QUOTA_TURBO = "volcano.sh/quota-turbo"

Demands = Callable[[str], bool]


def _never(text: str) -> bool:
    return False


def _always(text: str) -> bool:
    return True


def _like_require(text: str) -> bool:
    """Whether a word that is not understood is "require", misspelt."""
    import difflib  # names are misspelt seldom: half a millisecond of a start

    return bool(difflib.get_close_matches(text.strip().lower()[:40], ["require"], cutoff=0.7))


@frozen
class Key:
    """An annotation: its ``key`` (and another spelling), the field of ``PlacementPreferences`` it sets, how it is read.

    ``demands``: whether a value that is not understood is a demand. ``by_container``: the value may also be a
    mapping of values by container name. ``guaranteed_only``: only Guaranteed pods get CPUs of their own by it.
    """

    key: str
    field: str
    read: Reader
    demands: Demands = _never
    alias: str = ""
    by_container: bool = False
    guaranteed_only: bool = False


def _ours(name: str, field: str, read: Reader, demands: Demands = _never) -> Key:
    return Key(f"{name}.{OURS}", field, read, demands, alias=f"{OURS}/{name}")


def _theirs(namespace: str) -> tuple[Key, ...]:
    """The keys that nri-plugins have taken over from cri-resource-manager."""
    shared = bool_as("shared", "exclusive")
    return (
        Key(f"prefer-isolated-cpus.{namespace}", "isolated", bool_as("prefer", "avoid")),
        # Their table asks for the pod's class first: "false" never gives CPUs to Burstable containers.
        Key(f"prefer-shared-cpus.{namespace}", "ownership", shared, guaranteed_only=True),
        Key(f"prefer-reserved-cpus.{namespace}", "reserved", read_bool),
        Key(f"memory-type.{namespace}", "memory_types", read_memory_types),
        Key(f"topologyhints.{namespace}", "hints", read_hint_kinds),
        Key(f"balloon.balloons.{namespace}", "balloon", read_name),
        Key(f"rdtclass.{namespace}", "rdt_class", read_name),
        Key(f"blockioclass.{namespace}", "blockio_class", read_name),
    )


#: Every annotation with a value of its own, those first that count first.
KEYS: tuple[Key, ...] = (
    _ours("cpus", "ownership", one_of("shared", "exclusive")),
    _ours("size", "size", one_of("limit", "demand")),
    _ours("l3", "l3", one_of("prefer", "require", "exclusive", "spread"), _like_require),
    # All that this one can ask is a demand.
    _ours("numa", "numa", one_of("require", nothing="prefer"), _always),
    _ours("smt", "smt", one_of("full-core", "hide", "spread")),
    _ours("isolated", "isolated", one_of("avoid", "prefer", "require"), _like_require),
    _ours("reserved", "reserved", read_bool),
    _ours("cfs-quota", "cfs_quota", one_of("keep", "lift")),
    _ours("memory-type", "memory_types", read_memory_types),
    _ours("hints", "hints", read_hint_kinds),
    _ours("balloon", "balloon", read_name),
    _ours("class", "isolation_class", one_of("protected", "standard", "batch")),
    _ours("rdt-class", "rdt_class", read_name),
    _ours("blockio-class", "blockio_class", read_name),
    _ours("cpu-class", "cpu_class", read_name),
    _ours("memory-class", "memory_class", read_name),
    _ours("scheduling-class", "scheduling_class", read_name),
    Key(f"scheduling-class.{NRI}", "scheduling_class", read_name),
    Key(f"cpu-class.{NRI}", "cpu_class", read_name),
    Key(f"require-isolated-cpus.{NRI}", "isolated", bool_as("require", None), _always),
    *_theirs(NRI),
    Key(f"hide-hyperthreads.{NRI}", "smt", bool_as("hide", "")),
    Key(f"allow.topologyhints.{NRI}", "hints_allow", read_paths),
    Key(f"deny.topologyhints.{NRI}", "hints_deny", read_paths),
    Key(f"strict.topologyhints.{NRI}", "strict_hints", read_bool, _always),
    *_theirs(INTEL),
    Key(f"{INTEL}/prefer-isolated-cpus", "isolated", bool_as("prefer", "avoid"), by_container=True),
    Key(
        f"{INTEL}/prefer-shared-cpus",
        "ownership",
        bool_as("shared", "exclusive"),
        by_container=True,
        guaranteed_only=True,
    ),
    Key(f"{INTEL}/memory-type", "memory_types", read_memory_types, by_container=True),
    Key(RDT, "rdt_class", read_name),
    Key(BLOCKIO, "blockio_class", read_name),
    Key(QUOTA_TURBO, "quota_turbo", read_bool),
)

#: On a pod of batch jobs, as Volcano and rubik read it: others may take what it uses.
PREEMPTABLE = "volcano.sh/preemptable"
#: On a pod, as rubik reads it: limits of block I/O by device, in JSON. Only where the section of block I/O lists it.
BLKIO_LIMIT = "volcano.sh/blkio-limit"
#: CPU time that a pod's containers may save for later, in microseconds, as rubik reads it.
QUOTA_BURST = "volcano.sh/quota-burst-time"
#: Of memory, as nri-plugins' memory-qos has them: KEY.memory-qos.nri.io and KEY.memory-qos.nri.io/CONTAINER.
MEMORY_QOS = ".memory-qos.nri.io"
#: Fields that hold as they are while a container runs too; all others are asked of its placement once.
FOLLOWED_FIELDS = (
    "isolation_class",
    "quota_turbo",
    "rdt_class",
    "blockio_class",
    "cpu_class",
    "memory_class",
    "scheduling_class",
)
#: What the annotations begin with that are followed.
FOLLOWED = (
    *(k for key in KEYS if key.field in FOLLOWED_FIELDS for k in (key.key, key.alias) if k),
    PREEMPTABLE,
    BLKIO_LIMIT,
    QUOTA_BURST,
)

#: The prefixes of affinity and anti-affinity; the first with terms for the container counts.
AFFINITY_NAMESPACES = (OURS, NRI, INTEL)

#: Annotations of others that ask for what nothing here does, with what that is. Classes of block I/O, limits of
#: top-tier memory and the like are no placement: they are passed over in silence.
NOT_DONE = {
    **{f"cold-start.{namespace}": "memory that is slow first and fast later" for namespace in (NRI, INTEL)},
    f"{INTEL}/cold-start": "memory that is slow first and fast later",
    f"pick-resources-by-hints.{NRI}": "single CPUs chosen by device",
    f"dynamic-pool.dynamic-pools.{INTEL}": "dynamic pools",
    f"pool.podpools.{INTEL}": "pools of pods",
}

#: Names under our own namespace that had a meaning once, each with what holds now.
GONE = {
    "cpuset-file": "no container is given such a file any more: its own cgroup says its CPUs"
    " (/sys/fs/cgroup/cpuset.cpus.effective)",
}

#: Names under our own namespace: those above, and what is read elsewhere.
OUR_NAMES = (
    *(k.alias.partition("/")[2] for k in KEYS if k.alias),
    "affinity",
    "anti-affinity",
    "manage",
    "followed-advice",
)


def spellings(key: str, alias: str, container: str) -> Iterator[str]:
    """The annotations that may hold a key for a container, those first that count first."""
    for scope in (f"/container.{container}", "/pod", ""):
        yield key + scope
        if alias:
            yield alias + scope


# ---------------------------------------------------------------------- keys that are not known


def _our_name(key: str) -> Optional[tuple[str, str]]:
    """Name and scope of a key under our own namespace; None for one of another program."""
    prefix, _, rest = key.partition("/")
    if prefix == OURS:
        name, _, scope = rest.partition("/")
        return name, scope
    return (prefix[: -len(OURS) - 1], rest) if prefix.endswith(f".{OURS}") else None


def is_stranger(key: str) -> bool:
    """Whether a key is under our own namespace, and none of ours."""
    found = _our_name(key)
    if found is None:
        return False
    name, scope = found
    return name not in OUR_NAMES or not (scope in ("", "pod") or scope.startswith("container."))


def strangeness(key: str) -> str:
    """What is wrong with a stranger, as a phrase with the nearest key."""
    name, scope = _our_name(key) or ("", "")
    if name in GONE:
        return GONE[name]
    if name in OUR_NAMES:
        return f"{quote(scope)} is not understood, expected pod or container.NAME behind the slash"
    import difflib  # names are misspelt seldom: half a millisecond of a start

    nearest = difflib.get_close_matches(name.lower()[:40], OUR_NAMES, n=1, cutoff=0.5)
    known = f"did you mean {OURS}/{nearest[0]}?" if nearest else f"known are {', '.join(OUR_NAMES)}"
    return f"there is no such key ({known})"
