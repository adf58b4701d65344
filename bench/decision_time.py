"""What a decision costs, under each policy: ``python -m bench.decision_time [POLICY|classes|full|members]...``.

512 CPUs (two sockets of four NUMA nodes of four CCXs of eight cores, two threads) with 1,000 containers.
Every kind of container is admitted many times, and bound or cancelled; reading its request is timed as well.
``classes``: ``hygon`` on two such nodes in turns, without and with isolation on.
``full``: on a node whose requests exceed its CPUs, under ``hygon``: no container finds room, and every one asks whether
moving others would help.
``members``: a create that makes the ``default`` balloon larger, with so many containers in it, and its removal.
Everything in one process, without the state file and the wire. CPU time, so that what else the machine does
does not count.
"""

from __future__ import annotations

import sys
import time
from random import Random
from typing import Any

from bench.figures import machine_line, percentile
from cri_proxy.cri.messages import read_create, write_create_delta
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host
from policies.balloons.types import BalloonSettings, BalloonType
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.registry import POLICIES
from policies.settings import ClassSelectors, EngineOptions, PlacementSettings
from tests.cri_client import Pod, cgroup_parent, container_config, create_request, pod_config

CONTAINERS = 1000
ROUNDS = 300
GIB = 1 << 30

#: What a container asks for, in milli-CPUs and bytes.
KINDS: dict[str, dict[str, Any]] = {
    "2 CPUs": {"cpu_request": 100, "cpu_limit": 2000, "memory_limit": GIB // 4},
    "12 CPUs": {"cpu_request": 1000, "cpu_limit": 12_000, "memory_limit": GIB},
    "48 CPUs": {"cpu_request": 4000, "cpu_limit": 48_000, "memory_limit": 4 * GIB},
    "112 CPUs": {"cpu_request": 8000, "cpu_limit": 112_000, "memory_limit": 8 * GIB},
    "no limit": {"cpu_request": 250},
    "BestEffort": {"qos": "besteffort"},
    "Guaranteed 3": {"qos": "guaranteed", "cpu_request": 3000, "cpu_limit": 3000, "memory_limit": GIB},
    "Guaranteed 20": {"qos": "guaranteed", "cpu_request": 20_000, "cpu_limit": 20_000, "memory_limit": GIB},
}
FILLING = {"qos": "guaranteed", "cpu_request": 1000, "cpu_limit": 1000, "memory_limit": GIB}
#: Of the containers that are there, these many are Guaranteed ones of one CPU.
GUARANTEED = 100

#: Case ``full``: how many containers there are, and what they request together, in percent of the CPUs.
FULL = (500, 5000)
FULL_PERCENT = 110
#: What each of them requests, in percent of an even share.
SHARES = (25, 50, 75, 100, 125, 225)
FULL_ROUNDS = 100
#: Case ``members``: how many there are.
MEMBERS = (0, 100, 200, 400, 1000)
#: What the newcomers to it request; their limit is 2 CPUs.
REQUESTS = (100, 500, 2000)


def topology() -> Topology:
    cpus = [
        Cpu(cpu=thread * 256 + i, core=i % 128, l3=i // 8, die=0, numa=i // 32, socket=i // 128)
        for thread in range(2)
        for i in range(256)
    ]
    return Topology(TopologyData(cpus=tuple(cpus), memory=dict.fromkeys(range(8), 128 * GIB)))


def request(number: int, kind: str) -> bytes:
    return request_of(number, FILLING if kind == "Guaranteed 1" else KINDS[kind])


def request_of(number: int, fields: dict[str, Any]) -> bytes:
    qos = fields.get("qos", "burstable")
    uid = f"uid-{number}"
    config = pod_config(f"web-{number}", uid=uid, cgroup_parent=cgroup_parent(qos, uid))
    pod = Pod(f"sandbox-{number}", uid, f"web-{number}", "default", config)
    container = container_config("app", envs=tuple((f"NAME_{i}", "value" * 4) for i in range(20)), **fields)
    return bytes(create_request(pod, container).SerializeToString())


def filled(policy: str, options: EngineOptions = EngineOptions()) -> Engine:  # noqa: B008
    tree = topology()
    host = Host(topology=tree, usable=tree.online, mems=tree.memory_nodes)
    settings = PlacementSettings(
        ownership="exclusive" if policy == "topology-aware" else "shared",
        balloons=BalloonSettings((BalloonType("web", namespaces=("default",), max_cpus=8),)),
    )
    engine = Engine(host, POLICIES[policy](tree, settings), options)
    random = Random(1)
    small, large = ["2 CPUs", "no limit", "BestEffort"], ["12 CPUs", "48 CPUs"]
    for number in range(CONTAINERS):
        kind = random.choice(small if random.random() < 0.97 else large)
        read = read_create(request(number, kind if number >= GUARANTEED else "Guaranteed 1"), engine.pods)
        admission = engine.admit(read.container, read.constraint, float(number))
        engine.bind(admission.ticket, f"c{number}", float(number))
        engine.drain()
    return engine


def overcommitted(containers: int) -> Engine:
    """An engine whose containers request more CPUs than there are."""
    tree = topology()
    host = Host(topology=tree, usable=tree.online, mems=tree.memory_nodes)
    engine = Engine(host, POLICIES["hygon"](tree, PlacementSettings()), EngineOptions())
    random = Random(1)
    even = len(tree.online) * 1000 * FULL_PERCENT / 100 / containers
    for number in range(containers):
        message = request_of(number, burstable(round(even * random.choice(SHARES) / 100)))
        read = read_create(message, engine.pods)
        admission = engine.admit(read.container, read.constraint, float(number))
        engine.bind(admission.ticket, f"c{number}", float(number))
        engine.drain()
    return engine


def burstable(milli_request: int) -> dict[str, Any]:
    return {"cpu_request": milli_request, "cpu_limit": max(2000, milli_request), "memory_limit": GIB // 16}


def measure(
    engine: Engine, message: bytes, rounds: int = ROUNDS
) -> tuple[list[float], list[float], list[float]]:
    """Seconds to read, to admit (with the delta written), and to bind."""
    reads, admits, binds = [], [], []
    clock = time.thread_time
    for round_ in range(rounds):
        started = clock()
        read = read_create(message, engine.pods)
        reads.append(clock() - started)
        started = clock()
        admission = engine.admit(read.container, read.constraint, 1e6)
        write_create_delta(admission.placement)
        admits.append(clock() - started)
        if round_ % 2:
            engine.cancel(admission.ticket, 1e6)
        else:
            started = clock()
            engine.bind(admission.ticket, "measured", 1e6)
            binds.append(clock() - started)
            engine.remove("measured")
        engine.drain()
    return reads, admits, binds


def report(policy: str) -> None:
    engine = filled(policy)
    usable = len(engine.host.usable)
    print(f"{policy} policy, {usable} CPUs, {len(engine.grants)} containers; microseconds of CPU time")
    print(f"{'container':<14}" + "".join(f"{step:>18}" for step in ("read", "admit", "bind")))
    print(f"{'':<14}" + 3 * f"{'median':>10}{'p99':>8}")
    for number, kind in enumerate(KINDS):
        message = request(CONTAINERS + number, kind)
        cells = [percentile(found, p) * 1e6 for found in measure(engine, message) for p in (50, 99)]
        print(f"{kind:<14}" + "".join(f"{a:10.0f}{b:8.0f}" for a, b in zip(cells[::2], cells[1::2])))


def report_classes() -> None:
    """A create and its removal, each kind on both nodes in turns; the least of the medians."""
    engines = filled("hygon"), filled("hygon", EngineOptions(classes=ClassSelectors(), keeps_apart=True))
    print(
        "hygon policy, isolation off and on; microseconds of CPU time to admit and bind, the least median of 5"
    )
    print(f"{'container':<14}{'off':>10}{'on':>10}{'more':>10}")
    for number, kind in enumerate(KINDS):
        message = request(CONTAINERS + number, kind)
        least = [float("inf"), float("inf")]
        for _ in range(5):
            for index, engine in enumerate(engines):
                _, admits, binds = measure(engine, message)
                took = (percentile(admits, 50) + percentile(binds, 50)) * 1e6
                least[index] = min(least[index], took)
        print(f"{kind:<14}{least[0]:10.0f}{least[1]:10.0f}{least[1] - least[0]:10.0f}", flush=True)


def report_full() -> None:
    print(
        f"a full node, hygon policy, {FULL_PERCENT} % of 512 CPUs requested; microseconds of CPU time to admit"
    )
    print(f"{'containers':<14}{'request':>10}{'median':>10}{'p99':>8}")
    for containers in FULL:
        engine = overcommitted(containers)
        for milli in REQUESTS:
            _, admits, _ = measure(engine, request_of(containers, burstable(milli)), FULL_ROUNDS)
            median, worst = (percentile(admits, p) * 1e6 for p in (50, 99))
            print(f"{containers:<14,}{f'{milli}m':>10}{median:10.0f}{worst:8.0f}", flush=True)


def report_members() -> None:
    print(
        "a balloon that grows by a CPU, 512 CPUs; microseconds of CPU time, and records written by all three"
    )
    print(
        f"{'members':<14}"
        + "".join(f"{step:>18}" for step in ("admit", "bind", "remove"))
        + f"{'records':>10}"
    )
    for members in MEMBERS:
        tree = topology()
        host = Host(topology=tree, usable=tree.online, mems=tree.memory_nodes)
        engine = Engine(host, POLICIES["balloons"](tree, PlacementSettings()), EngineOptions())
        times: tuple[list[float], ...] = ([], [], [])
        records = 0
        for number in range(members + FULL_ROUNDS):
            milli = 100 if number < members else 1000
            read = read_create(request_of(number, {"cpu_request": milli, "cpu_limit": 2000}), engine.pods)
            clock = [time.thread_time()]
            admission = engine.admit(read.container, read.constraint, float(number))
            clock.append(time.thread_time())
            engine.bind(admission.ticket, f"c{number}", float(number))
            clock.append(time.thread_time())
            if number >= members:
                engine.remove(f"c{number}")
                clock.append(time.thread_time())
                for found, before, after in zip(times, clock, clock[1:]):
                    found.append(after - before)
            records = len(engine.drain())
        cells = [percentile(found, p) * 1e6 for found in times for p in (50, 99)]
        row = "".join(f"{a:10.0f}{b:8.0f}" for a, b in zip(cells[::2], cells[1::2]))
        print(f"{members:<14,}{row}{records:10}", flush=True)


def main() -> None:
    print(machine_line())
    for case in sys.argv[1:] or ("hygon", "topology-aware", "balloons", "full", "members"):
        if case == "full":
            report_full()
        elif case == "classes":
            report_classes()
        elif case == "members":
            report_members()
        else:
            report(case)


if __name__ == "__main__":
    main()
