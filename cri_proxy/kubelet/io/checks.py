"""What is asked before kubelet is switched: is the daemon fit to serve it, is the runtime there to go back to?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cri_api.control import ControlError
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.kubelet.io.service import KubeletHost, is_soon_connected
from cri_proxy.kubelet.settings import socket_of
from cri_proxy.kubelet.status import socket_to_write, unfit, unknown
from cri_proxy.kubelet.switch import CannotSwitch, points_at

#: A kubelet that was started just now connects within this.
CONNECT_S = 10.0


def front_end(control: Path) -> str:
    """What the daemon runs as; one that does not answer is taken for the proxy."""
    try:
        return str(ask(control, "status").get("front_end", "proxy"))
    except (DaemonAbsent, ControlError):
        return "proxy"


def likely_socket(control: Path, sockets: Sequence[str]) -> str:
    """The socket kubelet is given, of a daemon that need not be healthy, nor there."""
    try:
        return socket_to_write(ask(control, "status"), sockets)
    except (DaemonAbsent, ControlError):
        return sockets[0]


def fit_socket(control: Path, sockets: Sequence[str], found: KubeletHost, wait_s: float = CONNECT_S) -> str:
    """The socket kubelet is given, of a daemon that is healthy and has the runtime kubelet uses now.

    :raises CannotSwitch: it is not, or has not.
    :raises DaemonAbsent, ControlError: it does not answer.
    """
    daemon: Mapping[str, Any] = ask(control, "status")
    socket, setup = socket_to_write(daemon, sockets), found.setup
    ours = found.names(sockets)
    current = [setup.endpoint] if setup.running is None else [setup.endpoint, setup.running]
    reason = unfit(daemon, socket, [endpoint for endpoint in current if not points_at(endpoint, ours)])
    if not reason and found.kubelet is not None and not points_at(current[-1], ours):
        runtime = daemon["runtime"]["socket"]
        is_known = is_soon_connected(found.kubelet.pid, [runtime, *daemon["sockets"]], wait_s)
        reason = unknown(setup, runtime, is_known)
    if reason:
        raise CannotSwitch(reason, "cri-resmgr status tells more; --force switches kubelet all the same")
    return socket


def require_runtime(endpoint: str) -> None:
    """:raises CannotSwitch: nothing would answer kubelet there."""
    import grpc

    from cri_proxy.runtime import RuntimeClient

    async def identify() -> None:
        runtime = RuntimeClient(socket_of(endpoint))
        try:
            await runtime.identify()
        finally:
            await runtime.close()

    try:
        asyncio.run(identify())
    except grpc.aio.AioRpcError as error:
        raise CannotSwitch(
            f"the runtime at {endpoint} does not answer, kubelet would have none: {error.details()}",
            "start it first; --force switches kubelet all the same",
        ) from None
