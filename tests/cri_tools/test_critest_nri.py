"""critest's cases of NRI: our host keeps the contract of plugins, on runtimes whose own NRI is off or that have none."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cri_tools.side import HOSTING, run
from tests.e2e.containerd import missing

pytestmark = [pytest.mark.cri_tools, pytest.mark.skipif(missing() != "", reason=missing())]

#: Of critest 1.37.
CASES = 13


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short path."""
    made = Path(tempfile.mkdtemp(prefix="crt-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("runtime", ["containerd-2", pytest.param("containerd", marks=pytest.mark.long)])
async def test_every_case_of_plugins_passes(folder: Path, runtime: str) -> None:
    outcome = await run(HOSTING, folder / HOSTING, "--ginkgo.focus=NRI", runtime=runtime)
    of_nri = {name: case for name, case in outcome.cases.items() if name.startswith("[k8s.io] NRI / ")}
    assert of_nri == dict.fromkeys(of_nri, ("passed", "")), outcome.said
    assert len(of_nri) == CASES
    assert (outcome.status["degraded"], outcome.status["invariants"]) == ({}, [])
