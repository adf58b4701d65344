"""A policy on disk is read as it was written; one that makes no sense is a problem and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from cri_proxy.config.cluster_policy import read_policy
from cri_proxy.config.io import files as settings
from cri_proxy.config.io.cluster_policy_file import (
    FILE,
    NOTHING,
    PolicyFile,
    StoredPolicy,
    read_kept,
    write_kept,
)

GOLD = read_policy({"name": "gold", "generation": 3, "config": {"placement": {"ladder": "fine"}}})
SILVER = read_policy({"name": "silver", "generation": 1, "config": {"placement": {"ladder": "manual"}}})
#: What the disk below has no room for.
FULL = StoredPolicy(
    read_policy({"name": "large", "generation": 1, "config": {"placement": {"ladder": "fine"}}})
)


class Disk:
    """Hangs at a step of each write until ``answers`` is set: before anything, or in the rename."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.hangs, self.answers = threading.Event(), threading.Event()

    def write(self, folder: Path, kept: StoredPolicy, may: Callable[[], bool]) -> None:
        if kept == FULL:
            raise OSError("full")
        if self._step == "open":
            self._hang()
        write_kept(folder, kept, may, self._replace)

    def _replace(self, old: Path, new: Path) -> None:
        if self._step == "rename":
            self._hang()
        os.replace(old, new)

    def _hang(self) -> None:
        self.hangs.set()
        assert self.answers.wait(60)


@pytest.fixture(params=["open", "rename"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(request.param)
    yield made
    made.answers.set()


@pytest.mark.parametrize("before", [NOTHING, StoredPolicy(SILVER), StoredPolicy(held_off=True)])
async def test_what_was_given_up_is_not_there_once_the_disk_answers(
    tmp_path: Path, disk: Disk, before: StoredPolicy
) -> None:
    write_kept(tmp_path, before)
    file = PolicyFile(disk.write)
    keeping = asyncio.ensure_future(file.keep(tmp_path, StoredPolicy(GOLD), before, 60))
    assert await asyncio.to_thread(disk.hangs.wait, 60)
    keeping.cancel()
    await asyncio.wait({keeping})
    # What comes while it still hangs is refused, and waits for nothing longer than told.
    with pytest.raises(asyncio.TimeoutError):
        await file.keep(tmp_path, StoredPolicy(SILVER), before, 0)
    assert read_kept(tmp_path) == before
    disk.answers.set()
    # The next write comes after the one that hung and what undoes it; this one fails, and so hides nothing.
    with pytest.raises(OSError, match="full"):
        await file.keep(tmp_path, FULL, before, 60)
    assert read_kept(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ([FILE] if before != NOTHING else [])


@pytest.mark.parametrize("kept", [NOTHING, StoredPolicy(GOLD), StoredPolicy(held_off=True)])
def test_what_is_kept_is_read_again(tmp_path: Path, kept: StoredPolicy) -> None:
    folder = tmp_path / "state"
    write_kept(folder, kept)
    assert read_kept(folder) == kept


def test_nothing_takes_away_what_was_kept(tmp_path: Path) -> None:
    write_kept(tmp_path, StoredPolicy(GOLD))
    write_kept(tmp_path, NOTHING)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"name": "x"}', '{"name": "x", "generation": 1, "config": {"relay": {"socket": "/x"}}}'],
)  # fmt: skip
def test_what_makes_no_sense_is_a_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    kept = read_kept(tmp_path)
    assert kept.policy is None and kept.problem and "\n" not in kept.problem


def test_a_policy_comes_between_the_nodes_file_and_what_is_forced(tmp_path: Path) -> None:
    own, forced, state = tmp_path / "own.yaml", tmp_path / "forced.yaml", tmp_path / "state"
    own.write_text(f"state: {{directory: {state}}}\nplacement: {{ladder: manual, besteffort: ccx}}\n")
    write_kept(state, StoredPolicy(GOLD))
    files = settings.Files(config=own, force=None, root=tmp_path)
    loaded = settings.load(files)
    assert loaded.config["placement.ladder"] == "fine"
    assert loaded.config.origins["placement.ladder"] == "cluster policy gold (generation 3)"
    assert (loaded.cluster.policy, loaded.config["placement.besteffort"]) == (GOLD, "ccx")
    forced.write_text("placement: {ladder: manual}\n")
    loaded = settings.load(settings.Files(config=own, force=forced, root=tmp_path))
    assert loaded.config.origins["placement.ladder"].startswith(str(forced))
    overridden = settings.Files(config=own, root=tmp_path, overrides={"placement.ladder": "manual"})
    assert settings.load(overridden).config["placement.ladder"] == "manual"


def test_the_last_configuration_that_loaded_has_the_policy_too(tmp_path: Path) -> None:
    own, state = tmp_path / "own.yaml", tmp_path / "state"
    own.write_text(f"state: {{directory: {state}}}\nplacement: {{besteffort: ccx}}\n")
    write_kept(state, StoredPolicy(GOLD))
    files = settings.Files(config=own, root=tmp_path)
    assert settings.keep(settings.load(files), state, "") is None
    own.write_text(f"state: {{directory: {state}}}\nplacement: {{besteffort: nowhere}}\n")
    loaded = settings.load_or_last(files)
    assert "the last configuration that loaded is in force" in loaded.problem
    assert (loaded.config["placement.ladder"], loaded.config["placement.besteffort"]) == ("fine", "ccx")


def test_a_policy_in_force_is_not_kept_among_the_nodes_own_files(tmp_path: Path) -> None:
    own, state = tmp_path / "own.yaml", tmp_path / "state"
    own.write_text(f"state: {{directory: {state}}}\n")
    write_kept(state, StoredPolicy(GOLD))
    settings.keep(settings.load(settings.Files(config=own, root=tmp_path)), state, "")
    assert [name for name, _ in json.loads((state / settings.LAST).read_text())] == [str(own)]
