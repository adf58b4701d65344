"""Unix sockets of the daemon: those of systemd are taken over, and all are as open as they are to be."""

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
    wanted: Sequence[Path], given: Sequence[socket.socket], bind: Callable[[Path], object]
) -> tuple[list[Path], dict[Path, str]]:
    """Bind ``wanted`` (the first must be had) but for those that listening sockets we were ``given`` have.

    Returns the paths that clients may use, and why others are not served.

    :raises OSError: the first cannot be had.
    """
    taken_over = {os.path.realpath(listener.getsockname()) for listener in given}
    # /var/run is /run: one socket may be wanted by two names.
    others = {os.path.realpath(path): path for path in reversed(wanted)}
    problems = {}
    for path in [path for real, path in reversed(others.items()) if real not in taken_over]:
        try:
            bind(path)
        except OSError as error:
            if path == wanted[0]:
                raise
            problems[path] = str(error)
    served = [path for path in wanted if path not in problems]
    served += [Path(name) for name in sorted(taken_over - {os.path.realpath(path) for path in wanted})]
    return served, problems
