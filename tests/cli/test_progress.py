"""A long command says on a terminal what it waits for, and leaves no trace; elsewhere it writes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from cri_proxy.cli import progress as progresses
from cri_proxy.cli.progress import progress
from cri_proxy.control import ControlServer
from tests.agent import ROOT


class Terminal:
    """What is written to one; ``shown`` is set once something is."""

    def __init__(self, is_terminal: bool = True) -> None:
        self.text = ""
        self.shown = threading.Event()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        raise OSError("none")

    def write(self, text: str) -> int:
        self.text += text
        self.shown.set()
        return len(text)

    def flush(self) -> None:
        pass


def stderr(monkeypatch: pytest.MonkeyPatch, silent_s: float = 0.0, **how: Any) -> Terminal:
    terminal = Terminal(**how)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progresses, "SILENT_S", silent_s)
    return terminal


def test_it_says_what_is_waited_for_and_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch)
    with progress("making a plan", lambda: "3 updates wait"):
        terminal.shown.wait()
    assert re.fullmatch(r"(\r\x1b\[Kmaking a plan \(\d+ s\): 3 updates wait)+\r\x1b\[K", terminal.text)


def test_a_line_is_no_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch)
    with progress("x" * 200):
        terminal.shown.wait()
    assert terminal.text.split("\x1b[K")[1].rstrip("\r") == "x" * 79


def test_what_is_over_at_once_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch, silent_s=3600.0)
    with progress("making a plan"):
        pass
    assert terminal.text == ""


def test_where_there_is_no_terminal_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch, is_terminal=False)
    before = threading.active_count()
    with progress("making a plan"):
        assert threading.active_count() == before
    terminal = stderr(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with progress("making a plan"):
        assert threading.active_count() == before
    assert terminal.text == ""


def test_an_error_goes_through_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr(monkeypatch)

    def fail() -> None:
        with progress("making a plan"):
            terminal.shown.wait()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert terminal.text.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("command", "asked", "said"),
    [
        (["rebalance"], "rebalance", b"making a plan and its moves ("),
        (["release", "--all"], "release", b"giving containers back ("),
    ],
)
async def test_a_command_in_a_real_terminal_shows_it_and_its_answer_is_whole(
    folder: Path, command: list[str], asked: str, said: bytes
) -> None:
    seen = asyncio.Event()

    async def answer(arguments: dict[str, Any]) -> Any:
        await seen.wait()
        if asked == "release":
            return {"containers": 0, "updates": []}
        return {"plan": None, "moves": [], "failed": [], "why": "nothing", "dry_run": False}

    async def status(arguments: dict[str, Any]) -> Any:
        return {"updates_waiting": 7}

    server = ControlServer(folder / "c.sock", {asked: answer, "status": status}, structlog.get_logger())
    await server.start()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cri_proxy", "--control-socket", str(folder / "c.sock"), *command, "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    try:
        shown = b""
        while b"7 updates wait for the runtime" not in shown:
            shown += await asyncio.to_thread(os.read, ours, 4096)
        assert said in shown
        seen.set()
        out, _ = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        assert isinstance(json.loads(out), dict)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        await server.stop()
