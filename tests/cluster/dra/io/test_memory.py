"""What the driver of claims costs the agent in memory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from cluster.dra.claims import ClaimName
from tests.agent import ROOT
from tests.cluster.dra.io.kubelet import Kubelet

#: An agent's process, all of whose modules are there, and then the plugin; it says what each has resident, in bytes.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from cluster.agent.__main__ import _keep_small
from cluster.agent.io import commander, reporter

def resident():
    trim()
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024

async def run(folder):
    from cluster.agent.io.daemon import DaemonClient
    before = resident()
    from cluster.dra.io.driver import Driver
    assert "grpclib" not in sys.modules and "google.protobuf" not in sys.modules
    from cluster.dra.io.plugin import Plugin
    plugin = Plugin(DaemonClient(folder / "no.sock"), None, "node-1", "cpu.cri-resmgr.io", folder / "k")
    serving = asyncio.ensure_future(plugin.run())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(resident() - before)
    serving.cancel()
    await asyncio.wait([serving])

trim = _keep_small()
asyncio.run(run(Path(sys.argv[1])))
"""
MOST_BYTES = 12 << 20
CALLS = 200


async def test_the_plugin_adds_few_megabytes_to_the_agent(folder: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(folder), cwd=ROOT, stdin=pipe, stdout=pipe
    )
    kubelet = Kubelet(folder / "k")
    await kubelet.register()
    for number in range(CALLS):
        await kubelet.unprepare(*(ClaimName("shop", f"c{n}", f"uid-{number}-{n}") for n in range(4)))
    await kubelet.close()
    more, _ = await process.communicate(b"\n")
    assert 0 < int(more) <= MOST_BYTES
