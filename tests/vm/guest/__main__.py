"""The job of a guest: each check of its run, one after the other, a line for each verdict.

Starts with the standard library alone, as the package brings all else that the checks import.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Callable

from tests.vm.guest import installation
from tests.vm.verdicts import Verdict, write_verdict

JOB = Path("/job")
JOURNAL_LINES = "30"
UNITS = (installation.SERVICE, installation.OBSERVER)


async def verdict_of(name: str, check: Callable[[], Awaitable[Any]]) -> bool:
    """Make a check and tell the host how it ended; returns whether it passed."""
    printed, begin_s, passed = io.StringIO(), time.monotonic(), True
    try:
        with contextlib.redirect_stdout(printed):
            await check()
    except Exception:
        passed = False
        printed.write(f"\n{traceback.format_exc()}\n{_journal()}")
    verdict = Verdict(name, passed, round(time.monotonic() - begin_s, 1), printed.getvalue())
    print(write_verdict(verdict), flush=True)
    return passed


def _journal() -> str:
    chosen = [f"--unit={name}" for name in UNITS]
    command = ["journalctl", "--no-pager", "--output=cat", f"--lines={JOURNAL_LINES}", *chosen]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


async def main() -> int:
    """Returns the exit code: 0 if all checks passed."""
    job = json.loads((JOB / "job.json").read_text())

    async def install() -> None:
        installation.the_package_installs(JOB / job["deb"])

    async def units() -> None:
        installation.the_packages_units_are_sound()

    # It may be on the disk already.
    if "deb" in job and not await verdict_of("the_package_installs", install):
        return 1
    sound = await verdict_of("the_packages_units_are_sound", units)
    sys.path += [str(installation.private_modules()), str(JOB / "grpc")]
    # Python 3.9 starts programs by fork(), and in the child gRPC's handlers meet what is being used: it aborts.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    from tests.vm.guest.session import check_all

    return 0 if await check_all(job, JOB, verdict_of) and sound else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
