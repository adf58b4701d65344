"""The version before, built from git, is upgraded while a container runs, downgraded, upgraded again and removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from tests.cri_client import CriClient
from tests.packaging.base_system import base_system
from tests.packaging.kinds import DEB, RPM, Kind
from tests.packaging.node import CONFIG, Node, booted
from tests.packaging.roots import PYTHONS, REPOSITORY

pytestmark = [pytest.mark.packages, pytest.mark.long]

#: A commit of which nodes may have packages. Its state has no log, its packages nothing compiled.
BEFORE = "cc6ecc82"
#: Unattended, dpkg is told what a person answers: an edited configuration stays.
KEEP = "-o Dpkg::Options::=--force-confold"


@pytest.fixture(scope="module")
def build_before(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """``build_before("deb", "3.11")``: the package of that commit, built as that one does it."""
    tree = tmp_path_factory.mktemp("before")
    packed = subprocess.run(["git", "-C", REPOSITORY, "archive", BEFORE], capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip(f"{BEFORE} is not in this clone: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
    # Its modules, not those that the environment's Python has of this tree.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "cri_api.build_protos"]
    subprocess.run(command, cwd=tree, env=environment, check=True)

    def build(kind: str, python: str) -> Path:
        words = [sys.executable, "packaging/build.py", kind, f"--python={python}", "--release=1", "--quick"]
        done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return Path(done.stdout.split()[-1])

    return build


@pytest.fixture(
    params=[("bookworm", DEB), ("trixie", DEB), ("bookworm", RPM)],
    ids=lambda pair: f"{pair[1].name} on {pair[0]}",
)
def node(
    request: pytest.FixtureRequest,
    package: Callable[..., Path],
    build_before: Callable[[str, str], Path],
    tmp_path: Path,
) -> Iterator[tuple[Node, Kind, str, str]]:
    """A node, the kind of its packages, and both packages' names in /root there."""
    suite, kind = request.param
    files = [build_before(kind.name, PYTHONS[suite]), package(kind.name, python=PYTHONS[suite], release="2")]
    try:
        with booted(suite) as found:
            home = found.root.path / "root"
            for file in files:
                shutil.copyfile(file, home / file.name)
            if kind is RPM:
                shutil.copyfile(base_system(files, tmp_path), home / "base.rpm")
                found.type("rpm --install base.rpm")
            yield found, kind, files[0].name, files[1].name
    except LookupError as error:
        pytest.skip(str(error))


async def run_pod(node: Node, name: str) -> None:
    async with CriClient(str(node.root.path / "run/cri-resmgr.sock")) as client:
        pod = await client.run_pod(name)
        await client.start(await client.create(pod, "app", cpu_limit=8000))


def test_what_runs_keeps_its_place_from_one_version_to_the_next_and_back(
    node: tuple[Node, Kind, str, str],
) -> None:
    there, kind, old, new = node
    before = there.of_ours()
    install = f"apt-get install --yes --allow-downgrades {KEEP}" if kind is DEB else "dnf install --assumeyes"
    there.type(f"{install} ./{old}")
    there.describe_machine()
    there.type("systemctl enable --now cri-resource-manager")
    asyncio.run(run_pod(there, "first"))
    placed = there.type("cri-resmgr placements")
    assert "default/first/app" in placed
    steps = [(install, new), (install if kind is DEB else "dnf downgrade --assumeyes", old), (install, new)]
    for command, file in steps:
        there.type(f"{command} ./{file}")
        assert there.type("systemctl is-active cri-resource-manager") == "active\n"
        assert "0-3,64-67" in there.type("cri-resmgr placements")
        assert there.root.read("/etc/cri-resmgr/config.yaml") == CONFIG
    asyncio.run(run_pod(there, "second"))
    assert "2 placed" in there.type("cri-resmgr status")
    if kind is DEB:
        there.type("apt-get purge --yes cri-resmgr")
    else:
        there.type("dnf remove --assumeyes cri-resmgr")
        there.type("rm -rf /var/lib/cri-resmgr /etc/cri-resmgr && groupdel cri-resmgr-view")
    assert there.of_ours() == before
