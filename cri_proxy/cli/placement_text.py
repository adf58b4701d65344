"""Containers, the daemon and what the cluster asks of this node as text for people: placements, status, overrides. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cri_proxy.affinity.demand.report import demand_text, status_line
from cri_proxy.affinity.report import move_text, status_lines, would_move_text
from cri_proxy.engine.moves import peer_text
from cri_proxy.engine.report import engine_sentence, for_text
from cri_proxy.text.ages import old_texts
from cri_proxy.text.terminal import duration_text, stance_text, table
from policies.machine.domain_names import domain_text

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
        shown["exclusive"] = row["exclusive"] or row.get("claimed", "")
        shown["_managed"] = stance_text(row["stance"]) + (", not bound" if row.get("runs_in") else "")
        lines.append([str(shown[key]) or "-" for _, key in _COLUMNS])
    return "\n".join(table([title for title, _ in _COLUMNS], lines)) if lines else "no containers"


def explain_text(document: dict[str, Any], verbose: bool = False) -> str:
    """The explanation for the terminal; ``verbose``: with the figures of the search, which a daemon before this version
    does not tell."""
    lines = [f"old: {text}" for text in old_texts(document)]
    for row in document["containers"]:
        lines.append(
            f"{row['namespace']}/{row['pod']}/{row['container']} (attempt {row['attempt']}, {row['id']})"
        )
        limit = "none" if row["cpu_limit_milli"] is None else f"{row['cpu_limit_milli']}m"
        what = f"{row['state']}, {stance_text(row['stance'])}, {row['qos']}"
        lines.append(f"  {what}, request {row['cpu_request_milli']}m, limit {limit}")
        if row.get("pod_cpu_request_milli") is not None:
            lines.append(f"  {_pods_text(row['pod_cpu_request_milli'], row['pod_cpu_sharers'])}")
        lines.append(
            f"  runs on {row['cpus'] or 'all CPUs'} ({row['level']}), memory nodes {row['mems'] or 'not set'}"
        )
        lines.append(f"  why: {row['why']}")
        lines += [f"    {figures}" for figures in row.get("figures", ()) if verbose]
        lines += [f"  {_claim_text(claim)}" for claim in row.get("claim_rows", ())]
        if row.get("isolation"):
            lines.append(f"  class: {row['isolation']} ({row['isolation_why']})")
        lines += [f"  treatment: {sentence}" for sentence in row.get("treatment", ())]
        if row.get("runs_in"):
            lines.append(f"  not bound: {_not_bound(row['runs_in'])}")
        if row.get("not_alone"):
            lines.append(f"  not alone on its own CPUs yet: {', '.join(row['not_alone'])}")
        if row["fence_cpus"] is not None:
            lines.append(f"  the caller's cpuset: {row['fence_cpus']}")
        if row.get("pod_cpus") is not None:
            lines.append(f"  with what the pod's cgroup allows: {row['pod_cpus']}")
        for domain in row["domains"]:
            charged, free = domain["charged_milli"], domain["free_milli"]
            lines.append(f"  {domain['name']} ({domain['cpus']}): {charged}m allocated, {free}m free")
        if row["memory_charge"]:
            parts = ", ".join(f"{_gib(size)} on NUMA node {n}" for n, size in row["memory_charge"])
            lines.append(f"  memory allocated: {parts}")
        lines += [_memory_text(memory) for memory in row["memory"]]
        for peer in row.get("peers", ()):
            weight = f"; weight {peer['weight']:,.0f} cache lines a second" if verbose else ""
            lines.append(f"  {peer_text(peer)}{weight}")
        lines += [f"  {move_text(move)}" for move in row.get("moves", ())]
        if row.get("demand"):
            lines += [f"  {line}" for line in demand_text(row["demand"])]
        if row.get("caches"):
            lines += [f"  {text}" for text in row["caches"]["texts"]]
        lines += [f"  {each['text']}" for each in row.get("declared", ())]
        if row.get("would_move"):
            lines.append(f"  {would_move_text(row['would_move'])}")
    if document["history"]:
        lines.append("decisions:")
    for row in document["history"]:
        lines.append(f"  {_decision_text(row)}")
        lines += [f"    {figures}" for figures in row.get("figures", ()) if verbose]
    return "\n".join(lines)


def _claim_text(row: dict[str, Any]) -> str:
    """One part of a container's claims."""
    if not row["is_prepared"]:
        return f"claim {row['name']}: not prepared here"
    where = ", ".join(row["devices"])
    return f"claim {row['name']}, {row['request']}: CPUs {row['cpus'] or 'none'} of {where}: {row['why']}"


def _pods_text(milli: int, count: int) -> str:
    """What a container has that requests nothing of its own."""
    shared = "" if count == 1 else f", which {count} containers share"
    return f"the request is the pod's: {milli}m{shared}"


def _memory_text(row: dict[str, Any]) -> str:
    total = "unknown" if row["total_bytes"] is None else f"{row['total_bytes'] / 2**30:.1f} GiB"
    text = f"  memory of NUMA node {row['node']}: {row['charged_bytes'] / 2**30:.1f} of {total} allocated"
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


