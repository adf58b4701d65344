"""What people are told of containers and of the daemon: placements, explanations, status, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cri_proxy.affinity.demand.report import demand_text, status_line
from cri_proxy.affinity.repelling import apart_text
from cri_proxy.affinity.report import move_text, status_lines, would_move_text
from cri_proxy.cli.cluster_text import cluster_lines
from cri_proxy.engine.peer_text import peer_text
from cri_proxy.engine.report import for_text
from cri_proxy.text.terminal import duration_text, table

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
    lines = []
    for row in rows:
        shown = dict(row)
        shown["_path"] = f"{row['namespace']}/{row['pod']}/{row['container']}"
        shown["_request"] = f"{row['cpu_request_milli']}m"
        shown["_limit"] = "-" if row["cpu_limit_milli"] is None else f"{row['cpu_limit_milli']}m"
        shown["_managed"] = row["stance"] + (", not bound" if row.get("runs_in") else "")
        lines.append([str(shown[key]) or "-" for _, key in _COLUMNS])
    return "\n".join(table([title for title, _ in _COLUMNS], lines)) if lines else "no containers"


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
        lines += [f"  {move_text(move)}" for move in row.get("moves", ())]
        if row.get("demand"):
            lines += [f"  {line}" for line in demand_text(row["demand"])]
        if row.get("apart"):
            lines.append(f"  {apart_text(row['apart'])}")
        if row.get("would_move"):
            lines.append(f"  {would_move_text(row['would_move'])}")
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
    what = for_text(row["for"], row["cause"]).strip() if row["cause"] else ""
    others = f"places of others changed: {row['changed']}" if row["changed"] else ""
    said = ", ".join(text for text in (what, row["why"], others) if text)
    outcome = f" -> {row['outcome']}" if row["outcome"] else ""
    where = f"{row['cpus'] or 'untouched'} ({row['level']})"
    when = f"{duration_text(row['age_s'])} ago"
    return f"#{row['number']} {when} {row['operation']} {row['container']}: {where}, {said}{outcome}"


def _not_bound(runs_in: str) -> str:
    return f"its processes run in {runs_in}, outside of its own cgroup, and no cpuset of ours reaches them"


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
    if demand := status_line(document.get("demand", {})):
        lines.append(f"  demand     {demand}")
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
