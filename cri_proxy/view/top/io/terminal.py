"""The terminal, by curses: draws scenes, reads keys. Decides nothing.

curses is in Python's standard library: nothing to install, and as old and as well kept as terminals themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import curses
import locale
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

from cri_api.control import ControlError
from cri_api.waiting import wait_within
from cri_proxy.view.io.daemon import Away, ViewSocket
from cri_proxy.view.snapshot import clean
from cri_proxy.view.top.canvas import (
    ALARM,
    BOLD,
    COLOURS,
    DIM,
    HIGH,
    LOW,
    MIDDLE,
    PLAIN,
    SELECTED,
    TITLE,
    Line,
)
from cri_proxy.view.top.keys import ScreenState, press, resized
from cri_proxy.view.top.screen import AWAY, Opened, Scene, draw, rows

ExplainText = Callable[[dict[str, Any]], str]

#: Keys that are no characters, as ``keys.press`` calls them.
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
class TerminalOptions:
    """``interval_s``: between two questions. ``colours``: None = as the terminal can."""

    view_socket: Path
    interval_s: float = 1.0
    ascii_only: bool = False
    colours: bool = True


def show(options: TerminalOptions, explain_text: ExplainText) -> None:
    """Show the node until ``q``, Ctrl-C or SIGTERM. ``explain_text``: an explanation, as the terminal shows it.

    :raises curses.error: this terminal cannot be used.
    """
    locale.setlocale(locale.LC_ALL, "")
    # Older curses than Python 3.9's has no other way to say it.
    os.environ.setdefault("ESCDELAY", str(ESCAPE_MS))
    with contextlib.suppress(KeyboardInterrupt):
        curses.wrapper(lambda screen: asyncio.run(_Terminal(screen, options, explain_text).run()))


class _Terminal:
    """One screen: draws after each key, answer and change of size."""

    def __init__(self, screen: curses.window, options: TerminalOptions, explain_text: ExplainText) -> None:
        self._screen, self._explain_text = screen, explain_text
        self._interval_s = options.interval_s
        self._ascii_only = options.ascii_only or locale.nl_langinfo(locale.CODESET).upper() != "UTF-8"
        self._looks = _looks(options.colours)
        self._view = ViewSocket(options.view_socket, AWAY)
        self._scene, self._state = Scene(), ScreenState()

    async def run(self) -> None:
        """Until the state is over, or the terminal is gone."""
        loop = asyncio.get_running_loop()
        self._is_new, self._is_wanted = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, sys.exit, 128 + signal.SIGTERM)
        # curses' own handler only makes getch return.
        loop.add_signal_handler(signal.SIGWINCH, self._is_new.set)
        loop.add_reader(sys.stdin, self._read)
        with contextlib.suppress(curses.error):  # a terminal whose cursor cannot be hidden
            curses.curs_set(0)
        self._screen.nodelay(True)
        self._screen.keypad(True)
        asking = asyncio.ensure_future(self._ask())
        asking.add_done_callback(lambda _: self._is_new.set())
        while not self._state.is_over and not asking.done():
            self._state = _measured(self._screen, self._state)
            _put(self._screen, draw(self._scene, self._state, ascii_only=self._ascii_only), self._looks)
            await self._is_new.wait()
            self._is_new.clear()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    def _read(self) -> None:
        """Keys are there, or the terminal is gone."""
        before, keys = self._state, list(_keys(self._screen))
        for key in keys:
            self._state = press(self._state, key, self._scene.snapshot, rows(self._scene, self._state))
        if not keys:
            self._state = replace(self._state, is_over=True)
        if (before.opened, before.is_frozen) != (self._state.opened, self._state.is_frozen):
            self._is_wanted.set()
        self._is_new.set()

    async def _ask(self) -> None:
        """Once in an interval; a container that is opened at once, a frozen picture not at all."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._is_wanted.clear()
            opened, is_frozen = self._state.opened, self._state.is_frozen
            self._scene = await self._look(opened, is_frozen)
            self._is_new.set()
            left_s = None if is_frozen else max(0.0, began_s + self._interval_s - loop.time())
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(left_s, self._is_wanted.wait())

    async def _look(self, opened: str, is_frozen: bool) -> Scene:
        scene = self._scene
        try:
            if not is_frozen:
                snapshot = await self._view.look(with_moves=True)
                scene = Scene(snapshot, "", time.strftime("%H:%M:%S"), scene.opened)
            return replace(scene, opened=await self._explained(opened) if opened else None)
        except (Away, ControlError) as error:
            trouble = f"asking again: {error}"
        except (KeyError, TypeError, ValueError) as error:
            trouble = f"the daemon's answer is none that this version understands ({error!r})"
        return replace(scene, trouble=clean(trouble))

    async def _explained(self, container: str) -> Opened:
        try:
            return Opened(container, self._explain_text(await self._view.ask("explain", container=container)))
        except ControlError as error:  # it is gone
            return Opened(container, str(error))


def _keys(screen: curses.window) -> Iterator[str]:
    while (code := screen.getch()) != curses.ERR:
        if code in _KEYS:
            yield _KEYS[code]
        elif 32 <= code < 127:
            yield chr(code)
        else:
            yield ""  # another key: it does nothing


def _measured(screen: curses.window, state: ScreenState) -> ScreenState:
    """The state in the terminal's size of now."""
    width, height = os.get_terminal_size(sys.stdin.fileno())
    if (width, height) != (state.width, state.height) or screen.getmaxyx() != (height, width):
        curses.resizeterm(max(1, height), max(1, width))
        screen.clear()
    return resized(state, max(1, width), max(1, height))


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
