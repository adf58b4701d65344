"""What these tests share: a control plane, and one node that offers its CPUs to claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import PACKAGING, Kubectl
from tests.e2e.containerd import Containerd
from tests.kubelet.real.dra.node import ClaimNode
from tests.kubelet.real.dra.second_driver import credentials_of
from tests.kubelet.real.shared.conftest import api as api  # fixtures, of these tests too
from tests.kubelet.real.shared.conftest import containerd as containerd
from tests.kubelet.real.shared.conftest import described as described
from tests.kubelet.real.shared.conftest import kubectl as kubectl
from tests.kubelet.real.shared.conftest import logind as logind
from tests.kubelet.real.shared.conftest import programs as programs
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.whole import running, shown

CONFIG = {"dra": {"enabled": True}}


@pytest.fixture(scope="package")
def credentials(api: ControlPlane) -> Path:
    """Of the driver that some tests have beside ours."""
    return credentials_of(api)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def whole(
    programs: dict[str, Path],
    api: ControlPlane,
    kubectl: Kubectl,
    containerd: Containerd,
    described: Path,
    logind: Logind,
) -> AsyncIterator[ClaimNode]:
    """The node, on which all runs, with its slices published."""
    kubectl.apply_rights()
    kubectl.run("apply", "-k", str(PACKAGING / "dra" / "objects"))
    kubelet = programs["kubelet"]
    async with running(
        ClaimNode, kubelet, api, kubectl, containerd, described, logind, config=CONFIG, as_kubelet=True
    ) as node:
        await node.until_published()
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def node(whole: ClaimNode) -> AsyncIterator[ClaimNode]:
    """The node without pods and claims; a test may leave some, which are gone before the next."""
    async with shown(whole):
        yield whole
    await whole.until_nothing_is_left()
