"""Which updates of containers are our own, coming back from the runtime as events."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

import pytest
import structlog

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.model import CpusetUpdate
from cri_proxy.nri.io.plugin.placing import NriSender
from cri_proxy.relay.status import Code, RpcError
from policies.machine.cpus import parse_cpus
from policies.model import Placement, Quota


class SlowRuntime:
    """Takes an update, and ends it when it is told to; ``error``: how."""

    def __init__(self) -> None:
        self.taken, self.end = asyncio.Event(), asyncio.Event()
        self.error: Optional[RpcError] = None

    async def update(self, update: CpusetUpdate) -> None:
        self.taken.set()
        await self.end.wait()
        if self.error is not None:
            raise self.error


async def on_its_way(update: CpusetUpdate) -> tuple[NriSender, SlowRuntime, asyncio.Task[None]]:
    runtime: Any = SlowRuntime()
    sender = NriSender(runtime, structlog.get_logger())
    task = asyncio.get_running_loop().create_task(sender.deliver(update))
    await runtime.taken.wait()
    return sender, runtime, task


async def test_ours_is_what_we_have_sent_while_it_is_on_its_way() -> None:
    update = CpusetUpdate("a", Placement(cpus=parse_cpus("4-7"), mems=parse_cpus("1")), False, "")
    sender, runtime, task = await on_its_way(update)
    same = cri.LinuxContainerResources(cpuset_cpus="4,5,6,7", cpuset_mems="1")
    assert sender.is_ours("a", same)
    assert not sender.is_ours("b", same)
    assert not sender.is_ours("a", cri.LinuxContainerResources(cpuset_cpus="4-6", cpuset_mems="1"))
    runtime.end.set()
    await task
    assert not sender.is_ours("a", same)


LATE = {
    code: code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.CANCELLED)
    for code in Code
    if code is not Code.OK
}


@pytest.mark.parametrize(("code", "is_ours"), LATE.items(), ids=[code.name for code in LATE])
async def test_ours_may_come_after_its_answer_was_given_up(code: Code, is_ours: bool) -> None:
    """On a busy runtime the event is later than the call's deadline; it is no cpuset of kubelet's for that."""
    update = CpusetUpdate("a", Placement(cpus=parse_cpus("4-7")), False, "")
    sender, runtime, task = await on_its_way(update)
    runtime.error = RpcError(code, "")
    runtime.end.set()
    await asyncio.wait([task])
    assert isinstance(task.exception(), RpcError)
    event = cri.LinuxContainerResources(cpuset_cpus="4-7")
    assert sender.is_ours("a", event) is is_ours
    # Another attempt ends that doubt; so does the end of the container.
    runtime.error = None
    await sender.deliver(update)
    assert not sender.is_ours("a", event)
    runtime.error = RpcError(code, "")
    with pytest.raises(RpcError):
        await sender.deliver(update)
    sender.forget("a")
    assert not sender.is_ours("a", event)


async def test_a_resize_by_kubelet_meanwhile_is_kubelets() -> None:
    """Neither names a cpuset."""
    sender, runtime, task = await on_its_way(
        CpusetUpdate("a", Placement(), False, "", Quota(50_000, 100_000))
    )
    assert sender.is_ours("a", cri.LinuxContainerResources(cpu_quota=50_000, cpu_period=100_000))
    resize = cri.LinuxContainerResources(cpu_quota=50_000, cpu_period=100_000, cpu_shares=512)
    assert not sender.is_ours("a", resize)
    assert not sender.is_ours("a", cri.LinuxContainerResources(memory_limit_in_bytes=1 << 30))
    runtime.end.set()
    await task
