"""What files of Intel's cri-resource-manager and of nri-plugins say, in our words; the keys they share with us are
not here. Their sections are known names: what has a counterpart is translated, the rest is named in a note.

Keys of theirs are read whatever their case: nri-plugins write ``pinCPU`` where Intel's files have ``PinCPU``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from cri_proxy.config.checks import FALSE_WORDS, TRUE_WORDS
from cri_proxy.config.gone import FORMER_SECTIONS
from cri_proxy.config.options.table import BY_KEY
from cri_proxy.config.options.table import SECTIONS as OUR_SECTIONS
from cri_proxy.text.sources import Raw, Remark, SourceEntry, describe, meaningless, show_key

#: Policies of theirs, and the one of ours that is nearest; those that have the same name are not here.
POLICIES = {
    "memtier": "topology-aware",
    "static": "topology-aware",
    "static-plus": "topology-aware",
    "dynamic-pools": "balloons",
    "podpools": "hygon",
    "static-pools": "hygon",
}
#: Kinds of nri-plugins' custom resources.
KINDS = {"TopologyAwarePolicy": "topology-aware", "BalloonsPolicy": "balloons", "TemplatePolicy": "none"}

_POLICY_SECTIONS = ("topology-aware", "balloons", *POLICIES)
#: Sections of Intel's files that are not ours.
SECTIONS = frozenset(
    {"logger", "dump", "resource-manager", "instrumentation"}
    | {f"policy.{name}" for name in _POLICY_SECTIONS}
)
#: Sections of nri-plugins' files, in lower case; a custom resource has all of them below ``spec``.
_NRI_RESOURCES = {"reservedresources": "ReservedResources", "availableresources": "AvailableResources"}
_NRI_NESTED = (*_NRI_RESOURCES, "preserve")
_NRI_SECTIONS = frozenset(
    (
        "spec",
        "spec.control",
        "spec.log",
        "policy.balloons.preserve",
        *_NRI_NESTED,
        *(f"spec.{n}" for n in _NRI_NESTED),
    )
)

_RESERVED, _TYPES = "placement.reserved_namespaces", "policy.balloons.BalloonTypes"
#: A section of classes that is ours, too.
_CPU = "control.cpu"
#: Keys of their policies, as Intel's files have them, and our options.
COUNTERPARTS = {
    "AllocatorTopologyBalancing": "policy.balloons.AllocatorTopologyBalancing",
    "BalloonTypes": _TYPES,
    "ControllableInterrupts": "control.interrupts#controllable",
    "ColocateNamespaces": "placement.colocate_namespaces",
    "ColocatePods": "placement.colocate_pods",
    "CPUClasses": f"{_CPU}#classes",
    "DefaultExclusiveCPUClass": f"{_CPU}#exclusive",
    "DynamicPoolTypes": _TYPES,
    "IdleCPUClass": f"{_CPU}#idle",
    "LoadClasses": "policy.balloons.LoadClasses",
    "NamespaceSchedulingClasses": "control.scheduling#namespaceSchedulingClasses",
    "PinMemory": "placement.memory",
    "PodQoSSchedulingClasses": "control.scheduling#podQoSSchedulingClasses",
    "Preserve.MatchExpressions": "placement.preserve",
    "PreferIsolatedCPUs": "placement.prefer_isolated",
    "PreferSharedCPUs": "placement.prefer_shared",
    "PreferSpreadOnPhysicalCores": "policy.balloons.PreferSpreadOnPhysicalCores",
    "ReservedPoolCPUClass": f"{_CPU}#reserved",
    "ReservedPoolNamespaces": _RESERVED,
    "SchedulingClasses": "control.scheduling#schedulingClasses",
    "ShowContainersInNrt": "policy.balloons.ShowContainersInNrt",
    "SharedPoolCPUClass": f"{_CPU}#shared",
    "TurboDomain": f"{_CPU}#turboDomain",
    "UnlimitedBurstable": "placement.unlimited",
}
_PIN_CPU = "PinCPU"
_SPELLED = {key.lower(): key for key in (*COUNTERPARTS, _PIN_CPU)}
#: Keys of their policies that nothing here depends on, in lower case, and why.
MEANINGLESS: Mapping[str, str] = {
    "defaultcpupriority": "priorities of CPUs are Speed Select's, Intel's alone; a balloon type's preferCoreType "
    "prefers fast cores",
}
#: The same of their other sections and of keys in them; the longest beginning of a key counts.
REASONS: Mapping[str, str] = {
    "agent": "it steers their own agent; the node agent writes NodeResourceTopology, and kubelet is asked for devices "
    "where a balloon type names a podresourceapi: device",
    "availableresources": "of what is available only cpu counts, as in theirs",
    "control": "what it holds is read by its own key",
    "dump": "it steers their own dump of messages; log.level: debug logs each request",
    "instrumentation": "it steers their own metrics and traces; metrics.listen and tracing.endpoint are ours",
    "kind": "it is no policy's custom resource",
    "log": "it steers their own log; log.level is ours",
    "logger": "it steers their own log; log.level is ours",
    "policy.availableresources": "of what is available only CPU counts, as in theirs",
    "reservedresources": "only cpu and memory can be reserved",
    "resource-manager": "it steers their own program",
    "spec": "it holds no keys",
}
#: What makes a custom resource of it; what else stands at the top; ``control`` is a section of ours, too.
_NRI_FRAME = frozenset(("apiversion", "metadata", "status"))
_NRI_OTHERS = _NRI_FRAME | frozenset(("agent", "kind"))
#: Sections of classes whose name at nri-plugins is our option's, and which have another place in Intel's files.
CLASSES = {"rdt": "control.rdt", "blockio": "control.blockio", "cpu": _CPU}
_CLASSES = {**CLASSES, **{f"spec.{key}": key for key in CLASSES.values()}}
#: nri-plugins' levels as ours.
LEVELS = {"l3cache": "ccx", "numa": "numa", "die": "numa", "package": "socket", "system": "machine"}
_MEMORY = "policy.availableresources.memory"
#: Sections whose keys are all known.
_CHECKED = ("policy.topology-aware", "policy.memtier", "policy.balloons")

_NO_WORDS = ("", "false", "no", "off", "none")
_ON_WORDS, _OFF_WORDS = ("on", "enable"), ("off", "disable")


class KnownSections:
    """The keys that hold other keys: ours as they are written, theirs whatever their case."""

    def __contains__(self, key: object) -> bool:
        if key in OUR_SECTIONS or key in FORMER_SECTIONS:
            return True
        return str(key).lower() in SECTIONS or str(key).lower() in _NRI_SECTIONS


def active_policy(entries: Iterable[SourceEntry]) -> str:
    """The policy that a file names, in its own words; "" if it names none."""
    active = ""
    for entry in entries:
        if entry.key == "policy.Active" and isinstance(entry.raw, str):
            active = entry.raw
        elif entry.key == "kind" and isinstance(entry.raw, str):
            active = active or KINDS.get(entry.raw, "")
    return active


def unpinned(entries: Iterable[SourceEntry], active: str) -> tuple[Optional[SourceEntry], Optional[Remark]]:
    """``policy.Active: none``, and a note, where a file of theirs says that CPUs are not to be pinned."""
    for entry in entries:
        section, name = _split(entry.key)
        if name.lower() == _PIN_CPU.lower() and _counts(section, active) and _word(entry) in FALSE_WORDS:
            note = f"{entry.origin}: {entry.key} is {describe(entry.raw)}; nothing is placed: policy.Active is none"
            return _ours(entry, "policy.Active", "none"), Remark(note, is_doubt=False)
    return None, None


def translate(entry: SourceEntry, active: str) -> tuple[Optional[SourceEntry], Optional[Remark]]:
    """An entry as one of ours, or None if it means nothing here; and a remark, if there is any.

    ``active``: the policy that the same file names. Of their policies only that one's section counts.
    """
    if entry.key == "policy.Active" and isinstance(entry.raw, str) and entry.raw in POLICIES:
        ours = POLICIES[entry.raw]
        note = f"{entry.origin}: policy.Active is {describe(entry.raw)}; {ours} is placed by instead"
        return replace(entry, raw=ours), None if entry.raw == "memtier" else Remark(note, is_doubt=False)
    if entry.key in BY_KEY:
        return entry, None
    if entry.key.lower() in _CLASSES:
        return _ours(entry, _CLASSES[entry.key.lower()], entry.raw), None
    section, name = _split(entry.key)
    low = name.lower()
    if entry.key.lower() == _MEMORY:
        return _nothing(entry)
    if section == "policy" or (section == "" and not _is_nri(entry.key, low)):
        return entry, None
    if section == "" or section.startswith("policy."):
        return _of_policy(entry, section, low, active)
    return _of_others(entry, section, low)


def _of_policy(
    entry: SourceEntry, section: str, low: str, active: str
) -> tuple[Optional[SourceEntry], Optional[Remark]]:
    """A key of a policy's section, or at the top of nri-plugins' files."""
    if section == "" and low == "kind" and isinstance(entry.raw, str) and entry.raw in KINDS:
        return _ours(entry, "policy.Active", KINDS[entry.raw]), None
    if low not in _SPELLED and low not in MEANINGLESS and section in _CHECKED:
        import difflib  # names are misspelt seldom: half a millisecond of a start

        nearest = difflib.get_close_matches(low[:60], _SPELLED, n=1)
        hint = f"; did you mean {_SPELLED[nearest[0]]}?" if nearest else ""
        return None, Remark(f"{entry.origin}: unknown key {show_key(entry.key)}{hint}")
    if section == "" and low.partition(".")[0] in _NRI_FRAME:
        return None, None
    if low not in _SPELLED or not _counts(section, active):
        return _nothing(entry, active)
    if _SPELLED[low] == _PIN_CPU:
        if _word(entry) in TRUE_WORDS + FALSE_WORDS:
            return None, None  # ``unpinned`` says what it means
        found = f"{entry.origin}: {entry.key} is {describe(entry.raw)}"
        return None, Remark(f"{found}, expected true or false; it counts as true")
    return _counterpart(entry, _SPELLED[low])


def _counterpart(entry: SourceEntry, name: str) -> tuple[Optional[SourceEntry], Optional[Remark]]:
    key, raw = COUNTERPARTS[name], entry.raw
    if key == _RESERVED:
        return _ours(entry, key, _with_kube_system(raw)), None
    if name == "PinMemory" and _word(entry) in TRUE_WORDS + FALSE_WORDS:
        return _ours(entry, key, "off" if _word(entry) in FALSE_WORDS else "prefer"), None
    if name == "UnlimitedBurstable" and _word(entry) in LEVELS:
        note = f'{entry.origin}: {show_key(entry.key)} is "die"; placement.unlimited has no die, and is numa'
        remark = Remark(note, is_doubt=False) if _word(entry) == "die" else None
        return _ours(entry, key, LEVELS[_word(entry)]), remark
    return _ours(entry, key, raw), None


def _of_others(entry: SourceEntry, section: str, low: str) -> tuple[Optional[SourceEntry], Optional[Remark]]:
    """A key of the sections that are no policy's."""
    if section in _NRI_RESOURCES and low == "cpu":
        return _ours(entry, f"policy.{_NRI_RESOURCES[section]}.CPU", entry.raw), None
    if section == "reservedresources" and low == "memory":
        return _ours(entry, "policy.ReservedResources.Memory", entry.raw), None
    if section in ("logger", "log") and low == "debug":
        found = ",".join(entry.raw) if isinstance(entry.raw, tuple) and section == "log" else entry.raw
        if isinstance(found, str) and _is_debug(found):
            return _ours(entry, "log.level", "debug"), None
    if section == "log" and low not in ("debug", "source", "klog"):
        return entry, None
    return _nothing(entry)


