"""The terminal, by curses: draws scenes, reads keys. Decides nothing.

curses is in Python's standard library: nothing to install, and as old and as well kept as terminals themselves.
"""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Optional

from cri_proxy.top.canvas import ALARM, BOLD, COLOURS, DIM, HIGH, LOW, MIDDLE, PLAIN, SELECTED, TITLE, Line
from cri_proxy.top.io.asking import Asking, ExplainText
from cri_proxy.top.screen import draw, rows
from cri_proxy.top.view import View, press, resized

#: Keys that are no characters, as ``view.press`` calls them.
_KEYS = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_LEFT: "left",
    curses.KEY_RIGHT: "right",
    curses.KEY_PPAGE: "page-up",
    curses.KEY_NPAGE: "page-down",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BTAB: "back-tab",
    curses.KEY_BACKSPACE: "backspace",
    8: "backspace",
    9: "tab",
    10: "enter",
    13: "enter",
    27: "escape",
    127: "backspace",
}
#: How long a lone Escape is waited for, in milliseconds: over ssh a key's sequence comes in one packet.
ESCAPE_MS = 50


@dataclass(frozen=True)
class Options:
    """``interval_s``: between two questions. ``colours``: None = as the terminal can."""

    view_socket: Path
    interval_s: float = 1.0
    ascii_only: bool = False
    colours: bool = True


def show(options: Options, explain_text: ExplainText) -> None:
    """Show the node until ``q``, Ctrl-C or SIGTERM.

    :raises curses.error: this terminal cannot be used.
    """
    locale.setlocale(locale.LC_ALL, "")
    is_unicode = locale.nl_langinfo(locale.CODESET).upper() == "UTF-8"
    # Older curses than Python 3.9's has no other way to say it.
    os.environ.setdefault("ESCDELAY", str(ESCAPE_MS))
    with _wakes() as (wake_reads, wake), contextlib.suppress(KeyboardInterrupt):
        asking = Asking(options.view_socket, explain_text, wake, options.interval_s)
        curses.wrapper(_loop, asking, wake_reads, options, options.ascii_only or not is_unicode)


@contextlib.contextmanager
def _wakes() -> Iterator[tuple[int, _Wake]]:
    """A descriptor that can be read after an answer and after a signal, and what an answer calls."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    os.set_blocking(writes, False)
    before_fd = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    before_term = signal.signal(signal.SIGTERM, _end)
    try:
        yield reads, _Wake(writes)
    finally:
        signal.signal(signal.SIGTERM, before_term)
        signal.set_wakeup_fd(before_fd)


@dataclass(frozen=True)
class _Wake:
    """Makes the loop look at what is new."""

    writes: int

    def __call__(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.writes, b"\0")


def _end(number: int, frame: Optional[FrameType]) -> None:
    sys.exit(128 + number)


def _loop(screen: curses.window, asking: Asking, wake_reads: int, options: Options, ascii_only: bool) -> None:
    # curses' own handler only makes getch return; this one makes select return.
    signal.signal(signal.SIGWINCH, lambda number, frame: None)
    looks = _looks(options.colours)
    with contextlib.suppress(curses.error):  # a terminal whose cursor cannot be hidden
        curses.curs_set(0)
    screen.nodelay(True)
    screen.keypad(True)
    view = _measured(screen, View())
    asking.start()
    while not view.is_over:
        _put(screen, draw(asking.scene, view, ascii_only=ascii_only), looks)
        ready, _, _ = select.select([sys.stdin, wake_reads], [], [])
        if wake_reads in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_reads, 4096)
        keys = list(_keys(screen))
        if sys.stdin in ready and not keys:
            return  # the terminal is gone
        for key in keys:
            view = press(view, key, asking.scene.snapshot, rows(asking.scene, view))
        view = _measured(screen, view)
        asking.want(view.opened, view.is_frozen)


def _keys(screen: curses.window) -> Iterator[str]:
    while (code := screen.getch()) != curses.ERR:
        if code in _KEYS:
            yield _KEYS[code]
        elif 32 <= code < 127:
            yield chr(code)
        else:
            yield ""  # another key: it does nothing


def _measured(screen: curses.window, view: View) -> View:
    """The view in the terminal's size of now."""
    width, height = os.get_terminal_size(sys.stdin.fileno())
    if (width, height) != (view.width, view.height) or screen.getmaxyx() != (height, width):
        curses.resizeterm(max(1, height), max(1, width))
        screen.clear()
    return resized(view, max(1, width), max(1, height))


def _put(screen: curses.window, lines: list[Line], looks: dict[str, int]) -> None:
    screen.erase()
    for y, line in enumerate(lines):
        x = 0
        for text, look in line:
            # The last cell of the last line: it is written, the cursor has no place after it.
            with contextlib.suppress(curses.error):
                screen.addstr(y, x, text, looks[look])
            x += len(text)
    screen.refresh()


def _looks(colours: bool) -> dict[str, int]:
    """The terminal's attribute for each look; without colours bold, reverse and underline say what they can."""
    looks = {
        PLAIN: curses.A_NORMAL,
        BOLD: curses.A_BOLD,
        DIM: curses.A_DIM,
        TITLE: curses.A_REVERSE,
        SELECTED: curses.A_REVERSE | curses.A_BOLD,
        ALARM: curses.A_REVERSE | curses.A_BOLD,
        LOW: curses.A_NORMAL,
        MIDDLE: curses.A_BOLD,
        HIGH: curses.A_REVERSE,
        **dict.fromkeys(COLOURS, curses.A_NORMAL),
    }
    if not colours or not curses.has_colors():
        return looks
    curses.start_color()
    background = curses.COLOR_BLACK
    with contextlib.suppress(curses.error):  # the terminal's own background stays, where it can
        curses.use_default_colors()
        background = -1
    # Of sixteen the bright ones are told apart better; eight are enough.
    hues = (
        curses.COLOR_CYAN,
        curses.COLOR_GREEN,
        curses.COLOR_YELLOW,
        curses.COLOR_MAGENTA,
        curses.COLOR_BLUE,
        curses.COLOR_RED,
    )
    for number, hue in enumerate(hues, 1):
        curses.init_pair(number, hue, background)
    pairs = dict(zip(hues, (curses.color_pair(number) for number in range(1, len(hues) + 1))))
    looks |= dict(zip(COLOURS, pairs.values()))
    looks[LOW] = pairs[curses.COLOR_GREEN]
    looks[MIDDLE] = pairs[curses.COLOR_YELLOW] | curses.A_BOLD
    looks[HIGH] = looks[ALARM] = pairs[curses.COLOR_RED] | curses.A_REVERSE
    return looks
