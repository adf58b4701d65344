"""How long the observer's start takes on a bad day: ``python -m bench.observer_start [TREE ...]`` (root).

Beside two busy loops, each start with cold caches (files read anew from the disk): until the service is ready, until it
sees by eBPF, and the most memory of it and of the largest process that it starts. Two starts of each tree in turns:
without what a compile leaves behind, then with it. TREE: other checkouts, with a .venv.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import machine_line
from tests.agent import ROOT

ROUNDS = 2
LONGEST_S = 400.0


def start(tree: Path, folder: Path) -> str:
    """One start in a folder that keeps its state."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    options = {"socket": f"{folder}/a.sock", "state_file": f"{folder}/graph.json", "interval_s": 1}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, tempfile.TemporaryDirectory() as place:
        told.bind(f"{place}/notify")
        told.settimeout(LONGEST_S)
        command = [str(tree / ".venv/bin/python"), "-m", "bpf", "--options", json.dumps(options)]
        environment = {**os.environ, "NOTIFY_SOCKET": f"{place}/notify", "PYTHONPATH": str(tree)}
        began_s = time.monotonic()
        observer = subprocess.Popen(command, cwd=tree, env=environment, stderr=subprocess.DEVNULL)
        try:
            ready_s = _when(told, "READY=1", began_s)
            sees_s = _when(told, "sees by ebpf", began_s) if "ebpf" not in ready_s[1] else ready_s
            status = Path(f"/proc/{observer.pid}/status").read_text()
        finally:
            observer.terminate()
            _, _, used = os.wait4(observer.pid, 0)
            observer.returncode = 0
    own_kib = int(status.partition("VmHWM:")[2].split()[0])
    return (
        f"ready {ready_s[0]:.1f} s, by eBPF {sees_s[0]:.1f} s; "
        f"{own_kib / 1024:.0f} MiB, largest process {used.ru_maxrss / 1024:.0f} MiB"
    )


def _when(told: socket.socket, word: str, began_s: float) -> tuple[float, str]:
    while word not in (message := told.recv(4096).decode()):
        pass
    return time.monotonic() - began_s, message


def main(trees: list[str]) -> None:
    print(machine_line())
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        for number in range(ROUNDS):
            for tree in (str(ROOT), *trees):
                with tempfile.TemporaryDirectory(prefix="crb-") as folder:
                    for name in ("first", "second"):
                        print(f"{number} {tree}, {name} start: {start(Path(tree), Path(folder))}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