def _split(key: str) -> tuple[str, str]:
    """The section of theirs that a key is in (in lower case; "" for the top of nri-plugins' files), and its name there."""
    top, _, below = key.partition(".")
    if top.lower() == "spec" and below:
        key = below
    low = key.lower()
    sections = [*SECTIONS, *_NRI_RESOURCES, "log", "policy"]
    found = max((s for s in sections if low == s or low.startswith(f"{s}.")), key=len, default="")
    return found, key[len(found) :].lstrip(".")


def _is_nri(key: str, low: str) -> bool:
    known = low in _SPELLED or low in MEANINGLESS
    return known or (low == "control" and key != "control") or low.partition(".")[0] in _NRI_OTHERS


def _counts(section: str, active: str) -> bool:
    """Whether a policy's section is that of the active one; "" is the top of nri-plugins' files."""
    policy = section.partition(".")[2]
    if active not in _POLICY_SECTIONS or not section:
        return True
    return _same(active) == _same(policy)


def _same(policy: str) -> str:
    return "topology-aware" if policy == "memtier" else policy


def _word(entry: SourceEntry) -> str:
    return entry.raw.strip().lower() if isinstance(entry.raw, str) else ""


def _nothing(entry: SourceEntry, active: str = "") -> tuple[None, Remark]:
    return None, meaningless(entry.origin, show_key(entry.key), _why(entry.key, active))


