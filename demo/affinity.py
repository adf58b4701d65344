"""Containers that talk come together: the graph, the plan, the placement after, and a new replica placed right at once.

The daemon and the observer are the real processes, asked as the command line asks them. The observer plays recorded
traffic, the machine is described by a file, and the runtime is a CRI server made for demonstrations, so this runs
anywhere. No speed is claimed: what is shown is where bytes go. Everything is removed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cri_proxy import control
from cri_proxy.affinity.report import affinity_text, rebalance_text
from demo.affinity_scene import Service, coloured, flows, heading, picture, services
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology
from tests.agent import Agent
from tests.cri_client import CriClient, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine
from tests.observer import QUICK, ObserverProcess

#: How long the observer may take to see everything, seconds; it takes three.
PATIENCE_S = 20
SETTLED_S = 3.0
NEW = Service("social", "home-timeline", replica=1)


async def create(client: CriClient, service: Service) -> str:
    """One pod of a Deployment with one container that asks for a CPU and may use two."""
    uid = f"uid-{service.pod}"
    pod = await client.run_pod(
        service.pod, uid=uid, namespace=service.namespace, cgroup_parent=cgroup_parent("burstable", uid),
        labels={"pod-template-hash": service.hash},
    )  # fmt: skip
    container = await client.create(pod, "app", cpu_request=1000, cpu_limit=2000, memory_limit=1 << 30)
    await client.start(container)
    return container


async def ask(agent: Agent, name: str, **arguments: Any) -> Any:
    """What a command of the command line asks the daemon, with names as short as people say them."""
    answer = await asyncio.to_thread(control.ask, agent.control, name, arguments)
    return json.loads(shortened(json.dumps(answer)))


async def all_seen(agent: Agent) -> dict[str, Any]:
    """The graph, as soon as its rates have settled."""
    end = time.monotonic() + PATIENCE_S
    document: dict[str, Any] = {}
    while time.monotonic() < end:
        document = await ask(agent, "affinity")
        if document["observer"]["observed_s"] >= SETTLED_S and not document["frozen"]:
            return document
        await asyncio.sleep(0.2)
    sys.exit(f"the observer has not seen the traffic within {PATIENCE_S} s:\n{document}\n{agent.log()}")


def show(words: str, text: str) -> None:
    """A command and what it prints."""
    print(heading(f"$ cri-resmgr {words}"))
    print(coloured(text.rstrip()) + "\n")


def shortened(text: str) -> str:
    """Without what Deployments add to names, which makes lines twice as long."""
    for service in (*services(), NEW):
        text = text.replace(f"{service.pod}/app", service.label).replace(service.pod, service.label)
    return text


def crossing(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Where the bytes go, before and after."""
    print(heading("Where the bytes go"))
    print(f"  {'':<20}{'before':>14}{'after':>14}")
    for old, new in zip(before["nearness"], after["nearness"]):
        shares = "".join(f"{row['bytes_per_s'] / 1e6:>8.1f} MB/s" for row in (old, new))
        print(f"  {old['where']:<20}{shares:>28}   {'█' * round(new['share'] * 40)}".rstrip())
    print()


async def story(agent: Agent, client: CriClient, tree: Topology) -> bool:
    """All of it. True if it has gone as it should."""
    print(heading("1. Pods of three teams come, mixed. There is no traffic yet: they are spread by load.\n"))
    for service in services():
        await create(client, service)
    first = await ask(agent, "placements")
    print(picture(tree, {"when they came": first}) + "\n")
    print(
        "  A square is a CPU that is asked for. Three applications: a social network, a tea store, and batch jobs"
    )
    print(coloured("  that talk to none. coredns is the name server.\n"))
    print(
        heading(
            "2. They talk (recorded traffic); and all of them ask a name server, which is to draw none together.\n"
        )
    )
    async with ObserverProcess(agent, flows()):
        before = await all_seen(agent)
        show("affinity", affinity_text(before))
        if not any("coredns" in row["container"] + row["talks_to"] for row in before["edges"]):
            print(
                coloured(
                    "Of what coredns exchanges with all of them no edge is left: it is too little to count.\n"
                )
            )
        print(heading("3. What should be where? A plan, shown first, then made.\n"))
        show("rebalance --dry-run", rebalance_text(await ask(agent, "rebalance", dry_run=True)))
        made = await ask(agent, "rebalance")
        show("rebalance", rebalance_text({**made, "moves": []}).replace("of 0", f"of {len(made['moves'])}"))
        after, second = await ask(agent, "affinity"), await ask(agent, "placements")
        print(picture(tree, {"before": first, "after": second}) + "\n")
        crossing(before, after)
        print(heading("4. A second home-timeline is created. It has not sent a byte, and yet:\n"))
        container = await create(client, NEW)
        row = (await ask(agent, "explain", container=container))["containers"][0]
        print(coloured(f"  {NEW.label}: CPUs {row['cpus']}\n  {row['why']}\n"))
        again = await ask(agent, "rebalance", dry_run=True)
        print(f"And the next plan? {again['why']}\n")
    return came_together(before, after, second, row)


def came_together(
    before: dict[str, Any], after: dict[str, Any], placements: list[dict[str, Any]], new: dict[str, Any]
) -> bool:
    """Nine of ten bytes stay inside an L3, and the new one is in the NUMA node of its peers."""
    was, stays = before["nearness"][0]["share"], after["nearness"][0]["share"]
    peers = [row for row in placements if row["pod"] in ("nginx", "home-redis", "post-storage")]
    tree = Topology(machine(HYGON_7285_2S))
    nodes = frozenset().union(*(tree.nodes_of(parse_cpus(row["cpus"])) for row in [*peers, new]))
    return was < 0.5 and stays > 0.9 and len(nodes) == 1


async def main() -> int:
    began = time.monotonic()
    tree = Topology(machine(HYGON_7285_2S))
    print("cri-resmgr and its observer on a described machine: 2 sockets x 4 NUMA nodes x 2 CCX of 8 CPUs.\n")
    with tempfile.TemporaryDirectory(prefix="cra-") as folder:
        async with FakeRuntime(str(Path(folder) / "r.sock")) as runtime:
            config = {"affinity": {"rebalance": "manual", "cooldown": "1ms"}, "constants": QUICK}
            agent = Agent(runtime.socket, topology=machine(HYGON_7285_2S), config=config)
            async with agent, CriClient(agent.socket) as client:
                good = await story(agent, client, tree)
    print(
        f"Pods that talk are together ({time.monotonic() - began:.0f} s)." if good else "NOT as it should be."
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
