"""A path is free for us unless somebody serves it; our sockets are as open as the runtime's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy.unix_sockets import SocketTaken, activated, bind_wanted, claim, copy_access, is_served


def bound(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    return server


# ---------------------------------------------------------------------- a path to bind


def test_a_path_that_is_free_gets_its_folder(folder: Path) -> None:
    claim(folder / "a" / "b" / "x.sock")
    assert list((folder / "a" / "b").iterdir()) == []


def test_folders_are_open_and_sockets_are_not(folder: Path) -> None:
    wanted = [folder / "x.sock", folder / "run" / "crio" / "crio.sock"]

    def bind(path: Path) -> None:
        claim(path)
        bound(path).close()

    assert bind_wanted(wanted, [], bind) == (wanted, {})
    assert [path.stat().st_mode & 0o777 for path in wanted] == [0o600, 0o600]
    assert [(folder / name).stat().st_mode & 0o777 for name in ("run", "run/crio")] == [0o755, 0o755]


def test_a_socket_nobody_serves_is_removed(folder: Path) -> None:
    bound(folder / "x.sock").close()
    assert not is_served(folder / "x.sock")
    claim(folder / "x.sock")
    bound(folder / "x.sock").close()


def test_a_socket_somebody_serves_is_refused_and_stays(folder: Path) -> None:
    with bound(folder / "x.sock") as server:
        server.listen()
        assert is_served(folder / "x.sock")
        with pytest.raises(SocketTaken, match="is served by another process; stop it first"):
            claim(folder / "x.sock")
        assert is_served(folder / "x.sock")


def test_a_server_too_busy_to_accept_is_not_robbed(folder: Path) -> None:
    with bound(folder / "x.sock") as server, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
        server.listen(0)
        waiting.connect(str(folder / "x.sock"))  # fills the queue
        with pytest.raises(SocketTaken, match="is in use .*; stop the other server first"):
            claim(folder / "x.sock")
        assert (folder / "x.sock").exists()


@pytest.mark.parametrize("what", ["a file", "a folder", "a link to a socket", "a dangling link"])
def test_what_is_not_a_socket_is_refused_and_stays(what: str, folder: Path) -> None:
    path = folder / "x.sock"
    if what == "a file":
        path.write_text("precious")
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to(folder / "other.sock")
    if what == "a link to a socket":
        bound(folder / "other.sock").close()
    with pytest.raises(SocketTaken, match="exists and is not a socket; remove it or set relay.socket"):
        claim(path)
    assert os.path.lexists(path)


# ---------------------------------------------------------------------- who may connect


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_our_sockets_get_the_mode_and_owner_of_the_runtimes(mode: int, folder: Path) -> None:
    theirs, ours = folder / "theirs.sock", [folder / "a.sock", folder / "b.sock"]
    for path in (theirs, *ours):
        bound(path).close()
    os.chmod(theirs, mode)
    if os.getuid() == 0:
        os.chown(theirs, 1234, 2345)
    copy_access(theirs, ours)
    expected = theirs.stat()
    for path in ours:
        status = path.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (
            mode,
            expected.st_uid,
            expected.st_gid,
        )


def test_without_a_runtime_our_sockets_are_for_us_and_our_group(folder: Path) -> None:
    bound(folder / "a.sock").close()
    copy_access(folder / "theirs.sock", [folder / "a.sock", folder / "missing.sock"])
    status = (folder / "a.sock").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o660, os.getuid(), os.getgid())


# ---------------------------------------------------------------------- socket activation


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "41"},
        {"LISTEN_FDS": "1", "LISTEN_PID": ""},
        {"LISTEN_PID": "42"},
        {"LISTEN_FDS": "0", "LISTEN_PID": "42"},
    ],
    ids=["nothing", "no pid", "another process's", "an empty pid", "no count", "none"],
)
def test_no_socket_is_taken_that_is_not_handed_to_us(environment: dict[str, str]) -> None:
    assert activated(environment, 42) == []


#: systemd's part, then ours: two sockets as file descriptors 3 and 4, whose names are printed.
HANDED_OVER = """
import os, socket, sys
opened = []
for path in sys.argv[1:]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    opened.append(os.dup2(listener.detach(), 10 + len(opened)))
for place, number in enumerate(opened):
    os.dup2(number, 3 + place)
from cri_proxy.unix_sockets import activated
environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(opened))}
print(*[s.getsockname() for s in activated(environment, os.getpid())])
"""


def test_the_sockets_that_systemd_hands_over_are_taken_in_their_order(folder: Path) -> None:
    paths = [str(folder / "a.sock"), str(folder / "b.sock")]
    done = subprocess.run(
        [sys.executable, "-c", HANDED_OVER, *paths], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == paths


# ---------------------------------------------------------------------- descriptors


def test_a_process_takes_the_descriptors_that_it_may_have() -> None:
    code = """
import resource
from cri_proxy.unix_sockets import MOST_DESCRIPTORS, allow_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
allow_descriptors()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(soft == MOST_DESCRIPTORS or soft == hard)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
