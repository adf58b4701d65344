"""The host of NRI plugins, or what is in its place where it is known from the beginning that there is none.

To load the host takes an eighth of the time that a start of the daemon computes: where it will not be used, that
is not done.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional, Protocol

from cri_proxy.bounded_files import SMALL_FILE_S, within
from cri_proxy.nri.io.host.detection import unhosted_because
from cri_proxy.nri.io.host.intent_log import FILE
from cri_proxy.relay.interception import Interception, Interceptor
from cri_proxy.services.services import Services

UNIX_SOCKETS = Path("/proc/net/unix")


class Hosting(Interceptor, Protocol):
    """What a proxy does with its host of plugins, in the order of its life."""

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
        self._engine = engine
        self._why = why
        self._log = log

    def open(self, full_method: str) -> Optional[Interception]:
        return self._engine.open(full_method)

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
    """A host, unless it is sure that there is to be none, and no earlier one has left anything half made."""
    config = services.config
    why = unhosted_because(config["nri.host"], unix_sockets.read_text, config["nri.socket"])
    if why and not _is_there(os.path.join(config["state.directory"], FILE)):
        return Unhosted(engine, why, services.log)
    from cri_proxy.nri.io.host.hosting import NriHosting

    return NriHosting(services, engine, unix_sockets)


def _is_there(path: str) -> bool:
    """What cannot be looked at is not there either, and no reason to fail."""
    try:
        return within(SMALL_FILE_S, lambda: os.path.exists(path))
    except TimeoutError:
        return False
