"""Our plugin's updates of containers outside an answer: by NRI where that is safe, else by CRI.

An update by CRI comes back to us as an NRI event. Updates under way are kept here, to tell it from a client's.
"""

from __future__ import annotations

from typing import Any, Optional, Protocol

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import linux_delta, read_fence
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.nri.containers import write_update
from cri_proxy.nri.io.connection import CallFailed, CallTimedOut, ConnectionClosed
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import CALL_TIMEOUT_S, RuntimeClient
from policies.model import Constraint

#: An update's values: cpuset and mems; quota, period, shares, memory.
_Said = tuple[Constraint, tuple[int, int, int, int]]


class HostCaller(Protocol):
    """A connection on which the host can be called."""

    async def call(self, method: str, message: bytes, timeout_s: float) -> bytes: ...


class NriSender:
    """Delivers updates, one at a time each. ``caller``: set while the host takes unasked updates."""

    def __init__(self, runtime: RuntimeClient, log: Any) -> None:
        self.caller: Optional[HostCaller] = None
        self._runtime = runtime
        self._log = log
        #: Updates under way by CRI, by container.
        self._flying: dict[str, list[_Said]] = {}

    async def deliver(self, update: CpusetUpdate) -> None:
        """Have the runtime give a container its place.

        :raises RpcError: it does not.
        """
        if self.caller is not None and await self._by_nri(self.caller, update):
            return
        sent = _said(linux_delta(update.placement, update.give_back))
        flying = self._flying.setdefault(update.id, [])
        flying.append(sent)
        try:
            await self._runtime.update(update)
        finally:
            flying.remove(sent)
            if not flying:
                self._flying.pop(update.id, None)

    def is_ours(self, container_id: str, asked: cri.LinuxContainerResources) -> bool:
        """Whether this update is one of ours on its way."""
        return _said(asked) in self._flying.get(container_id, ())

    async def _by_nri(self, caller: HostCaller, update: CpusetUpdate) -> bool:
        """Whether the host has done it; False where it did not answer: CRI may then do it a second time."""
        written = write_update(update, may_fail=False)
        if written is None:
            return True
        request = nri.UpdateContainersRequest(update=[written])
        try:
            reply = await caller.call("UpdateContainers", request.SerializeToString(), CALL_TIMEOUT_S)
        except (CallTimedOut, ConnectionClosed) as error:
            self._log.warning("the host did not take an update", id=update.id, error=str(error))
            return False
        except CallFailed as error:
            raise _refused(error.message) from None
        if nri.UpdateContainersResponse.FromString(reply).failed:
            raise _refused("the host could not update the container")
        return True


def _said(linux: cri.LinuxContainerResources) -> _Said:
    """All values of kubelet's updates: one with any others is not ours."""
    numbers = (linux.cpu_quota, linux.cpu_period, linux.cpu_shares, linux.memory_limit_in_bytes)
    return read_fence(linux), numbers


def _refused(details: str) -> RpcError:
    """As a runtime's refusal by CRI looks."""
    return RpcError(Code.UNKNOWN, details)
