"""Test support: one node, with the real daemon, the real agent as a process of its own, and an API server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from cluster.agent.io.reporter import TOPOLOGIES
from cluster.agent.io.written import PLACEMENTS
from cluster.api.names import API_VERSION, NODE_PLACEMENT
from cluster.kube.io.event_writer import EVENTS
from tests.agent import ROOT, Agent
from tests.cluster.api_server import ApiServer, Call

NAME = "node-1"
STATUS = f"/nodeplacements/{NAME}/status"


class NodeAgent:
    """``start`` and ``stop`` are those of the agent's process; ``api`` and ``daemon`` are the test's."""

    def __init__(self, api: ApiServer, daemon: Agent, folder: Path) -> None:
        self.api, self.daemon, self.folder = api, daemon, folder
        self.token_file = folder / "token"
        self.token_file.write_text("first")
        self.kubeconfig = api.kubeconfig(folder / "kubeconfig", {"tokenFile": str(self.token_file)})
        self.process: Optional[asyncio.subprocess.Process] = None

    @property
    def view(self) -> Path:
        return self.daemon.control.parent / "view" / "view.sock"

    async def start(
        self, *arguments: str, commands: bool = True, source: Path = ROOT, keep: Sequence[int] = ()
    ) -> None:
        """``source``: the folder that has the agent's modules; ``keep``: descriptors that it inherits."""
        words = [f"--view-socket={self.view}", f"--node={NAME}", f"--kubeconfig={self.kubeconfig}"]
        words += [f"--control-socket={self.daemon.control}"] if commands else []
        words += [f"--state-dir={self.folder / 'state'}", "--period=0.2", "--poll=0.1", *arguments]
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cluster.agent", *words,
                stdout=log, stderr=log, cwd=source, env={**os.environ, "NODE_NAME": ""},
                pass_fds=keep,
            )  # fmt: skip

    async def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), 60)

    async def stop(self) -> int:
        """End it as systemd does; its exit code."""
        if self.process is None:
            return 0
        if self.process.returncode is None:
            self.process.terminate()
        code = await self.process.wait()
        self.process = None
        return code

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    # ------------------------------------------------------------------ objects

    def create(self, **spec: Any) -> None:
        """The node's NodePlacement, as the operator makes it."""
        self.api.put(PLACEMENTS, _placement(spec))

    def ask(self, **spec: Any) -> None:
        """Another spec, by a person or the operator; the status stays."""
        found = self.api.object(PLACEMENTS, NAME) or {}
        self.api.put(PLACEMENTS, {**_placement(spec), "status": found.get("status", {})})

    @property
    def placement(self) -> dict[str, Any]:
        return self.api.object(PLACEMENTS, NAME) or {}

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.placement.get("status", {})
        return found

    @property
    def topology(self) -> Optional[dict[str, Any]]:
        return self.api.object(TOPOLOGIES, NAME)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.api.objects(EVENTS)

    def condition(self, name: str) -> dict[str, Any]:
        """One condition; {} = there is none."""
        found = {each["type"]: each for each in self.status.get("conditions", ())}
        return found.get(name, {})

    async def until_condition(self, name: str, status: str, reason: str) -> dict[str, Any]:
        """Wait until a condition is so; it."""

        def is_so() -> bool:
            found = self.condition(name)
            return (found.get("status"), found.get("reason")) == (status, reason)

        await self.api.until(is_so)
        return self.condition(name)

    @property
    def writes(self) -> int:
        """Writes of the status so far."""
        return sum(map(is_write, self.api.calls))


def is_write(call: Call) -> bool:
    return call.method == "PATCH" and call.path.endswith(STATUS)


def policy(hash: str = "h1", **changes: Any) -> dict[str, Any]:
    """As the operator writes one into a spec."""
    return {
        "name": "dense",
        "generation": 1,
        "hash": hash,
        "config": {"placement": {"max_moves": 3}},
        "abortOn": ["Degraded"],
        **changes,
    }


def _placement(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "metadata": {"name": NAME}, "spec": spec}
