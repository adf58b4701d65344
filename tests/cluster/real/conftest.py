"""What the tests on a real kube-apiserver share: one control plane, with the CRDs in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.real.control_plane import ControlPlane
from tests.e2e.packages import etcd
from tests.kubelet.build import CACHE, programs

SERVER = "kube-apiserver"


@pytest.fixture(scope="session")
def control_plane_programs() -> tuple[Path, Path]:
    """etcd and kube-apiserver: those named by the environment, or Debian's."""
    if os.geteuid() != 0:
        pytest.skip("A real kube-apiserver is built and run as root only.")
    assert shutil.which("openssl") is not None, "openssl is not installed"
    given = os.environ.get("ETCD", "")
    store = Path(given) if given else etcd(CACHE.parent)
    given = os.environ.get("KUBE_APISERVER", "")
    return store, Path(given) if given else programs(SERVER, "kubelet")[0]


@pytest.fixture(scope="session")
def api_server(control_plane_programs: tuple[Path, Path]) -> Iterator[ControlPlane]:
    """A running control plane without nodes."""
    # Its sockets' paths are short.
    with ControlPlane(Path(tempfile.mkdtemp(prefix="crk-")), *control_plane_programs) as running:
        yield running
