"""The host of NRI plugins, or its stand-in where a start knows that none is needed.

Loading the host takes an eighth of the computing time of the daemon's start: it is loaded where it is used only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from cri_proxy.bounded_files import SMALL_FILE_S, within
from cri_proxy.nri.io.host.intent_log import FILE
from cri_proxy.relay.interception import Interception, Interceptor
from cri_proxy.services.services import Services

UNIX_SOCKETS = Path("/proc/net/unix")
#: Where runtimes that have NRI listen for plugins.
RUNTIME_NRI_SOCKET = "/var/run/nri/nri.sock"


class Hosting(Interceptor, Protocol):
    """A proxy's host of plugins; methods in the order of its life."""

    def begin(self) -> None: ...
    async def start(self) -> None: ...
    async def run(self) -> None: ...
    def runtime_returned(self) -> None: ...
    def reconfigured(self) -> None: ...
    def status(self) -> dict[str, Any]: ...
    async def close(self) -> None: ...


class Unhosted:
    """The engine's interceptor, and nothing around it. ``why``: for people."""

    def __init__(self, engine: Interceptor, why: str, log: Any) -> None:
        self.open: Callable[[str], Optional[Interception]] = engine.open
        self._why = why
        self._log = log

    def begin(self) -> None:
        pass

    async def start(self) -> None:
        self._log.info("no NRI plugins are hosted", why=self._why)

    async def run(self) -> None:
        pass

    def runtime_returned(self) -> None:
        pass

    def reconfigured(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {
            "host": "off",
            "why": self._why,
            "socket": "",
            "plugins": [],
            "problems": [],
            "is_asking": False,
            "unfinished": 0,
        }

    async def close(self) -> None:
        pass


def make_hosting(services: Services, engine: Interceptor, unix_sockets: Path = UNIX_SOCKETS) -> Hosting:
    """A host, unless it is sure to be unused, and no earlier one has left unfinished containers."""
    config = services.config
    why = unhosted_because(config["nri.host"], unix_sockets.read_text, config["nri.socket"])
    if why and not _is_there(os.path.join(config["state.directory"], FILE)):
        return Unhosted(engine, why, services.log)
    from cri_proxy.nri.io.host.hosting import NriHosting

    return NriHosting(services, engine, unix_sockets)


def _is_there(path: str) -> bool:
    """A file that cannot be looked at counts as absent, and fails nothing."""
    try:
        return within(SMALL_FILE_S, lambda: os.path.exists(path))
    except TimeoutError:
        return False


def unhosted_because(wanted: str, read: Callable[[], str], own: str) -> str:
    """Why no plugins are hosted, as far as known without the runtime; "" = undecided, or they are.

    ``wanted``: the setting nri.host; ``read`` and ``own`` as of ``runtime_nri``.
    """
    if wanted == "off":
        return "nri.host is off"
    found = runtime_nri(read, own) if wanted == "auto" else ""
    return f"the runtime has NRI itself: it listens on {found}" if found else ""


def runtime_nri(read: Callable[[], str], own: str) -> str:
    """The socket on which a runtime listens for NRI plugins; "" if it does not. ``own``: our own, which is not one.

    ``read`` gives /proc/net/unix. Connecting to the socket would not do: containerd waits 5 s for the
    registration, and accepts no other meanwhile.
    """
    try:
        lines = read().splitlines()[1:]
    except OSError:
        return ""
    names = {RUNTIME_NRI_SOCKET, RUNTIME_NRI_SOCKET[len("/var") :]} - {own, own[len("/var") :]}
    for line in lines:
        words = line.split()
        # Num: RefCount Protocol Flags Type St Inode Path; flag 0x10000 is that of a socket that listens (SO_ACCEPTCON).
        if len(words) == 8 and words[7] in names and int(words[3], 16) & 0x10000:
            return words[7]
    return ""
