"""What a program that only looks may ask of a running daemon: the view socket's commands, none of which changes anything.

``report`` is one document of a moment: which containers there are and what the zones have is taken in one step; the rows
are written down in slices, as calls are relayed in between (500 containers: six milliseconds in all, one at a time).

``cri-resmgr doctor`` is run for those that ask (``Examiner``): a process of its own, one at a time, not too often.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from cri_api.control import ControlError
from cri_api.waiting import wait_within
from cri_proxy.claims.report import summary
from cri_proxy.config.io.files import Files
from cri_proxy.control import Command
from cri_proxy.daemon.ages import old_of
from cri_proxy.doctor.findings import EXAMINE_S, PROBLEM, WARNING
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Zone, zones_of
from cri_proxy.engine.report import (
    container_row,
    group_rows,
    machine_document,
    recent_moves,
    remote_rows,
    running,
    zone_rows,
)
from cri_proxy.history.entries import BadQuery, read_query
from cri_proxy.history.io.file import HistoryUnusable
from cri_proxy.version import VERSION
from policies.affinity.graph.groups import TrafficGroup, groups_of
from policies.affinity.graph.traffic import Traffic
from policies.machine.topology import Topology

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon

#: How long an answer is good for, seconds.
KEPT_S = 60.0
#: How long the process may take in all, seconds: to start, and to look.
LIMIT_S = 4 * EXAMINE_S
#: Verdicts that are told, by the word they have outside.
SEVERITIES = {PROBLEM: "error", WARNING: "warning"}
#: Containers that are written down at once: a millisecond.
SLICE = 100
#: Moves that are told unless more are asked for.
MOVES = 50
#: What ways there are to learn of containers, by the names that front ends have.
FRONT_ENDS = {"proxy": "cri", "nri-plugin": "nri", "standalone": "standalone"}
#: The commands of the control socket that the view socket has as well.
SHARED = (
    "status",
    "topology",
    "placements",
    "explain",
    "affinity",
    "metrics",
    "claims",
    "claim-devices",
)
#: Parts of a report that have a row a zone or a container.
ROWS = frozenset(("zones", "placements", "affinity_groups", "caches"))

Item = TypeVar("Item")


class Examiner:
    """Asks for problems of this node. ``files``, ``control``: what the process is told of the daemon."""

    def __init__(
        self,
        files: Callable[[], Files],
        control: Callable[[], str],
        command: tuple[str, ...] = (sys.executable, "-m", "cri_proxy"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._control = control
        self._command = command
        self._clock = clock
        self._lock: Optional[asyncio.Lock] = None
        self._known: tuple[float, dict[str, Any]] = (float("-inf"), {})

    async def problems(self) -> dict[str, Any]:
        """What is wrong, ``{"problems": [...]}``. A caller that asks while a process runs gets that one's answer.

        :raises ControlError: the process has failed, or takes too long.
        """
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            at_s, known = self._known
            if self._clock() - at_s < KEPT_S:
                return known
            known = read_findings(await self._run())
            self._known = self._clock(), known
            return known

    async def _run(self) -> bytes:
        config = self._files().config
        words = ["--control-socket", self._control(), "doctor", "--json"]
        words += [] if config is None else ["--config", str(config)]
        process = await asyncio.create_subprocess_exec(
            *self._command, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, env=_environment(),
        )  # fmt: skip
        # The daemon is the last that the kernel ends for want of memory; this goes before the others.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
        try:
            out, _ = await wait_within(LIMIT_S, process.communicate())
        except asyncio.TimeoutError:
            raise ControlError(f"doctor has not ended within {LIMIT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return out


def _environment() -> dict[str, str]:
    """Ours, without what would have it talk to our service manager."""
    return {key: value for key, value in os.environ.items() if key not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}


def read_findings(out: bytes) -> dict[str, Any]:
    """The problems and warnings in what doctor has printed as JSON.

    :raises ControlError: it has printed something else.
    """
    try:
        findings = json.loads(out)["findings"]
        return {"problems": [_problem(f) for f in findings if f["verdict"] in SEVERITIES]}
    except (ValueError, KeyError, TypeError):
        raise ControlError("doctor has failed; see: cri-resmgr doctor") from None


def _problem(finding: Mapping[str, str]) -> dict[str, str]:
    return {
        "severity": SEVERITIES[finding["verdict"]],
        "check": finding["check"],
        "sentence": finding["sentence"],
        "hint": finding["hint"],
    }


class ViewCommands:
    """The commands of one daemon that change nothing."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: The machine that zones and its document were made of.
        self._machine: tuple[Optional[Topology], tuple[Zone, ...], dict[str, Any]] = (None, (), {})
        #: The edges that groups were made of.
        self._groups: tuple[object, list[TrafficGroup]] = ((), [])
        self._examiner = Examiner(
            lambda: daemon.options.files, lambda: daemon.services.config["control.socket"]
        )

    def table(self) -> Mapping[str, Command]:
        """Those that both sockets have besides ``SHARED``, by the name they have on the wire."""
        return {
            "report": self.report,
            "moves": self.moves,
            "history": self.history,
            "doctor": self.doctor,
            "isolation": self.isolation,
        }

    async def isolation(self, arguments: dict[str, Any]) -> Any:
        """What is treated, where and why; what was refused; what others have there."""
        return self._daemon.isolation.status()

    async def report(self, arguments: dict[str, Any]) -> Any:
        """All that is told of the node, or some of it.

        ``events_since``: ``events_next`` of the answer before; null = all that are kept. ``parts``: keys of the answer that
        are wanted, null = all; names that are none are passed over, as a newer agent may know more.
        """
        parts = arguments.get("parts")
        if parts is not None and not (
            isinstance(parts, list) and all(isinstance(part, str) for part in parts)
        ):
            raise ControlError(f"parts is {parts!r}, expected a list of texts, or null")
        if parts is None:
            return await self._report(arguments)
        # Rows are the work, and an agent that only commands asks for none of them.
        document = await self._report(arguments, with_rows=not ROWS.isdisjoint(parts))
        return {key: value for key, value in document.items() if key in parts}

    async def _report(self, arguments: dict[str, Any], with_rows: bool = True) -> dict[str, Any]:
        since = arguments.get("events_since")
        if since is not None and (isinstance(since, bool) or not isinstance(since, int) or since < 0):
            raise ControlError(f"events_since is {since!r}, expected a whole number of 0 or more, or null")
        engine: Optional[Engine] = self._daemon.services.node_state.engine
        document = {**self._head(), **self._daemon.orders.notable.since(since)}
        if engine is None:
            nothing: dict[str, Any] = {
                "zones": [],
                "placements": [],
                "affinity_groups": [],
                "remote_peers": [],
                "caches": [],
            }
            return {**document, "machine": None, **nothing, "remote_left_out": 0}
        # 1. In one step: what belongs together.
        zones, machine = self._zones(engine.host.topology)
        grants = running(engine)
        peers, left_out = self._daemon.affinity.remote()
        document["machine"] = machine
        if not with_rows:
            return document
        document |= {"zones": zone_rows(engine.node, zones), "claims": summary(engine)}
        # 2. What follows from records that do not change any more.
        rows = await sliced(grants, lambda some: [container_row(engine, grant, zones) for grant in some])
        groups = await self._group_rows(engine, zones)
        document["caches"] = await self._daemon.monitoring.rows(engine)
        document |= {"remote_peers": remote_rows(engine, peers), "remote_left_out": left_out}
        return {**document, "placements": rows, "affinity_groups": groups}

    async def moves(self, arguments: dict[str, Any]) -> Any:
        """The last moves with their reason, at most ``most``, the latest first."""
        node_state, most = self._daemon.services.node_state, read_most(arguments)
        engine: Optional[Engine] = node_state.engine
        rows = (
            []
            if engine is None
            else recent_moves(engine, MOVES if most is None else most, node_state.clock())
        )
        return {"moves": rows}

    async def history(self, arguments: dict[str, Any]) -> Any:
        """A page of the history: what was decided and moved, over restarts too (``read_query`` has the arguments)."""
        try:
            return await self._daemon.history.page(read_query(arguments))
        except (BadQuery, HistoryUnusable) as error:
            raise ControlError(str(error)) from None

    async def doctor(self, arguments: dict[str, Any]) -> Any:
        """What ``cri-resmgr doctor`` finds, made by a process of its own; an answer is kept for a minute."""
        return await self._examiner.problems()

    def _head(self) -> dict[str, Any]:
        daemon, services = self._daemon, self._daemon.services
        return {
            "version": VERSION,
            "instance": daemon.instance,
            "mode": daemon.mode,
            "mode_wanted": services.node_state.mode,
            "mode_from": daemon.assembly.mode_from,
            "front_end": FRONT_ENDS.get(daemon.front.name, daemon.front.name),
            "policy": services.config["policy.Active"],
            "degraded": services.health.told(services.node_state.engine is not None),
            "warnings": services.health.warnings,
            "old": old_of(daemon),
            "cluster": daemon.cluster.document(),
            "topology_manager": services.machine.topology_manager,
            "isolation": daemon.isolation.summary(),
        }

    def _zones(self, topology: Topology) -> tuple[tuple[Zone, ...], dict[str, Any]]:
        if self._machine[0] is not topology:
            self._machine = topology, zones_of(topology), machine_document(topology)
        return self._machine[1:]

    async def _group_rows(self, engine: Engine, zones: tuple[Zone, ...]) -> list[dict[str, Any]]:
        controller = self._daemon.affinity
        traffic: Traffic = controller.traffic()
        if self._groups[0] is not traffic.listed:
            self._groups = traffic.listed, await asyncio.to_thread(groups_of, traffic.listed)
        still = controller.still(controller.settings)
        return await sliced(self._groups[1], lambda some: group_rows(engine, zones, some, traffic, still))


def read_most(arguments: Mapping[str, Any]) -> Optional[int]:
    """How many rows are wanted; None = it is not said.

    :raises ControlError: it is no whole number.
    """
    most = arguments.get("most")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise ControlError(f"most is {most!r}, expected a whole number of 0 or more, or null")
    return most


async def sliced(
    items: Iterable[Item], rows: Callable[[list[Item]], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The rows of all items, ``SLICE`` items at a time, with the event loop's other work in between."""
    listed = list(items)
    found: list[dict[str, Any]] = []
    for start in range(0, len(listed), SLICE):
        found += rows(listed[start : start + SLICE])
        await asyncio.sleep(0)
    return found
