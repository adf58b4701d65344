"""critest on a containerd of its own: ``python -m tests.cri_tools.side SIDE RUNTIME FOLDER [ARGUMENT...]``.

SIDE: direct, through, or hosting; RUNTIME: as ``--runtime`` takes them. FOLDER, whose path is short and which is there, has
what came of it: ``report.json`` as Ginkgo writes it, ``log``; ``status.json`` and ``daemon.log`` of the daemon that it went
through. Arguments are critest's.

Cases take fixed ports of the host and mount file systems: :func:`run` gives each side namespaces of its own, so several
run side by side.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agent import Agent
from tests.cri_tools.images import make_images
from tests.e2e import runtimes
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES
from tests.e2e.registry import Registry
from tests.peers.programs import find

#: Past our daemon, through it, and through one that hosts NRI plugins, of which some cases are.
DIRECT, THROUGH, HOSTING = "direct", "through", "hosting"
#: The order of the cases, the same on both sides.
SEED = 1


@dataclass(frozen=True)
class Outcome:
    """What came of one side."""

    #: By the name of each case: "passed", "failed" or "skipped", and why if not passed.
    cases: Mapping[str, tuple[str, str]]
    #: What the daemon says of itself after the last case; {} if there was none.
    status: Mapping[str, Any]
    #: The ends of the logs.
    said: str

    def names(self, state: str) -> set[str]:
        """The cases that ended so."""
        return {name for name, (ended, _) in self.cases.items() if ended == state}


async def run(side: str, folder: Path, *arguments: str, runtime: str = "containerd-2") -> Outcome:
    """Run critest's cases past our daemon or through it, in a process with namespaces of its own."""
    folder.mkdir()
    command = ("unshare", "--net", "--mount", sys.executable, "-m", "tests.cri_tools.side")
    words = (side, runtime, str(folder), *arguments)
    process = await asyncio.create_subprocess_exec(*command, *words, cwd=Path(__file__).parents[2])
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    logs = {name: folder / name for name in ("log", "daemon.log")}
    said = "\n".join(
        f"--- {name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-40:])
        for name, path in logs.items()
        if path.exists()
    )
    assert code == 0, f"{side} could not be run ({code}):\n{said}"
    status = folder / "status.json"
    return Outcome(
        read_report(json.loads((folder / "report.json").read_text())),
        json.loads(status.read_text()) if status.exists() else {},
        said,
    )


def read_report(suites: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """The state of each case of Ginkgo's report, and what it says of one that did not pass.

    What is done before and after all cases is one if it failed.
    """
    cases = {}
    for case in suites[0]["SpecReports"]:
        name = " / ".join(
            (*(case["ContainerHierarchyTexts"] or ()), case["LeafNodeText"] or case["LeafNodeType"])
        )
        if case["LeafNodeType"] == "It" or case["State"] != "passed":
            cases[name] = (case["State"], case.get("Failure", {}).get("Message", ""))
    return cases


async def main(side: str, name: str, folder: Path, *arguments: str) -> None:
    program = find("critest")["critest"]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with Registry(make_images(folder)) as registry:
        runtime = runtimes.make(
            name,
            folder / "c",
            images=folder,
            cpus=CPUS,
            # The number of a bridge says no more which is which: each side has a first one.
            cgroup_parent=f"/critest-{os.getpid()}",
            registry=registry.address,
            has_host_ports=True,
        )
        agent = Agent(runtime.socket, TWO_NODES, REAL_CGROUPS)
        try:
            with runtime:
                if side == HOSTING:
                    agent.write_config({"nri": {"host": "on"}})
                    arguments = (f"--nri-socket={agent.config['nri']['socket']}", *arguments)
                if side != DIRECT:
                    await agent.start()
                await _critest(
                    program, str(runtime.socket) if side == DIRECT else agent.socket, folder, *arguments
                )
                if side != DIRECT:
                    (folder / "status.json").write_text(json.dumps(await agent.ask("status")))
        finally:
            (folder / "daemon.log").write_text(agent.log() if side != DIRECT else "")
            await agent.close()


async def _critest(program: Path, socket: str, folder: Path, *arguments: str) -> None:
    """Returns once all cases have ended, whatever came of them."""
    command = (
        str(program),
        f"--runtime-endpoint=unix://{socket}",
        f"--ginkgo.seed={SEED}",
        "--ginkgo.no-color",
        f"--ginkgo.json-report={folder / 'report.json'}",
        *arguments,
    )
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=log, stderr=log)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


if __name__ == "__main__":
    # SIGTERM ends it as ^C does: what it has started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]))
