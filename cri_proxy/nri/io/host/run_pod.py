"""RunPodSandbox while plugins are connected: no call sees the sandbox, or makes a container in it, until they agree."""

from __future__ import annotations

from functools import partial

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import parse
from cri_proxy.cri.visibility import SandboxKey, sandbox_key
from cri_proxy.nri.io.host.calls import HostedCall
from cri_proxy.nri.io.host.cleanup import UNKNOWN
from cri_proxy.nri.io.host.host import PluginRefused
from cri_proxy.nri.io.host.upstream import SANDBOX_TIMEOUT_S
from cri_proxy.relay.interception import Answer, AnswerFailed, Forward, Outcome


class Run(HostedCall):
    """A refusal stops and removes the sandbox, and tells plugins so; the same request may come again at once."""

    sandbox_id = ""

    async def before(self, outcome: Outcome) -> Outcome:
        key = sandbox_key(parse(cri.RunPodSandboxRequest, self.message))
        return Answer(partial(self._run, key)) if isinstance(outcome, Forward) else outcome

    async def _run(self, key: SandboxKey) -> bytes:
        """:raises AnswerFailed: the runtime's error, or plugins' refusal."""
        what, keys = f'sandbox name "{key[0]}"', frozenset([key])
        async with self.context.cleanup.making(what, lambda: bool(self.sandbox_id), sandboxes=keys):
            reply = await self._make_and_ask()
        await self.replied(reply)
        return reply

    async def _make_and_ask(self) -> bytes:
        context = self.context
        reply = await context.upstream.forward(self.full_method, self.message, SANDBOX_TIMEOUT_S)
        self.sandbox_id = parse(cri.RunPodSandboxResponse, reply).pod_sandbox_id
        context.hidden.sandboxes.add(self.sandbox_id)
        try:
            pod = await context.pod_view.pod(self.sandbox_id)
            context.lifecycle.pod_created(self.sandbox_id)
            await context.host.run_pod(pod)
            context.pod_view.accepted.add(self.sandbox_id)
        except PluginRefused as error:
            context.log.warning("plugins do not let a pod run", pod=self.sandbox_id, why=str(error))
            await self._unmake()
            raise AnswerFailed(UNKNOWN, f"cri-resmgr: {error}") from None
        except Exception:
            self.bug()
        context.lifecycle.pod_running(self.sandbox_id)
        context.hidden.sandboxes.discard(self.sandbox_id)
        context.pod_view.accepted.discard(self.sandbox_id)
        return reply

    async def _unmake(self) -> None:
        context, sandbox_id = self.context, self.sandbox_id
        await context.dispatcher.tell(context.lifecycle.pod_stopped(sandbox_id))
        try:
            await context.upstream.remove_sandbox(sandbox_id)
        except AnswerFailed as error:
            context.log.error(
                "a sandbox that nobody gets could not be removed", id=sandbox_id, error=error.message
            )
        else:
            self.sandbox_id = ""
            context.hidden.removed(sandbox_id)
        await context.dispatcher.tell(context.lifecycle.pod_removed(sandbox_id))
