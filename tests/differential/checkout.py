"""A checkout of the project as a child process that plays scenarios, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from policies.machine.topology_json import write_topology
from tests.differential.scenarios import Scenario
from tests.machines import machine

PLAYER = Path(__file__).with_name("player.py")


class NoAnswer(Exception):
    """A checkout cannot be run, or its child has ended; the message says which and what to do."""


@dataclass(frozen=True)
class Played:
    """What a checkout made of one step, as JSON; ``unfit``: the step names what is not there; ``crash``: a traceback."""

    line: dict[str, Any]
    state: dict[str, Any]
    unfit: str = ""
    crash: str = ""


class Checkout:
    """The child process of a checkout; ``ask`` and ``answer`` come in turn, and ``close`` at the end."""

    def __init__(
        self, folder: Path, machines: tuple[str, ...], python: Optional[Path], hash_seed: int
    ) -> None:
        """``python``: the interpreter; None = of the checkout's .venv, else this one.

        :raises NoAnswer: there is no checkout.
        """
        self.folder = folder.resolve()
        if not (self.folder / "cri_proxy" / "simulator").is_dir():
            raise NoAnswer(f"{folder} is no checkout of cri-resmgr: it has no cri_proxy/simulator")
        own = self.folder / ".venv/bin/python"
        program = str(python or (own if own.exists() else sys.executable))
        self._child = subprocess.Popen(
            [program, str(PLAYER), str(self.folder)],
            cwd=self.folder,
            # What depends on the order of a set of texts comes out differently, and the same way at each run.
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send({name: write_topology(machine(name)) for name in machines})

    def ask(self, scenario: Scenario) -> None:
        """Let it play a scenario.

        :raises NoAnswer: its child has ended.
        """
        self._send(vars(scenario))

    def answer(self) -> list[Played]:
        """A result for every step of the scenario, up to a crash.

        :raises NoAnswer: its child has ended.
        """
        assert self._child.stdout is not None
        text = self._child.stdout.readline()
        if not text:
            raise self._over()
        return [Played(**{"line": {}, "state": {}, **row}) for row in json.loads(text)]

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.communicate()

    def _send(self, document: Any) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(document) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._over() from None

    def _over(self) -> NoAnswer:
        return NoAnswer(
            f"the child of {self.folder} has ended, see above; is it set up (make setup), and can it read such scenarios?"
        )
