"""A thread that asks the daemon once in an interval, so that keys never wait for an answer."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.control import ControlError
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.top.load import Times, loads, read_times
from cri_proxy.top.screen import Opened, Scene
from cri_proxy.top.snapshot import Snapshot, clean, read_snapshot

#: A daemon that is this late is said to be away, and asked again.
ANSWER_S = 5.0
#: As many edges and moves as a large screen has room for, and enough for the rate of each container.
MOST_EDGES, MOST_MOVES = 1000, 50
REPORT_PARTS = ["version", "mode", "policy", "degraded", "zones", "placements"]

ExplainText = Callable[[dict[str, Any]], str]


class Asking(threading.Thread):
    """Asks until the program ends. ``scene`` is what is known; ``wake`` is called when it is another one."""

    def __init__(
        self,
        view_socket: Path,
        explain_text: ExplainText,
        wake: Callable[[], None],
        interval_s: float = 1.0,
        stat: Path = Path("/proc/stat"),
    ) -> None:
        """``explain_text``: an explanation, as the terminal shows it; ``stat``: where CPUs' ticks are."""
        super().__init__(daemon=True, name="asking")
        self.scene = Scene()
        self._socket, self._explain_text, self._wake = view_socket, explain_text, wake
        self._interval_s, self._stat = interval_s, stat
        self._times: Times = {}
        self._changed = threading.Condition()
        self._opened, self._is_frozen, self._is_stale = "", False, True

    def want(self, opened: str, is_frozen: bool) -> None:
        """What the view shows now: a container that is opened is asked for at once, a frozen picture not at all."""
        with self._changed:
            if (opened, is_frozen) != (self._opened, self._is_frozen):
                self._opened, self._is_frozen, self._is_stale = opened, is_frozen, True
                self._changed.notify()

    def run(self) -> None:
        while True:
            began_s = time.monotonic()
            with self._changed:
                opened, is_frozen = self._opened, self._is_frozen
                self._is_stale = False
            self.scene = self._look(opened, is_frozen)
            self._wake()
            with self._changed:
                left_s = None if is_frozen else max(0.0, began_s + self._interval_s - time.monotonic())
                self._changed.wait_for(lambda: self._is_stale, left_s)

    def _look(self, opened: str, is_frozen: bool) -> Scene:
        scene = self.scene
        try:
            if not is_frozen:
                scene = Scene(self._snapshot(), "", time.strftime("%H:%M:%S"), scene.opened)
            return replace(scene, opened=self._explained(opened) if opened else None)
        except DaemonAbsent as error:
            trouble = f"asking again: {error}"
        except ControlError as error:
            trouble = f"asking again: {error}"
        except (KeyError, TypeError, ValueError) as error:
            trouble = f"the daemon's answer is none that this version understands ({error!r})"
        return replace(scene, trouble=clean(trouble))

    def _snapshot(self) -> Snapshot:
        report = self._ask("report", {"parts": REPORT_PARTS})
        affinity, traffic_note = self._ask_part("affinity", MOST_EDGES)
        moves, moves_note = self._ask_part("moves", MOST_MOVES)
        return read_snapshot(report, affinity, moves, self._loads(), (traffic_note, moves_note))

    def _ask(self, command: str, arguments: dict[str, Any]) -> Any:
        return ask(self._socket, command, arguments, ANSWER_S)

    def _ask_part(self, command: str, most: int) -> tuple[Any, str]:
        """An answer that a daemon may refuse while the others are good: one of another version, or without a machine."""
        try:
            return self._ask(command, {"most": most}), ""
        except ControlError as error:
            return {}, str(error)

    def _explained(self, container: str) -> Opened:
        try:
            return Opened(container, self._explain_text(self._ask("explain", {"container": container})))
        except ControlError as error:  # it is gone
            return Opened(container, str(error))

    def _loads(self) -> dict[int, float]:
        try:
            now: Optional[Times] = read_times(self._stat.read_text())
        except OSError:
            now = None
        if now is None:
            return {}
        before, self._times = self._times, now
        return loads(before, now)
