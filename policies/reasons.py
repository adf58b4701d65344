"""Reasons: a sentence for people, and behind it, in brackets, the figures of the search that found it.

Records keep both in one text. What people see first is the sentence; ``explain --verbose`` has the figures. Records of
before there were sentences hold the figures in words of the search, which are read here as well.
"""

from __future__ import annotations

import re

_FIGURES = re.compile(r" \[figures: ([^\[\]]*)\]")
#: As versions before this one wrote it, and the same in a sentence.
_OLD = (
    (
        re.compile(r"by (?:allocated|charged) share \((-?[0-9]+m a CPU, next -?[0-9]+m)\)"),
        "the one with the smallest share requested",
    ),
    (re.compile(r"by affinity \(([^()]*)\)"), "the nearest to its peers"),
    (re.compile(r"by hints \(([^()]*)\)"), "the nearest to the devices and mounts it uses"),
    (re.compile(r"by distance \(([^()]*)\)"), "the one whose NUMA nodes are nearest to each other"),
    (re.compile(r"by number of containers \(([^()]*)\)"), "the one with the fewest containers"),
    (re.compile(r"by (lowest id)"), "the first of equals"),
)
_OLD_START = re.compile(r"; found from ((?:start [0-9]+ of [0-9]+|the present placement)[^;\]]*)")


def with_figures(sentence: str, figures: str) -> str:
    """A sentence with the figures behind it."""
    return f"{sentence} [figures: {figures}]"


def plain(reason: str) -> str:
    """The reason without figures of the search."""
    reason = _OLD_START.sub("", _FIGURES.sub("", reason))
    if "by " in reason:
        for old, sentence in _OLD:
            reason = old.sub(sentence, reason)
    return reason


def figures_of(reason: str) -> tuple[str, ...]:
    """The figures of the search that a reason holds, in its order; a reason may be of several decisions."""
    old = [
        match[1] for pattern in (*(old for old, _ in _OLD), _OLD_START) for match in pattern.finditer(reason)
    ]
    return (*_FIGURES.findall(reason), *old)
