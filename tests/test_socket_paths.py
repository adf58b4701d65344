"""A path is free for a process unless another one serves it; sockets are their owner's only, and their folders are open."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cri_api.socket_paths import SocketTaken, is_served, listen_at
from tests.test_unix_sockets import bound


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o177])
def test_folders_are_open_and_sockets_are_not_whatever_the_umask_is(mask: int, folder: Path) -> None:
    path, before = folder / "run" / "crio" / "crio.sock", os.umask(mask)
    try:
        with listen_at(path):
            assert is_served(path)
        with listen_at(folder / "nri" / "nri.sock", folder_mode=0o700):
            pass
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    modes = [(folder / name).stat().st_mode & 0o777 for name in ("run", "run/crio", "nri")]
    assert modes == [0o755, 0o755, 0o700]


def test_a_socket_that_a_dead_process_has_left_is_replaced(folder: Path) -> None:
    bound(folder / "x.sock").close()
    assert not is_served(folder / "x.sock")
    with listen_at(folder / "x.sock"):
        assert is_served(folder / "x.sock")


@pytest.mark.parametrize("is_busy", [False, True], ids=["it accepts", "its queue is full"])
def test_a_socket_that_is_served_is_refused_and_stays(is_busy: bool, folder: Path) -> None:
    path = folder / "x.sock"
    with bound(path) as server, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
        server.listen(0 if is_busy else 8)
        if is_busy:
            waiting.connect(str(path))
        assert is_served(path)
        with pytest.raises(
            SocketTaken, match=r"is served by another process; stop it first \(is cri-resmgr running"
        ):
            listen_at(path)
        assert path.exists()


@pytest.mark.parametrize("option", ["relay.socket", ""])
@pytest.mark.parametrize("what", ["a file", "a folder", "a link to a socket", "a dangling link"])
def test_what_is_not_a_socket_is_refused_and_stays(what: str, option: str, folder: Path) -> None:
    path = folder / "x.sock"
    if what == "a file":
        path.write_text("precious")
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to(folder / "other.sock")
    if what == "a link to a socket":
        bound(folder / "other.sock").close()
    hint = "remove it or set relay.socket to another path$" if option else "remove it$"
    with pytest.raises(SocketTaken, match=f"exists and is not a socket; {hint}"):
        listen_at(path, option)
    assert os.path.lexists(path)


def test_a_path_that_no_socket_can_have_is_a_sentence(folder: Path) -> None:
    with pytest.raises(SocketTaken, match=r"x.sock cannot be served: .*too long"):
        listen_at(folder / ("d" * 100) / "x.sock")
    (folder / "file").write_text("")
    with pytest.raises(SocketTaken, match=r"cannot be served: its folder cannot be made: File exists"):
        listen_at(folder / "file" / "x.sock")
