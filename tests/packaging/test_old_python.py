"""The package for Python 3.9, on Debian 11: it stands for openEuler 22.03 and its likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cri_proxy.version import VERSION
from tests.packaging.conftest import BULLSEYE_PYTHON
from tests.packaging.installed import served, simulated
from tests.packaging.kinds import DEB
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages


async def test_built_here_it_runs_there(
    new_root: Callable[[str], Root], package: Callable[..., Path]
) -> None:
    root = new_root("bullseye")
    root.run(*DEB.install, root.give(package("deb", python=BULLSEYE_PYTHON)))
    assert root.run("/usr/lib/cri-resmgr/bin/python", "-c", "import sys; print(sys.version[:3])") == "3.9\n"
    assert root.run("cri-resmgr", "--version").split()[-1] == VERSION
    assert simulated(root) == "0-3,64-67"
    async with served(root) as (client, runtime):
        pod = await client.run_pod("web")
        assert runtime.cpuset(await client.create(pod, "app", cpu_limit=8000)) == "0-3,64-67"
