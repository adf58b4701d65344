"""Answers connections on systemd's sockets while the daemon is still being loaded. Standard library only.

kubelet waits 5 s for a server's first frame (its minConnectionTimeout); on a busy node the daemon may take
as long to be loaded. So the launcher lets a thread accept and send an empty SETTINGS frame at once: for the client the
connection is there, and its calls wait for the daemon within deadlines of their own, which are minutes. Nothing is
read here. The relay takes the connections over; it keeps the client's answer to this frame to itself.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Mapping
from typing import Optional

FIRST_FD = 3
#: An empty SETTINGS frame (RFC 9113, 6.5): what every connection begins with; the server's own may follow.
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
#: More wait at the socket, and not in our descriptors.
MOST = 500
_LOOK_MS = 20


class EarlyAccept:
    """Greets what connects to the sockets that systemd hands over (sd_listen_fds(3)), from the start to ``stop``."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        is_ours = environment.get("LISTEN_PID") == str(pid)
        count = environment.get("LISTEN_FDS", "") if is_ours else ""
        descriptors = range(FIRST_FD, FIRST_FD + int(count)) if count.isdigit() else ()
        self._listeners = [socket.socket(fileno=os.dup(descriptor)) for descriptor in descriptors]
        self._greeted: list[socket.socket] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._greet, name="greeter", daemon=True)

    def start(self) -> None:
        if self._listeners:
            for listener in self._listeners:
                listener.setblocking(False)
            self._thread.start()

    def stop(self) -> list[socket.socket]:
        """End, and return the connections there are. Again: none."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        for listener in self._listeners:
            listener.close()
        self._listeners = []
        greeted, self._greeted = self._greeted, []
        return greeted

    def _greet(self) -> None:
        waiting = select.poll()
        by_descriptor = {listener.fileno(): listener for listener in self._listeners}
        for descriptor in by_descriptor:
            waiting.register(descriptor, select.POLLIN)
        while not self._is_over.is_set() and len(self._greeted) < MOST:
            for descriptor, _ in waiting.poll(_LOOK_MS):
                try:
                    connection, _ = by_descriptor[descriptor].accept()
                    self._greeted.append(connection)
                    connection.sendall(SETTINGS)
                except BlockingIOError:
                    pass
                except OSError:  # it has gone again, or there are no descriptors
                    self._is_over.wait(0.01)


#: The one of this process. The launcher starts it; between it and the daemon's wiring there is only click.
_current: Optional[EarlyAccept] = None


def begin() -> None:
    """Greet from now on."""
    global _current
    _current = EarlyAccept(os.environ, os.getpid())
    _current.start()


def take() -> list[socket.socket]:
    """End, and return the connections that were greeted and not read from."""
    return [] if _current is None else _current.stop()


def hand_on() -> str:
    """End, and return the descriptors of the connections, for a program that this process becomes."""
    connections = take()
    for connection in connections:
        connection.setblocking(True)
        connection.set_inheritable(True)
    return " ".join(str(connection.detach()) for connection in connections)
