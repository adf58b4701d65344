"""What a short TCP connection pays for the program at its egress (root).

    python -m bench.observer_short [FOLDER...] [ROUNDS]

Each FOLDER holds a ``traffic.c``: versions to compare, the first in turn; by default the one that is shipped. In each round
nginx and wrk (``Connection: close``, on loopback, both ends in cgroups of their own) run once for each version, with that
version and an empty program attached together: both see the same packets, in the same second. By the kernel's own clock
(``kernel.bpf_stats_enabled``); what counts is what is above the empty one, for a connection, both ends. The table of
openers is that of a machine with the most memory it grows with.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures import machine_line
from bench.observer_cost import kernel_statistics, missing
from bench.observer_load import Load
from bpf.kernel.loader import Attachment, LoadedPrograms, load
from bpf.kernel.syscalls import ProgramInfo, program_info
from bpf.sources.ebpf import SOURCE, opener_buckets

ROUNDS = 6
PROGRAM = "crm_aff_egress"
EMPTY = f"int {PROGRAM}(struct __sk_buff *skb) {{ return 1; }}\n"
DEFINES = {"OPENER_BUCKETS": opener_buckets(0, 1 << 40), "NETNS_COOKIE": 1}


def loaded(source: Path, cgroup: Path) -> LoadedPrograms:
    return load(source, [Attachment("cgroup_egress", PROGRAM, str(cgroup))], defines=DEFINES)


def spent(programs: LoadedPrograms) -> ProgramInfo:
    return program_info(programs.programs[PROGRAM])


def above_empty(machine: Load, empty: Path, source: Path) -> tuple[float, float, float]:
    """Nanoseconds a connection above the empty program; the runs a connection; those of the empty one a run."""
    both = loaded(empty, machine.parent), loaded(source, machine.parent)
    try:
        machine.wrk(1, is_keep_alive=False)
        before = [spent(programs) for programs in both]
        connections = machine.wrk(1, is_keep_alive=False).requests
        after = [spent(programs) for programs in both]
    finally:
        for programs in both:
            programs.close()
    (empty_ns, runs), (ns, _) = (
        (end.run_ns - begin.run_ns, end.runs - begin.runs) for begin, end in zip(before, after)
    )
    return (ns - empty_ns) / connections, runs / connections, empty_ns / runs


def main(sources: Sequence[Path], rounds: int) -> None:
    print(machine_line(), end="\n\n")
    found: dict[Path, list[tuple[float, float, float]]] = {source: [] for source in sources}
    with tempfile.TemporaryDirectory() as folder, Load() as machine, kernel_statistics():
        empty = Path(folder) / "empty.c"
        empty.write_text(EMPTY)
        for _ in range(rounds):
            for source in sources:
                found[source].append(above_empty(machine, empty, source))
    print(
        f"| {rounds} rounds: version | ns a connection above an empty program: median, least | runs | empty, ns a run |"
    )
    print("|---|---|---|---|")
    for source, rows in found.items():
        above, runs, empty_ns = zip(*rows)
        print(f"| {source.parent.name} | {statistics.median(above):.0f}, {min(above):.0f} "
              f"| {statistics.median(runs):.1f} | {statistics.median(empty_ns):.0f} |")  # fmt: skip


if __name__ == "__main__":
    if sentence := missing():
        sys.exit(f"bench.observer_short: {sentence}")
    *given, last = [*sys.argv[1:], str(ROUNDS)] if not sys.argv[-1].isdigit() else sys.argv[1:]
    main([Path(folder) / SOURCE.name for folder in given] or [SOURCE], int(last))
