"""Lines to a reader that does not read: nothing waits, what is too much is dropped and counted, what stays is in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
import structlog

from cri_proxy.services import logs
from cri_proxy.services.logs import LogLines


class Reader:
    """A stderr whose reader can be stopped."""

    def __init__(self) -> None:
        self.text = ""
        self.reads = threading.Event()
        self.reads.set()
        self.is_waited_for = threading.Event()

    def write(self, text: str) -> int:
        if not self.reads.is_set():
            self.is_waited_for.set()
        self.reads.wait()
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def stuck(limit: int) -> tuple[Reader, LogLines]:
    """A reader that has been waited for with one line of nine characters."""
    reader = Reader()
    reader.reads.clear()
    lines = LogLines(reader, limit)
    lines.write("the first\n")
    assert reader.is_waited_for.wait(10)
    return reader, lines


def test_lines_come_in_their_order() -> None:
    reader = Reader()
    lines = LogLines(reader)
    for number in range(1000):
        lines.write(f"{number}\n")
    assert lines.end(10)
    assert reader.text.split() == [str(number) for number in range(1000)]


def test_a_reader_that_does_not_read_holds_no_writer_up() -> None:
    reader, lines = stuck(limit=1 << 20)
    for number in range(1000):
        lines.write(f"{number}\n")
    assert reader.text == "" and lines.dropped == 0
    assert not lines.end(0.0)
    reader.reads.set()
    assert lines.end(10)
    assert reader.text.count("\n") == 1001


def test_what_is_too_much_is_dropped_counted_and_told_once() -> None:
    reader, lines = stuck(limit=30)
    counted: list[int] = []
    lines.on_dropped = counted.append
    lines.write("the second\n")
    for _ in range(5):
        lines.write("too much,\nfar too much\n")
    assert lines.dropped == sum(counted) == 10
    reader.reads.set()
    assert lines.end(10)
    told = "cri-resmgr: 10 lines of the log were dropped: stderr was not read"
    assert sorted(reader.text.splitlines()) == sorted(["the first", "the second", told])
    lines.write("the next\n")
    assert lines.end(10) and reader.text.endswith("the next\n")


def test_a_line_longer_than_all_that_may_wait_is_written_where_none_waits() -> None:
    reader = Reader()
    lines = LogLines(reader, limit=10)
    lines.write("x" * 100)
    assert lines.end(10) and len(reader.text) == 100


def test_a_reader_that_went_away_costs_lines_only() -> None:
    class Gone(Reader):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    lines = LogLines(Gone())
    lines.write("to the void\n")
    assert lines.end(10)
    lines = LogLines(None)
    lines.write("to the void\n")
    assert lines.end(10) and not lines.isatty()


# --- lines of one kind


Read = pytest.CaptureFixture[str]


def test_lines_of_one_kind_are_shown_once_an_interval_and_counted(capsys: Read) -> None:
    repeats = logs.Repeats()
    log = logs.set_up("info", "json", repeats)
    for number in range(100):
        log.error("failed open", error=str(number), kind="CreateContainer bug")
        log.error("failed open", error=str(number), kind="CreateContainer unreadable")
        log.info("another")
    text = capsys.readouterr().err
    assert text.count('"failed open"') == 2
    assert text.count('"another"') == 100
    repeats.tell(log)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all('"again": 99' in line for line in told) and '"of": "CreateContainer bug"' in told[0]
    log.error("failed open", kind="CreateContainer bug")
    assert capsys.readouterr().err.count('"failed open"') == 1
    repeats.tell(log)
    assert capsys.readouterr().err == ""


def test_kinds_that_a_client_thinks_of_are_not_all_kept(capsys: Read) -> None:
    repeats = logs.Repeats()
    log = logs.set_up("info", "json", repeats)
    for number in range(10_000):
        log.warning("failed open", kind=f"/a.Service/Method{number} too large")
    assert capsys.readouterr().err.count("\n") == logs.KINDS + 1
    repeats.tell(log)
    assert f'"again": {10_000 - logs.KINDS - 1}, "of": "others"' in capsys.readouterr().err


def test_what_describes_a_line_is_asked_only_if_the_line_is_written(capsys: Read) -> None:
    asked = []

    def describe() -> dict[str, str]:
        asked.append(1)
        return {"cpus": "0-3", "why": "decided"}

    log = logs.set_up("warning", "json")
    log.info("not written", describe=describe)
    assert not asked and capsys.readouterr().err == ""
    log.warning("written", describe=describe, why="refused")
    line = json.loads(capsys.readouterr().err)
    assert len(asked) == 1 and (line["cpus"], line["why"]) == ("0-3", "refused")


def test_a_logger_without_repeats_shows_each(capsys: Read) -> None:
    log = logs.set_up("info", "json")
    for _ in range(3):
        log.error("failed open", kind="bug")
    text = capsys.readouterr().err
    assert text.count("\n") == 3 and "kind" not in text


@pytest.fixture(autouse=True)
def structlog_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


# ---------------------------------------------------------------------- lines for people


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"container": "default/web/app", "attempt": 0, "cpus": "0-7", "mems": "", "us": 312.5},
        {
            "why": "a limit of 2 CPUs fits one CCX",
            "quoted": "it's",
            "is": "a=b",
            "lines": "a\nb\t",
            "two": 'say "a"',
        },
        {"nothing": None, "flag": True, "list": ["a b", 1], "map": {"a": 1}, "unicode": "naïve"},
        {"exception": "Traceback (most recent call last): ..."},
        {"stack": "where it was", "id": "x"},
    ],
    ids=["none", "of a create", "quoted", "no strings", "an exception", "a stack"],
)
@pytest.mark.parametrize(
    ("event", "level"), [("CreateContainer", "info"), ("a long sentence that is no name", "warning")]
)
def test_a_plain_line_is_structlogs(fields: dict[str, object], event: str, level: str) -> None:
    theirs = structlog.dev.ConsoleRenderer(colors=False, sort_keys=False)
    line = {**fields, "event": event, "level": level, "timestamp": "2026-11-26T15:00:00Z"}
    ours = logs.PlainLines(theirs)(None, level, dict(line))
    assert ours == theirs(None, level, dict(line))


def test_an_error_has_its_traceback() -> None:
    theirs = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    try:
        raise ValueError("what it was")
    except ValueError as error:
        line = {"event": "failed open", "level": "error", "timestamp": "now", "exc_info": error}
    assert "ValueError: what it was" in logs.PlainLines(theirs)(None, "error", line)


def test_names_of_others_are_no_commands_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.set_up("info", "console")
    log.info("placed \x1b[2J", pod="web\x1b]0;x\x07", why="one\ntwo\u202e")
    said = capsys.readouterr().err
    assert said.rstrip("\n").isprintable(), said
    assert r"pod=web\x1b]0;x\x07" in said
