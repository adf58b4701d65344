"""A host with a kubelet: its files under a root, a process named kubelet that connects where they say, systemctl.

The process is a script whose command line in /proc is a real kubelet's; it holds one connection to its runtime.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Optional

from cri_proxy.kubelet.io.files import KubeletFiles
from cri_proxy.kubelet.io.service import look
from cri_proxy.kubelet.status import KubeletStatus
from tests.agent import Agent
from tests.kubelet_trees import CONFIG, KUBEADM

_KUBELET = f"""#!{sys.executable}
import pathlib, signal, socket, sys
flags = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
endpoint = flags.get("container-runtime-endpoint", "")
if not endpoint and "config" in flags:
    text = pathlib.Path({{root!r}} + flags["config"]).read_text()
    lines = [line for line in text.splitlines() if line.startswith("containerRuntimeEndpoint:")]
    endpoint = lines[0].partition(":")[2].strip().strip('"') if lines else ""
connection = socket.socket(socket.AF_UNIX)
connection.connect(endpoint[len("unix://"):])
signal.pause()
"""
#: As systemd would: the flags are those of the environment files. In the folder: ``break``: kubelet does not start;
#: ``fail``: and systemctl says so; ``refuse``: the old one is not even ended; ``enabled``: what is said of our units.
_SYSTEMCTL = """#!/bin/sh
[ "$1" != is-enabled ] || exec cat {folder}/enabled
[ "$1" != is-active ] || exec cat {folder}/active
echo "$*" >> {folder}/systemctl.log
case $1 in
  daemon-reload) exit 0 ;;
  reset-failed) echo inactive > {folder}/active; exit 0 ;;
  try-restart) [ -e {folder}/pid ] || exit 0 ;;
esac
[ ! -e {folder}/refuse ] || {{ echo "Job for kubelet.service canceled" >&2; exit 1; }}
[ ! -e {folder}/pid ] || kill -9 $(cat {folder}/pid)
rm -f {folder}/pid
[ ! -e {folder}/fail ] || {{ echo "Job for kubelet.service failed" >&2; exit 1; }}
[ ! -e {folder}/break ] || exit 0
[ $(cat {folder}/active) != failed ] || {{ echo "start request repeated too quickly" >&2; exit 1; }}
[ ! -e {root}/var/lib/kubelet/kubeadm-flags.env ] || . {root}/var/lib/kubelet/kubeadm-flags.env
[ ! -e {root}/etc/default/kubelet ] || . {root}/etc/default/kubelet
{folder}/kubelet --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS \\
  > {folder}/kubelet.log 2>&1 < /dev/null &
echo $! > {folder}/pid
echo $! >> {folder}/pids
ln -s /proc/$! {folder}/proc/$!
"""


class KubeletHost:
    """``folder`` is short: sockets are in it. Only processes of its own are seen in its ``proc``."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        self.root = folder / "root"
        (folder / "proc").mkdir()
        (folder / "proc/uptime").symlink_to("/proc/uptime")
        for path, text in files.items():
            self.write(path, text)
        self._script("kubelet", _KUBELET.format(root=str(self.root)))
        self.say_enabled("enabled", "enabled")
        self.say_active("inactive")
        self._script("systemctl", _SYSTEMCTL.format(folder=folder, root=self.root))

    def _script(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def say_enabled(self, *words: str) -> None:
        """What systemctl answers of our service and our socket."""
        (self.folder / "enabled").write_text("\n".join(words))

    def say_active(self, state: str) -> None:
        """What systemctl answers of kubelet while it does not run; one that has failed too often is not started."""
        (self.folder / "active").write_text(f"{state}\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())

    def files(self) -> dict[str, bytes]:
        """Kubelet's files as they are."""
        wanted = [path for top in ("etc", "usr", "var/lib/kubelet") for path in (self.root / top).rglob("*")]
        return {f"/{p.relative_to(self.root)}": p.read_bytes() for p in wanted if p.is_file()}

    def start(self) -> None:
        """Start kubelet with what its files say."""
        subprocess.run([self.folder / "systemctl", "restart", "kubelet"], check=True)
        (self.folder / "systemctl.log").unlink()

    @property
    def pid(self) -> Optional[int]:
        path = self.folder / "pid"
        return int(path.read_text()) if path.exists() else None

    def argv(self) -> str:
        return Path(f"/proc/{self.pid}/cmdline").read_text().replace("\0", " ")

    def asked(self) -> list[str]:
        """What systemctl was told to do."""
        path = self.folder / "systemctl.log"
        return path.read_text().splitlines() if path.exists() else []

    async def cli(
        self, agent: Agent, command: str, *words: str, wait_s: float = 20.0
    ) -> tuple[int, str, str]:
        """Run ``cri-resmgr kubelet COMMAND`` on this host."""
        return await agent.cli(
            "kubelet", "--root", str(self.root), "--proc", str(self.folder / "proc"),
            "--systemctl", str(self.folder / "systemctl"), "--config", str(agent.config_file),
            "--wait", str(wait_s), command, *words,
        )  # fmt: skip

    def status(self, agent: Agent) -> KubeletStatus:
        """What `cri-resmgr kubelet status` goes by."""
        ours = [agent.socket, str(agent.control.parent / "run/crio/crio.sock")]
        return look(KubeletFiles(self.root, agent.state), self.folder / "proc").status(ours)

    def close(self) -> None:
        """End every kubelet that was started here."""
        pids = self.folder / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            with contextlib.suppress(OSError):
                # A number may be another's by now.
                if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(int(pid), signal.SIGKILL)


def flags_tree(runtime: str) -> dict[str, str]:
    """kubeadm, with the endpoint in kubeadm-flags.env."""
    text = f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{runtime} --pod=x"\n'
    return {**KUBEADM, "/var/lib/kubelet/kubeadm-flags.env": text}


def config_tree(runtime: str) -> dict[str, str]:
    """kubeadm, with the endpoint in kubelet's configuration."""
    return {**KUBEADM, CONFIG: f"{KUBEADM[CONFIG]}containerRuntimeEndpoint: unix://{runtime}\n"}
