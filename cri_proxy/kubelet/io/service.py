"""The running kubelet: what it was started with, what it is connected to, how it is restarted.

And what is asked before it is switched: is the daemon fit to serve it, is the runtime there to go back to?
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from cri_api.control import ControlError
from cri_proxy.config.config import Config
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.kubelet.io.files import KubeletFiles
from cri_proxy.kubelet.record import SwitchRecord
from cri_proxy.kubelet.settings import Files, Setup, socket_of, survey
from cri_proxy.kubelet.status import KubeletStatus, RunningKubelet, judge, socket_to_write, unfit, unknown
from cri_proxy.kubelet.switch import CannotSwitch, points_at
from cri_proxy.processes import NotSeen, Processes
from cri_proxy.relay.status import RpcError

#: kubelet is back in a few seconds; a node that boots gives it longer.
WAIT_S = 60.0
#: The service's Also= brings the socket, so that this order enables both.
OUR_UNITS = ("cri-resource-manager.service", "cri-resource-manager.socket")
_LOOK_S = 0.1
_RESTART_S = 90.0
_PROC = Path("/proc")
#: In k3s kubelet is no process of its own (in rke2 it is).
_KUBELET_INSIDE = ("k3s-server", "k3s-agent")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: A kubelet that was started just now connects within this.
CONNECT_S = 10.0


class CannotRestart(Exception):
    """systemctl did not do it, or kubelet did not come back. The message says what was seen, the hint what to do."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


@dataclass(frozen=True)
class Kubelet:
    """A kubelet that runs: its command line (none inside of k3s), and when it was started (Unix seconds)."""

    pid: int
    argv: tuple[str, ...]
    started_at: float


def find_kubelet(proc: Path = _PROC) -> Optional[Kubelet]:
    """The running kubelet of this host; those in containers (kind) are others'.

    :raises NotSeen: none is found, and not every process may be looked at.
    """
    processes = Processes(proc)
    for folder, name in processes.named():
        words = processes.read(folder / "cmdline")
        argv = None if words is None else _kubelet_argv(name, words)
        if argv is None or _is_inner(processes.read(folder / "status") or b""):
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            return Kubelet(int(folder.name), argv, _started_at(proc, folder))
    if processes.hidden:
        raise NotSeen(processes.hidden)
    return None


def _is_inner(status: bytes) -> bool:
    """Whether a process is in a PID namespace below that of its proc: it has a number in each (NSpid, proc(5))."""
    return any(line.startswith(b"NSpid:") and len(line.split()) > 2 for line in status.splitlines())


def _kubelet_argv(name: str, command: bytes) -> Optional[tuple[str, ...]]:
    """The command line of a process that is kubelet, from that word on; None if it is something else."""
    if name in _KUBELET_INSIDE:
        return ()
    if name not in ("kubelet", "hyperkube"):
        return None
    words = command.decode("utf-8", "surrogateescape").split("\0")
    names = [word.rsplit("/", 1)[-1] for word in words]
    return tuple(words[names.index("kubelet") :]) if "kubelet" in names else None


def _started_at(proc: Path, folder: Path) -> float:
    # The name in stat may hold anything; what follows its bracket does not. Field 22 is the start, in ticks.
    ticks = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
    uptime_s = float((proc / "uptime").read_text().split()[0])
    return time.time() - uptime_s + ticks / _TICKS_PER_S


def is_connected(pid: int, endpoint: str) -> Optional[bool]:
    """Whether a process holds a connection to a unix socket; of other endpoints that is taken for granted.

    A connection that was not accepted yet is none. None: the kernel does not tell.
    """
    if "://" in endpoint and not endpoint.startswith("unix:"):
        return True
    # A path may lead to the socket through links; the kernel knows the one it was bound to.
    path = socket_of(endpoint)
    names = {path, os.path.realpath(path)}
    try:
        return bool(names & _connections(pid))
    except (OSError, ImportError):
        return None


