"""What is done inside the virtual machine: ``bench.demand_cost``, as root of it has CAP_SYS_RESOURCE."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from tests.vm.guest.node import Node
from tests.vm.guest.table import Run

PATIENCE_S = 1800


async def what_it_costs(node: Node) -> None:
    """Prints what the bench does."""
    words = [sys.executable, "-m", "bench.demand_cost"]
    environment = {**os.environ, "PYTHONPATH": ":".join([str(node.job), *sys.path])}
    done = await asyncio.to_thread(
        subprocess.run,
        words,
        cwd=node.job,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)


RUNS = {"cores-8": Run("cores-8", "bookworm", "3.11", "systemd", "runtime.v1", (), (what_it_costs,))}
