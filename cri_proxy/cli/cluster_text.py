"""What people are told of the cluster's policy, of overrides and of a freeze, as text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cri_proxy.text.terminal import table


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
        (f"{o['namespace']}/{o['pod']}/{o['container']}", o["zone"], o["state"], o["sentence"])
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
