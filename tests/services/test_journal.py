"""What is written goes to the journal's socket, a line an entry, and costs nothing where there is none."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from cri_proxy.services import logs
from cri_proxy.services.journal import LINE_BYTES, JournalStream, log_to_journal

Read = Callable[[], dict[str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def read(path: Path) -> Iterator[Read]:
    """The next entry that the journal has got."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as journal:
        journal.bind(str(path))

        def entry() -> dict[str, str]:
            lines = journal.recv(1 << 20).decode().splitlines()
            return {key: value for key, _, value in (line.partition("=") for line in lines)}

        yield entry


@pytest.fixture
def stream(path: Path) -> Iterator[JournalStream]:
    made = JournalStream("cri-resmgr", path)
    yield made
    made.close()


def test_a_line_is_an_entry_however_it_is_written(read, stream) -> None:
    for part in ("one ", "line\n\ntwo", " lines\nthe rest"):
        stream.write(part)
    assert read() == {"PRIORITY": "6", "SYSLOG_IDENTIFIER": "cri-resmgr", "MESSAGE": "one line"}
    assert read()["MESSAGE"] == "two lines"
    with pytest.raises(BlockingIOError):
        read()


@pytest.mark.parametrize("form", ["console", "json"])
def test_the_level_of_a_log_line_is_the_priority_and_its_traceback_has_the_same(
    read, stream, monkeypatch, form
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    log = logs.set_up("info", form)
    log.warning("careful", container="a/b/c")
    entry = read()
    assert entry["PRIORITY"] == "4"
    assert "careful" in entry["MESSAGE"]
    try:
        raise ValueError("no")
    except ValueError:
        log.error("broken", exc_info=True)
    log.info("after")
    entries = [read()]
    while "after" not in entries[-1]["MESSAGE"]:
        entries.append(read())
    assert {entry["PRIORITY"] for entry in entries[:-1]} == {"3"}
    assert "ValueError: no" in " ".join(entry["MESSAGE"] for entry in entries[:-1])
    assert entries[-1]["PRIORITY"] == "6"


def test_a_line_that_is_too_long_is_cut(read, stream) -> None:
    stream.write("x" * (1 << 20) + "\n")
    assert len(read()["MESSAGE"]) == LINE_BYTES


def test_a_journal_that_went_away_costs_lines_only(path) -> None:
    stream = JournalStream("cri-resmgr", path)
    stream.write("to nobody\n")
    stream.close()
    stream.write("closed\n")


def test_only_a_process_whose_output_nobody_reads_logs_there(read, path, tmp_path, monkeypatch) -> None:
    with (tmp_path / "file").open("w") as somewhere:
        monkeypatch.setattr(sys, "stderr", somewhere)
        assert log_to_journal("cri-resmgr", path) is None
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stderr", nowhere)
        assert log_to_journal("cri-resmgr", tmp_path / "none") is None
        stream = log_to_journal("cri-resmgr", path)
        assert stream is not None
        print("hello", file=sys.stderr)
        assert read()["MESSAGE"] == "hello"
        stream.close()
