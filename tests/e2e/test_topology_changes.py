"""A CPU goes offline and comes back: its containers run elsewhere meanwhile, then where they were.

The machine is a copy of a sysfs: taking a CPU of the real one away would change the cpusets of everything
that runs there, in cgroup v1 for good.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from policies.machine.topology import TopologyData
from tests.e2e.node import ONE_NODE, TWO_NODES, Node, until
from tests.machines import take_offline, write_sysfs

pytestmark = pytest.mark.containerd


class Machine:
    """A machine whose CPUs can be taken away: ``sys`` is a link to the sysfs of the moment."""

    def __init__(self, data: TopologyData, folder: Path) -> None:
        self._folder = folder
        self._trees = {"": write_sysfs(data, folder / "all")}
        for cpu in data.cpus:
            tree = folder / f"without-{cpu.cpu}"
            self._trees[str(cpu.cpu)] = write_sysfs(take_offline(data, [cpu.cpu]), tree)
        self.sys = folder / "sys"
        self.lose("")

    def lose(self, cpu: str) -> None:
        """Have all CPUs but this one ("": all of them)."""
        link = self._folder / "next"
        link.symlink_to(self._trees[cpu])
        os.replace(link, self.sys)


@pytest.fixture
async def machine(stopped_node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    """The machine of the node, whose daemon looks at it all the time."""
    found = Machine(getattr(request, "param", TWO_NODES), tmp_path)
    stopped_node.agent.write_config(
        {"constants": {"topology_interval_s": 0.05}, "topology": {"source": str(found.sys)}}
    )
    await stopped_node.agent.start()
    await stopped_node.until_runtime_is_known()
    return found


@pytest.mark.parametrize("machine", [TWO_NODES, ONE_NODE], ids=["two nodes", "one node"], indirect=True)
async def test_each_cpu_off_and_on_again_gives_the_first_places_back(
    machine: Machine, stopped_node: Node
) -> None:
    node = stopped_node
    first = await places_of_some(node)
    for gone, left in (("1", "0"), ("0", "1")):
        machine.lose(gone)
        await until_places_are(node, dict.fromkeys(first, left))
        machine.lose("")
        await until_places_are(node, first)


async def test_a_container_made_meanwhile_gets_what_is_left(machine: Machine, stopped_node: Node) -> None:
    node = stopped_node
    machine.lose("0")
    await until_usable(node, "1")
    made = await node.run("p", cpu_limit=2000)
    assert await node.cpus(made) == "1"
    machine.lose("")
    await until_usable(node, "0-1")
    assert await node.cpus(await node.run("q", cpu_request=100, cpu_limit=1000)) == "0"


async def test_a_restart_in_between_changes_nothing(machine: Machine, stopped_node: Node) -> None:
    node = stopped_node
    first = await places_of_some(node)
    machine.lose("1")
    await until_places_are(node, dict.fromkeys(first, "0"))
    await node.agent.kill()
    await node.agent.start()
    await until_places_are(node, dict.fromkeys(first, "0"))
    machine.lose("")
    await until_places_are(node, first)


@pytest.mark.parametrize(("gone", "left"), [("0", "1"), ("1", "0")])
async def test_a_cpu_may_go_while_the_daemon_is_down(
    machine: Machine, stopped_node: Node, gone: str, left: str
) -> None:
    node = stopped_node
    first = await places_of_some(node)
    await node.agent.kill()
    machine.lose(gone)
    await node.agent.start()
    await until_places_are(node, dict.fromkeys(first, left))
    machine.lose("")
    await until_places_are(node, first)


async def places_of_some(node: Node) -> dict[str, str]:
    """Where containers of all sizes run; by their ids."""
    sizes: list[dict[str, Any]] = [
        {"cpu_request": 300, "cpu_limit": 1000},
        {"cpu_request": 300, "cpu_limit": 1000},
        {"cpu_request": 300, "cpu_limit": 2000},
    ]
    made = [await node.run(f"p{number}", **size) for number, size in enumerate(sizes)]
    places = {container.id: await node.cpus(container) for container in made}
    assert list(places.values()) == ["0", "1", "0-1"]
    return places


async def until_places_are(node: Node, places: dict[str, str]) -> None:
    """By the kernel, and by the daemon's own word."""

    async def found() -> tuple[dict[str, str], dict[str, str]]:
        rows = {row["id"]: row["cpus"] for row in await node.ask("placements")}
        return {name: node.runtime.cpuset_of(name)[0] for name in places}, rows

    await until(found, lambda answer: answer == (places, places))
    assert (await node.ask("status"))["invariants"] == []


async def until_usable(node: Node, cpus: str) -> None:
    await until(lambda: node.ask("status"), lambda status: status["usable"] == cpus)
