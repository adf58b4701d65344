"""The cluster's policy on this node's disk: one JSON file in the state directory, read as a layer of the configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cri_proxy.core.cluster_policy import MAX_CHARACTERS, BadPolicy, ClusterPolicy, read_policy
from cri_proxy.shell.bounded_files import read_bytes

FILE = "cluster-policy.json"


@dataclass(frozen=True)
class Kept:
    """What is on disk. ``problem``: why a policy that is there is not used. ``held_off``: the node takes none.

    ``is_unread``: the disk has not answered; ``policy`` is the one that was in force, and is to be read again.
    """

    policy: Optional[ClusterPolicy] = None
    problem: str = ""
    held_off: bool = False
    is_unread: bool = False


NOTHING = Kept()


def read_kept(folder: Path) -> Kept:
    """What a state directory has. A policy that this version does not take is a problem, and no policy. Never raises."""
    path = folder / FILE
    try:
        document: Any = json.loads(read_bytes(path, 8 * MAX_CHARACTERS))
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        return Kept(problem=f"{path}: the cluster's policy cannot be read: {error.strerror or error}")
    except ValueError:
        return Kept(problem=f"{path}: the cluster's policy cannot be read: it is not JSON")
    if not isinstance(document, Mapping):
        return Kept(problem=f"{path}: the cluster's policy cannot be read: it is no object")
    if document.get("held_off") is True:
        return Kept(held_off=True)
    try:
        return Kept(read_policy(document))
    except BadPolicy as error:
        return Kept(problem=str(error))


def write_kept(folder: Path, kept: Kept) -> None:
    """Keep a policy, or that there is to be none.

    :raises OSError: the directory cannot be written; what was there is there still.
    """
    path = folder / FILE
    if kept == NOTHING:
        path.unlink(missing_ok=True)
        return
    document: dict[str, Any] = {"held_off": kept.held_off}
    if kept.policy is not None:
        document |= {**kept.policy.document, "config": kept.policy.values}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(document), encoding="utf-8")
    os.replace(beside, path)