def _connections(pid: int) -> set[str]:
    """The sockets that a process is connected to, in the spelling of ``socket_of``.

    :raises OSError, ImportError: the kernel does not tell.
    """
    from bpf.kernel.netlink import SockDiag
    from bpf.kernel.procfs import socket_inodes

    # The same right as for its descriptors, which the daemon's unit has not; those would seem to be no sockets.
    os.readlink(_PROC / str(pid) / "exe")
    diag = SockDiag()
    try:
        with socket.socket(socket.AF_UNIX) as ours:
            if diag.unix_of(os.fstat(ours.fileno()).st_ino) is None:
                raise OSError(errno.EOPNOTSUPP, "the kernel tells of no unix socket")
        held = [diag.unix_of(inode) for inode in socket_inodes(str(_PROC), pid)]
        ends = [diag.unix_of(each.peer) for each in held if each is not None and each.peer]
        names = [each.name.replace(b"\0", b"@", 1) for each in ends if each is not None and each.name]
        return {socket_of(os.fsdecode(name)) for name in names}
    finally:
        diag.close()


def is_soon_connected(pid: int, endpoints: Sequence[str], timeout_s: float) -> Optional[bool]:
    """Whether a process is connected to one of these, or is within a time: it may have been started just now."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = [is_connected(pid, endpoint) for endpoint in endpoints]
        if True in found or None in found or time.monotonic() > deadline:
            return True if True in found else None if None in found else False
        time.sleep(_LOOK_S)


# ---------------------------------------------------------------------- restart


def restart_kubelet(systemctl: str, unit: str, only_if_active: bool = False) -> None:
    """``only_if_active``: a kubelet that was stopped is not started.

    :raises CannotRestart: with what systemctl said.
    """
    commands = [("daemon-reload",), ("try-restart" if only_if_active else "restart", unit)]
    # Always reloaded: a unit may have been changed by a command before this one, too.
    if not only_if_active and is_failing(systemctl, unit):
        commands.insert(1, ("reset-failed", unit))  # else it may have failed too often to be started
    for words in commands:
        command = [systemctl, *words]
        line = " ".join(command)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RESTART_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRestart(f"{line}: {error}", f"restart {unit} by hand") from None
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            raise CannotRestart(f"{line}: {said}", f"journalctl -u {unit}")


def is_failing(systemctl: str, unit: str) -> bool:
    """Whether a kubelet that does not run is meant to: it has failed, or systemd waits before it starts it again."""
    return _answer(systemctl, "is-active", unit).strip() in ("failed", "activating")


def is_off_after_boot(systemctl: str) -> bool:
    """Whether systemd starts neither our daemon nor its socket at a boot, and says so."""
    found = _answer(systemctl, "is-enabled", *OUR_UNITS).split()
    # Either brings the other up. Without an answer it is no daemon of the package's.
    return bool(found) and not set(found) - {"disabled", "masked"}


def _answer(*command: str) -> str:
    """What systemctl prints, whatever its exit code; "" if it does not answer."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RESTART_S
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def wait_for_kubelet(
    old: Optional[Kubelet], endpoint: str, proc: Path = _PROC, timeout_s: float = WAIT_S
) -> Kubelet:
    """Wait until another kubelet than ``old`` runs and is connected to a socket; then it makes its calls there.

    :raises CannotRestart: that did not happen in time.
    """
    deadline = time.monotonic() + timeout_s
    seen = "no kubelet runs"
    while True:
        try:
            found = find_kubelet(proc)
        except NotSeen as error:
            found, seen = None, f"whether kubelet runs is not known: {error}"
        if found is not None and (
            old is None or found.pid != old.pid or found.started_at > old.started_at + 1
        ):
            if is_connected(found.pid, endpoint) is not False:
                return found  # where the kernel does not tell, that it runs is all that can be known
            seen = f"kubelet (process {found.pid}) runs and has not connected to {socket_of(endpoint)}"
        if time.monotonic() > deadline:
            raise CannotRestart(f"{seen} after {timeout_s:.0f} s", "journalctl -u kubelet")
        time.sleep(_LOOK_S)


# ---------------------------------------------------------------------- does it point at us?


@dataclass(frozen=True)
class KubeletHost:
    """All there is to know about this host's kubelet. ``unseen``: that it is not known whether one runs, or ""."""

    kubelet: Optional[Kubelet]
    files: Files
    setup: Setup
    record: Optional[SwitchRecord]
    unseen: str = ""

    @property
    def is_there(self) -> bool:
        """Whether there is a kubelet, as far as may be seen: one that runs, or a file of one."""
        has_file = any(text is not None for text in self.files.values())
        return self.kubelet is not None or bool(self.unseen) or has_file

    def names(self, sockets: Sequence[str]) -> tuple[str, ...]:
        """Our sockets, and the one we wrote once: it may have another name by now."""
        return (*sockets, self.record.endpoint) if self.record else tuple(sockets)

    def status(self, sockets: Sequence[str]) -> KubeletStatus:
        """Whether kubelet points at one of these sockets of ours, through what, and what to type if not."""
        running, unseen = None, self.unseen
        if self.kubelet is not None:
            pid = self.kubelet.pid
            held = {path: is_connected(pid, path) for path in sockets}
            running = RunningKubelet(pid, self.kubelet.started_at, next((p for p in held if held[p]), ""))
            # Its command line is told to any process, its connections are not.
            if not running.socket and None in held.values() and self.setup.running is None:
                unseen = (
                    f"what kubelet (process {pid}) is connected to is not known: that takes root's rights"
                )
        return replace(judge(self.setup, self.record, sockets, running), unseen=unseen)


