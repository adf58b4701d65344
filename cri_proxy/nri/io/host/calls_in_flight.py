"""Calls that make pods and containers while no plugin is there: they pass, and are counted.

A plugin that comes is shown what there is; a create that is under way then would be in no list yet, and no plugin
would be asked about it. So the list waits for those.
"""

from __future__ import annotations

import asyncio
from typing import Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import UnreadableRequest, parse
from cri_proxy.cri.visibility import container_key, sandbox_key
from cri_proxy.nri.io.host.calls import HostContext, HostedCall
from cri_proxy.relay.interception import AnswerFailed, CallEnd, Interception, Outcome, runtime_method


class CallsInFlight:
    """Opens those calls, and tells when one has ended."""

    def __init__(self) -> None:
        #: Set when one has ended, and once in the beginning.
        self._some = asyncio.Event()
        self._some.set()

    def open(self, context: HostContext, engine: Optional[Interception], full_method: str) -> Interception:
        return CallInFlight(context, engine, full_method, self)

    async def wait(self) -> None:
        await self._some.wait()
        self._some.clear()

    def over(self) -> None:
        self._some.set()


class CallInFlight(HostedCall):
    def __init__(
        self, context: HostContext, engine: Optional[Interception], full_method: str, passing: CallsInFlight
    ) -> None:
        super().__init__(context, engine, full_method)
        self._calls_in_flight = passing
        context.under_way.begun(self)

    async def request(self, message: bytes) -> Outcome:
        # What a daemon before this one has left of that name goes first, whatever plugins are there now.
        cleanup = self.context.cleanup
        try:
            if runtime_method(self.full_method) == "CreateContainer":
                await cleanup.clear_for(container_key(parse(cri.CreateContainerRequest, message)))
            else:
                await cleanup.clear_for_sandbox(sandbox_key(parse(cri.RunPodSandboxRequest, message)))
        except (AnswerFailed, UnreadableRequest):
            pass  # the runtime says what there is to say
        return await super().request(message)

    async def after(self, end: CallEnd, code: int) -> None:
        self.context.under_way.over(self)
        self._calls_in_flight.over()
