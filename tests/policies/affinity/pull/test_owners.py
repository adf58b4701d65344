"""Owners are told by names and labels as controllers really write them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from policies.affinity.pull.owners import owner_of, workload_of

LONG = "a-service-with-a-name-that-somebody-had-much-time-to-think-of"

PODS: dict[str, tuple[str, Mapping[str, str], str]] = {
    "deployment": ("web-7d4b9c6f5-x2x7k", {"pod-template-hash": "7d4b9c6f5", "app": "web"}, "web"),
    "deployment with a hyphen": (
        "cart-db-proxy-6c9f7d4b5d-zz2pq",
        {"pod-template-hash": "6c9f7d4b5d"},
        "cart-db-proxy",
    ),
    "deployment named like a stateful pod": (
        "web-0-5d89bdfbf9-abcde",
        {"pod-template-hash": "5d89bdfbf9"},
        "web-0",
    ),
    "argo rollout": ("api-5f6d7c8b9-q8wzt", {"rollouts-pod-template-hash": "5f6d7c8b9"}, "api"),
    "coredns": (
        "coredns-5d78c9869d-7k2xv",
        {"k8s-app": "kube-dns", "pod-template-hash": "5d78c9869d"},
        "coredns",
    ),
    "deployment whose hash was cut off": (
        f"{LONG[:50]}-7d4b9c6x2x7k",
        {"pod-template-hash": "7d4b9c6f5"},
        LONG[:50],
    ),
    "deployment whose name was cut off": (f"{LONG[:58]}x2x7k", {"pod-template-hash": "7d4b9c6f5"}, LONG[:58]),
    "a hash that is not in the name": ("web-x2x7k", {"pod-template-hash": "7d4b9c6f5"}, "web-x2x7k"),
    "statefulset by its pod name": ("redis-0", {"statefulset.kubernetes.io/pod-name": "redis-0"}, "redis"),
    "statefulset by its index": ("redis-12", {"apps.kubernetes.io/pod-index": "12"}, "redis"),
    "statefulset by its revision": (
        "kafka-broker-2",
        {"controller-revision-hash": "kafka-broker-64f5d7"},
        "kafka-broker",
    ),
    "daemonset": (
        "kube-proxy-8xk2v",
        {"controller-revision-hash": "7bb5d4c8b6", "k8s-app": "kube-proxy"},
        "kube-proxy",
    ),
    "daemonset with a suffix of digits": (
        "fluentd-22456",
        {"controller-revision-hash": "58d6f5d4c9"},
        "fluentd",
    ),
    "cilium": ("cilium-node-init-abc12", {"controller-revision-hash": "5c8b"}, "cilium-node-init"),
    "job": ("migrate-h7xk2", {"job-name": "migrate", "controller-uid": "x"}, "migrate"),
    "job, new label": ("migrate-h7xk2", {"batch.kubernetes.io/job-name": "migrate"}, "migrate"),
    "indexed job": (
        "train-3-h7xk2",
        {"job-name": "train", "batch.kubernetes.io/job-completion-index": "3"},
        "train",
    ),
    "cronjob": ("backup-28956780-h7xk2", {"job-name": "backup-28956780"}, "backup"),
    "cronjob of an old cluster": ("backup-1609459200-h7xk2", {"job-name": "backup-1609459200"}, "backup"),
    "job with a date in its name": (
        "backup-20240101-h7xk2",
        {"job-name": "backup-20240101"},
        "backup-20240101",
    ),
    "somebody's own label job-name": ("web-x2x7k", {"job-name": "node"}, "web-x2x7k"),
    "bare pod": ("toolbox", {}, "toolbox"),
    "bare pod with a number": ("toolbox-1", {"app": "toolbox"}, "toolbox-1"),
    "static pod": (
        "etcd-control-plane-1",
        {"component": "etcd", "tier": "control-plane"},
        "etcd-control-plane-1",
    ),
}


@pytest.mark.parametrize(("pod_name", "labels", "workload"), PODS.values(), ids=PODS.keys())
def test_the_workload_is_what_made_the_pod(pod_name: str, labels: Mapping[str, str], workload: str) -> None:
    assert workload_of(pod_name, labels) == workload


def test_an_owner_is_namespace_workload_and_container() -> None:
    labels = {"pod-template-hash": "7d4b9c6f5"}
    assert owner_of("shop", "web-7d4b9c6f5-x2x7k", labels, "nginx") == "shop/web/nginx"


def test_replicas_of_two_revisions_have_one_owner() -> None:
    old = owner_of("shop", "web-7d4b9c6f5-x2x7k", {"pod-template-hash": "7d4b9c6f5"}, "nginx")
    new = owner_of("shop", "web-66d8f9c7b4-9lq2m", {"pod-template-hash": "66d8f9c7b4"}, "nginx")
    assert old == new


def test_a_container_of_an_unknown_pod_has_no_owner() -> None:
    assert owner_of("", "", {}, "nginx") == ""
