"""How pods live under kubelet: restart policies, probes, and the end, through the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.node import until
from tests.kubelet.real.gate import Gate
from tests.kubelet.real.node import EXITED, KubeletNode, exec_probe

pytestmark = pytest.mark.kubelet

#: Writes down that it was asked to end, and ends.
POLITE = "trap 'echo term >> /out/log; exit 0' TERM; while :; do usleep 20000; done"
PRE_STOP = {"preStop": {"exec": {"command": ["sh", "-c", "echo prestop >> /out/log"]}}}


async def test_the_next_attempt_has_the_place_that_was_held_for_it(node: KubeletNode) -> None:
    # In the end the other socket is empty, and that of "web" is not, even without it: a fresh choice would be that one.
    web = await node.run("web", cpu="2", limit="40")
    gone = await node.run("gone", cpu="4", limit="40")
    other = await node.run("other", cpu="1", limit="40")
    place, empty = await node.cpus(web), await node.cpus(gone)
    assert await node.cpus(other) == place != empty
    await node.remove("gone")
    await node.end(web, 1)
    again = await node.running("web", attempt=1)
    assert await node.cpus(again) == place
    await node.all_is_well()


async def test_on_failure_and_never(node: KubeletNode) -> None:
    fails = await node.run("fails", cpu="1", limit="4", restart="OnFailure")
    succeeds = await node.run("succeeds", cpu="1", limit="4", restart="OnFailure")
    never = await node.run("never", cpu="1", limit="4", restart="Never")
    place = await node.cpus(fails)
    await node.end(succeeds, 0)
    await node.end(never, 1)
    await node.end(fails, 1)
    again = await node.running("fails", attempt=1)
    assert await node.cpus(again) == place
    # kubelet has seen the ends of the others, and lets them be.
    for name, phase in (("succeeds", "Succeeded"), ("never", "Failed")):
        await node.until_phase(name, phase)
        assert [c.state for c in await node.containers(name)] == [EXITED]
    await node.end(again, 0)
    await node.exited("fails", attempt=1)
    assert (await node.daemon.ask("status"))["invariants"] == []


async def test_a_liveness_probe_that_fails_restarts_it_at_its_place(node: KubeletNode) -> None:
    web = await node.run("web", cpu="1", limit="4", livenessProbe=exec_probe("test", "!", "-e", "/tmp/sick"))
    place = await node.cpus(web)
    await node.direct.exec(web, "touch", "/tmp/sick")
    assert await node.cpus(await node.running("web", attempt=1)) == place


async def test_a_readiness_probe_is_answered_through_us(node: KubeletNode) -> None:
    web = await node.run("web", cpu="1", limit="4", readinessProbe=exec_probe("test", "-e", "/tmp/ready"))
    await node.until_ready("web", False)
    await node.direct.exec(web, "touch", "/tmp/ready")
    await node.until_ready("web")
    await node.agent.kill()
    await node.agent.start()
    await node.direct.exec(web, "rm", "/tmp/ready")
    await node.until_ready("web", False)
    assert await node.running("web", attempt=0) == web


async def test_a_pod_ends_gracefully_and_once(node: KubeletNode, tmp_path: Path) -> None:
    await node.run("web", cpu="1", limit="4", command=POLITE, folder=tmp_path, grace_s=60, lifecycle=PRE_STOP)
    await node.remove("web")
    assert (tmp_path / "log").read_text().split() == ["prestop", "term"]
    # The runtime shows the sandbox's end before it answers the call that ended it.
    await until(lambda: node.daemon.ask("placements"), lambda rows: rows == [])


async def test_a_stop_under_way_is_finished_after_a_crash(
    node: KubeletNode, gate: Gate, tmp_path: Path
) -> None:
    await node.run("web", cpu="1", limit="4", command=POLITE, folder=tmp_path, grace_s=60, lifecycle=PRE_STOP)
    stop = gate.hold("StopContainer", replied=False)
    node.host.take("web")
    await stop.until_reached()
    await node.agent.kill()
    await stop.until_ended()
    await node.agent.start()
    await node.until_ended("web")
    # The runtime was not asked the first time. kubelet may run preStop again with its second.
    log = (tmp_path / "log").read_text().split()
    assert (set(log), log.count("term"), log[-1]) == ({"prestop", "term"}, 1, "term")
