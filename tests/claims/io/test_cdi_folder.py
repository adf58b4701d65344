"""The folder of CDI files: ours follow the claims, others are left alone, a file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_proxy import effects
from cri_proxy.claims.io.cdi_folder import CdiFolder, CdiUnusable

A, B = "cri-resmgr.io-cpu-a.json", "cri-resmgr.io-cpu-b.json"


@pytest.fixture
def folder(tmp_path: Path) -> CdiFolder:
    return CdiFolder(tmp_path / "cdi")


def contents(folder: CdiFolder) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.path.iterdir()} if folder.path.is_dir() else {}


def test_a_claim_has_its_file_until_it_has_none(folder: CdiFolder) -> None:
    folder.put("a", "text")
    assert contents(folder) == {A: "text"}
    folder.put("a", None)
    folder.put("a", None)
    assert contents(folder) == {}


def test_nothing_is_written_where_the_file_is_right(folder: CdiFolder) -> None:
    folder.put("a", "text")
    before = (folder.path / A).stat()
    folder.put("a", "text")
    assert folder.follow({"a": "text"}) == ((), ())
    after = (folder.path / A).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_what_is_missing_is_written_and_what_is_too_much_removed_and_others_files_stay(
    folder: CdiFolder,
) -> None:
    folder.path.mkdir()
    others = {
        "nvidia.com-gpu.json": "{}",
        "cri-resmgr.io-cpu.json": "x",
        "cri-resmgr.io-net-a.json": "y",
        "z.new": "",
    }
    for name, text in others.items():
        (folder.path / name).write_text(text)
    folder.put("gone", "text")
    folder.put("torn", "te")
    assert folder.follow({"a": "one", "torn": "text"}) == (("a", "torn"), ("gone",))
    assert contents(folder) == {**others, A: "one", "cri-resmgr.io-cpu-torn.json": "text"}


@pytest.fixture
def umask() -> Iterator[None]:
    """That of the daemon's unit."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_folder_that_is_not_there_has_no_files_and_is_made_with_the_first(folder: CdiFolder) -> None:
    assert folder.follow({}) == ((), ())
    assert not folder.path.exists()
    assert folder.follow({"a": "one"}) == (("a",), ())
    modes = [path.stat().st_mode & 0o777 for path in (folder.path, folder.path / A)]
    assert modes == [0o755, 0o644]


def test_the_folder_may_be_a_link(folder: CdiFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.path.symlink_to(tmp_path / "elsewhere")
    folder.put("a", "text")
    assert (tmp_path / "elsewhere" / A).read_text() == "text"


def test_a_folder_that_cannot_be_used_is_named_in_a_sentence(folder: CdiFolder) -> None:
    folder.path.write_text("a file")
    for work in (lambda: folder.put("a", "text"), lambda: folder.follow({"a": "text"})):
        with pytest.raises(CdiUnusable) as refused:
            work()
        assert str(refused.value).startswith(f"{folder.path}")
        assert "cannot be written" in str(refused.value)


def test_a_full_disk_leaves_no_half_of_a_file_and_other_claims_are_gone_on_with(
    folder: CdiFolder, monkeypatch: Any
) -> None:
    real = Path.write_text

    def full(path: Path, text: str, *arguments: Any, **named: Any) -> int:
        if "-a." in path.name:
            real(path, text[:2])
            raise OSError(28, "No space left on device", str(path))
        return real(path, text, *arguments, **named)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CdiUnusable, match="cannot be written: No space left on device"):
        folder.follow({"a": "text", "b": "text"})
    assert contents(folder) == {B: "text"}


@pytest.mark.parametrize("at", [0, 1])
def test_a_kill_before_any_effect_leaves_the_file_as_it_was_and_the_next_look_makes_it_right(
    folder: CdiFolder, at: int, monkeypatch: Any
) -> None:
    class Killed(BaseException):
        pass

    seen = []

    def before(kind: str, about: str) -> None:
        seen.append((kind, about))
        if len(seen) == at + 1:
            raise Killed

    folder.put("a", "old")
    monkeypatch.setattr(effects, "before", before)
    with pytest.raises(Killed):
        folder.put("a", "new")
    monkeypatch.setattr(effects, "before", lambda kind, about: None)
    assert contents(folder)[A] == "old"
    assert folder.follow({"a": "new"}) == (("a",), ())
    folder.follow({})
    assert contents(folder) == {}
