"""The installer's Jobs: names, what the pod may do, and what it is not given."""

from __future__ import annotations

import re
from typing import Any, Callable

import pytest

from cluster.installer.job import install_job, job_name, termination_sentence, uninstall_job

LONG = "ip-10-0-0-1.eu-central-1.compute.internal.a-very-long-name-of-a-cluster.example.org"
JOBS = {"install": install_job, "uninstall": uninstall_job}


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("node-1", "cri-resmgr-install-node-1"),
        ("node.example", "cri-resmgr-install-node-example-HASH"),
        (LONG, "cri-resmgr-install-ip-10-0-0-1-eu-central-1-compute-in-HASH"),
    ],
)
def test_the_jobs_name_fits_a_label(node: str, name: str) -> None:
    made = job_name("install", node)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", made)
    assert re.fullmatch(name.replace("HASH", "[0-9a-f]{8}"), made)


def test_nodes_that_differ_only_in_what_a_name_cannot_hold_have_different_jobs() -> None:
    names = {job_name("install", node) for node in ("a.b", "a-b", f"{LONG}1", f"{LONG}2", "a..b")}
    assert len(names) == 5


@pytest.mark.parametrize("action", JOBS)
def test_the_pod_has_the_host_and_nothing_of_the_cluster(action: str) -> None:
    make: Callable[..., dict[str, Any]] = JOBS[action]
    job = make("node-1", "image:1", pull_secrets=["registry"])
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["hostPID"] is True
    assert spec["nodeName"] == "node-1"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert container["command"][-2:] == [action, "--root=/host"]
    assert container["securityContext"]["privileged"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "hostNetwork" not in spec and "hostIPC" not in spec


@pytest.mark.parametrize("action", JOBS)
def test_a_job_tries_once_and_has_time_to_take_everything_back(action: str) -> None:
    spec = JOBS[action]("node-1", "image:1")["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_the_sentence_is_that_of_the_ended_container() -> None:
    ended = {"state": {"terminated": {"exitCode": 1, "message": "kubelet did not come back\n"}}}
    assert termination_sentence({"status": {"containerStatuses": [ended]}}) == "kubelet did not come back"
    assert termination_sentence({"status": {"containerStatuses": [{"state": {"running": {}}}]}}) == ""
    assert termination_sentence({}) == ""
