"""Kubernetes' own driver of CPUs on the described machine, and ours beside it on one node."""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.real.control_plane import ControlPlane
from tests.cluster.real.kubectl import Kubectl
from tests.e2e.containerd import Containerd
from tests.e2e.node import until
from tests.kubelet.real.conftest import LINES
from tests.kubelet.real.dra.node import L3_CPUS, pod_of, user
from tests.kubelet.real.dra.reference import (
    REFERENCE,
    SOCKETS,
    ReferenceNode,
    allow_reference,
    group_share,
    reference_node,
)
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import SHARED, container, pod
from tests.kubelet.real.shared.whole import containerd_in, described_in
from tests.peers.programs import find

pytestmark = SHARED


@pytest.fixture(scope="module")
def machine_folder(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return described_in(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def with_nri(
    programs: dict[str, Path], machine_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    images = tmp_path_factory.mktemp("images")
    # Its sockets' paths are short.
    with tempfile.TemporaryDirectory(prefix="crn-") as short:
        folder = Path(short) / "c"
        with containerd_in(folder, programs, machine_folder, images) as runtime:
            yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reference(
    programs: dict[str, Path],
    api: ControlPlane,
    kubectl: Kubectl,
    with_nri: Containerd,
    machine_folder: Path,
) -> AsyncIterator[ReferenceNode]:
    """The node with that driver; our daemon has its name, and is not started."""
    credentials, name = allow_reference(api), f"reference-{os.getpid()}"
    found = {**programs, **find("dracpu")}
    config = {"dra": {"enabled": True, "driver_name": REFERENCE}}
    async with reference_node(
        found, api, kubectl, with_nri, machine_folder, credentials, name, config=config
    ) as node:
        yield node
        # Shown if a test fails.
        print("--- driver", *node.driver_log().splitlines()[-LINES:], sep="\n")


async def test_it_gives_cpus_of_a_numa_node_and_all_others_the_rest(reference: ReferenceNode) -> None:
    devices = await reference.devices()
    assert {each["capacity"][f"{REFERENCE}/cpu"]["value"] for each in devices.values()} == {"16"}
    assert len(devices) == 8
    other = await reference.start(pod("other", container()))
    await reference.claim("four", group_share(4))
    ids = await reference.start(pod_of("web", user("main", "four"), claims=["four"]))
    await reference.until_told(ids["main"], lambda cpus: len(cpus) == 4 and cpus <= L3_CPUS[0])
    await reference.until_told(other["main"], lambda cpus: len(cpus) == 124)
    for name in ("web", "other"):
        await reference.remove(name)


async def test_ours_is_not_the_driver_while_it_is_registered_and_the_doctor_names_it(
    reference: ReferenceNode,
) -> None:
    # It has the front end that needs no other kubelet, and nothing runs that it could place.
    await reference.agent.start("--standalone")
    await reference.reports.start()
    assert reference.process is not None
    pid = reference.process.pid
    (reference.host.folder / f"proc/{pid}").symlink_to(f"/proc/{pid}")
    try:
        # 1. The agent says which socket is served, and serves none; kubelet keeps its driver.
        async def refused() -> bool:
            return "is served by another process" in reference.reports.log()

        await until(refused, bool, TIMEOUT_S)
        assert "registered with kubelet" not in reference.reports.log()
        # 2. The doctor names the process, as the driver of our name and as a program that sets cpusets.
        said = await findings(reference)
        assert (
            f"the driver {REFERENCE} of this node is dracpu (process {pid}), "
            "and dra.driver_name has the same name"
        ) in said["claims-driver"]
        assert any("driver of CPUs (dra.cpu)" in sentence for sentence in said["writer"])
        # 3. It goes: ours is the driver, and the doctor has nothing to say of it.
        before = await reference.slices()
        await reference.end_driver()

        async def registered() -> bool:
            return "registered with kubelet" in reference.reports.log()

        await until(registered, bool, TIMEOUT_S)
        await until(reference.slices, lambda now: bool(now) and now != before, TIMEOUT_S)
        said = await findings(reference)
        assert not any("dra.cpu" in sentence for sentence in (*said["claims-driver"], *said["writer"]))
    finally:
        await reference.reports.end()
        await reference.agent.terminate()
        for path in SOCKETS:
            (reference.kubelet_folder / path).unlink(missing_ok=True)


async def findings(node: ReferenceNode) -> dict[str, list[str]]:
    """What the doctor says, by check. Of programs it sees kubelet and the driver of this node: other runs have theirs."""
    proc = node.host.folder / "proc"
    words = (
        "doctor",
        "--config",
        str(node.agent.config_file),
        "--proc",
        str(proc),
        "--timeout",
        "60",
        "--json",
    )
    _, out, _ = await node.agent.cli(*words)
    said: dict[str, list[str]] = defaultdict(list)
    for each in json.loads(out)["findings"]:
        said[each["check"]].append(each["sentence"])
    return said
