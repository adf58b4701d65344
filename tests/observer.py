"""Test support: the real observer as a process of its own, which plays a recording to the daemon of an ``Agent``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from cri_proxy.config import constants
from tests.agent import ROOT, Agent

#: One line of a recording, in seconds: short, so that every sample of the observer holds some.
LINE_S = 0.02
#: What is seen counts at once, nearly; and a plan may move a container at once, which affinity.cooldown keeps it from.
QUICK = {"affinity_interval_s": 0.2, "affinity_half_life_s": 0.4, "affinity_minimum_age_s": 0.001}


class ObserverProcess:
    """Plays flows for ever, until ``close``. Use as ``async with``."""

    def __init__(
        self, agent: Agent, flows: Iterable[Mapping[str, Any]], remotes: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.agent = agent
        self.recording = agent.folder / "recording"
        self.play(flows, remotes)
        self.process: Optional[asyncio.subprocess.Process] = None

    def play(self, flows: Iterable[Mapping[str, Any]], remotes: Iterable[Mapping[str, Any]] = ()) -> None:
        """Rates (bytes and messages a second) between ``namespace/pod/container``s; for the next start."""
        line = {"seconds": LINE_S, "flows": _of_a_line(flows), "remotes": _of_a_line(remotes)}
        sample = json.dumps(line)
        self.recording.write_text(f'{sample}\n{{"repeat": true}}\n')

    async def start(self) -> None:
        """Start it; the daemon connects by itself when it is there."""
        reads = (
            sys.executable,
            "-m",
            "cri_proxy",
            "observer",
            "options",
            "--config",
            str(self.agent.config_file),
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            constants.VARIABLE: json.dumps(self.agent.constants),
        }
        environment.pop("NOTIFY_SOCKET", None)
        with (self.agent.folder / "observer.log").open("ab") as log:
            reading = await asyncio.create_subprocess_exec(
                *reads, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=str(self.agent.folder)
            )
            options = {
                **json.loads((await reading.communicate())[0]),
                "provider": "declared",
                "reload": reads,
            }
            command = (
                sys.executable,
                "-m",
                "tests.replay",
                str(self.recording),
                "--options",
                json.dumps(options),
            )
            self.process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment, cwd=str(self.agent.folder)
            )

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        return await self.process.wait()

    def log(self) -> str:
        return (self.agent.folder / "observer.log").read_text()

    async def __aenter__(self) -> ObserverProcess:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.end()


def _of_a_line(rates: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value * LINE_S if isinstance(value, (int, float)) else value for key, value in each.items()}
        for each in rates
    ]
