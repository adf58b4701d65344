"""The daemon in the foreground before a private containerd with two pods on this machine's CPUs, until Ctrl-C or its end.

To try a change by hand: its log is on the terminal, ``breakpoint()`` in the code stops there, and any CRI client may talk to
its socket. Everything is removed afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Optional

from tests.agent import Agent
from tests.cri_client import CriClient, cgroup_parent
from tests.e2e.containerd import Containerd, missing
from tests.e2e.node import REAL_CGROUPS

ASK = """
The daemon runs: kubelet's side is {socket}
  .venv/bin/cri-resmgr --control-socket {control} placements      (status, explain, doctor, ...)
Its configuration: {config}; SIGHUP ({pid}) reads it again. Ctrl-C ends all.
"""


async def main() -> int:
    if lacking := missing():
        sys.exit(f"make run RUNTIME=containerd cannot run here: {lacking}")
    folder = Path(tempfile.mkdtemp(prefix="crd-"))
    containerd = Containerd(folder / "cd", images=folder / "images")
    agent: Optional[Agent] = None
    try:
        await asyncio.to_thread(containerd.start)
        agent = Agent(containerd.socket, config=REAL_CGROUPS)
        agent.log_file = Path("/dev/stderr")
        await agent.start()
        assert agent.process is not None
        async with CriClient(agent.socket) as kubelet:
            for name, cpus in (("small", 1), ("large", 2)):
                uid = f"{name}-{os.urandom(2).hex()}"
                parent = containerd.cgroup_parent + cgroup_parent("burstable", uid)
                pod = await kubelet.run_pod(name, uid=uid, cgroup_parent=parent)
                size = {"cpu_request": cpus * 500, "cpu_limit": cpus * 1000}
                await kubelet.start(await kubelet.create(pod, "app", **size))
        said = {"socket": agent.socket, "control": agent.control, "config": agent.config_file}
        print(ASK.format(**said, pid=agent.process.pid), flush=True)
        return await agent.process.wait()
    finally:
        if agent is not None:
            await agent.close()
        # Ctrl-C is containerd's end too: what its pods leave is removed with it.
        await asyncio.to_thread(containerd.close)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main()))
