"""What people and scripts are told: placements, explanations and status as plain data and as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from cri_proxy.affinity.text import status_lines
from cri_proxy.doctor.findings import duration_text
from cri_proxy.engine.cluster_text import cluster_lines
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.ledger import resident_of
from cri_proxy.engine.peer_text import peer_rows, peer_text
from cri_proxy.engine.records import Change, Grant, Life, Record, Stance
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology
from policies.memory import room_bytes
from policies.node import Node


@dataclass(frozen=True)
class DomainPools:
    """One domain's CPUs by pool (``usable``, ``shared``, ``exclusive``, ``reserved``), and its charge."""

    level: str
    name: str
    cpus: frozenset[int]
    counts: dict[str, int]
    charged_milli: int

    @property
    def free_milli(self) -> int:
        """Shared capacity no request is charged on; negative when overcommitted."""
        return self.counts["shared"] * 1000 - self.charged_milli


def domain_pools(node: Node) -> tuple[DomainPools, ...]:
    """The domains that placements use (L3, NUMA node, socket, machine), largest first, with their pools."""
    found = []
    for level in ("machine", "socket", "numa", "l3"):
        for domain in node.topology.at(level):
            pools = {
                "usable": node.usable,
                "shared": node.shared,
                "exclusive": node.exclusive,
                "reserved": node.reserved,
            }
            counts = {name: len(pool & domain.cpus) for name, pool in pools.items()}
            charged = node.charge_milli(domain.cpus & node.shared)
            found.append(DomainPools(level, domain.name_at(level), domain.cpus, counts, charged))
    return tuple(found)


def level_of(topology: Topology, cpus: frozenset[int]) -> str:
    """The level of the smallest place that holds CPUs, as placements have it."""
    whole = cpus & topology.online
    for kind, level in (("l3", "ccx"), ("numa", "numa"), ("socket", "socket")):
        around = [domain.cpus for domain in topology.at(kind) if whole & domain.cpus]
        if len(around) == 1:
            inside = [l3.cpus & topology.online for l3 in topology.at("l3") if l3.cpus < around[0]]
            filled = all(cpus <= whole for cpus in inside)
            return "nccx" if kind == "numa" and not filled else level
        if kind == "numa" and len(around) == 2:
            in_one_l3 = any(node & whole <= l3.cpus < node for node in around for l3 in topology.at("l3"))
            return "numa+ccx" if in_one_l3 else "2numa"
    return "machine"


def placement_row(topology: Topology, grant: Grant) -> dict[str, Any]:
    """One container as ``placements --json`` shows it. Of an adopted one the level is that of the CPUs it has."""
    container = grant.container
    level = grant.placement.level if grant.stance in (Stance.PLACED, Stance.OBSERVED) else "none"
    if grant.stance is Stance.ADOPTED:
        level = level_of(topology, grant.cpus)
    return {
        "id": grant.key,
        "namespace": container.pod.namespace,
        "pod": container.pod.name,
        "pod_uid": container.pod.uid,
        "container": container.name,
        "attempt": container.attempt,
        "qos": container.qos.value,
        "state": grant.life.value,
        "stance": grant.stance.value,
        "level": level,
        "cpus": format_cpus(grant.cpus),
        "mems": format_cpus(grant.placement.mems if grant.stance is Stance.PLACED else grant.mems),
        "exclusive": format_cpus(grant.exclusive),
        "cpu_request_milli": container.resources.milli_request,
        "cpu_limit_milli": container.resources.milli_limit,
        "why": grant.why,
        "runs_in": grant.runs_in,
    }


def placement_rows(engine: Engine) -> list[dict[str, Any]]:
    """All containers, by namespace, pod and name."""
    grants = sorted(engine.grants.values(), key=lambda g: (g.container.path, g.container.attempt, g.key))
    return [
        {**placement_row(engine.host.topology, grant), "why": present_why(engine, grant)} for grant in grants
    ]


def present_why(engine: Engine, grant: Grant) -> str:
    """Why a container is where it is now: the reason of its place, and what has become of that for others."""
    cause, change = engine.books.changed.get(grant.key, (None, None))
    if cause is None or change is None or change.why or change.operation not in ("shrunk", "grown", "moved"):
        return grant.why
    if (change.cpus, change.stance) != (grant.cpus, grant.stance.value):  # it is elsewhere by now
        return grant.why
    count = "1 CPU" if len(grant.cpus) == 1 else f"{len(grant.cpus)} CPUs"
    return f"{grant.why}; since then {change.operation} to {count}{_for(cause.path, cause.operation)}"


