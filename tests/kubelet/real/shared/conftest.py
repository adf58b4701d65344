"""What these tests share: a control plane, and one node with its containerd, daemon, agent and kubelet."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.api.names import NAMESPACE
from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.e2e.containerd import Containerd, missing
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.node import SharedNode
from tests.kubelet.real.shared.whole import containerd_in, described_in, running, shown
from tests.peers.programs import CLUSTER, find

#: A runtime handler as virtual machines have it, by the name that our default leaves alone; here it is runc.
HANDLER = "kata-of-the-tests"
RUNTIMES = """\
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}.options]
  BinaryName = "{runc}"
"""


@pytest.fixture(scope="package")
def programs() -> dict[str, Path]:
    """The programs of a cluster by name; for root, that there are none is a failure."""
    if os.geteuid() != 0:
        pytest.skip("A real kubelet needs root.")
    assert missing() == ""
    return find(*CLUSTER)


@pytest.fixture(scope="package")
def described(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the machine."""
    return described_in(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="package")
def containerd(
    programs: dict[str, Path], described: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """With a handler besides that pods name by a RuntimeClass."""
    folder, images = tmp_path_factory.mktemp("c") / "c", tmp_path_factory.mktemp("images")
    handler = RUNTIMES.format(runc=described / "runc", handler=HANDLER)
    with containerd_in(folder, programs, described, images, handler) as runtime:
        yield runtime


@pytest.fixture(scope="package")
def api(programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A control plane with the controllers and the scheduler, and our kinds of objects."""
    # Its sockets' paths are short.
    folder = Path(tempfile.mkdtemp(prefix="crk-"))
    with ControlPlane(folder, programs["etcd"], programs["kube-apiserver"]) as plane:
        plane.start_controllers(programs["kube-controller-manager"], programs["kube-scheduler"])
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield plane


@pytest.fixture(scope="package")
def kubectl(api: ControlPlane, programs: dict[str, Path]) -> Kubectl:
    kubectl = Kubectl(programs["kubectl"], api)
    kubectl.apply_crds()
    return kubectl


@pytest.fixture(scope="package")
def logind() -> Iterator[Logind]:
    """A logind that kubelet asks, on a bus of its own; not started."""
    logind = Logind(Path(tempfile.mkdtemp(prefix="crl-")))
    yield logind
    logind.close()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def whole(
    programs: dict[str, Path],
    api: ControlPlane,
    kubectl: Kubectl,
    containerd: Containerd,
    described: Path,
    logind: Logind,
) -> AsyncIterator[SharedNode]:
    """The node, on which all runs."""
    async with running(SharedNode, programs["kubelet"], api, kubectl, containerd, described, logind) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def node(whole: SharedNode) -> AsyncIterator[SharedNode]:
    """The node without pods; a test may leave some, which are gone before the next."""
    async with shown(whole):
        yield whole
    await whole.until_nothing_is_left()
