"""Runs tests on a machine where the daemon runs as installed, and says what it has noticed of them.

``python -m tests.guard.installed WORDS OF PYTEST`` as root. The machine is this one with layers over /etc, /run and
/var/lib, in a mount namespace that ends with it. The exit code is pytest's; 1 too if the daemon has noticed anything.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cri_proxy import machine_root
from tests.agent import ROOT, Agent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

LAYERS = """
mount -t tmpfs layers "$0"
for folder in etc run var/lib; do
    mkdir -p "$0/$folder.upper" "$0/$folder.work"
    for ours in "/$folder/cri-resmgr"*; do # the machine's own is hidden: a whiteout
        [ ! -e "$ours" ] || mknod "$0/$folder.upper/${ours##*/}" c 0 0
    done
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$0/$folder.upper,workdir=$0/$folder.work" "/$folder"
done
exec "$@"
"""
CONFIG = Path("/etc/cri-resmgr/config.yaml")
OURS = ("/etc/cri-resmgr", "/run/cri-resmgr", "/run/cri-resmgr.sock", "/var/lib/cri-resmgr")


def files() -> dict[str, int]:
    """The inode of all that is the daemon's: a socket that another process has served is another."""
    paths = [path for ours in OURS for path in (Path(ours), *Path(ours).rglob("*"))]
    return {str(path): path.lstat().st_ino for path in paths}


async def run(words: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="cri-"))
    async with FakeRuntime(f"{folder}/r.sock") as runtime:
        agent = Agent(runtime.socket, machine(HYGON_7285_2S), folder=folder)
        for section, key in (("relay", "socket"), ("relay", "extra_sockets"), ("control", "socket")):
            del agent.config[section][key]
        del agent.config["state"], agent.config["affinity"], agent.config["nri"]["socket"]
        CONFIG.parent.mkdir()
        agent.config_file = CONFIG
        agent.control = Path("/run/cri-resmgr/control.sock")
        agent.write_config({})
        try:
            await agent.start(environment={machine_root.VARIABLE: "/"})
            # The last that it says of its own accord.
            await agent.logged("affinity graph frozen")
            await agent.logged("name=containerd")
            before, log = files(), agent.log()
            command = [sys.executable, "-m", "pytest", *words]
            pytest = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
            code = await pytest.wait()
            after = files()
            assert agent.process is not None and agent.process.returncode is None, agent.log()
            noticed = agent.log().removeprefix(log).splitlines()
            noticed += [f"another {path}" for path in sorted(before) if before[path] != after.get(path)]
            noticed += [f"new: {path}" for path in sorted(after.keys() - before.keys())]
        finally:
            await agent.close()
    print("\n".join(["the daemon has noticed:", *noticed] if noticed else ["the daemon has noticed nothing"]))
    return code or (1 if noticed else 0)


if __name__ == "__main__":
    if not os.environ.pop("CRI_RESMGR_LAYERS", ""):
        layered = {"CRI_RESMGR_LAYERS": "1"}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CRI_RESMGR_")}
        with tempfile.TemporaryDirectory(prefix="cri-") as layers:
            words = [
                "unshare",
                "--mount",
                "--fork",
                "--kill-child=SIGTERM",
                "sh",
                "-euc",
                LAYERS,
                layers,
                sys.executable,
                "-m",
                __spec__.name,
            ]
            done = subprocess.run([*words, *sys.argv[1:]], env={**kept, **layered}, check=False)
        sys.exit(done.returncode)
    sys.exit(asyncio.run(run(sys.argv[1:])))
