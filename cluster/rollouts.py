"""How far policies are, and how many nodes are in which mode: ``kubectl cri_resmgr rollout``. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cluster.api.reader import Fields, Unreadable, skipped
from cluster.api.schema import plain

#: Nodes of one group that are named.
MOST_NAMES = 8
_POLICY = ("POLICY", "MODE", "MEMORY", "UPDATED", "READY", "DEGRADED", "PHASE")
_NODES = ("NODES", "MODE", "FROM", "POLICY")

Document = Mapping[str, Any]


def policy_row(found: Document) -> dict[str, Any]:
    """One PlacementPolicy. ``mode``, ``memory``: what it sets; "" = it does not. What cannot be read is ``unread``."""
    try:
        fields = Fields(found)
        config = fields.fields("spec").fields("config")
        status = fields.fields("status")
        counts = {key: status.number(key, 0) for key in ("desired", "updated", "ready", "degraded")}
        return {
            "policy": fields.fields("metadata").text("name"),
            "mode": config.fields("relay").text("mode", ""),
            "memory": config.fields("placement").text("memory", ""),
            **counts,
            "phase": status.text("phase", ""),
            "message": status.text("message", ""),
        }
    except Unreadable as error:
        return {"policy": plain(skipped(found, "").name), "unread": str(error)}


def node_row(found: Document) -> dict[str, Any]:
    """The mode of one node, what has set it, and what has become of its policy."""
    try:
        fields = Fields(found)
        status = fields.fields("status")
        policy = status.fields("policy")
        return {
            "node": fields.fields("metadata").text("name"),
            "mode": status.text("mode", ""),
            "modeFrom": status.text("modeFrom", ""),
            "policy": policy.text("name", ""),
            "policyState": policy.text("state", "") if policy.text("name", "") else "",
        }
    except Unreadable as error:
        return {"node": plain(skipped(found, "").name), "unread": str(error)}


def rollout_text(
    policies: Iterable[Document],
    nodes: Iterable[Document],
    table: Callable[[Sequence[Sequence[str]]], str],
    width: int,
) -> str:
    """Rows of ``policy_row`` and ``node_row`` for people; ``table`` lays cells out, the first row is the head."""
    policies, nodes = list(policies), list(nodes)
    readable = [row for row in policies if "unread" not in row]
    blocks = [table([_POLICY, *map(_policy_cells, readable)])] if readable else ["no PlacementPolicy"]
    for row in readable:
        if row["message"]:
            blocks.append(_wrapped(f"{row['policy']}: {row['message']}", width))
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in nodes:
        if "unread" not in row:
            policy = f"{row['policy']} {row['policyState']}".strip()
            groups.setdefault((row["mode"], row["modeFrom"], policy), []).append(row["node"])
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    cells = [(str(len(names)), *(text or "-" for text in group)) for group, names in ordered]
    lines = table([_NODES, *cells]).split("\n") if cells else ["", "no node has a NodePlacement"]
    told = [lines[0]]
    for line, (_, names) in zip(lines[1:], ordered):
        told += [line, _wrapped(_few(sorted(names)), width, " " * (len(_NODES[0]) + 2))]
    blocks.append("\n".join(told if cells else lines[1:]))
    for row in (*policies, *nodes):
        if "unread" in row:
            name = row.get("policy") or row.get("node")
            blocks.append(_wrapped(f"{name} cannot be read: {row['unread']}", width))
    return "\n\n".join(blocks)


def _policy_cells(row: Document) -> tuple[str, ...]:
    counts = (f"{row['updated']}/{row['desired']}", str(row["ready"]), str(row["degraded"]))
    return row["policy"], row["mode"] or "-", row["memory"] or "-", *counts, row["phase"] or "-"


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent or "    ")
