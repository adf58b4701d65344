"""What these tests share: a control plane, a containerd, and one node that offers its CPUs to claims.

The node is there once for each front end of the daemon that a module names in ``FRONT_ENDS``: the page's examples, and
what starts while the daemon is away, with NRI always; other tests with NRI, and those of standalone, only in long runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import PACKAGING, Kubectl
from tests.cluster.real.parts import delete
from tests.e2e.containerd import Containerd
from tests.e2e.node import until
from tests.kubelet.real.dra.node import ClaimNode
from tests.kubelet.real.dra.second_driver import credentials_of
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.conftest import api as api  # fixtures, of these tests too
from tests.kubelet.real.shared.conftest import containerd as containerd
from tests.kubelet.real.shared.conftest import described as described
from tests.kubelet.real.shared.conftest import kubectl as kubectl
from tests.kubelet.real.shared.conftest import logind as logind
from tests.kubelet.real.shared.conftest import programs as programs
from tests.kubelet.real.shared.logind import Logind
from tests.kubelet.real.shared.whole import running, shown

CONFIG = {"dra": {"enabled": True}}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test of a module runs with each of its front ends, by default with the proxy."""
    if "front_end" in metafunc.fixturenames:
        names = getattr(metafunc.module, "FRONT_ENDS", ("proxy",))
        metafunc.parametrize("front_end", names, indirect=True, scope="package")


@pytest.fixture(scope="package")
def front_end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
    front_end: str,
) -> AsyncIterator[ClaimNode]:
    """The node, on which all runs, with its slices published. At its end the server knows none."""
    kubectl.apply_rights()
    kubectl.run("apply", "-k", str(PACKAGING / "dra" / "objects"))
    async with running(
        ClaimNode,
        programs["kubelet"],
        api,
        kubectl,
        containerd,
        described,
        logind,
        config=CONFIG,
        as_kubelet=True,
        front_end=front_end,
    ) as node:
        await node.until_published()
        yield node
    # The slices are the node's, and go with it.
    await delete(api, f"/api/v1/nodes/{node.name}")
    await until(node.slices, lambda found: not found, TIMEOUT_S)


@pytest_asyncio.fixture(loop_scope="session")
async def node(whole: ClaimNode) -> AsyncIterator[ClaimNode]:
    """The node without pods and claims; a test may leave some, which are gone before the next."""
    async with shown(whole):
        yield whole
    await whole.until_nothing_is_left()
