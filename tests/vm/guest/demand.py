"""Sets that follow what a container uses, on a machine with several CCXs: the unit hears at once that tasks wait."""

from __future__ import annotations

import time
from typing import Any

from policies.machine.cpus import parse_cpus
from tests.vm.guest.installation import CONFIG, SERVICE, SLOW_CONFIG, run, set_constants
from tests.vm.guest.node import Node, Running, until, until_served

#: A short window, so that a boot need not wait for hours; a new container's cgroup is looked up by the comparison.
_CONFIG = """\
placement:
  size: demand
demand:
  headroom: 1
"""
_CONSTANTS = {
    "demand_window_s": 10,
    "demand_shrinks_per_minute": 100,
    "demand_growths_per_hour": 100,
    "reconcile_interval_s": 2,
}
#: Two for each CPU of a CCX: pressure is the mean of its CPUs, so that one more than it has CPUs were half of the time only.
LOOPS = "for i in 1 2 3 4; do (while :; do :; done) >/dev/null 2>&1 & done"


async def sets_follow_the_load_by_pressure_triggers(node: Node) -> None:
    await _follow(node, "by pressure triggers (500 ms)", is_told=True)


async def sets_follow_the_load_without_pressure(node: Node) -> None:
    await _follow(node, "by looks twice a second: this kernel tells no pressure by cgroup", is_told=False)


async def _follow(node: Node, watched: str, is_told: bool) -> None:
    """``is_told``: the kernel tells that tasks wait."""
    CONFIG.write_text(SLOW_CONFIG + _CONFIG)
    set_constants(**_CONSTANTS)
    run("systemctl", "restart", SERVICE)
    await until_served(node.kubelet)
    machine = f"0-{node.shape.cpus - 1}"
    asks: dict[str, Any] = {"cpu_request": 100, "cpu_limit": node.shape.cpus * 1000}
    # 1. As its limit says; then, window by window, one CCX.
    container = await node.run("follows", **asks)
    assert node.cpus(container) == machine
    ccx = await until(lambda: node.cpus(container), lambda cpus: cpus in node.shape.ccxs)
    await until(lambda: node.ask("status")["demand"], lambda told: told["watched"] == watched)
    # 2. Larger with the load, around what it has; and small again without it.
    await _grows(node, container, ccx)
    await node.kubelet.exec(container.id, "killall", "sh", timeout_s=60)
    ccx = await until(lambda: node.cpus(container), lambda cpus: cpus in node.shape.ccxs)
    # 3. A restart changes nothing, and the daemon after it makes it larger.
    run("systemctl", "restart", SERVICE)
    await until_served(node.kubelet)
    assert node.cpus(container) == ccx
    await until(lambda: node.ask("status")["demand"], lambda told: told["watched"] == watched)
    await _grows(node, container, ccx)
    assert (node.ask("status")["counters"].get("cri_resmgr_demand_triggers_total", 0) > 0) == is_told
    # 4. The next attempt begins as its limit says.
    await node.kubelet.stop(container.id)
    again = await node.run("follows", pod=container.pod, attempt=1, **asks)
    assert node.ask("explain", container=again.id)["history"][0]["cpus"] == machine
    CONFIG.write_text(SLOW_CONFIG)
    set_constants()
    run("systemctl", "restart", SERVICE)
    await until_served(node.kubelet)


async def _grows(node: Node, container: Running, ccx: str) -> None:
    before = len(node.ask("explain", container=container.id)["history"])
    _, problem, code = await node.kubelet.exec(container.id, "sh", "-c", LOOPS, timeout_s=60)
    began_s = time.monotonic()
    assert code == 0, problem
    cpus = await until(lambda: node.cpus(container), lambda cpus: cpus != ccx)
    print(f"{ccx} has become {cpus} {time.monotonic() - began_s:.1f} s after the load")
    assert parse_cpus(ccx) < parse_cpus(cpus)
    told = node.ask("explain", container=container.id)
    assert told["history"][before]["operation"] == "grow"
    print(told["containers"][0]["demand"]["growths"][0])
    # Else the small size is one that was too small for nothing, and is not had again for an hour.
    await until(
        lambda: node.ask("explain", container=container.id)["containers"][0]["demand"],
        lambda row: row["need_milli"] > len(parse_cpus(ccx)) * 1000,
    )
