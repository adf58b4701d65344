"""The front end that kubelet talks to instead of the runtime: a relay whose intercepted calls are decided upon.

Calls of a separate image service are refused, and kubelet goes there itself: a connection of a client's has one
connection to the runtime, so all its calls go to one socket. The runtime may have an image service of its own; images
that are pulled there are none for containers that take theirs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Optional

from cri_proxy.front_ends.cri_calls import CriInterceptor
from cri_proxy.front_ends.late_placement import LatePlacement, Restores
from cri_proxy.nri.io.host.unhosted import make_hosting
from cri_proxy.relay.interception import (
    CallEnd,
    Interception,
    Interceptor,
    Outcome,
    Refuse,
    runtime_method,
)
from cri_proxy.relay.io.server import FrameRelay
from cri_proxy.relay.status import Code
from cri_proxy.services.services import Services
from cri_proxy.tracing.io.exporter import Tracer
from cri_proxy.unix_sockets import activated
from cri_proxy.version import VERSION

#: How long a stop waits for spans to be sent.
LAST_SPANS_S = 1.0
#: After a call others are expected for so long, seconds.
BUSY_S = 0.1
_SERVICES = ("runtime.v1.ImageService", "runtime.v1alpha2.ImageService")


class Proxy:
    """Design rule 7: the relay never depends on the engine; while there is none, bytes pass."""

    name = "proxy"
    must_serve = True
    exits = "a client's event stream"

    def __init__(self, services: Services) -> None:
        self._services = services
        self._relay: Optional[FrameRelay] = None
        restores = Restores(LatePlacement(services))
        services.reconciler.welcome = restores.welcome
        services.reconciler.place_late = restores.place_left
        self._nri = make_hosting(services, CriInterceptor(services.node_state, services.events, restores))
        self._images = self._separate_images()
        self._interceptor = self._make_interceptor()
        self._tracer = Tracer(
            VERSION, services.metrics.spans_dropped.inc, self._note_spans, services.supervisor
        )

    async def open(self) -> None:
        services, config, runtime = self._services, self._services.config, self._services.runtime
        self._loop = asyncio.get_running_loop()
        self._tracer.follow(config["tracing.endpoint"])
        relay = self._make_relay()
        control = Path(config["control.socket"])
        wanted = [Path(config["relay.socket"]), *map(Path, config["relay.extra_sockets"])]
        if runtime.path.endswith("crio.sock"):
            # kubelet chooses its stats provider by this end of the endpoint's name.
            wanted.append(control.parent / "run/crio/crio.sock")
        given = activated(os.environ, os.getpid())
        problems = await relay.open(wanted, given)
        self._relay = relay
        for path, problem in problems.items():
            services.health.note(f"socket {path}", f"{path} is not served: {problem}")
        self.runtime_returned()

    def _separate_images(self) -> str:
        """The socket of an image service that is not the runtime's; "": there is none."""
        images: str = self._services.config["relay.image_endpoint"]
        is_runtime = os.path.realpath(images) == os.path.realpath(self._services.runtime.path)
        return "" if is_runtime else images

    def _make_interceptor(self) -> Interceptor:
        if not self._images:
            return self._nri
        services, key = self._services, "relay.image_endpoint"
        why = separate_images(self._images, services.config.origins[key], services.runtime.path)
        services.health.note("images", why)
        return RefusingImages(self._nri, why)

    def _make_relay(self) -> FrameRelay:
        services = self._services
        return FrameRelay(
            services.runtime.path,
            self._interceptor,
            on_failed_open=self._note_unseen,
            on_closing=self._note_closing,
            on_bug=self._note_bug,
            on_trouble=services.health.note,
            most_idle=services.config.constants.relay_idle_connections,
            on_dismissal=services.metrics.connections_dismissed.inc,
            on_loss=self._note_loss,
            around=self._tracer.around,
            supervisor=services.supervisor,
        )

    def _note_unseen(self, method: str, reason: str) -> None:
        self._services.node_state.failed_open(runtime_method(method), reason)

    def _note_closing(self, reason: str) -> None:
        self._services.metrics.connections_closed.inc()
        self._services.log.warning(
            "a connection was closed; its client connects again", why=reason, kind="closed"
        )

    def _note_loss(self, why: str) -> None:
        self._services.metrics.connections_lost.inc()
        self._services.log.warning("a connection was closed for the memory it takes", why=why, kind="memory")

    def _note_spans(self, why: str) -> None:
        """Called in the thread that sends."""
        with contextlib.suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(self._services.health.warn, "tracing", [why] if why else [])

    def _note_bug(self, error: Exception) -> None:
        self._services.node_state.failed_open("", "bug", error)

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        async def bring_up() -> None:
            self._nri.begin()
            await work
            # Plugins that are launched here are there before the first pod, as they are with a runtime of theirs.
            await self._nri.start()

        assert self._relay is not None
        await self._relay.start_behind(bring_up())

    async def run(self) -> None:
        """Calls come by themselves; plugins are told what else happens."""
        await self._nri.run()

    def runtime_returned(self) -> None:
        """Its socket may have another owner and mode now."""
        if self._relay is not None:
            self._relay.copy_access(Path(self._services.runtime.path))
            self._nri.runtime_returned()

    def reconfigured(self) -> None:
        """What clients connect to stays until the next start; the interceptor asks the keeper."""
        self._tracer.follow(self._services.config["tracing.endpoint"])
        self._nri.reconfigured()

    @property
    def is_busy(self) -> bool:
        age_s = None if self._relay is None else self._relay.last_call_age_s
        return age_s is not None and age_s < BUSY_S

    def status(self) -> dict[str, Any]:
        sockets = self._relay.sockets if self._relay is not None else []
        return {
            "sockets": [str(path) for path in sockets],
            "image_endpoint": self._images,
            "last_call_age_s": None if self._relay is None else self._relay.last_call_age_s,
            "nri": self._nri.status(),
        }

    async def close(self, drain_s: float, stops_s: float) -> None:
        if self._relay is not None:
            await self._relay.close(drain_s, stops_s)
        await self._nri.close()
        await asyncio.get_running_loop().run_in_executor(None, self._tracer.close, LAST_SPANS_S)


def separate_images(images: str, origin: str, runtime: str) -> str:
    """Why image calls are refused, and what to do: one sentence. ``origin``: where ``images`` was set."""
    return (
        f"relay.image_endpoint is {images} ({origin}), another socket than the runtime's, {runtime}, and image calls "
        f"are not relayed there: kubelet asks for images itself with imageServiceEndpoint: unix://{images} (write it: "
        "cri-resmgr kubelet enable --restart); then remove relay.image_endpoint and -image-socket"
    )


class RefusingImages:
    """An ``Interceptor`` around another one. ``why``: the sentence of ``separate_images``."""

    def __init__(self, decides: Interceptor, why: str) -> None:
        self._decides = decides
        self._why = why

    def open(self, full_method: str) -> Optional[Interception]:
        method = full_method.lstrip("/")
        if method.partition("/")[0] in _SERVICES:
            return _Refusal(f"{method} is not relayed: {self._why}")
        return self._decides.open(full_method)


class _Refusal:
    filter = None

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    async def request(self, message: bytes) -> Outcome:
        return Refuse(Code.FAILED_PRECONDITION, self._sentence)

    async def replied(self, message: bytes) -> None:
        pass

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        pass
