"""The rest of a node is frozen from a program's "ready" to its "done", and only then."""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from bench.cache.plugin import build_program

LIMIT_S = 30


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of v2, with room for another below it."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None or shutil.which("gcc") is None:
        pytest.skip("There is no cgroup v2 here, or no gcc.")
    made = root / f"hold-{uuid.uuid4().hex[:8]}"
    try:
        (made / "held").mkdir(parents=True)
    except OSError:
        pytest.skip("No cgroup can be made here.")
    yield made
    for folder in (made / "own", made / "held", made):
        if folder.exists():
            folder.rmdir()


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_what_is_held_is_frozen_until_the_program_has_ended(cgroup: Path, tmp_path: Path) -> None:
    program = build_program("hold", tmp_path)
    held = subprocess.Popen(["sleep", "1000"])
    (cgroup / "held" / "cgroup.procs").write_text(str(held.pid))
    holder = subprocess.Popen([program, tmp_path, cgroup / "held", cgroup / "own"])
    try:
        events = cgroup / "held" / "cgroup.events"
        until((cgroup / "own" / "cgroup.procs").exists)
        until(lambda: (cgroup / "own" / "cgroup.procs").read_text() == f"{holder.pid}\n")
        assert "frozen 0" in events.read_text()
        (tmp_path / "ready").touch()
        until((tmp_path / "go").exists)
        assert "frozen 1" in events.read_text()
        (tmp_path / "done").touch()
        assert holder.wait(LIMIT_S) == 0
        until(lambda: "frozen 0" in events.read_text())
    finally:
        for process in (holder, held):
            process.kill()
            process.wait()
