"""Plugins as processes of their own that are there in milliseconds: forked from one that has imported everything.

It is told what to start over its standard input, a socket: the plugin's arguments and, with them, the descriptor of
its own standard input. It ends when that socket does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

from tests.nri.io.host.plugin import main

_MOST_BYTES = 65536


def serve(control: socket.socket) -> None:
    """Fork a plugin for each request, until the other end is closed."""
    # Children are not waited for: the other end of their standard input tells when they have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            _become(json.loads(data), descriptors[0])
        os.close(descriptors[0])


def _become(words: list[str], descriptor: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # it is the process's own
        os.write(0, f"{os.getpid()}\n".encode())
        with contextlib.suppress(SystemExit):
            main(words)
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
