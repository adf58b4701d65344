"""What launched plugins say reaches the log, and not more than it can bear."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
import structlog

from cri_proxy.nri.io.host.supervisor import MOST_CHARACTERS, MOST_LINES, PERIOD_S, PluginStderr


class Said:
    """Words on a pipe, with a clock and a log of the test's."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.capture = structlog.testing.LogCapture()
        # Whatever level another test has set for all loggers.
        log = structlog.wrap_logger(
            structlog.PrintLogger(), processors=[self.capture], wrapper_class=structlog.BoundLogger
        )
        descriptor, self.end = os.pipe()
        self.words = PluginStderr(descriptor, "10-foo", log, lambda: self.now_s)

    def entries(self) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self.capture.entries]

    def lines(self) -> list[str]:
        return [entry["line"] for entry in self.entries() if "line" in entry]


async def heard(text: bytes) -> Said:
    """All of a text, at once, to its end."""
    said = Said()
    running = asyncio.ensure_future(said.words.run())
    await asyncio.to_thread(_write, said.end, text)
    await running
    return said


def _write(end: int, text: bytes) -> None:
    with open(end, "wb") as pipe:
        pipe.write(text)


CASES = {
    "lines": (b"one\ntwo\n", ["one", "two"]),
    "an end without a line's": (b"one\ntwo", ["one", "two"]),
    "empty ones": (b"\n  \none\n\n", ["one"]),
    "what is no text": (b"a\xffb\x1b[31mc\n", ["a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mc"]),
    "a long one": (b"x" * 100_000 + b"\nnext\n", ["x" * MOST_CHARACTERS, "next"]),
    "a long one without an end": (b"x" * 100_000, ["x" * MOST_CHARACTERS]),
}


@pytest.mark.parametrize("name", CASES)
async def test_each_line_is_one_of_the_log(name: str) -> None:
    text, lines = CASES[name]
    said = await heard(text)
    assert said.lines() == lines and said.words.last == lines[-1]
    assert {entry["plugin"] for entry in said.entries()} == {"10-foo"}


async def test_a_flood_is_counted_and_not_shown() -> None:
    said = await heard(b"".join(b"%d\n" % number for number in range(10_000)))
    assert said.lines() == [str(number) for number in range(MOST_LINES)]
    assert said.entries()[-1]["lines_left_out"] == 10_000 - MOST_LINES
    assert said.words.last == "9999"


async def test_after_a_while_lines_are_shown_again() -> None:
    said = Said()
    running = asyncio.ensure_future(said.words.run())
    os.write(said.end, b"x\n" * MOST_LINES + b"late\n")
    while said.words.last != "late":
        await asyncio.sleep(0)
    said.now_s += PERIOD_S
    _write(said.end, b"again\n")
    await running
    assert said.lines() == ["x"] * MOST_LINES + ["again"]
    assert [entry.get("lines_left_out") for entry in said.entries()][-2:] == [1, None]