def _for(path: str, operation: str) -> str:
    """What a change was done for: the container, and what happened to it."""
    return f" for {path} ({operation})" if path else f" ({operation})"


_COLUMNS = (
    ("CONTAINER", "_path"),
    ("STATE", "state"),
    ("LEVEL", "level"),
    ("CPUS", "cpus"),
    ("EXCLUSIVE", "exclusive"),
    ("MEMS", "mems"),
    ("REQUEST", "_request"),
    ("LIMIT", "_limit"),
    ("MANAGED", "_managed"),
)


def placements_text(rows: Iterable[dict[str, Any]]) -> str:
    """A table for the terminal."""
    lines = [[title for title, _ in _COLUMNS]]
    for row in rows:
        shown = dict(row)
        shown["_path"] = f"{row['namespace']}/{row['pod']}/{row['container']}"
        shown["_request"] = f"{row['cpu_request_milli']}m"
        shown["_limit"] = "-" if row["cpu_limit_milli"] is None else f"{row['cpu_limit_milli']}m"
        shown["_managed"] = row["stance"] + (", not bound" if row.get("runs_in") else "")
        lines.append([str(shown[key]) or "-" for _, key in _COLUMNS])
    if len(lines) == 1:
        return "no containers"
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )


def find(engine: Engine, name: str) -> list[Grant]:
    """Containers by id prefix or by ``namespace/pod/container`` (or the end of it)."""
    by_id = [g for key, g in sorted(engine.grants.items()) if name and key.startswith(name)]
    return by_id or [g for g in engine.grants.values() if _matches(g.container.path, name)]


def path_of(engine: Engine, container_id: str) -> str:
    """``namespace/pod/container`` of an id; "" if it is gone."""
    grant = engine.grants.get(container_id)
    return "" if grant is None else grant.container.path


def distrusted_paths(engine: Engine, now_s: float) -> list[str]:
    """The containers whose next create goes through untouched, as their pods are there to have one."""
    pods = {pod.uid: pod for pod in engine.pods.values()}
    pods.update({grant.container.pod.uid: grant.container.pod for grant in engine.grants.values()})
    return [
        f"{pod.namespace}/{pod.name}/{name}"
        for (uid, name), until_s in engine.distrusted.items()
        if until_s > now_s and (pod := pods.get(uid)) is not None
    ]


class NotOne(Exception):
    """A name that means no container, or several. The message says which."""


def find_one(engine: Engine, name: str) -> Grant:
    """The one container of a name that the runtime has created.

    :raises NotOne: there is none, or more than one.
    """
    found = [grant for grant in find(engine, name) if grant.life is not Life.CREATING]
    if not found:
        raise NotOne(f"no container {name!r} is known; see: cri-resmgr placements")
    if len(found) > 1:
        some = ", ".join(f"{grant.container.path} ({grant.key[:13]})" for grant in found[:5])
        raise NotOne(f"{name!r} means {len(found)} containers: {some}")
    return found[0]


def _matches(path: str, name: str) -> bool:
    return path == name or path.endswith("/" + name)


def explain(engine: Engine, name: str, now_s: Optional[float] = None) -> Optional[dict[str, Any]]:
    """Everything known of a container: its place now, past decisions, the room around it. None if unknown.

    ``now_s``: seconds since boot, for how long ago things were; None: when the engine was last told the time.
    """
    grants = find(engine, name)
    paths = {g.key: g.container.path for g in grants}
    history: list[dict[str, Any]] = []
    for record in engine.history if name else ():
        changes = [
            change_row(record, c, key, paths[key]) for c in record.changes for key in c.keys if key in paths
        ]
        own = any(row["id"] == record.id for row in changes)
        if not own and (record.id in paths or record.id.startswith(name) or _matches(record.path, name)):
            history.append(history_row(record))
        history += changes
    if not grants and not history:
        return None
    now_s = engine.books.now_s if now_s is None else now_s
    return {
        "containers": [_explained(engine, grant) for grant in grants],
        "history": [{**row, "age_s": round(max(0.0, now_s - row["at_s"]), 3)} for row in history],
    }


