"""The Jobs that install a node and take that back, as objects of the API: built here, created by their callers.

The pod is privileged and sees the host's processes, since systemctl needs both. It has no token of the API server: what
it was told is in its arguments, what came of it is its exit code and the one sentence of its termination message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from cluster.api.names import INSTALLER, NAMESPACE, NODE_ANNOTATION

#: Python of the image, isolated from everything but the program and its dependencies.
PYTHON = ("/usr/lib/cri-resmgr/bin/python", "-I", "-m")
#: Where the pod sees the host's files.
HOST_ROOT = "/host"
#: Seconds for the whole of it: a package is installed in 20, kubelet is given 60 to come back.
DEADLINE_S = 900
#: Seconds that the pod has to take everything back once it was asked to end.
GRACE_S = 300
#: Seconds until a Job that has ended is removed, where the caller has not done so.
KEPT_S = 86400
#: A pod's label has 63 characters at most, and the Job's name becomes one.
_NAME_MOST = 63
INSTALL, UNINSTALL = "install", "uninstall"


def install_job(
    node: str,
    image: str,
    *,
    namespace: str = NAMESPACE,
    pull_policy: str = "IfNotPresent",
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The Job (batch/v1) that installs the package of ``image`` on ``node``, for the caller to create.

    Its name is the same for the same node (``job_name``): a second one cannot be created while the first is there.
    It tries once. Complete: installed, kubelet switched, ``doctor`` content, or all of that was so before. Failed:
    the host is as it was, unless ``termination_sentence`` of its pod says otherwise.
    """
    return _job(INSTALL, node, image, namespace, pull_policy, pull_secrets)


def uninstall_job(
    node: str,
    image: str,
    *,
    namespace: str = NAMESPACE,
    pull_policy: str = "IfNotPresent",
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The Job (batch/v1) that takes back what ``install_job`` has done on ``node``, and nothing else.

    Complete: kubelet is at the runtime, units and package are as before the first installation; also where nothing
    was installed. Failed: what could not be taken back is still written down on the host, for the next try.
    """
    return _job(UNINSTALL, node, image, namespace, pull_policy, pull_secrets)


def job_name(action: str, node: str) -> str:
    """``cri-resmgr-install-NODE``, cut to what a label holds; what is cut is told apart by a hash of the whole name."""
    prefix = f"cri-resmgr-{action}-"
    plain = re.sub(r"[^a-z0-9-]+", "-", node.lower()).strip("-")
    if plain == node and len(prefix) + len(plain) <= _NAME_MOST:
        return prefix + plain
    digest = hashlib.sha256(node.encode()).hexdigest()[:8]
    room = _NAME_MOST - len(prefix) - len(digest) - 1
    return f"{prefix}{plain[:room].strip('-')}-{digest}"


def termination_sentence(pod: dict[str, Any]) -> str:
    """What the installer said at its end, from a pod object; "" if it has not ended, or was killed."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    ended = statuses[0].get("state", {}).get("terminated") or {}
    return str(ended.get("message", "")).strip()


def _job(
    action: str, node: str, image: str, namespace: str, pull_policy: str, pull_secrets: Sequence[str]
) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": INSTALLER, "app.kubernetes.io/component": action}
    annotations = {NODE_ANNOTATION: node}
    pod: dict[str, Any] = {
        # Not scheduled: it runs on a cordoned node as well, and on one whose taints keep others away.
        "nodeName": node,
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "serviceAccountName": INSTALLER,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostPID": True,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(action, image, pull_policy)],
        "volumes": [
            {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
        ],
    }
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in pull_secrets]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(action, node),
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            # What fails takes itself back and says why; a second try at once would only fail again.
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": DEADLINE_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }


def _container(action: str, image: str, pull_policy: str) -> dict[str, Any]:
    return {
        "name": INSTALLER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": [*PYTHON, "cluster.installer", action, f"--root={HOST_ROOT}"],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "privileged": True,
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "runAsGroup": 0,
        },
        "volumeMounts": [
            {"name": "host", "mountPath": HOST_ROOT, "mountPropagation": "HostToContainer"},
        ],
    }
