"""``cri-resmgr`` as it is, with a socket to which a test says which of its tasks and threads is to die.

A line is a name; the answer comes once another life of it has begun. CRI_RESMGR_STRIKES: where the socket is.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socketserver
import threading
import time
from typing import Any, Callable

from cri_api.supervisor import SupervisedThread, Supervisor
from cri_proxy.launcher import main

#: A task that dies has failed like a node without descriptors has it.
NO_FILES = OSError(24, "struck by the test")


class StruckThread(BaseException):
    """Raised in a thread at its next step: nothing on the way takes it for an error that is expected."""


class Struck:
    """What is to die, and the daemon's supervisor."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lives: dict[str, int] = {}
        self.found: dict[str, Supervisor] = {}

    def watch(self) -> None:
        """Have every supervised life counted, and those that are to die raise an error where they wait."""
        keep, keep_thread = Supervisor.keep, Supervisor.keep_thread
        struck = self

        def kept(self: Supervisor, name: str, work: Callable[[], Any], may_end: bool = False) -> Any:
            struck.found[name] = self

            async def life() -> None:
                struck.lives[name] = struck.lives.get(name, 0) + 1
                try:
                    await work()
                except asyncio.CancelledError:
                    if name in struck.names:
                        struck.names.discard(name)
                        raise NO_FILES from None
                    raise

            return keep(self, name, life, may_end)

        def kept_thread(
            self: Supervisor, name: str, work: Callable[[], object], thread_name: str = ""
        ) -> SupervisedThread:
            struck.found[name] = self

            def life() -> None:
                struck.lives[name] = struck.lives.get(name, 0) + 1
                work()

            return keep_thread(self, name, life, thread_name)

        Supervisor.keep, Supervisor.keep_thread = kept, kept_thread  # type: ignore[method-assign]

    def kill(self, name: str) -> None:
        """Return once its next life has begun."""
        supervisor, before = self.found[name], self.lives[name]
        thread = supervisor.threads.get(name)
        if thread is None:
            self.names.add(name)
            supervisor.in_loop(supervisor.lives[name].cancel)
        else:
            ident = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(StruckThread))
        while self.lives[name] == before:
            time.sleep(0.01)


STRUCK = Struck()


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            STRUCK.kill(line.decode().strip())
            self.wfile.write(b"it lives again\n")


def serve(path: str) -> None:
    server = socketserver.ThreadingUnixStreamServer(path, Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    STRUCK.watch()
    serve(os.environ["CRI_RESMGR_STRIKES"])
    main()
