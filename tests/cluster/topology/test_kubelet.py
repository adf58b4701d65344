"""Kubelet's topology manager is read from its file, in its own words."""

from __future__ import annotations

import pytest

from cluster.topology.resource_topology import TopologyManager, read_topology_manager

YAML = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: single-numa-node  # as the scheduler has it
topologyManagerScope: "pod"
topologyManagerPolicyOptions:
  max-allowable-numa-nodes: "16"
memorySwap: {}
"""
NESTED = """\
kind: KubeletConfiguration
evictionHard:
  topologyManagerPolicy: restricted
# topologyManagerPolicy: restricted
"""
JSON = '{"kind": "KubeletConfiguration", "topologyManagerPolicy": "restricted", "topologyManagerScope": null}'


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("", TopologyManager("none", "container", 0)),
        (YAML, TopologyManager("single-numa-node", "pod", 16)),
        (NESTED, TopologyManager("none", "container", 0)),
        (JSON, TopologyManager("restricted", "container", 0)),
    ],
    ids=["nothing said", "block YAML", "keys of others", "JSON"],
)
def test_what_kubelet_says_and_else_its_defaults(config: str, found: TopologyManager) -> None:
    assert read_topology_manager(config) == found
