"""Sets that follow what real containers use, as the kernel tells it: smaller after a window, larger at once.

This machine has two CPUs, which the daemon takes for two L3s: so a set by a limit of 2 has both, and a shrunk one has one.
Machines with several CCXs are in tests/vm (guest/demand.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.affinity.demand.io.triggers import NOT_CAPABLE, PressureTriggers
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.e2e.node import REAL_CGROUPS, TWO_NODES, Node, Running, until
from tests.e2e.runtime import RealRuntime

pytestmark = pytest.mark.containerd

SIZED: dict[str, Any] = {
    **REAL_CGROUPS,
    "placement": {"size": "demand"},
    # What else this machine does may leave loops a tenth of a CPU; with that headroom they need more than one all the same.
    "demand": {"headroom": 10},
    "constants": {
        "demand_window_s": 2,
        "demand_interval_s": 0.5,
        "demand_growths_per_hour": 100,
        "demand_shrinks_per_minute": 100,
        # A new container's cgroup is looked up by the comparison.
        "reconcile_interval_s": 0.5,
        "reconcile_poll_s": 0.5,
    },
}
BOTH, ASKS = "0-1", {"cpu_request": 100, "cpu_limit": 2000}
#: A loop on each CPU, and neither has a parent that waits for it.
LOOPS = "for i in 1 2; do (while :; do :; done) >/dev/null 2>&1 & done"


@pytest.fixture
async def sized(runtime: RealRuntime, direct: CriClient) -> AsyncIterator[Node]:
    """A node whose daemon sizes sets by demand."""
    agent = Agent(runtime.socket, TWO_NODES, SIZED)
    try:
        await agent.start()
        async with CriClient(agent.socket) as kubelet:
            node = Node(runtime, agent, direct, kubelet)
            await node.until_runtime_is_known()
            yield node
    finally:
        await agent.close()


async def until_cpus(node: Node, container: Running, count: int) -> str:
    """The CPUs of a container, by its cgroup, once there are so many."""

    async def cpus() -> str:
        return node.runtime.cpuset_of(container.id)[0]

    return await until(cpus, lambda text: len(text.replace("-", ",").split(",")) == count)


async def load(node: Node, container: Running) -> None:
    _, problem, code = await node.direct.exec(container.id, "sh", "-c", LOOPS)
    assert code == 0, problem


async def idle(node: Node, container: Running) -> None:
    """End the loops, once it is known that they need more than one CPU: else one is not tried again for an hour."""
    await until(
        lambda: node.ask("explain", container=container.id),
        lambda told: told["containers"][0]["demand"]["need_milli"] > 1000,
    )
    await node.direct.exec(container.id, "killall", "sh")


async def test_a_set_shrinks_after_the_window_grows_with_the_load_and_is_given_back(sized: Node) -> None:
    by_limit = await sized.run("other", annotations={"cri-resmgr.io/size": "limit"}, **ASKS)
    container = await sized.run("web", **ASKS)
    assert await sized.cpus(container) == BOTH
    one = await until_cpus(sized, container, 1)
    row = await sized.until_known(container, cpus=one)
    assert (row["level"], row["cpu_size_milli"]) == ("ccx", 100)
    await load(sized, container)
    assert await until_cpus(sized, container, 2) == BOTH
    explained = (await sized.ask("explain", container=container.id))["containers"][0]["demand"]
    assert explained["by_limit_milli"] == 2000
    assert explained["growths"]
    await idle(sized, container)
    await until_cpus(sized, container, 1)
    operations = [row["operation"] for row in (await sized.ask("explain", container=container.id))["history"]]
    assert operations == ["create", "shrink", "grow", "shrink"]
    assert await sized.cpus(by_limit) == BOTH
    # Nothing makes a set larger in another mode.
    await sized.ask("mode", mode="observe")
    assert await until_cpus(sized, container, 2) == BOTH


async def test_the_size_outlives_the_daemon_which_grows_it_then_and_no_new_attempt_has_it(
    sized: Node,
) -> None:
    container = await sized.run("web", **ASKS)
    one = await until_cpus(sized, container, 1)
    await sized.agent.kill()
    assert await sized.cpus(container) == one
    await sized.agent.start()
    await sized.until_runtime_is_known()
    assert (await sized.row(container))["cpu_size_milli"] == 100
    await load(sized, container)
    assert await until_cpus(sized, container, 2) == BOTH
    await idle(sized, container)
    await until_cpus(sized, container, 1)
    await sized.kubelet.stop(container.id)
    again = await sized.run(container.pod, attempt=1, **ASKS)
    record = (await sized.ask("explain", container=again.id))["history"][0]
    assert (record["operation"], record["cpus"]) == ("create", BOTH)


# --- the kernel's triggers, in windows that take no capability


UNIFIED = next(
    (p for p in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()),
    None,
)
#: What waits: two loops on one CPU.
WAITS = "import os; os.sched_setaffinity(0, {0}); os.fork(); [0 for _ in iter(int, 1)]"


@pytest.fixture
def waiting_cgroup() -> Iterator[Path]:
    """A cgroup whose tasks wait for a CPU."""
    if UNIFIED is None or os.getuid() != 0:
        pytest.skip("needs root and a cgroup2 mount")
    folder = UNIFIED / f"cri-resmgr-demand-{os.getpid()}"
    folder.mkdir()

    def enter() -> None:
        (folder / "cgroup.procs").write_text("0")

    loops = subprocess.Popen([sys.executable, "-c", WAITS], preexec_fn=enter)
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        loops.wait()
        while (folder / "cgroup.procs").read_text():
            pass
        folder.rmdir()


async def test_the_kernel_tells_that_tasks_wait_and_that_a_cgroup_is_gone(waiting_cgroup: Path) -> None:
    triggers = PressureTriggers(Path("/sys/fs/cgroup"), window_s=2.0)
    try:
        triggers.keep({"c": f"/{waiting_cgroup.name}", "gone": "/not-there"}, 0.1)
        if triggers.problem:
            pytest.skip(triggers.problem)
        assert triggers.keys == {"c"}
        assert not triggers.lacks({"c", "gone"}, 0.1)
        fired: list[str] = []

        async def told() -> list[str]:
            fired.extend(triggers.fired())
            return fired

        await until(told)
        assert fired[0] == "c"
        triggers.keep({}, 0.1)
        assert triggers.keys == frozenset()
    finally:
        triggers.close()


def test_short_windows_take_the_capability(waiting_cgroup: Path) -> None:
    triggers = PressureTriggers(Path("/sys/fs/cgroup"))
    try:
        triggers.keep({"c": f"/{waiting_cgroup.name}"}, 0.1)
        effective = next(
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")
        )
        may = bool(int(effective.split()[1], 16) >> 24 & 1)
        assert (triggers.problem, triggers.keys) == (("", {"c"}) if may else (NOT_CAPABLE, frozenset()))
    finally:
        triggers.close()