def _why(key: str, active: str) -> str:
    """Why nothing here depends on a key: for its policy's section, for its name, or for where it stands."""
    section, name = _split(key)
    policy = section.partition(".")[2]
    if policy and not _counts(section, active):
        return f"of policies' sections only that of {show_key(active)}, the active one, counts"
    if (section == "" or policy) and name.lower() in MEANINGLESS:
        return MEANINGLESS[name.lower()]
    if policy in POLICIES:
        return f"{POLICIES[policy]} takes the place of {policy}, which alone has it"
    place = f"{section}.{name}".strip(".").lower()
    return REASONS[max((known for known in REASONS if f"{place}.".startswith(f"{known}.")), key=len)]


def _ours(entry: SourceEntry, key: str, raw: Raw) -> SourceEntry:
    return SourceEntry(key, raw, entry.origin, via=entry.key)


def _with_kube_system(raw: Raw) -> Raw:
    # Intel's policies take kube-system as reserved whether their option names it or not.
    given = (raw,) if isinstance(raw, str) else raw
    if isinstance(given, tuple) and "kube-system" not in given:
        return ("kube-system", *given)
    return given


def _is_debug(text: str) -> bool:
    """Whether a text such as "cache,policy", "*" or "off:*,on:cache" turns any source's debugging on."""
    on = True
    for part in text.split(","):
        word, colon, source = part.strip().partition(":")
        if colon:
            on = word in _ON_WORDS or (on and word not in _OFF_WORDS)
        if on and (source if colon else word).strip().lower() not in _NO_WORDS:
            return True
    return False
