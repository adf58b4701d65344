"""Our sockets are as open as the runtime's, and those of systemd are taken over."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy.unix_sockets import activated, copy_access


def bound(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    return server


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
