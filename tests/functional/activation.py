"""What systemd does with cri-resmgr's two units: it listens, hands its sockets to the daemon, starts it again."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Optional

from tests.agent import Agent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

#: Between fork and exec: the descriptors from 3 on, and whose they are (sd_listen_fds(3)).
_HAND_OVER = """
import os, sys
from fcntl import F_DUPFD, fcntl
given = []
for word in sys.argv[1].split(","):
    given.append(fcntl(int(word), F_DUPFD, 10))  # numbers that are free
    os.close(int(word))
for at, descriptor in enumerate(given):
    os.dup2(descriptor, 3 + at)
    os.close(descriptor)
os.environ.update(LISTEN_FDS=str(len(given)), LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
"""


def handed_over(descriptors: Sequence[int], module: str) -> tuple[str, ...]:
    """What starts a module with these; the caller leaves them open (``pass_fds``), and appends arguments."""
    return (sys.executable, "-c", _HAND_OVER, ",".join(map(str, descriptors)), module)


class Units:
    """The socket unit with both of its sockets, and the service. Use as ``async with``; nothing runs before ``start``."""

    def __init__(self, runtime: FakeRuntime, **config: Any) -> None:
        self.agent = Agent(runtime.socket, machine(HYGON_7285_2S), config)
        folder = self.agent.folder
        self.paths = [str(folder / name) for name in ("k.sock", "second.sock")]
        self.agent.write_config({"relay": {"extra_sockets": self.paths[1:]}})
        self._listeners = [_listen(path) for path in self.paths]

    async def start(self, *arguments: str, **environment: str) -> None:
        """Start the service, and wait until it is READY."""
        descriptors = [listener.fileno() for listener in self._listeners]
        command = handed_over(descriptors, "cri_proxy")
        await self.agent.start(*arguments, environment=environment, command=command, keep=descriptors)

    async def restart(self) -> None:
        """As ``systemctl restart``: the new process is started when the old one has ended."""
        assert await self.agent.terminate() == 0, self.agent.log()
        await self.start()

    async def __aenter__(self) -> Units:
        return self

    async def __aexit__(
        self,
        _kind: Optional[type[BaseException]],
        _error: Optional[BaseException],
        _at: Optional[TracebackType],
    ) -> None:
        await self.agent.close()
        for listener in self._listeners:
            listener.close()


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o660)
    listener.listen(4096)  # systemd's Backlog=
    return listener
