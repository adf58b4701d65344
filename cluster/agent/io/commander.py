"""The commanding half carries out the node's spec over the control socket, and acknowledges it.

The spec is followed by its object's metadata, which say which object and which writes of the spec it is, and is then
read once: a watch of whole objects would bring back every status that this node writes. Without the API server the spec
that was seen last holds; a daemon that has lost its commands gets them again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cluster.agent import commands
from cluster.agent.commands import (
    DOCTOR_ERRORS,
    LOST_S,
    WITHIN_S,
    AgentMemory,
    Command,
    Refusals,
    Signs,
    read_memory,
    signs_of,
    write_memory,
)
from cluster.agent.io.daemon import DOCTOR_PATIENCE_S, DaemonAway, DaemonClient, daemon_trouble
from cluster.agent.io.log import TroubleLog, log
from cluster.agent.io.written import NO_ANSWER, PLACEMENTS, Mark, Written, mark
from cluster.agent.spec import Spec, read_spec
from cluster.agent.status import conditions_of, written
from cluster.api import names, node_placement
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.known_fields import KnownFields
from cluster.kube.pace import Backoff, WriteRate
from cluster.kube.requests import ApiError
from cri_api.control import ControlError
from cri_api.supervisor import Supervisor

MEMORY_FILE = "memory.json"


class MemoryFile:
    """``folder`` None: nothing is kept."""

    def __init__(self, folder: Optional[Path]) -> None:
        self._path = None if folder is None else folder / MEMORY_FILE
        self._written = ""

    def read(self) -> AgentMemory:
        """The memory kept; a file that cannot be read is logged, and is as none."""
        if self._path is None:
            return AgentMemory()
        try:
            return read_memory(self._path.read_text())
        except FileNotFoundError:
            return AgentMemory()
        except (OSError, ValueError, TypeError) as error:
            log("warning", "memory not read", file=self._path, reason=error)
            return AgentMemory()

    def write(self, memory: AgentMemory) -> None:
        """Keep it, whole or not at all; nothing where it equals the last write."""
        text = write_memory(memory)
        if self._path is None or text == self._written:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            other = self._path.with_suffix(".new")
            with other.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            other.replace(self._path)
            self._written = text
        except OSError as error:
            log("warning", "memory not written", file=self._path, reason=error.strerror)


#: The field manager of this half: its fields are not those of the reporting one.
MANAGER = f"{names.AGENT_MANAGER}-command"
#: Between two looks at a daemon that has been told all, and at one that was given a policy lately.
CALM_S, WATCHFUL_S = 30.0, 5.0
#: Commands in a row before another look: there are five kinds.
COMMANDS_A_ROUND = 8
#: A daemon that takes a command and does not do it is not asked again before.
AGAIN_S = 60.0
DOCTOR_EVERY_S = 60.0


@dataclass(frozen=True)
class _Look:
    report: Optional[Mapping[str, Any]]
    trouble: str = ""


class Commander:
    """One node's commanding half. ``run`` never ends by itself."""

    def __init__(
        self,
        daemon: DaemonClient,
        client: Client,
        node: str,
        file: MemoryFile,
        clock: Clock,
        period_s: float = 10.0,
        beat: Callable[[], None] = lambda: None,
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self._beat = beat
        self._supervisor = supervisor or Supervisor()
        self._daemon, self._client, self._node, self._file, self._clock = daemon, client, node, file, clock
        self._memory = file.read()
        self._refusals = Refusals()
        self._signs = Signs()
        self._written = Written(WriteRate(period_s), MANAGER)
        self._known = KnownFields(client, PLACEMENTS, node_placement.schema(), clock.monotonic)
        #: Of the spec that was read last, or is to be.
        self._asked: Any = None
        self._news = asyncio.Event()
        self._is_there = False
        self._to_read = False
        self._reads, self._read_backoff = WriteRate(0.0), Backoff(WATCHFUL_S)
        self._sent: dict[str, float] = {}
        self._problems: Sequence[Mapping[str, Any]] = ()
        self._doctor_at_s: Optional[float] = None
        self._lost_since_s: Optional[float] = None
        self._daemon_said, self._api_said = TroubleLog("daemon"), TroubleLog("api server")

    async def run(self) -> None:
        """Carry out and acknowledge, until cancelled."""
        follow = self._supervisor.keep("watch of the spec", self._follow)
        try:
            while True:
                self._news.clear()
                wait_s = await self.round()
                self._beat()
                await self._until_news(wait_s)
        finally:
            follow.cancel()

    async def round(self) -> float:
        """Everything that is due now; seconds until the next round, unless there is news."""
        wait_s = await self._read_spec()
        spec = self._memory.spec
        if spec is None:
            return min(wait_s, CALM_S)
        look = await self._look()
        await self._ask_doctor(look)
        self._signs.see(signs_of(look.report, look.trouble, self._problems), self._clock.monotonic())
        await self._take_back()
        if look.report is not None and not look.trouble:
            look = await self._carry_out(spec, look.report)
        self._file.write(self._memory)
        wait_s = min(wait_s, await self._acknowledge(spec, look))
        return min(wait_s, WATCHFUL_S if self._is_watchful(look) else CALM_S)

    # ------------------------------------------------------------------ the spec

    def read_again(self) -> None:
        """Read the spec with the next round, whatever the watch has told; it is there."""
        self._is_there = self._to_read = True

    async def _follow(self) -> None:
        events = self._client.watch(
            PLACEMENTS,
            field_selector=f"metadata.name={self._node}",
            keep=lambda found: (_asked(found), self._written.mark(found)),
            metadata_only=True,
        )
        async for event in events:
            found = event.object if event.kind == "SYNC" else [event.object]
            # An object that is deleted asks for nothing new: the node stays as it is.
            self._is_there = bool(found) and event.kind != "DELETED"
            if not self._is_there:
                continue
            asked, mark = found[0]
            if asked != self._asked:
                self._asked, self._to_read = asked, True
                self._news.set()
            if self._written.heard(mark):
                self._news.set()

    async def _read_spec(self) -> float:
        if not self._to_read:
            return CALM_S
        if wait_s := self._reads.wait_s(self._clock.monotonic()):
            return wait_s
        try:
            found = await self._client.get(PLACEMENTS, self._node)
        except (ApiError, *NO_ANSWER) as error:
            self._api_said.trouble(f"the spec cannot be read: {error}")
            delay_s = self._read_backoff.after(error, self._clock.random01())
            self._reads.wait_longer(self._clock.monotonic(), delay_s)
            return delay_s
        self._read_backoff.reset()
        if not self._written.has_failed:
            self._api_said.well()
        self._to_read = False
        spec = read_spec(found, self._memory.spec)
        # Another spec is another try, for everything in it.
        if spec != self._memory.spec:
            self._refusals, self._sent = Refusals(self._refusals.instance), {}
        # An answer that is younger than the news is one change of the spec, not two.
        self._asked = _asked(found)
        self._memory = commands.with_spec(commands.recalled(self._memory, found), spec)
        self._written.told.setdefault("conditions", conditions_of(found))
        return CALM_S

    # ------------------------------------------------------------------ the daemon

    async def _look(self) -> _Look:
        try:
            report = await self._daemon.summary()
        except (DaemonAway, ControlError) as error:
            self._daemon_said.trouble(str(error))
            return _Look(None, daemon_trouble(self._node, error))
        self._daemon_said.well()
        refusals = self._refusals.of(str(report.get("instance", "")))
        if refusals is not self._refusals:
            # What the life before was told, this one may not know.
            self._refusals, self._sent = refusals, {}
        return _Look(report)

    async def _carry_out(self, spec: Spec, report: Mapping[str, Any]) -> _Look:
        for _ in range(COMMANDS_A_ROUND):
            self._memory = commands.settled(self._memory, spec, report)
            command = commands.next_command(spec, report, self._memory, self._refusals)
            if command is None or not self._may_send(command):
                break
            try:
                await self._send(command, spec, report)
                report = await self._daemon.summary()
            except DaemonAway as error:
                self._daemon_said.trouble(str(error))
                return _Look(report, daemon_trouble(self._node, error))
            except ControlError as error:
                return _Look(report, daemon_trouble(self._node, error))
        return _Look(report)

    def _may_send(self, command: Command) -> bool:
        sent_s = self._sent.get(command.about)
        return sent_s is None or self._clock.monotonic() - sent_s >= AGAIN_S

    async def _send(self, command: Command, spec: Spec, report: Mapping[str, Any]) -> None:
        refusal = commands.refused_here(command)
        # A command of another kind may have made this one right.
        self._sent = {about: at for about, at in self._sent.items() if self._clock.monotonic() - at < AGAIN_S}
        if not refusal:
            self._sent[command.about] = self._clock.monotonic()
            try:
                await self._daemon.ask(command.name, **command.arguments)
            except ControlError as error:
                refusal = str(error)
        if refusal:
            log("warning", "refused", command=command.name, reason=refusal)
            self._refusals = self._refusals.with_one(command, refusal)
            return
        log("info", "told the daemon", command=command.about)
        self._memory = commands.done(command, spec, report, self._memory, self._signs.now, self._clock.wall())
        # Before anything else can go wrong: the state before is known only now.
        self._file.write(self._memory)
        if command.name == commands.POLICY:
            self._doctor_at_s = None

    async def _ask_doctor(self, look: _Look) -> None:
        """Where a policy is to go for doctor's sake; before one is given its problems are no sign against it."""
        spec = self._memory.spec
        wanted = spec is not None and spec.policy is not None and DOCTOR_ERRORS in spec.policy.abort_on
        now_s = self._clock.monotonic()
        if not wanted or look.report is None:
            return
        if self._doctor_at_s is not None and (
            now_s - self._doctor_at_s < DOCTOR_EVERY_S or not self._is_young()
        ):
            return
        try:
            found = await self._daemon.ask("doctor", DOCTOR_PATIENCE_S)
            self._problems = [problem for problem in found["problems"] if isinstance(problem, dict)]
        except (DaemonAway, ControlError, KeyError, TypeError) as error:
            self._daemon_said.trouble(str(error))
        self._doctor_at_s = now_s

    # ------------------------------------------------------------------ taking back

    async def _take_back(self) -> None:
        """Mark the policy in force as taken back, if something speaks against it and the API server is lost."""
        now_s = self._clock.monotonic()
        sign = self._signs.against(self._memory, now_s, self._clock.wall())
        if not sign or not await self._is_lost():
            self._lost_since_s = None
            return
        if self._lost_since_s is None:
            self._lost_since_s = now_s
        if now_s - self._lost_since_s >= LOST_S:
            self._memory = commands.taken_back(self._memory, sign)
            log("warning", "policy is taken back", reason=self._memory.why_taken_back)

    async def _is_lost(self) -> bool:
        """Whether the operator could not reach this node now; asked only where something is wrong."""
        try:
            await self._client.get(PLACEMENTS, self._node)
        except NO_ANSWER:
            return True
        except ApiError as error:
            return error.status >= 500 or error.status in (401, 403)
        return False

    # ------------------------------------------------------------------ the acknowledgement

    async def _acknowledge(self, spec: Spec, look: _Look) -> float:
        """Write what has become of the spec, if that is new; seconds until it may be written."""
        acknowledged = commands.acknowledgement(spec, look.report, look.trouble, self._memory, self._refusals)
        left_out = self._known.left_out
        waiting = self._waiting(spec, look)
        condition = commands.config_applied(spec, acknowledged, self._refusals, left_out, waiting)
        before = self._written.told.get("conditions", ())
        conditions = written([condition], before, self._clock.stamp(), spec.generation)
        status = {**acknowledged, "conditions": conditions}
        if self._known.is_old():
            self._written.forget()
        if not self._is_there or not self._written.differs(status):
            return CALM_S
        if not self._written.is_due(status, self._clock):
            return self._written.pace.wait_s(self._clock.monotonic())
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.NODE_PLACEMENT,
            "metadata": {"name": self._node},
            "status": status,
        }
        request = self._known.apply(
            self._node, body, manager=MANAGER, subresource="status", metadata_only=True
        )
        try:
            await self._written.write(status, self._clock, request)
            self._api_said.well()
        except NO_ANSWER as error:
            self._api_said.trouble(f"the API server does not answer: {error}")
        except ApiError as error:
            self._api_said.trouble(f"the API server says {error.status} {error.reason}: {error.message}")
        if self._known.left_out == left_out and not self._written.differs(status):
            return CALM_S
        return self._written.pace.wait_s(self._clock.monotonic())

    def _waiting(self, spec: Spec, look: _Look) -> str:
        """The command that the daemon has been told, or is to be told, and has not carried out; "" = none."""
        if look.report is None or look.trouble:
            return ""
        due = commands.next_command(spec, look.report, self._memory, self._refusals)
        return "" if due is None else due.name

    # ------------------------------------------------------------------ rounds

    def _is_young(self) -> bool:
        return 0 <= self._clock.wall() - self._memory.applied_at_s < WITHIN_S

    def _is_watchful(self, look: _Look) -> bool:
        return bool(look.trouble) or (self._memory.policy is not None and self._is_young())

    async def _until_news(self, wait_s: float) -> None:
        news = asyncio.ensure_future(self._news.wait())
        timer = asyncio.ensure_future(self._clock.sleep(wait_s * (0.9 + 0.2 * self._clock.random01())))
        try:
            await asyncio.wait([news, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            timer.cancel()


def _asked(found: Mapping[str, Any]) -> tuple[Mark, int]:
    """What is another with each change of a spec, by whatever way. Of two objects of one name, and before and after a
    restore, the generation may be the same."""
    return mark(found), int(found["metadata"].get("generation", 0))
