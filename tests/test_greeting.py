"""Who connects before the daemon can serve is answered at once, and is handed over unread."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy import greeting
from cri_proxy.greeting import SETTINGS, EarlyAccept

#: systemd's part, then ours: greets until its input ends, then says how many it has greeted, and what they sent.
PROGRAM = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
from cri_proxy.greeting import EarlyAccept
greeter = EarlyAccept({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, os.getpid())
greeter.start()
sys.stdin.read()
taken = greeter.stop()
print(len(taken), [connection.recv(100) for connection in taken], greeter.stop())
"""


def test_who_connects_is_greeted_at_once_and_handed_over_unread(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(folder / "x.sock"))
        listener.listen()
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number)],
            pass_fds=[number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(greeting.__file__).parent.parent)},
        )  # fmt: skip
        client.settimeout(30)
        client.connect(str(folder / "x.sock"))
        assert client.recv(100) == SETTINGS
        client.sendall(b"first words")
        out, _ = process.communicate(timeout=30)
        assert out == "1 [b'first words'] []\n"
        # The listening socket is as it was.
        assert not select.select([listener], [], [], 0)[0]
        with socket.socket(socket.AF_UNIX) as later:
            later.connect(str(folder / "x.sock"))
            assert select.select([listener], [], [], 10)[0]


@pytest.mark.parametrize(
    "environment", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "42", "LISTEN_FDS": "x"}]
)
def test_without_sockets_nothing_is_begun(environment: dict[str, str]) -> None:
    greeter = EarlyAccept(environment, 42)
    greeter.start()
    assert greeter.stop() == []
    assert greeting.take() == []
