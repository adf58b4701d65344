"""Folders with a container's cpuset: which containers get one, and that a folder that hangs holds no create up."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from cri_proxy.node import cpuset_files
from cri_proxy.node.cpuset_files import ALL, ANNOTATED, OFF, CpusetFiles
from policies.model import PlacementPreferences, altered
from tests.history.records import PLACE
from tests.scenes import make_container


class GatedFiles(CpusetFiles):
    """What is written waits while the gate is closed."""

    gate = threading.Event()

    def _write(self, name: str, text: str) -> None:
        self.gate.wait()
        super()._write(name, text)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    files = GatedFiles(tmp_path / "cpusets", structlog.get_logger())
    files.gate = threading.Event()
    files.gate.set()
    yield files
    files.gate.set()
    files.close()


@pytest.mark.parametrize(
    ("mode", "asked", "is_told"),
    [
        (OFF, True, False),
        (ANNOTATED, None, False),
        (ANNOTATED, True, True),
        (ALL, None, True),
        (ALL, False, False),
    ],
)
def test_which_containers_get_one(files: CpusetFiles, mode: str, asked: Any, is_told: bool) -> None:
    container = altered(make_container(1), preferences=PlacementPreferences(cpuset_file=asked))
    files.mode = mode
    assert files.wants(container, ()) is is_told


async def test_a_folder_that_hangs_costs_the_create_a_moment_and_no_more(
    files: GatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpuset_files, "PATIENCE_S", 0.01)
    files.gate.clear()
    assert await files.prepare("ticket-1", make_container(1), PLACE) == ""
    monkeypatch.setattr(cpuset_files, "PATIENCE_S", 60.0)
    files.gate.set()
    folder = Path(await files.prepare("ticket-2", make_container(1), PLACE))
    assert (folder / "cpuset").read_text() == "cpus=0-7\nmems=0\nexclusive=\n"
    assert [path.name for path in folder.iterdir()] == ["cpuset"]


async def test_a_program_that_is_not_root_can_read_it_whatever_the_daemons_umask(files: GatedFiles) -> None:
    before = os.umask(0o077)  # as the unit has it
    try:
        folder = Path(await files.prepare("ticket-1", make_container(1), PLACE))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "cpuset")] == [0o755, 0o644]


async def test_the_folder_of_an_attempt_is_its_own_and_no_name_leads_out_of_it(files: GatedFiles) -> None:
    first = make_container(1)
    paths = {await files.prepare(f"ticket-{n}", altered(first, attempt=n), PLACE) for n in range(3)}
    paths.add(await files.prepare("ticket-9", altered(first, name="../../etc"), PLACE))
    assert len(paths) == 4
    assert {Path(path).parent.name for path in paths} == {"cpusets"}
