"""Installer's Jobs: one node at a time, behind those that were installed before."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from cluster.api.names import FRONT_END_LABEL, INSTALLED_LABEL, INSTALLING_LABEL
from cluster.installer.job import install_job
from cluster.operator.installs import CREATE, DELETE, LABEL, Job, Next, next_install, read_job, version_of
from cluster.operator.objects import INSTALL_ANNOTATION, KubernetesNode, read_node, read_node_placement
from tests.cluster.operator.cluster import node, well_status

IMAGE = "registry.example:5000/cri-resmgr-installer:0.1.0"


def proxy(
    name: str, installed: str = "", installing: str = "", failed: str = "", ready: bool = True
) -> KubernetesNode:
    labels = {FRONT_END_LABEL: "proxy", INSTALLED_LABEL: installed, INSTALLING_LABEL: installing}
    found = node(name, ready, **{key: value for key, value in labels.items() if value})
    found["metadata"]["annotations"] = {INSTALL_ANNOTATION: failed}
    return read_node(found)


def asked(
    *nodes: KubernetesNode, jobs: Optional[dict[str, Job]] = None, status: Optional[dict[str, Any]] = None
) -> Next:
    states = {
        each.name: read_node_placement({"metadata": {"name": each.name}, "status": status or well_status()})
        for each in nodes
    }
    return next_install(IMAGE, nodes, states, jobs or {})


def job(name: str, phase: str, image: str = IMAGE) -> dict[str, Job]:
    return {name: Job(f"cri-resmgr-install-{name}", "uid", name, image, phase)}


def test_the_first_node_is_labelled_then_its_job_created_then_waited_for() -> None:
    act = asked(proxy("n1"), proxy("n0")).act
    assert act is not None
    assert (act.kind, act.node.name, act.installing) == (LABEL, "n0", "0.1.0")
    act = asked(proxy("n0", installing="0.1.0"), proxy("n1")).act
    assert act is not None and act.kind == CREATE
    waiting = asked(proxy("n0", installing="0.1.0"), proxy("n1"), jobs=job("n0", "running"))
    assert waiting == Next(waits="n0 is being installed")


def test_a_complete_job_is_told_by_the_labels_and_the_next_node_follows() -> None:
    act = asked(proxy("n0", installing="0.1.0"), proxy("n1"), jobs=job("n0", "complete")).act
    assert act is not None
    assert (act.kind, act.installed, act.installing) == (LABEL, "0.1.0", "")
    act = asked(proxy("n0", installed="0.1.0"), proxy("n1")).act
    assert act is not None and act.node.name == "n1"


def test_a_failed_job_is_told_and_stops_the_others_until_the_image_is_another() -> None:
    act = asked(proxy("n0", installing="0.1.0"), proxy("n1"), jobs=job("n0", "failed")).act
    assert act is not None and act.job is not None
    assert (act.kind, act.installed, act.installing) == (LABEL, "", "")
    stopped = asked(proxy("n0", failed=f"{IMAGE}: kubelet did not come back"), proxy("n1"))
    assert stopped.act is None
    assert "kubelet did not come back" in stopped.waits
    act = asked(proxy("n0", failed="old:1: kubelet did not come back"), proxy("n1")).act
    assert act is not None and act.node.name == "n0"


@pytest.mark.parametrize(
    "status",
    [
        {},
        well_status(doctor={"errors": 1}),
        well_status(conditions=[{"type": "Ready", "status": "False", "message": "no daemon"}]),
    ],
)
def test_no_node_is_begun_behind_one_that_is_installed_and_not_well(status: dict[str, Any]) -> None:
    found = asked(proxy("n0", installed="0.1.0"), proxy("n1"), status=status or {"conditions": []})
    assert found.act is None
    assert found.waits.startswith("n0 is installed and not well")


def test_a_job_that_has_ended_before_goes_before_a_node_is_begun_again() -> None:
    act = asked(proxy("n0"), jobs=job("n0", "failed", "old:0.0.9")).act
    assert act is not None and act.kind == DELETE
    assert asked(proxy("n0"), jobs=job("n0", "going")).act is None


def test_nodes_that_do_not_say_proxy_and_nodes_without_a_kubelet_are_left() -> None:
    assert asked(read_node(node("n0")), proxy("n1", ready=False)) == Next()


def test_a_jobs_state_is_read_from_its_object() -> None:
    made = install_job("n0", IMAGE)
    assert read_job(made) == Job("cri-resmgr-install-n0", "", "n0", IMAGE, "running")
    made["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert read_job(made).phase == "failed"


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (IMAGE, "0.1.0"),
        ("cri-resmgr", "latest"),
        ("host:5000/cri-resmgr", "latest"),
        ("cri-resmgr@sha256:0123456789abcdef", "0123456789ab"),
    ],
)
def test_the_version_of_an_image_fits_a_label(image: str, version: str) -> None:
    assert version_of(image) == version
