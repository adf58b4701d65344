"""A separate image service, which is not relayed to: calls of the image service are refused, and kubelet goes there itself.

A connection of a client's has one connection to the runtime, so all its calls go to one socket. The runtime may have an
image service of its own; images that are pulled there are none for containers that take theirs elsewhere.
"""

from __future__ import annotations

from typing import Optional

from cri_proxy.relay.interception import (
    CallEnd,
    Interception,
    Interceptor,
    Outcome,
    Refuse,
)
from cri_proxy.relay.status import Code

_SERVICES = ("runtime.v1.ImageService", "runtime.v1alpha2.ImageService")


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
