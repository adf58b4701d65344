from __future__ import annotations

import stat
from pathlib import Path

import structlog

from cri_proxy.nri.io.host.intent_log import FILE, IntentLog

LOG = structlog.get_logger()
CONTAINER, SANDBOX = ("sandbox", "app", 2), ("pod", "ns", "uid", 0)


def marks(folder: Path) -> IntentLog:
    return IntentLog(folder, LOG)


def test_what_is_unfinished_is_known_to_the_next_daemon(tmp_path: Path) -> None:
    marks(tmp_path).add(containers=[CONTAINER], sandboxes=[SANDBOX])
    assert marks(tmp_path).load() == (frozenset([CONTAINER]), frozenset([SANDBOX]))


def test_what_is_finished_leaves_no_file(tmp_path: Path) -> None:
    own = marks(tmp_path)
    own.add(containers=[CONTAINER])
    own.add(sandboxes=[SANDBOX])
    own.drop(containers=[CONTAINER])
    assert marks(tmp_path).load() == (frozenset(), frozenset([SANDBOX]))
    own.drop(sandboxes=[SANDBOX])
    assert list(tmp_path.iterdir()) == []


def test_marks_of_the_daemon_before_stay_until_they_are_dropped(tmp_path: Path) -> None:
    marks(tmp_path).add(containers=[CONTAINER])
    own = marks(tmp_path)
    own.load()
    own.add(sandboxes=[SANDBOX])
    assert marks(tmp_path).load() == (frozenset([CONTAINER]), frozenset([SANDBOX]))


def test_a_file_that_makes_no_sense_says_nothing_and_is_begun_anew(tmp_path: Path) -> None:
    for text in ("", "[]", '{"containers": [["a"]], "sandboxes": []}', "\0"):
        (tmp_path / FILE).write_text(text)
        own = marks(tmp_path)
        assert own.load() == (frozenset(), frozenset())
        own.add(containers=[CONTAINER])
        assert marks(tmp_path).load()[0] == {CONTAINER}


def test_a_folder_that_cannot_be_had_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    own = marks(tmp_path / "file")
    own.add(containers=[CONTAINER])
    assert own.problem != ""
    assert own.containers == {CONTAINER}
    (tmp_path / "file").unlink()
    own.add(sandboxes=[SANDBOX])
    assert own.problem == ""
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o700
