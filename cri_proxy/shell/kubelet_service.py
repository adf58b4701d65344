"""The running kubelet: what it was started with, whom it is connected to, how it is restarted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from cri_proxy.core.config import Config
from cri_proxy.core.kubelet_config import Files, Setup, socket_of, survey
from cri_proxy.core.kubelet_record import Record
from cri_proxy.core.kubelet_status import KubeletStatus, judge
from cri_proxy.shell.kubelet_files import KubeletFiles

#: kubelet is back in a few seconds; a node that boots gives it longer.
WAIT_S = 60.0
_LOOK_S = 0.1
_RESTART_S = 90.0
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CannotRestart(Exception):
    """systemctl did not do it, or kubelet did not come back. The message says what was seen, the hint what to do."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


@dataclass(frozen=True)
class Kubelet:
    """A kubelet that runs: its command line, and when it was started (Unix seconds)."""

    pid: int
    argv: tuple[str, ...]
    started_at: float


def find_kubelet(proc: Path = _PROC) -> Optional[Kubelet]:
    """The running kubelet of this host; those in containers (kind) are others'."""
    try:
        pids = sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit())
        own_namespace = os.readlink(proc / "self/ns/pid") if (proc / "self").exists() else ""
    except OSError:
        return None
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = proc / str(pid)
            argv = _kubelet_argv(folder)
            if argv and own_namespace in ("", os.readlink(folder / "ns/pid")):
                return Kubelet(pid, argv, _started_at(proc, folder))
    return None


def _kubelet_argv(folder: Path) -> tuple[str, ...]:
    """The command line of a process that is kubelet, from that word on; () if it is something else."""
    name = (folder / "comm").read_text().rstrip("\n")
    if name not in ("kubelet", "hyperkube"):
        return ()
    words = (folder / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    names = [word.rsplit("/", 1)[-1] for word in words]
    return tuple(words[names.index("kubelet") :]) if "kubelet" in names else ()


def _started_at(proc: Path, folder: Path) -> float:
    # The name in stat may hold anything; what follows its bracket does not. Field 22 is the start, in ticks.
    ticks = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
    uptime_s = float((proc / "uptime").read_text().split()[0])
    return time.time() - uptime_s + ticks / _TICKS_PER_S


def is_connected(pid: int, endpoint: str) -> bool:
    """Whether a process holds a connection to a unix socket; of other endpoints that is taken for granted.

    :raises OSError: the kernel does not tell.
    """
    if "://" in endpoint and not endpoint.startswith("unix:"):
        return True
    from bpf.netlink import SockDiag
    from bpf.procfs import socket_inodes

    # A path may lead to the socket through links; the kernel knows the one it was bound to.
    wanted = {socket_of(endpoint), os.path.realpath(socket_of(endpoint))}
    served = set()
    for line in (_PROC / "net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8 and socket_of(fields[7]) in wanted:
            served.add(int(fields[6]))
    mine = set(socket_inodes(str(_PROC), pid))
    diag = SockDiag()
    try:
        return any(listed.inode in mine and listed.peer in served for listed in diag.unix())
    finally:
        diag.close()


# ---------------------------------------------------------------------- restart


def restart_kubelet(systemctl: str, reload_units: bool, only_if_active: bool = False) -> None:
    """``only_if_active``: a kubelet that was stopped is not started.

    :raises CannotRestart: with what systemctl said.
    """
    restart = "try-restart" if only_if_active else "restart"
    commands = [[systemctl, "daemon-reload"]] if reload_units else []
    for command in [*commands, [systemctl, restart, "kubelet"]]:
        line = " ".join(command)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RESTART_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRestart(f"{line}: {error}", "restart kubelet by hand") from None
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            raise CannotRestart(f"{line}: {said}", "journalctl -u kubelet")


def wait_for_kubelet(
    old: Optional[Kubelet], endpoint: str, proc: Path = _PROC, timeout_s: float = WAIT_S
) -> Kubelet:
    """Wait until another kubelet than ``old`` runs and is connected to a socket; then it makes its calls there.

    :raises CannotRestart: that did not happen in time.
    """
    deadline = time.monotonic() + timeout_s
    seen = "no kubelet runs"
    while True:
        found = find_kubelet(proc)
        if found is not None and (
            old is None or found.pid != old.pid or found.started_at > old.started_at + 1
        ):
            try:
                if is_connected(found.pid, endpoint):
                    return found
            except (OSError, ImportError):
                return found  # that it runs is all that can be known here
            seen = f"kubelet (process {found.pid}) runs and has not connected to {socket_of(endpoint)}"
        if time.monotonic() > deadline:
            raise CannotRestart(f"{seen} after {timeout_s:.0f} s", "journalctl -u kubelet")
        time.sleep(_LOOK_S)


# ---------------------------------------------------------------------- does it point at us?


@dataclass(frozen=True)
class Found:
    """All there is to know about this host's kubelet."""

    kubelet: Optional[Kubelet]
    files: Files
    setup: Setup
    record: Optional[Record]


def look(kubelet_files: KubeletFiles, proc: Path = _PROC) -> Found:
    """:raises BadKubeletFile: a file of kubelet's, or our record, cannot be understood."""
    kubelet = find_kubelet(proc)
    argv: Sequence[str] = kubelet.argv if kubelet else ()
    record = kubelet_files.load()
    files = kubelet_files.read(argv, record.paths if record else ())
    return Found(kubelet, files, survey(files, argv), record)


def our_sockets(config: Config) -> tuple[str, ...]:
    """Every name of the socket that kubelet may use; the one kubelet is given is the first."""
    # What the daemon serves on CRI-O besides: kubelet chooses its stats provider by this end of the name.
    crio = str(Path(config["control.socket"]).parent / "run/crio/crio.sock")
    return (str(config["relay.socket"]), *map(str, config["relay.extra_sockets"]), crio)


def kubelet_points_at(
    sockets: Iterable[str],
    state_directory: Path = Path("/var/lib/cri-resmgr"),
    root: Path = Path("/"),
    proc: Path = _PROC,
) -> KubeletStatus:
    """Whether kubelet points at one of these sockets, through what, and what to type if not.

    Reads /proc and some twenty small files: a few milliseconds, outside of an event loop.

    :raises BadKubeletFile: a file of kubelet's, or our record, cannot be understood.
    """
    found = look(KubeletFiles(root, state_directory), proc)
    kubelet = found.kubelet
    return judge(
        found.setup, found.record, tuple(sockets), (kubelet.pid, kubelet.started_at) if kubelet else None
    )
