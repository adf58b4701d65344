"""Which node gets an installer's Job next: one node at a time, and none behind a node that is not well with it.

The state is in the objects: labels of the Node (installing, installed) and the Job itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from cluster.api.names import NODE_ANNOTATION
from cluster.operator.objects import KubernetesNode, NodePlacement, Object
from cluster.operator.rollout import trouble

#: The front end that is installed on the host; the others run in pods.
PROXY = "proxy"
LABEL, CREATE, DELETE = "label", "create", "delete"
#: A label's value has 63 characters at most.
_VALUE_MOST = 63


class Job(NamedTuple):
    """An installer's Job."""

    name: str
    uid: str
    node: str
    image: str
    #: "running", "complete", "failed", or "going" while it is being deleted.
    phase: str


class Act(NamedTuple):
    """One write: labels of a Node, a Job to create for it, or an old Job of it to delete."""

    kind: str
    node: KubernetesNode
    installed: str = ""
    installing: str = ""
    #: The Job whose pod says why, of a label that tells a failure; or the one to delete.
    job: Optional[Job] = None


@dataclass(frozen=True)
class Next:
    act: Optional[Act] = None
    #: Why no further node is begun, one sentence.
    waits: str = ""


def read_job(found: Object) -> Job:
    metadata, status = found["metadata"], found.get("status") or {}
    ended = {each["type"] for each in status.get("conditions") or () if each.get("status") == "True"}
    phase = "complete" if "Complete" in ended else "failed" if "Failed" in ended else "running"
    if metadata.get("deletionTimestamp"):
        phase = "going"
    return Job(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        node=(metadata.get("annotations") or {}).get(NODE_ANNOTATION, ""),
        image=_image(found),
        phase=phase,
    )


def version_of(image: str) -> str:
    """The label's value for an image: its tag, or the beginning of its digest."""
    _, _, digest = image.partition("@sha256:")
    if digest:
        return digest[:12]
    tag = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] else "latest"
    return re.sub(r"[^A-Za-z0-9._-]", "-", tag)[:_VALUE_MOST].strip("-_.")


def next_install(
    image: str,
    nodes: Iterable[KubernetesNode],
    placements: Mapping[str, NodePlacement],
    jobs: Mapping[str, Job],
) -> Next:
    """The next write (``jobs``: by node). After it was made and seen, ask again."""
    version = version_of(image)
    nodes = sorted(node for node in nodes if node.front_end == PROXY or node.installing)
    # 1. What has begun is brought to its end.
    for node in nodes:
        if node.installing:
            return _continued(node, image, version, jobs.get(node.name))
    # 2. A failure stops the others, until people take the annotation away or give another image.
    for node in nodes:
        if node.install_failed.startswith(f"{image}: "):
            return Next(waits=f"{node.name}: {node.install_failed}")
    # 3. So does a node that is installed and not well.
    for node in nodes:
        if node.installed == version:
            why = _unwell(node, placements.get(node.name))
            if why:
                return Next(waits=f"{node.name} is installed and not well: {why}")
    # 4. The next one by name; a node whose kubelet does not answer could not run the Job.
    for node in nodes:
        if node.installed != version and node.ready:
            old = jobs.get(node.name)
            if old is not None:
                return Next(None if old.phase == "going" else Act(DELETE, node, job=old))
            return Next(Act(LABEL, node, node.installed, version))
    return Next()


def _continued(node: KubernetesNode, image: str, version: str, job: Optional[Job]) -> Next:
    if job is None:
        if node.installing != version:
            return Next(Act(LABEL, node, node.installed, ""))
        return Next(Act(CREATE, node))
    if job.phase in ("running", "going"):
        return Next(waits=f"{node.name} is being installed")
    if version_of(job.image) != node.installing:
        return Next(Act(DELETE, node, job=job))
    if job.phase == "complete":
        return Next(Act(LABEL, node, node.installing, ""))
    return Next(Act(LABEL, node, node.installed, "", job))


def _unwell(node: KubernetesNode, state: Optional[NodePlacement]) -> str:
    if state is None or state.ready is None:
        return "its agent has not answered"
    found = trouble(state, node.ready)
    return found.sentence if found else ""


def _image(found: Object) -> str:
    template: Mapping[str, Any] = (found.get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image", ""))
