"""The programs of a cluster: what the environment names, else Debian's, of which some are built."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.packages import etcd, kubectl
from tests.kubelet.real.build import CACHE, programs

#: The variable of the environment that names another program of this kind.
VARIABLES = {
    "kube-apiserver": "KUBE_APISERVER",
    "kubelet": "KUBELET",
    "kube-controller-manager": "KUBE_CONTROLLER_MANAGER",
    "kube-scheduler": "KUBE_SCHEDULER",
}


def programs_of_a_cluster() -> dict[str, Path]:
    """etcd, kubectl and the programs of a cluster by name: those that the environment names, else Debian's."""
    given = {name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}
    own = [name for name, path in given.items() if not path]
    found = {**{name: Path(path) for name, path in given.items()}, **dict(zip(own, programs(*own)))}
    store = os.environ.get("ETCD", "")
    found["etcd"] = Path(store) if store else etcd(CACHE.parent)
    found["kubectl"] = kubectl(CACHE.parent)
    return found
