"""How a domain is named: ``socket-0``, ``l3-12``, and NUMA node 3 as ``numa-3`` to people, ``node-3`` to programs. Pure.

A node is a machine of the cluster to people who use Kubernetes. Programs have the older name: state files, the control
socket, and NodeResourceTopology, whose reader in kube-scheduler takes no other.
"""

from __future__ import annotations


def domain_text(name: str) -> str:
    """The name as screens, sentences and NodePlacement have it."""
    return f"numa-{name[5:]}" if name.startswith("node-") else name


def read_domain(text: str) -> str:
    """The name as programs have it, of either form."""
    return f"node-{text[5:]}" if text.startswith("numa-") else text
