"""The kubelet of this host is found among its processes, and whom it is connected to."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Optional

import pytest

from cri_proxy.kubelet.io.service import find_kubelet, is_connected, is_soon_connected

#: Connects to each path, and holds that until its input ends.
CONNECT = """
import socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for each, path in zip(held, sys.argv[1:]):
    each.connect(path)
print(flush=True)
sys.stdin.read()
"""
#: The name and the command line of a process; then kubelet's flags, None where it is no kubelet.
PROCESSES: dict[str, tuple[str, str, Optional[tuple[str, ...]]]] = {
    "kubelet": ("kubelet", "/usr/bin/kubelet --v=2", ("/usr/bin/kubelet", "--v=2")),
    "hyperkube": ("hyperkube", "/hyperkube kubelet --v=2", ("kubelet", "--v=2")),
    "another part of hyperkube": ("hyperkube", "/hyperkube proxy", None),
    "inside of k3s": ("k3s-server", "/usr/local/bin/k3s server", ()),
    "inside of an agent of k3s": ("k3s-agent", "/usr/local/bin/k3s agent", ()),
    "another": ("bash", "bash /usr/bin/kubelet", None),
}


@pytest.mark.parametrize("case", PROCESSES)
def test_kubelet_is_told_by_its_name(case: str, tmp_path: Path) -> None:
    name, words, flags = PROCESSES[case]
    process = tmp_path / "7"
    process.mkdir()
    (tmp_path / "uptime").write_text("1000.00 1.00\n")
    (process / "comm").write_text(f"{name}\n")
    (process / "cmdline").write_bytes("\0".join(words.split()).encode())
    (process / "stat").write_text(f"7 ({name}) S {' '.join(['0'] * 18)} 100 0\n")
    found = find_kubelet(tmp_path)
    assert (found.argv if found else None) == flags
    # That of a container (kind) has a number in the container's own PID namespace, too.
    for numbers, is_ours in (("7", True), ("7\t1", False)):
        (process / "status").write_text(f"Name:\t{name}\nNSpid:\t{numbers}\n")
        assert (find_kubelet(tmp_path) is not None) is (is_ours and flags is not None)


def test_a_connection_is_known_by_any_name_of_its_socket(folder: Path) -> None:
    path, link, other = folder / "s", folder / "l", folder / "o"
    link.symlink_to(path)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        client.connect(str(path))
        accepted, _ = server.accept()
        held = {
            name: is_connected(os.getpid(), name) for name in (f"unix://{path}", f"unix:{link}", f"{other}")
        }
        assert list(held.values()) == [True, True, False]
        assert is_soon_connected(os.getpid(), [f"{other}", f"{path}"], 0.0) is True
        assert is_soon_connected(os.getpid(), [f"{other}"], 0.0) is False
        accepted.close()


def test_a_connection_that_waits_to_be_accepted_is_not_taken_for_that_of_another(folder: Path) -> None:
    """Until then neither end is in the kernel's list of sockets by a number of its own."""
    paths = [f"{folder}/{number}" for number in range(20)]
    with contextlib.ExitStack() as stack:
        for path in paths:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(path)
            server.listen()
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(paths[0])
        others = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CONNECT, *paths[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        assert others.stdout is not None and others.stdin is not None
        others.stdout.readline()
        assert {is_connected(os.getpid(), path) for path in paths} == {False}
        others.stdin.close()


def test_a_connection_is_seen_while_others_come_and_go(folder: Path) -> None:
    path, is_over = f"{folder}/s", threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            for end in [end for _ in range(50) for end in socket.socketpair()]:
                end.close()

    coming = threading.Thread(target=come_and_go)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
        with server.accept()[0]:
            coming.start()
            try:
                assert all(is_connected(os.getpid(), path) for _ in range(50))
            finally:
                is_over.set()
                coming.join()
