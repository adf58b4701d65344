"""Unix sockets of one process each: what a dead process has left is replaced, what another one serves is never stolen."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path


class SocketTaken(OSError):
    """A socket cannot be had: a process serves it, or its path cannot be one. The message is a sentence, and a hint."""


def listen_at(
    path: Path,
    option: str = "",
    other: str = "is cri-resmgr running already?",
    backlog: int = 64,
    folder_mode: int = 0o755,
) -> socket.socket:
    """A socket at a path that listens at once, so that a second server finds it alive. Its owner's only (0600).

    ``option``: where the path is set. ``other``: a question for what may serve it. The folder is made where it is missing;
    its mode is as asked, whatever the umask is: without search permission not even root gets in, where it has no capability
    for that.

    :raises SocketTaken: a process serves it, something else is there, or the path cannot be a socket.
    """
    try:
        with _mask(0o022):
            path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    except OSError as error:
        raise SocketTaken(f"{path} cannot be served: its folder cannot be made: {error.strerror}") from None
    _clear(path, option, other)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _mask(0o177):
            listener.bind(str(path))
        listener.listen(backlog)
        listener.setblocking(False)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError):
            raise SocketTaken(f"{path} cannot be served: {error.strerror or error}") from None
        raise
    return listener


def is_served(path: Path) -> bool:
    """Whether a process listens on a unix socket.

    :raises OSError: that cannot be found out, for want of permission say.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # it has no time to accept
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def _clear(path: Path, option: str, other: str) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            hint = f"remove it or set {option} to another path" if option else "remove it"
            raise SocketTaken(f"{path} exists and is not a socket; {hint}")
        if is_served(path):
            raise SocketTaken(f"{path} is served by another process; stop it first ({other})")
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except SocketTaken:
        raise
    except OSError as error:
        raise SocketTaken(f"{path} is in use ({error}); stop the other server first") from None


@contextlib.contextmanager
def _mask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