def look(kubelet_files: KubeletFiles, proc: Path = _PROC) -> KubeletHost:
    """Reads /proc and some small files: a few milliseconds, outside of an event loop.

    :raises BadKubeletFile: a file of kubelet's, or our record, cannot be understood.
    """
    kubelet, unseen = None, ""
    try:
        kubelet = find_kubelet(proc)
    except NotSeen as error:
        unseen = f"whether kubelet runs is not known: {error}"
    argv: Sequence[str] = kubelet.argv if kubelet else ()
    record = kubelet_files.load()
    files = kubelet_files.read(argv, record.paths if record else ())
    return KubeletHost(kubelet, files, survey(files, argv), record, unseen)


def our_sockets(config: Config) -> tuple[str, ...]:
    """Every name of the socket that kubelet may use; the one kubelet is given is the first."""
    # What the daemon serves on CRI-O besides: kubelet chooses its stats provider by this end of the name.
    crio = str(Path(config["control.socket"]).parent / "run/crio/crio.sock")
    return (str(config["relay.socket"]), *map(str, config["relay.extra_sockets"]), crio)


def _status(control: Path) -> Mapping[str, Any]:
    """What the daemon says of itself; nothing, if it does not answer."""
    try:
        found: Mapping[str, Any] = ask(control, "status")
    except (DaemonAbsent, ControlError):
        return {}
    return found


def front_end(control: Path) -> str:
    """What the daemon runs as; one that does not answer is taken for the proxy."""
    return str(_status(control).get("front_end", "proxy"))


def likely_socket(control: Path, sockets: Sequence[str]) -> str:
    """The socket kubelet is given, of a daemon that need not be healthy, nor there."""
    status = _status(control)
    return socket_to_write(status, sockets) if status else sockets[0]


def separate_images(control: Path) -> str:
    """The endpoint of an image service that the daemon does not relay to; "": none, or the daemon does not answer."""
    images = _status(control).get("image_endpoint", "")
    return f"unix://{images}" if images else ""


def fit_socket(control: Path, sockets: Sequence[str], found: KubeletHost, wait_s: float = CONNECT_S) -> str:
    """The socket kubelet is given, of a daemon that is healthy and has the runtime kubelet uses now.

    :raises CannotSwitch: it is not, or has not.
    :raises DaemonAbsent, ControlError: it does not answer.
    """
    daemon: Mapping[str, Any] = ask(control, "status")
    socket, setup = socket_to_write(daemon, sockets), found.setup
    ours = found.names(sockets)
    current = [setup.endpoint] if setup.running is None else [setup.endpoint, setup.running]
    reason = unfit(daemon, socket, [endpoint for endpoint in current if not points_at(endpoint, ours)])
    if not reason and found.kubelet is not None and not points_at(current[-1], ours):
        runtime = daemon["runtime"]["socket"]
        is_known = is_soon_connected(found.kubelet.pid, [runtime, *daemon["sockets"]], wait_s)
        reason = unknown(setup, runtime, is_known)
    if reason:
        raise CannotSwitch(reason, "cri-resmgr status tells more; --force switches kubelet all the same")
    return socket


def require_runtime(endpoint: str) -> None:
    """:raises CannotSwitch: nothing would answer kubelet there."""
    from cri_proxy.runtime import RuntimeClient

    async def identify() -> None:
        runtime = RuntimeClient(socket_of(endpoint))
        try:
            await runtime.identify()
        finally:
            await runtime.close()

    try:
        asyncio.run(identify())
    except RpcError as error:
        raise CannotSwitch(
            f"the runtime at {endpoint} does not answer, kubelet would have none: {error.details}",
            "start it first; --force switches kubelet all the same",
        ) from None
