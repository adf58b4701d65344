"""The ratios that are kept: what is measured is held against ``ratios.json``, and said to be worse or better.

A ratio is of two things of one run (CPU time beside a direct call's, resident memory beside a bare Python's), so that
it says the same on a slow machine and on a busy one. Each has a tolerance, by which it varies between runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("ratios.json")


@dataclass(frozen=True)
class Kept:
    """One row of the table. Lower is better."""

    ratio: float
    #: Part of the ratio by which a run may exceed it.
    tolerance: float

    @property
    def most(self) -> float:
        return self.ratio * (1 + self.tolerance)

    @property
    def least(self) -> float:
        """Less than this is so much better that the table should say it."""
        return self.ratio * (1 - self.tolerance)


def read(path: Path = TABLE) -> dict[str, Kept]:
    """The table by the name of the ratio."""
    rows = json.loads(path.read_text())
    return {name: Kept(float(row["ratio"]), float(row["tolerance"])) for name, row in rows.items()}


def write(found: Mapping[str, float], path: Path = TABLE) -> None:
    """Enter what was measured; tolerances and other rows stay.

    :raises KeyError: a ratio that has no row yet: its tolerance is for a person to choose.
    """
    rows = json.loads(path.read_text())
    for name, ratio in found.items():
        rows[name]["ratio"] = float(f"{ratio:.3g}")
    lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def judge(found: Mapping[str, float], kept: Mapping[str, Kept]) -> list[str]:
    """A line for each ratio that was measured, as the rows of a table in Markdown."""
    return [
        f"| {name} | {ratio:.3g} | {kept[name].ratio:.3g} | {kept[name].most:.3g} | {_word(ratio, kept[name])} |"
        for name, ratio in found.items()
    ]


def worse(found: Mapping[str, float], kept: Mapping[str, Kept]) -> list[str]:
    """The names of the ratios that exceed what they may be."""
    return [name for name, ratio in found.items() if ratio > kept[name].most]


def _word(ratio: float, kept: Kept) -> str:
    if ratio > kept.most:
        return "**WORSE**"
    return "better" if ratio < kept.least else ""


HEAD = ("| ratio | now | kept | at most | |", "|---|---|---|---|---|")


def hold(measure: Callable[[], Mapping[str, float]], kept: Mapping[str, Kept]) -> dict[str, float]:
    """Measure; once more where something is worse, and then the lower of both counts: a busy machine may be to blame."""
    found = dict(measure())
    if worse(found, kept):
        again = measure()
        found = {name: min(ratio, again[name]) for name, ratio in found.items()}
    return found


def tell(found: Mapping[str, float], path: Path = TABLE) -> int:
    """Print the judgement of what a longer benchmark has found; the exit code: 1 = something is worse."""
    kept = read(path)
    print("", *HEAD, *judge(found, kept), sep="\n", flush=True)
    return 1 if worse(found, kept) else 0
