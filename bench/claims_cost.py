"""What claims of CPUs cost a pod: ``python -m bench.claims_cost [--rounds N] [--before FOLDER]``.

Whole daemons with the ``hygon`` policy, each in front of a fake runtime of its own: claims off, on, on beside containers
that have claims, and for a pod that has one. All have as many other containers. Pods of one container (seven calls) go
through each in turns of 10; the daemon's CPU time of a turn is set beside that of the same round with claims off, and the
median of the rounds counts. ``--before``: a checkout of another version, whose daemon takes part.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.container_memory import compared, start_container
from bench.figures import cpu_s, machine_line, print_row, process
from bench.raw import Client
from bench.short import PODS, Kubelet
from bench.turns import of_each, rotated
from cri_api.claims import cdi_device, part_name
from cri_proxy.control import ask
from tests.agent import Agent
from tests.machines import HYGON_7285_2S, machine

BESIDE = 100
ROUNDS = 30
#: L3s of the machine; the first one is left to the pod that is measured.
L3S = 16
OFF = "claims off"


@dataclass(frozen=True)
class Kind:
    """A daemon, what runs on its node, and the pod that is measured."""

    enabled: bool = True
    #: Whether the containers beside have a claim of a CPU each.
    beside: bool = False
    has_claim: bool = False
    #: The source of the daemon; "": this one.
    source: str = ""


KINDS = {
    OFF: Kind(enabled=False),
    "claims on, none on the node": Kind(),
    f"{BESIDE} containers with claims beside": Kind(beside=True),
    "the same, for a pod with a claim": Kind(beside=True, has_claim=True),
}


async def start(kind: Kind, name: str, stack: contextlib.AsyncExitStack) -> tuple[Kubelet, int]:
    """A daemon with its containers; its client and its pid."""
    path = f"{stack.enter_context(tempfile.TemporaryDirectory(prefix='crb-'))}/r.sock"
    stack.enter_context(process("bench.create_cost", "--serve", path, "0"))
    config: dict[str, Any] = {"log": {"level": "error"}}
    if kind.enabled:
        config["dra"] = {"enabled": True}
    agent = Agent(path, machine(HYGON_7285_2S), config)
    stack.push_async_callback(agent.close)
    await agent.start(environment={"PYTHONPATH": kind.source} if kind.source else {})
    pid = await compared(agent)
    client = stack.enter_context(contextlib.closing(Client(agent.socket)))
    for number in range(BESIDE):
        device = f"l3-{1 + number % (L3S - 1)}"
        cdi = (prepare(agent, f"beside-{number}", device),) if kind.beside else ()
        start_container(client, number, cdi)
    own = (prepare(agent, "own", "l3-0"),) if kind.has_claim else ()
    return Kubelet(agent.socket, name, cdi=own), pid


def prepare(agent: Agent, uid: str, device: str) -> str:
    """Have a claim of a CPU prepared; the name of its CDI device."""
    results = [{"request": "cpus", "device": device, "cpus": 1}]
    about = {"uid": uid, "namespace": "default", "name": uid, "results": results}
    ask(agent.control, "claim-prepare", about)
    return cdi_device(part_name(uid, "cpus"))


async def main(rounds: int, kinds: Mapping[str, Kind]) -> None:
    print(machine_line(), end="\n\n")
    print_row("daemon", "CPU ms a pod", f"beside {OFF} (quartiles)")
    print_row(*["---"] * 3)
    found: dict[str, list[float]] = {name: [] for name in kinds}
    async with contextlib.AsyncExitStack() as stack:
        sites = {
            name: await start(kind, f"k{number}", stack) for number, (name, kind) in enumerate(kinds.items())
        }
        for number in range(rounds + 1):
            for name in rotated(list(sites), number):
                kubelet, pid = sites[name]
                before_s = cpu_s(pid)
                await asyncio.to_thread(kubelet.pods)
                if number:  # the first round is for getting warm
                    found[name].append((cpu_s(pid) - before_s) * 1000 / PODS)
    for name, each in found.items():
        print_row(name, f"{statistics.median(each):.2f}", f"{of_each(each, found[OFF]):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each daemon")
    parser.add_argument("--before", metavar="FOLDER", help="a checkout whose daemon takes part, claims off")
    options = parser.parse_args()
    before = {"the version before": Kind(enabled=False, source=options.before)} if options.before else {}
    asyncio.run(main(options.rounds, {**KINDS, **before}))
