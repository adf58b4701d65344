"""Whether two checkouts of the project place the same containers on the same CPUs, in thousands of random scenarios.

python -m tests.differential BEFORE AFTER [--scenarios N] [--seed S] [--policy P ...] [--machine M ...] [--whole]
python -m tests.differential BEFORE AFTER --only NUMBER [--write FOLDER]

BEFORE and AFTER are folders: each scenario is played by the simulator (``cri-resmgr simulate``) of both, in a child
process each. After every step it is compared which CPUs, exclusive CPUs and memory nodes each container has, and whether
the step was refused; with --whole all that is told. A scenario that differs is told by its first step that does, grouped
by operation and policy. The exit status is 1 if anything differs, 2 if a checkout cannot be run. --only plays one
scenario again, tells that step in full, and writes the files with which ``cri-resmgr simulate`` runs it.

``simulate`` has no step for these, and so they are not compared: commands (release, adopt, freeze, pins); usage, and sets
that are sized by it; a request or an update of ours that is under way while others come, but for outcomes in doubt;
errors of the runtime for our own updates; the NRI plugin; memory that is held or free, and pools of huge pages; other
cgroups that a container runs in, and cpusets that are emptied; single records of the state that are lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Optional

from policies.machine.topology_json import write_topology
from tests.differential.checkout import Checkout, NoAnswer
from tests.differential.comparison import Compared, Difference, compare
from tests.differential.scenarios import MACHINES, VARIANTS, Scenario, scenario_of
from tests.machines import ALL_MACHINES, machine

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2
#: Seconds between two lines of progress.
PROGRESS_S = 10


def main(arguments: Optional[Sequence[str]] = None) -> int:
    asked = _parser().parse_args(arguments)
    numbers = range(asked.scenarios) if asked.only is None else [asked.only]
    made = (scenario_of(asked.seed, number, tuple(asked.policy), tuple(asked.machine)) for number in numbers)
    try:
        with ExitStack() as both:
            before, after = (
                both.enter_context(closing(Checkout(folder, tuple(asked.machine), asked.python, hash_seed)))
                for hash_seed, folder in enumerate((asked.before, asked.after))
            )
            played = _played(made, before, after, asked.whole)
            return _report(asked.seed, played) if asked.only is None else _one(next(played), asked.write)
    except NoAnswer as error:
        print(f"differential: {error}", file=sys.stderr)
        return NOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--scenarios", type=int, default=1000, help="how many, by default %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--machine", nargs="+", choices=ALL_MACHINES, default=MACHINES)
    parser.add_argument("--python", type=Path, help="the interpreter of both, by default of each one's .venv")
    parser.add_argument("--whole", action="store_true", help="compare all that is told, not only places")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this scenario alone, and in full")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where --only writes its files")
    return parser


def _played(
    scenarios: Iterator[Scenario], before: Checkout, after: Checkout, whole: bool
) -> Iterator[tuple[Scenario, Compared]]:
    """Each scenario as both made it; they play at the same time, and meanwhile the next one is made."""
    scenario = next(scenarios, None)
    while scenario is not None:
        before.ask(scenario)
        after.ask(scenario)
        following = next(scenarios, None)
        yield scenario, compare(scenario, before.answer(), after.answer(), whole)
        scenario = following


def _report(seed: int, played: Iterator[tuple[Scenario, Compared]]) -> int:
    """What came of all scenarios."""
    scenarios = steps = 0
    outcomes: Counter[tuple[str, str]] = Counter()
    ops: Counter[str] = Counter()
    broken = [0, 0]
    kinds: dict[tuple[str, str], list[Difference]] = {}
    started = told = time.monotonic()
    for _, compared in played:
        scenarios += 1
        steps += len(compared.steps)
        ops.update(step["op"] for step in compared.steps)
        outcomes += compared.outcomes
        broken = [count + bad for count, bad in zip(broken, compared.broken)]
        if (found := compared.difference) is not None:
            kinds.setdefault((found.op, found.policy), []).append(found)
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{scenarios} scenarios, {sum(map(len, kinds.values()))} differ", file=sys.stderr)
    seconds, different = time.monotonic() - started, sum(map(len, kinds.values()))
    for op, count in sorted(ops.items()):
        went = ", ".join(f"{word} {n}" for (of, word), n in outcomes.most_common() if of == op)
        print(f"{op:12} {count:7}  {went}")
    print(f"an invariant broken in {broken[0]} scenarios before, in {broken[1]} after")
    rate = f"{seconds:.0f} s, {scenarios / seconds:.1f} a second"
    print(f"seed {seed}: {scenarios} scenarios, {steps} steps, {rate}")
    print(f"equal: {scenarios - different}; different: {different}")
    for (op, policy), found_ones in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = found_ones[0]
        where = f"scenario {first.scenario}, step {first.step}"
        print(f"{op} under {policy}: {len(found_ones)}; the first is {where}:")
        print(f"    before | after: {first.what}")
    return DIFFERENT if different else EQUAL


def _one(played: tuple[Scenario, Compared], folder: Optional[Path]) -> int:
    """One scenario: its files, and its first difference in full."""
    scenario, compared = played
    folder = folder or Path(tempfile.gettempdir(), f"differential-{scenario.number}")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"config.yaml": scenario.config, **scenario.files}
    texts["machine.json"] = json.dumps(write_topology(machine(scenario.machine)))
    texts["scenario.json"] = "[\n" + ",\n".join(map(json.dumps, compared.steps)) + "\n]\n"
    for name, text in texts.items():
        (folder / name).write_text(text)
    print(f"{len(compared.steps)} steps on {scenario.machine} under {scenario.policies['']}; by hand:")
    options = f"--topology {folder}/machine.json --config {folder}/config.yaml"
    print(f"    cri-resmgr simulate {options} {folder}/scenario.json")
    found = compared.difference
    if found is None:
        print("equal")
        return EQUAL
    print(f"different at step {found.step}, {found.op} under {found.policy}; before | after: {found.what}")
    for name, told in (("before", found.before), ("after", found.after)):
        print(f"{name}: {told.crash or told.unfit or json.dumps(told.line)}")
        for row in told.state.get("containers", ()):
            print(f"    {json.dumps(row)}")
    return DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
