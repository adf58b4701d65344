"""What /proc says of real processes, and of none."""

from __future__ import annotations

import os
import socket

from bpf.kernel.procfs import namespace_of, read_text, socket_inodes

GONE = 2**22 + 1


def test_the_sockets_of_a_process_are_listed_by_inode_and_other_files_are_not() -> None:
    a, b = socket.socketpair()
    with a, b, open("/dev/null") as file:
        inodes = set(socket_inodes("/proc", os.getpid()))
        assert {os.fstat(a.fileno()).st_ino, os.fstat(b.fileno()).st_ino} <= inodes
        assert os.fstat(file.fileno()).st_ino not in inodes
        assert list(socket_inodes("/proc", os.getpid(), most=0)) == []


def test_a_process_that_is_gone_has_nothing() -> None:
    assert list(socket_inodes("/proc", GONE)) == []
    assert namespace_of("/proc", GONE) is None
    assert read_text(f"/proc/{GONE}/cgroup") is None


def test_namespaces_have_the_numbers_of_their_links() -> None:
    assert os.readlink("/proc/self/ns/net") == f"net:[{namespace_of('/proc', os.getpid())}]"
    assert os.readlink("/proc/self/ns/ipc") == f"ipc:[{namespace_of('/proc', os.getpid(), 'ipc')}]"
