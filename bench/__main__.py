"""All benchmarks, one after the other: ``python -m bench``. Exit code 1: one of them has failed, or a ratio is worse.

Those that keep ratios (``ratios.json``) say which are worse than the table allows.
"""

from __future__ import annotations

import subprocess
import sys

ALL = (
    "short",
    "relay_latency",
    "create_cost",
    "container_memory",
    "start_time",
    "decision_time",
    "state_write",
    "nri_latency",
    "idle_cost",
    "floods",
    "endpoints",
)


def main() -> int:
    """Run all, whatever one of them says."""
    failed = []
    for name in ALL:
        print(f"\n# {name}\n", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(
            f"\nfailed, or with a ratio that is worse than the table allows: {', '.join(failed)}",
            file=sys.stderr,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
