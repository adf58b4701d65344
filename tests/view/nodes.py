"""Nodes to draw: the daemon's own answers about a named machine, with containers that the real engine has placed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Optional

from cri_proxy.affinity.report import edge_rows
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import zones_of
from cri_proxy.engine.report import container_row, recent_moves, running, zone_rows
from cri_proxy.view.snapshot import NodeSnapshot, read_snapshot
from cri_proxy.view.top.screen import Scene
from policies.affinity.graph.traffic import Edge, traffic_of
from policies.machine.topology import Topology
from policies.model import Qos
from tests.scenes import TOPOLOGY_AWARE, engine_on, make_container, make_pod, run

NAMESPACES = ("default", "kube-system", "shop", "monitoring")
NAMES = ("web", "db", "cache", "queue", "proxy", "auth")


@cache
def busy_engine(machine_name: str, count: int, own: int = 2) -> Engine:
    """``count`` containers of all sizes in four namespaces; the first ``own`` have CPUs of their own. Not to be changed."""
    engine = engine_on(machine_name, settings=TOPOLOGY_AWARE)
    choose = random.Random(1)
    for number in range(count):
        namespace = NAMESPACES[number % len(NAMESPACES)]
        pod = make_pod(f"{NAMES[number % len(NAMES)]}-{number}", namespace=namespace)
        limit = 2 if number < own else choose.choice((0.1, 0.2, 0.5, 1, 2))
        qos = Qos.GUARANTEED if number < own else Qos.BURSTABLE
        request = limit if number < own else limit / 4
        made = make_container("app", pod=pod, limit=limit, request=request, qos=qos)
        run(engine, made, f"{number:064x}")
    return engine


def report_of(engine: Engine) -> dict[str, Any]:
    """What ``report`` answers, as far as a screen is made of it."""
    zones = zones_of(engine.host.topology)
    return {
        "version": "1.2.3",
        "instance": "one",
        "mode": "enforce",
        "policy": "hygon",
        "degraded": {},
        "warnings": [],
        "zones": zone_rows(engine.node, zones),
        "placements": [container_row(engine, grant, zones) for grant in running(engine)],
    }


def fills_of(engine: Engine, size_bytes: int = 8 << 20) -> list[dict[str, Any]]:
    """Caches as ``report`` tells them: each container has filled the more of its L3 the later it began."""
    zones = [zone for zone in zones_of(engine.host.topology) if zone.level == "l3"]
    rows = []
    for zone in zones:
        own = [grant.key for grant in running(engine) if grant.cpus and grant.cpus <= zone.domain.cpus]
        part = size_bytes // 2 // (sum(range(len(own) + 1)) or 1)
        shares = [
            {"id": key, "bytes": part * number, "bytes_per_s": 1_000_000 * number}
            for number, key in reversed(list(enumerate(own, 1)))
        ]
        rows.append(
            {
                "l3": zone.name,
                "size_bytes": size_bytes,
                "others_bytes": size_bytes // 8,
                "by_class": {},
                "containers": shares,
            }
        )
    return rows


def snapshot_of(
    engine: Engine, edges: Iterable[Edge] = (), loads: Optional[Mapping[int, float]] = None
) -> NodeSnapshot:
    """What a screen is made of."""
    affinity = {"edges": edge_rows(engine, traffic_of(1, edges, {}).listed), "observer": {}}
    by_cpu = steady_loads(engine.host.topology) if loads is None else loads
    return read_snapshot(report_of(engine), affinity, {"moves": recent_moves(engine, 50, 100.0)}, by_cpu)


def steady_loads(topology: Topology) -> dict[int, float]:
    """Each CPU busy in its own way: the lowest idle, the highest full."""
    last = max(topology.online)
    return {cpu: cpu / last if last else 0.5 for cpu in topology.online}


def edges_of(engine: Engine, count: int) -> list[Edge]:
    """So many pairs, the first with 50 MB/s, each of the others with less."""
    ids = sorted(engine.grants)
    return [
        Edge(
            ids[n % len(ids)],
            ids[(n * 7 + 1) % len(ids)],
            1e6 / (n + 1),
            5e7 / (n + 1),
            1e4 / (n + 1),
            ("tcp",),
        )
        for n in range(count)
        if n % len(ids) != (n * 7 + 1) % len(ids)
    ]


def scene_of(engine: Engine, edges: int = 12) -> Scene:
    return Scene(snapshot_of(engine, edges_of(engine, edges)), clock="12:34:56")