def _explained(engine: Engine, grant: Grant) -> dict[str, Any]:
    row = {**placement_row(engine.host.topology, grant), "why": present_why(engine, grant)}
    node = engine.node
    asked, fence = grant.fence.asked.cpus, grant.fence
    row["fence_cpus"] = None if asked is None else format_cpus(asked)
    row["pod_cpus"] = None if fence.caller is None or fence.cpus is None else format_cpus(fence.cpus)
    row["domains"] = [
        {
            "name": p.name,
            "cpus": format_cpus(p.cpus),
            "charged_milli": p.charged_milli,
            "free_milli": p.free_milli,
        }
        for p in domain_pools(node)
        if p.level in ("l3", "numa") and not p.cpus.isdisjoint(grant.cpus)
    ]
    row["memory_charge"] = [list(pair) for pair in resident_of(grant).memory_charge]
    charged = frozenset(n for n, _ in row["memory_charge"])
    nodes = charged | grant.placement.mems or node.topology.nodes_of(grant.cpus)
    row["memory"] = [_memory_row(node, n) for n in sorted(nodes)]
    row["peers"] = peer_rows(engine.books, grant)
    return row


def _not_bound(runs_in: str) -> str:
    return f"its processes run in {runs_in}, outside of its own cgroup, and no cpuset of ours reaches them"


def _memory_row(node: Node, memory_node: int) -> dict[str, Any]:
    """One NUMA node's memory. ``room_bytes``: what limits may still be charged; None = not known, without end."""
    total = node.topology.memory_bytes(memory_node)
    return {
        "node": memory_node,
        "charged_bytes": node.memory_charged(memory_node),
        "total_bytes": total,
        "hugepage_bytes": node.topology.hugepage_bytes(memory_node),
        "room_bytes": None if total is None else room_bytes(node, memory_node),
        "free_bytes": node.free_memory.get(memory_node),
    }


def memory_rows(node: Node) -> list[dict[str, Any]]:
    """Size, charge and room of every NUMA node with memory, for JSON."""
    return [_memory_row(node, n) for n in sorted(node.topology.memory_nodes)]


def change_row(cause: Record, change: Change, key: str, path: str) -> dict[str, Any]:
    """One past change of a container's place; in ``for`` the container it was done for, "" = itself or none."""
    return {
        "number": cause.number,
        "at_s": round(cause.at_s, 3),
        "operation": change.operation,
        "container": path,
        "id": key,
        "stance": change.stance,
        "level": change.level,
        "cpus": format_cpus(change.cpus),
        "mems": format_cpus(change.mems),
        "why": change.why,
        "outcome": "",
        "for": "" if cause.id == key else cause.path,
        "cause": cause.operation,
        "changed": 0,
    }


def history_row(record: Record) -> dict[str, Any]:
    """One past decision; ``changed``: how many other containers' places it has changed."""
    return {
        "number": record.number,
        "at_s": round(record.at_s, 3),
        "operation": record.operation,
        "container": record.path,
        "id": record.id,
        "stance": record.stance,
        "level": record.placement.level,
        "cpus": format_cpus(record.placement.cpus),
        "mems": format_cpus(record.placement.mems),
        "why": record.why,
        "outcome": record.outcome,
        "for": "",
        "cause": "",
        "changed": sum(len(change.keys) for change in record.changes),
    }


def explain_text(document: dict[str, Any]) -> str:
    """The explanation for the terminal."""
    lines: list[str] = []
    for row in document["containers"]:
        lines.append(
            f"{row['namespace']}/{row['pod']}/{row['container']} (attempt {row['attempt']}, {row['id']})"
        )
        limit = "none" if row["cpu_limit_milli"] is None else f"{row['cpu_limit_milli']}m"
        what = f"{row['state']}, {row['stance']}, {row['qos']}"
        lines.append(f"  {what}, request {row['cpu_request_milli']}m, limit {limit}")
        lines.append(
            f"  runs on {row['cpus'] or 'all CPUs'} ({row['level']}), memory nodes {row['mems'] or 'not set'}"
        )
        lines.append(f"  why: {row['why']}")
        if row.get("runs_in"):
            lines.append(f"  not bound: {_not_bound(row['runs_in'])}")
        if row["fence_cpus"] is not None:
            lines.append(f"  the caller's own cpuset: {row['fence_cpus']}")
        if row.get("pod_cpus") is not None:
            lines.append(f"  with what the pod's cgroup allows: {row['pod_cpus']}")
        for domain in row["domains"]:
            charged, free = domain["charged_milli"], domain["free_milli"]
            lines.append(f"  {domain['name']} ({domain['cpus']}): {charged}m charged, {free}m free")
        if row["memory_charge"]:
            parts = ", ".join(f"{_gib(size)} on node {n}" for n, size in row["memory_charge"])
            lines.append(f"  memory charged: {parts}")
        lines += [_memory_text(memory) for memory in row["memory"]]
        lines += [f"  {peer_text(peer)}" for peer in row.get("peers", ())]
    if document["history"]:
        lines.append("decisions:")
    lines += [f"  {_decision_text(row)}" for row in document["history"]]
    return "\n".join(lines)


