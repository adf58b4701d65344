"""What files of Intel's cri-resource-manager say, in our words; the keys they share with us are not here.

Their sections are known names: what has a counterpart is translated, the rest is named in a warning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from cri_proxy.core.config_text import Entry, Raw, describe, show_key

#: Policies this version does not have.
POLICIES = frozenset(
    {
        "topology-aware",
        "memtier",
        "balloons",
        "podpools",
        "static",
        "static-plus",
        "static-pools",
        "dynamic-pools",
    }
)

#: Sections of Intel's files that are not ours.
SECTIONS = frozenset(
    {"logger", "dump", "cpu", "rdt", "blockio", "resource-manager", "instrumentation"}
    | {f"policy.{name}" for name in POLICIES}
)

_NO_WORDS = ("", "false", "no", "off", "none")
_ON_WORDS, _OFF_WORDS = ("on", "enable"), ("off", "disable")


def translate(entry: Entry, active: str) -> tuple[Optional[Entry], str]:
    """An entry as one of ours, or None if it means nothing here; and a warning, or "".

    ``active``: the policy that the same file names. Of Intel's policies only that one's section counts.
    """
    if entry.key == "policy.Active" and entry.raw in POLICIES:
        sentence = f"{entry.origin}: policy.Active is {describe(entry.raw)}"
        return replace(entry, raw="hygon"), f"{sentence}; this version places by hygon instead"
    section = next((s for s in SECTIONS if entry.key == s or entry.key.startswith(f"{s}.")), "")
    if not section:
        return entry, ""
    ours = _counterpart(entry, section, entry.key[len(section) + 1 :], active)
    return ours, "" if ours else f"{entry.origin}: {show_key(entry.key)} has no meaning here"


def _counterpart(entry: Entry, section: str, name: str, active: str) -> Optional[Entry]:
    if section == "logger":
        debug = name == "Debug" and isinstance(entry.raw, str) and _is_debug(entry.raw)
        return _ours(entry, "log.level", "debug") if debug else None
    policy = section[len("policy.") :] if section.startswith("policy.") else ""
    if not policy or (active in POLICIES and _same(active) != _same(policy)):
        return None
    if name == "ReservedPoolNamespaces":
        return _ours(entry, "placement.reserved_namespaces", _with_kube_system(entry.raw))
    if name == "PinMemory" and isinstance(entry.raw, str) and entry.raw.lower() in ("false", "no", "off"):
        return _ours(entry, "placement.memory", "off")
    return None


def _ours(entry: Entry, key: str, raw: Raw) -> Entry:
    return Entry(key, raw, entry.origin, via=entry.key)


def _same(policy: str) -> str:
    return "topology-aware" if policy == "memtier" else policy


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