def _mode_from(document: Mapping[str, Any]) -> str:
    """What has set the mode, where that is the one in force; a daemon before this version does not say it."""
    is_in_force = document["mode"] == document.get("mode_wanted", document["mode"])
    return f" ({document['mode_from']})" if document.get("mode_from") and is_in_force else ""


def status_text(document: dict[str, Any]) -> str:
    """The status for the terminal: the sentence that matters first."""
    lines = []
    runtime = document["runtime"]
    reasons = document["degraded"]
    # A daemon before this version does not say it.
    form = document.get("form", "source")
    lines.append(
        f"cri-resmgr {document['version']}, {form}: mode {document['mode']}{_mode_from(document)}"
        + (", DEGRADED" if reasons else "")
    )
    lines += [f"  degraded ({topic}): {reason}" for topic, reason in reasons.items()]
    if (books := document.get("books", "")) and "books" not in reasons:
        lines.append(f"  waiting    {books}")
    state = (
        f"{runtime['name']} {runtime['version']}, {runtime['api']}"
        if runtime["connected"]
        else "NOT CONNECTED"
    )
    lines.append(f"  runtime    {runtime['socket']} ({state})")
    serving = document["sockets"] or [document.get("how") or "no socket"]
    lines.append(f"  serving    {', '.join(serving)}")
    if "policy" in document:
        containers = (
            ", ".join(f"{count} {stance_text(stance)}" for stance, count in document["containers"].items())
            or "none"
        )
        lines.append(f"  policy     {engine_sentence(document).partition(' ')[2]}")
        waiting = f"{document['held']} places held, {document['in_doubt']} creates of unknown outcome"
        lines.append(f"  containers {containers}; {waiting}")
        for path in document["foreign"]:
            lines.append(f"  modified   {path}: its cpuset is modified externally, again and again")
        for path in document["unusable_fences"]:
            lines.append(f"  untouched  {path}: the caller's cpuset holds no usable CPU")
        for path, others in document.get("not_alone", {}).items():
            lines.append(f"  not alone  {path}: on its own CPUs {', '.join(others)} may still run")
        for path, runs_in in document.get("not_bound", {}).items():
            lines.append(f"  not bound  {path}: {_not_bound(runs_in)}")
        for path in document["distrusted"]:
            lines.append(f"  untouched  {path}: failed to start where it was placed")
        lines += [f"  BROKEN     {sentence}" for sentence in document["invariants"]]
    lines += [f"  old        {text}" for text in old_texts(document)]
    lines += cluster_lines(document.get("cluster", {}))
    lines += status_lines(document.get("affinity", {}))
    if demand := status_line(document.get("demand", {})):
        lines.append(f"  sizing     {demand}")
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


def policy_text(document: Mapping[str, Any]) -> str:
    """``cri-resmgr config cluster-policy``: what is in force, why not what was asked for, and every value."""
    policy = document["policy"]
    lines = ["no policy of the cluster is in force"]
    if policy is not None:
        lines = [f"policy {policy['name']}, generation {policy['generation']} ({policy['hash']})"]
        lines += [f"  {key}: {value}" for key, value in _flat(document["config"])]
    if document["needs_restart"]:
        lines.append(f"waits for a restart: {', '.join(document['needs_restart'])}")
    if document["sentence"]:
        lines.append(_sentence(document))
    return "\n".join(lines)


def _sentence(document: Mapping[str, Any]) -> str:
    refused = "refused: " if document["state"] == "refused" else ""
    return f"{refused}{document['sentence']}"


def _flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return found


def overrides_text(document: Mapping[str, Any]) -> str:
    """``cri-resmgr overrides``: a table."""
    rows = [
        (f"{o['namespace']}/{o['pod']}/{o['container']}", domain_text(o["zone"]), o["state"], o["sentence"])
        for o in document["overrides"]
    ]
    return "\n".join(table(("CONTAINER", "ZONE", "STATE", ""), rows)) if rows else "no override"


def freeze_text(document: Mapping[str, Any]) -> str:
    """``cri-resmgr freeze``: whether containers are moved."""
    return "frozen: no container that runs is moved" if document["freeze"] else "not frozen"


def cluster_lines(cluster: Mapping[str, Any]) -> list[str]:
    """The lines of ``cri-resmgr status``; none where nothing is asked of this node."""
    if not cluster:
        return []
    lines = []
    policy, overrides = cluster["policy"], cluster["overrides"]
    if policy is not None:
        lines.append(f"  cluster    policy {policy['name']}, generation {policy['generation']}")
    if cluster["needs_restart"]:
        lines.append(f"  cluster    waits for a restart: {', '.join(cluster['needs_restart'])}")
    if cluster["sentence"]:
        lines.append(f"  cluster    {_sentence(cluster)}")
    if cluster["freeze"]:
        lines.append("  frozen     no container that runs is moved (cri-resmgr freeze off)")
    if overrides:
        applied = sum(o["state"] == "applied" for o in overrides)
        lines.append(f"  overrides  {applied} of {len(overrides)} carried out (cri-resmgr overrides)")
    return lines
