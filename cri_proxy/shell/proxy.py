"""The front end that kubelet talks to instead of the runtime: a relay whose intercepted calls are decided upon."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Optional

from cri_proxy.shell.interceptor import CriInterceptor
from cri_proxy.shell.listen import activated
from cri_proxy.shell.nri.hosting import NriHosting
from cri_proxy.shell.parts import Parts
from cri_proxy.shell.relay import Relay
from cri_proxy.shell.runtime import Runtime, discover
from cri_proxy.shell.serving import Serving


class Proxy:
    """Design rule 7: the relay never depends on the engine; while there is none, bytes pass."""

    name = "proxy"
    must_serve = True
    exits = "a client's event stream"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._serving: Optional[Serving] = None
        self._image_runtime: Optional[Runtime] = None
        self._nri = NriHosting(parts, CriInterceptor(parts.keeper, parts.events))

    async def open(self) -> None:
        parts, config, runtime = self._parts, self._parts.config, self._parts.runtime
        images = config["relay.image_endpoint"]
        self._image_runtime = Runtime(discover(images)) if images else None
        image_channel = self._image_runtime and self._image_runtime.channel
        relay = Relay(runtime.channel, image_channel, self._nri)
        serving = Serving(relay)
        control = Path(config["control.socket"])
        wanted = [Path(config["relay.socket"]), *map(Path, config["relay.extra_sockets"])]
        if runtime.path.endswith("crio.sock"):
            # kubelet chooses its stats provider by this end of the endpoint's name.
            wanted.append(control.parent / "run/crio/crio.sock")
        given = activated(os.environ, os.getpid())
        problems = await serving.open(wanted, given, control.with_name("relay.sock"))
        self._serving = serving
        for path, problem in problems.items():
            parts.health.note(f"socket {path}", f"{path} is not served: {problem}")
        self.runtime_returned()

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        async def bring_up() -> None:
            self._nri.begin()
            await work
            # Plugins that are launched here are there before the first pod, as they are with a runtime of theirs.
            await self._nri.start()

        assert self._serving is not None
        await self._serving.start_behind(bring_up())

    async def run(self) -> None:
        """Calls come by themselves; plugins are told what else happens."""
        await self._nri.run()

    def runtime_returned(self) -> None:
        """Its socket may have another owner and mode now."""
        if self._serving is not None:
            self._serving.copy_access(Path(self._parts.runtime.path))
            self._nri.runtime_returned()

    def reconfigured(self) -> None:
        """What clients connect to stays until the next start; the interceptor asks the keeper."""
        self._nri.reconfigured()

    def status(self) -> dict[str, Any]:
        sockets = self._serving.sockets if self._serving is not None else []
        return {"sockets": [str(path) for path in sockets], "nri": self._nri.status()}

    async def close(self, drain_s: float) -> None:
        if self._serving is not None:
            await self._serving.close(drain_s)
        await self._nri.close()
        if self._image_runtime is not None:
            await self._image_runtime.close()
