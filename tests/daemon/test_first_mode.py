"""The install's default is decided once; where that cannot be kept, or read, nothing enforces that did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri_proxy.config.io.files import LAST, Files
from cri_proxy.daemon.first_mode import FILE, decide, keep


@pytest.fixture
def files(tmp_path: Path) -> Files:
    empty = tmp_path / "empty.cfg"
    empty.write_text("")
    return Files(empty, empty, overrides={"state.directory": str(tmp_path / "state")})


def test_it_is_kept_and_counts_from_then_on(files, tmp_path) -> None:
    assert decide(files, "observe").mode == "observe"
    assert (tmp_path / "state" / FILE).read_text() == "observe\n"
    assert decide(files, "enforce").mode == "observe"


@pytest.mark.parametrize("kept", ["", "{", "7", "[7]", '[["a"]]'], ids=repr)
def test_a_last_configuration_that_cannot_be_read_is_of_a_daemon_that_ran_by_default(
    files, tmp_path, kept
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / LAST).write_text(kept)
    assert decide(files, "observe").mode == "enforce"


def test_what_cannot_be_kept_counts_for_now_and_says_so(files, tmp_path) -> None:
    # Nothing can be made below a file of the kernel's that is not a folder's.
    found = decide(
        Files(files.fallback, files.config, overrides={"state.directory": "/proc/cri-resmgr"}), "observe"
    )
    assert (found.mode, found.is_unread) == ("observe", False)
    assert found.problem.startswith(f"/proc/cri-resmgr/{FILE} cannot be written: ")
    assert keep(tmp_path / "state", found.mode) == ""


@pytest.mark.parametrize("how", ["folder", "rubbish"])
def test_what_cannot_be_read_is_not_overwritten(files, tmp_path, how) -> None:
    path = tmp_path / "state" / FILE
    path.parent.mkdir()
    if how == "folder":
        path.mkdir()
    else:
        path.write_text("enforced\n")
    found = decide(files, "observe")
    assert (found.mode, found.is_unread) == ("observe", True)
    assert str(path) in found.problem
    assert path.is_dir() or path.read_text() == "enforced\n"
