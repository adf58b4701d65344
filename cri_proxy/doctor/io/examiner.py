"""Has ``cri-resmgr doctor`` run for programs that ask the daemon: a process of its own, one at a time, not too often."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.control import ControlError
from cri_api.waiting import wait_within
from cri_proxy.config.io.files import Files
from cri_proxy.doctor.findings import EXAMINE_S, PROBLEM, WARNING

#: How long an answer is good for, seconds.
KEPT_S = 60.0
#: How long the process may take in all, seconds: to start, and to look.
LIMIT_S = 4 * EXAMINE_S
#: Verdicts that are told, by the word they have outside.
SEVERITIES = {PROBLEM: "error", WARNING: "warning"}


class Examiner:
    """Asks for problems of this node. ``files``, ``control``: what the process is told of the daemon."""

    def __init__(
        self,
        files: Callable[[], Files],
        control: Callable[[], str],
        command: tuple[str, ...] = (sys.executable, "-m", "cri_proxy"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._control = control
        self._command = command
        self._clock = clock
        self._lock: Optional[asyncio.Lock] = None
        self._known: tuple[float, dict[str, Any]] = (float("-inf"), {})

    async def problems(self) -> dict[str, Any]:
        """What is wrong, ``{"problems": [...]}``. A caller that asks while a process runs gets that one's answer.

        :raises ControlError: the process has failed, or takes too long.
        """
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            at_s, known = self._known
            if self._clock() - at_s < KEPT_S:
                return known
            known = read_findings(await self._run())
            self._known = self._clock(), known
            return known

    async def _run(self) -> bytes:
        config = self._files().config
        words = ["--control-socket", self._control(), "doctor", "--json"]
        words += [] if config is None else ["--config", str(config)]
        process = await asyncio.create_subprocess_exec(
            *self._command, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, env=_environment(),
        )  # fmt: skip
        # The daemon is the last that the kernel ends for want of memory; this goes before the others.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
        try:
            out, _ = await wait_within(LIMIT_S, process.communicate())
        except asyncio.TimeoutError:
            raise ControlError(f"doctor has not ended within {LIMIT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return out


def _environment() -> dict[str, str]:
    """Ours, without what would have it talk to our service manager."""
    return {key: value for key, value in os.environ.items() if key not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}


def read_findings(out: bytes) -> dict[str, Any]:
    """The problems and warnings in what doctor has printed as JSON.

    :raises ControlError: it has printed something else.
    """
    try:
        findings = json.loads(out)["findings"]
        return {"problems": [_problem(f) for f in findings if f["verdict"] in SEVERITIES]}
    except (ValueError, KeyError, TypeError):
        raise ControlError("doctor has failed; see: cri-resmgr doctor") from None


def _problem(finding: Mapping[str, str]) -> dict[str, str]:
    return {
        "severity": SEVERITIES[finding["verdict"]],
        "check": finding["check"],
        "sentence": finding["sentence"],
        "hint": finding["hint"],
    }
