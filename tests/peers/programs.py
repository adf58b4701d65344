"""Programs of the peers by their own names: what the environment names, else what is built here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from tests.peers.build import Peer, Unavailable, all_peers, programs

#: The variables of the environment that name another program of this kind.
VARIABLES = {
    "etcd": "ETCD",
    "kube-apiserver": "KUBE_APISERVER",
    "kube-controller-manager": "KUBE_CONTROLLER_MANAGER",
    "kube-scheduler": "KUBE_SCHEDULER",
    "kubectl": "KUBECTL",
    "kubelet": "KUBELET",
}
#: A node's runtime: its programs find each other beside the first, or on PATH.
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
#: The release before, with runc of the machine.
CONTAINERD_17 = tuple(f"containerd-1.7/{name}" for name in CONTAINERD[:-1])
#: CRI-O's, which calls conmon of the machine.
CRIO = ("crio", "pinns", "runc")
#: What a cluster of one node runs.
CLUSTER = (*VARIABLES, *CONTAINERD)


def find(*names: str, say: Callable[[str], None] = print, may_build: bool = True) -> dict[str, Path]:
    """The programs of these names; a peer's that is not built yet is built, which takes minutes once, if ``may_build``.

    :raises Unavailable: one of them cannot be had; says which, and why.
    :raises KeyError: no peer has a program of that name.
    """
    given = {name: os.environ.get(VARIABLES.get(name, ""), "") for name in names}
    found = {name: Path(path) for name, path in given.items() if path}
    wanted: dict[str, list[str]] = {}
    for name in names:
        if name not in found:
            wanted.setdefault(peers_by_program()[name].name, []).append(name)
    for ours in wanted.values():
        peer = peers_by_program()[ours[0]]
        built = programs(peer, [peer.asked_for[name] for name in ours], say=say, may_build=may_build)
        found.update({name: built[peer.asked_for[name]] for name in ours})
    return found


@functools.cache
def peers_by_program() -> dict[str, Peer]:
    """By what each program is asked for: its peer."""
    return {name: peer for peer in all_peers() for name in peer.asked_for}


__all__ = ["CLUSTER", "CONTAINERD", "CONTAINERD_17", "CRIO", "VARIABLES", "Unavailable", "find"]
