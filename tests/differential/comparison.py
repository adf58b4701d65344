"""What two checkouts made of one scenario, side by side: the first step at which they differ, and what differs there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from tests.differential.checkout import Played
from tests.differential.scenarios import Scenario

#: What is compared of every container.
PLACE = ("cpus", "exclusive", "mems")
REFUSED = "refused by the runtime"
#: Requests that the policy decides.
SIZED = ("create", "resize")
#: What a comparison with the runtime finds, as lines of the simulation name it.
FOUND = re.compile(r"(bound|adopted|removed|drifted|resized|modified externally|cancelled): ")
OPENINGS = {
    "drift": ("repaired", "left alone", "nothing to repair"),
    "exit": ("its place is held", "no place is held"),
}


@dataclass(frozen=True)
class Difference:
    """The first step of a scenario at which the checkouts differ; ``step`` counts those that could be run."""

    scenario: int
    step: int
    op: str
    policy: str
    what: str
    before: Played
    after: Played


@dataclass(frozen=True)
class Compared:
    """``steps``: those that could be run in BEFORE, which are the scenario as ``simulate`` takes it; ``outcomes``: how these
    went there, counted by op; ``broken``: whether an invariant was, in each of the two."""

    steps: list[dict[str, Any]]
    outcomes: Counter[tuple[str, str]]
    difference: Optional[Difference]
    broken: tuple[bool, bool]


def compare(scenario: Scenario, before: Sequence[Played], after: Sequence[Played], whole: bool) -> Compared:
    """``whole``: what is compared is all of a line, rather than places and refusals."""
    steps, outcomes = [], Counter[tuple[str, str]]()
    difference = None
    policy = scenario.policies[""]
    for number, step in enumerate(scenario.steps):
        one, two = _at(before, number), _at(after, number)
        if one.unfit and two.unfit:
            continue
        if step["op"] == "config" and not one.line.get("error"):
            policy = scenario.policies[step["file"]] or policy
        if difference is None and (found := _differs(one, two, whole)):
            difference = Difference(scenario.number, len(steps), step["op"], policy, found, one, two)
        if not one.unfit and number < len(before):
            steps.append(step)
            outcomes.update((step["op"], outcome) for outcome in _outcomes(step, one))
    broken = tuple(any(p.state.get("invariants", "ok") != "ok" for p in played) for played in (before, after))
    return Compared(steps, outcomes, difference, (broken[0], broken[1]))


def _at(played: Sequence[Played], number: int) -> Played:
    """After a crash nothing was played: both have ended then, or they have differed."""
    return played[number] if number < len(played) else Played({}, {}, unfit="after the crash")


def _differs(before: Played, after: Played, whole: bool) -> str:
    """What differs, in words; "" if nothing does."""
    for name, one, two in (
        ("a crash", before.crash, after.crash),
        ("a step that cannot be run", before.unfit, after.unfit),
        ("refused", before.line.get("error", ""), after.line.get("error", "")),
    ):
        if bool(one) != bool(two):
            return f"{name}: {_last_line(one) or 'no'} | {_last_line(two) or 'no'}"
    ones, twos = _containers(before), _containers(after)
    news = []
    for key in [*ones, *(key for key in twos if key not in ones)]:
        one, two = ones.get(key), twos.get(key)
        if one is None or two is None:
            news.append(f"{key} is there only {'after' if one is None else 'before'}")
            continue
        fields = [
            f"{field} {one[field] or '-'} | {two[field] or '-'}"
            for field in PLACE
            if one[field] != two[field]
        ]
        if fields:
            news.append(f"{key}: {', '.join(fields)}")
    if whole and not news and (before.line, before.state) != (after.line, after.state):
        keys = [key for key in before.state if before.state[key] != after.state.get(key)]
        keys += [key for key in before.line if before.line[key] != after.line.get(key)]
        news.append(f"what is told: {', '.join(dict.fromkeys(keys))}")
    return "; ".join(news)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _containers(played: Played) -> Mapping[str, Mapping[str, str]]:
    return {row["id"]: row for row in played.state.get("containers", ())}


def _outcomes(step: Mapping[str, Any], played: Played) -> list[str]:
    """How a step went, in a word or two each."""
    line, result = played.line, step.get("result", "ok")
    if played.crash:
        return ["crash"]
    if line["error"]:
        return [
            REFUSED
            if line["error"] == REFUSED
            else "refused by the policy"
            if step["op"] in SIZED
            else "refused"
        ]
    words = [result if result in ("doubt", "lost", "start-fails") else ""]
    if step["op"] in SIZED and not line["sent"]:
        words.append("untouched")
    words += [opening for opening in OPENINGS.get(step["op"], ()) if line["why"].startswith(opening)]
    words += FOUND.findall(line["why"])
    words += [step.get("state", "")] if step["op"] == "restart" else []
    words += ["others moved"] if line["moved"] else []
    return [word for word in words if word] or ["done"]
