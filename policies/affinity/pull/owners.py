"""The owner of a container: ``namespace/workload/container``, told by the pod's name and labels alone.

A restarted or scaled pod has a new name, but the same owner: the traffic of an owner is known before the
new pod has sent a byte. Controllers name pods OWNER-suffix, and say in a label what the suffix is made of
(kubernetes: pkg/controller/controller_utils.go, statefulset/stateful_set_utils.go, cronjob/utils.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

#: Deployments; Argo's Rollouts, which name their pods the same way.
_TEMPLATE_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
_STATEFUL_NAME = "statefulset.kubernetes.io/pod-name"
_STATEFUL_INDEX = "apps.kubernetes.io/pod-index"
_REVISION = "controller-revision-hash"
_JOB_NAMES = ("batch.kubernetes.io/job-name", "job-name")

#: The API server cuts generateName here, and adds five letters or digits.
_MOST_GENERATED = 58
_RANDOM = re.compile(r"[a-z0-9]{5}\Z")
_ORDINAL = re.compile(r"-\d+\Z")
#: What a CronJob adds: minutes since 1970, before Kubernetes 1.21 seconds. A date such as 20240101 is neither.
_STAMP = re.compile(r"-(?:2[4-9]\d{6}|[34]\d{7}|1[4-9]\d{8})\Z")


def owner_of(namespace: str, pod_name: str, labels: Mapping[str, str], container_name: str) -> str:
    """``namespace/workload/container``; the workload of a pod without a controller is the pod itself.

    "" where the pod has no name. ``container_name`` "" is the pod as a whole: ``namespace/workload/``.
    """
    return f"{namespace}/{workload_of(pod_name, labels)}/{container_name}" if pod_name else ""


def workload_of(pod_name: str, labels: Mapping[str, str]) -> str:
    """The name of the Deployment, StatefulSet, DaemonSet, Job or CronJob that made a pod, else the pod's own."""
    for told in (_by_template, _by_ordinal, _by_job, _by_revision):
        workload = told(pod_name, labels)
        if workload:
            return workload
    return pod_name


def _by_template(pod_name: str, labels: Mapping[str, str]) -> Optional[str]:
    """Deployment: NAME-HASH-xxxxx. The hash must be the label's, so that a label of a person's own says nothing."""
    base = _without_random(pod_name)
    for label in _TEMPLATE_HASHES:
        suffix = f"-{labels[label]}-" if labels.get(label) else ""
        if not base or not suffix:
            continue
        if base.endswith(suffix):
            return base[: -len(suffix)]
        if len(base) == _MOST_GENERATED:
            return _without_cut(base, suffix)
    return None


def _by_ordinal(pod_name: str, labels: Mapping[str, str]) -> Optional[str]:
    """StatefulSet: NAME-0. Its revision is NAME-HASH; a DaemonSet's is the hash alone."""
    found = _ORDINAL.search(pod_name)
    if found is None:
        return None
    name, ordinal = pod_name[: found.start()], found.group()[1:]
    is_told = (
        labels.get(_STATEFUL_NAME) == pod_name
        or labels.get(_STATEFUL_INDEX) == ordinal
        or labels.get(_REVISION, "").rpartition("-")[0] == name
    )
    return name if is_told else None


def _by_job(pod_name: str, labels: Mapping[str, str]) -> Optional[str]:
    """Job: NAME-xxxxx, or NAME-INDEX-xxxxx; a CronJob's job is NAME-TIME."""
    for label in _JOB_NAMES:
        job = labels.get(label, "")
        if job and f"{pod_name}-".startswith(f"{job}-"[:_MOST_GENERATED]):
            return _STAMP.sub("", job)
    return None


def _by_revision(pod_name: str, labels: Mapping[str, str]) -> Optional[str]:
    """DaemonSet: NAME-xxxxx."""
    base = _without_random(pod_name)
    return base.rstrip("-") if base and labels.get(_REVISION) else None


def _without_random(pod_name: str) -> str:
    """The base of a generated name, its hyphen included where it was not cut off; "" = not generated."""
    if not _RANDOM.search(pod_name):
        return ""
    base = pod_name[:-5]
    return base if base.endswith("-") or len(base) == _MOST_GENERATED else ""


def _without_cut(base: str, suffix: str) -> str:
    """A name whose end was cut off, without the rest of the suffix."""
    for length in range(len(suffix) - 1, 0, -1):
        if base.endswith(suffix[:length]):
            return base[:-length]
    return base
