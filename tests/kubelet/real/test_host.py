"""The service manager's part that these tests play."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kubelet.real.node import KubeletNode

pytestmark = pytest.mark.kubelet


async def test_a_kubelet_that_ends_by_itself_is_started_again(stopped_node: KubeletNode) -> None:
    await stopped_node.agent.start()
    stopped_node.host.start()
    pid = stopped_node.host.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await stopped_node.until_kubelet_is_well()
    assert stopped_node.host.pid != pid
