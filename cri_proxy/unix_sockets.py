"""Unix sockets to listen on: stale ones are replaced, live ones never stolen, systemd's are taken over."""

from __future__ import annotations

import contextlib
import grp
import os
import resource
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

#: First file descriptor of socket activation (sd_listen_fds(3)).
FIRST_FD = 3


#: What the unit says; a daemon that is started by hand may have 1,024 (setrlimit(2): the soft limit).
MOST_DESCRIPTORS = 65_536


def allow_descriptors() -> None:
    """Let this process have as many descriptors as it may, and connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class SocketTaken(Exception):
    """A socket cannot be had: a process serves it, or the path is something else. The message says so."""


def claim(path: Path, option: str = "relay.socket or relay.extra_sockets") -> None:
    """Make a path free for binding: its folder exists, and a socket that no process serves is removed.

    ``option``: where the path is set.

    :raises SocketTaken: a live server is there, or the path is not a socket.
    """
    try:
        _make_folder(path.parent)
    except OSError as error:
        raise SocketTaken(f"{path} cannot be served: its folder cannot be made: {error.strerror}") from None
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTaken(f"{path} exists and is not a socket; remove it or set {option} to another path")
    try:
        live = is_served(path)
    except OSError as error:
        raise SocketTaken(f"{path} is in use ({error}); stop the other server first") from None
    if live:
        raise SocketTaken(
            f"{path} is served by another process; stop it first (is cri-resmgr running already?)"
        )
    path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """As systemd makes those of its sockets (0755): a mask that keeps others from a socket is not for its folder.

    Without search permission not even root gets in, where it has no capability for that, as in our unit.
    """
    mask = os.umask(0o022)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(mask)


def is_served(path: Path) -> bool:
    """Whether a process accepts connections on a unix socket.

    :raises OSError: that cannot be found out: no permission, or it does not accept fast enough.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def copy_access(source: Path, targets: list[Path]) -> None:
    """Give our sockets the mode and owner of the runtime's; 0660 and root while that does not exist."""
    try:
        status = source.stat()
        mode, uid, gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    except OSError:
        mode, uid, gid = 0o660, os.getuid(), os.getgid()
    for target in targets:
        with contextlib.suppress(OSError):
            os.chown(target, uid, gid)
        with contextlib.suppress(OSError):
            os.chmod(target, mode)


def share_with(path: Path, group: str) -> str:
    """Let a group connect to a socket of ours; a group that is not there changes nothing. Why that cannot be, or ""."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        return ""
    try:
        os.chown(path, -1, gid)
        path.chmod(0o660)
    except OSError as error:
        return f"{path} cannot be given to the group {group}: {error.strerror}"
    return ""


def activated(environment: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Listening sockets that systemd hands over; none if LISTEN_PID says they are for another process.

    Copies: the descriptors themselves stay open for the launcher's program, which takes over if we fail.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return []
    text = environment.get("LISTEN_FDS", "")
    count = int(text) if text.isdigit() else 0
    return [_copy(fd) for fd in range(FIRST_FD, FIRST_FD + count)]


def _copy(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


def bind_wanted(
    wanted: Sequence[Path], given: Sequence[socket.socket], bind: Callable[[Path], None]
) -> tuple[list[Path], dict[Path, str]]:
    """Bind ``wanted`` (the first must be had) but for those that listening sockets we were ``given`` have.

    Returns the paths that clients may use, and why others are not served.

    :raises SocketTaken, OSError: the first cannot be had.
    """
    taken_over = {os.path.realpath(listener.getsockname()) for listener in given}
    # /var/run is /run: one socket may be wanted by two names.
    others = {os.path.realpath(path): path for path in reversed(wanted)}
    problems = {}
    mask = os.umask(0o177)
    try:
        for path in [path for real, path in reversed(others.items()) if real not in taken_over]:
            try:
                bind(path)
            except (SocketTaken, OSError) as error:
                if path == wanted[0]:
                    raise
                problems[path] = str(error)
    finally:
        os.umask(mask)
    served = [path for path in wanted if path not in problems]
    served += [Path(name) for name in sorted(taken_over - {os.path.realpath(path) for path in wanted})]
    return served, problems