def _memory_text(row: dict[str, Any]) -> str:
    total = "unknown" if row["total_bytes"] is None else f"{row['total_bytes'] / 2**30:.1f} GiB"
    text = f"  memory of node {row['node']}: {row['charged_bytes'] / 2**30:.1f} of {total} charged"
    text += "" if row["room_bytes"] is None else f", room for {_gib(row['room_bytes'])}"
    text += f", {_gib(row['hugepage_bytes'])} are huge pages" if row["hugepage_bytes"] else ""
    return text + ("" if row["free_bytes"] is None else f"; {_gib(row['free_bytes'])} free now")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _decision_text(row: Mapping[str, Any]) -> str:
    what = _for(row["for"], row["cause"]).strip() if row["cause"] else ""
    others = f"places of others changed: {row['changed']}" if row["changed"] else ""
    said = ", ".join(text for text in (what, row["why"], others) if text)
    outcome = f" -> {row['outcome']}" if row["outcome"] else ""
    where = f"{row['cpus'] or 'untouched'} ({row['level']})"
    when = f"{duration_text(row['age_s'])} ago"
    return f"#{row['number']} {when} {row['operation']} {row['container']}: {where}, {said}{outcome}"


def domain_rows(node: Node) -> list[dict[str, Any]]:
    """Capacity and load of every domain, for JSON."""
    return [
        {
            "level": pools.level,
            "name": pools.name,
            "cpus": format_cpus(pools.cpus),
            **pools.counts,
            "charged_milli": pools.charged_milli,
            "free_milli": pools.free_milli,
        }
        for pools in domain_pools(node)
    ]


def status_text(document: dict[str, Any]) -> str:
    """The status for the terminal: the sentence that matters first."""
    lines = []
    runtime = document["runtime"]
    reasons = document["degraded"]
    lines.append(
        f"cri-resmgr {document['version']}: mode {document['mode']}" + (", DEGRADED" if reasons else "")
    )
    lines += [f"  degraded ({topic}): {reason}" for topic, reason in reasons.items()]
    state = (
        f"{runtime['name']} {runtime['version']}, {runtime['api']}"
        if runtime["connected"]
        else "NOT CONNECTED"
    )
    lines.append(f"  runtime    {runtime['socket']} ({state})")
    serving = document["sockets"] or [document.get("how") or "nobody"]
    lines.append(f"  serving    {', '.join(serving)}")
    if "policy" in document:
        containers = (
            ", ".join(f"{count} {stance}" for stance, count in document["containers"].items()) or "none"
        )
        reserved = document["reserved"] or "none"
        lines.append(
            f"  policy     {document['policy']}, usable CPUs {document['usable']}, reserved {reserved}"
        )
        waiting = f"{document['held']} places held, {document['in_doubt']} creates in doubt"
        lines.append(f"  containers {containers}; {waiting}")
        for path in document["foreign"]:
            lines.append(f"  foreign    {path}: another writer keeps changing its cpuset")
        for path in document["unusable_fences"]:
            lines.append(f"  untouched  {path}: the caller's cpuset holds no usable CPU")
        for path, runs_in in document.get("not_bound", {}).items():
            lines.append(f"  not bound  {path}: {_not_bound(runs_in)}")
        for path in document["distrusted"]:
            lines.append(f"  untouched  {path}: failed to start where it was placed")
        lines += [f"  BROKEN     {sentence}" for sentence in document["invariants"]]
    lines += cluster_lines(document.get("cluster", {}))
    lines += status_lines(document.get("affinity", {}))
    lines += _plugin_lines(document.get("nri", {}))
    lines.append(
        f"  exits      noticed by {document['exits']}; {document['updates_waiting']} updates waiting"
    )
    lines += [f"  warning    {sentence}" for sentence in document["warnings"]]
    return "\n".join(lines)


def _plugin_lines(nri: Mapping[str, Any]) -> list[str]:
    """The NRI plugins that a proxy hosts, or why it hosts none."""
    if "plugins" not in nri:
        return []
    if nri["host"] != "on":
        return [f"  plugins    not hosted: {nri['why']}"]
    names = [
        f"{plugin['index']}-{plugin['name']}".lstrip("-") + _unless_connected(plugin)
        for plugin in nri["plugins"]
    ]
    return [f"  plugins    {', '.join(names) or 'none'}"]


def _unless_connected(plugin: Mapping[str, Any]) -> str:
    return "" if plugin["state"] == "connected" else f" ({plugin['state']})"
