"""The observer's main loop: a sample every interval (``SamplePace``), into the graph, out to the clients
that watch.

Looking takes its time (files of /proc, sockets, maps) and is done in a thread; the graph is touched by the event
loop only. Nothing that goes wrong with a sample ends the service: the ladder goes down, or the sample is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable, Optional

from bpf.identity.identities import Identities
from bpf.kernel.clock import boot_time_s
from bpf.kernel.notify import notify, watchdog_period_s
from bpf.kernel.procfs import read_text
from bpf.service.json_file import set_aside, write_json
from bpf.service.log import log
from bpf.service.options import BadOptions, Options, parse_options, read_options
from bpf.service.server import AffinityService, ServiceSockets
from bpf.sources.fallback import Owners, ProviderFallback
from bpf.sources.samples import Flow, ProviderLost, Sample
from cri_api import affinity_pb2 as pb
from cri_api.supervisor import Supervisor, Worker
from cri_api.waiting import wait_within
from policies.affinity.graph.graph import EndpointIdentity, Graph, SeenParts
from policies.affinity.graph.remote import RemoteRates

SAVE_EVERY_S = 60.0
RELOAD_TIMEOUT_S = 10.0
#: A look that has not ended so long after it was due hangs. In one that tries another provider bcc may hold up 1 s, or as
#: long as ``compile_patience_s`` says.
LONGEST_LOOK_S = 150.0
_PAGE_BYTES = 4096


def _tell(worker: Worker, error: Optional[BaseException]) -> None:
    if error is not None:
        log("error", "background task failed", task=worker.name, reason=worker.problem)


#: The flows of a sample by the ids of containers, and the identities of these.
Named = Callable[[Sequence[Flow], Identities, Graph], tuple[Sequence[Flow], Mapping[str, EndpointIdentity]]]


def of_runtime(
    flows: Sequence[Flow], identities: Identities, graph: Graph
) -> tuple[Sequence[Flow], Mapping[str, EndpointIdentity]]:
    """Providers name containers by their ids; the runtime knows the rest."""
    return flows, identities.by_id


class Observer:
    """One observer. ``ladder`` is open; ``owners`` None: cgroups are not looked at; ``named``: names the ends of flows."""

    def __init__(
        self,
        options: Options,
        argument: str,
        ladder: ProviderFallback,
        owners: Optional[Owners],
        named: Named = of_runtime,
    ) -> None:
        self._options = options
        self._argument = argument
        self._ladder = ladder
        self._owners = owners
        self._named = named
        self._identities = Identities(options.runtime_sockets)
        self._graph = Graph(options.graph)
        self._file = GraphFile(options.state_file, options.proc)
        self._remote = RemoteRates()
        self._parts = SeenParts()
        self._service = AffinityService(self._graph, self._status, options.sysfs, self._remote)
        self._last = Sample(boot_time_s(), 0.0)
        self._pace = SamplePace(options.interval_s, boot_time_s())
        self._saved_s = boot_time_s()
        self._late_s = time.monotonic() + LONGEST_LOOK_S
        self._problem = ""
        self._supervisor = Supervisor(_tell)
        self._watched = _signature(options.watch)
        self._stop = asyncio.Event()

    async def run(self, listener: ServiceSockets) -> None:
        """Serve until SIGTERM or SIGINT; then leave nothing behind but the graph in its file."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._start_reload)
        complaint = self._file.restore(self._graph, self._remote, boot_time_s())
        if complaint:
            log("warning", "state set aside", reason=complaint)
        if watchdog_period_s() is not None:
            self._supervisor.keep("watchdog", self._feed_watchdog)
        try:
            await listener.start(self._service)
            notify(f"READY=1\nSTATUS={self._sentence()}")
            _give_back_memory()
            await self._sample_until_stopped()
        finally:
            notify("STOPPING=1")
            await self._supervisor.end()
            await listener.close()
            await asyncio.to_thread(self._ladder.close)
            self._save(boot_time_s())

    # ------------------------------------------------------------------ sampling

    async def _sample_until_stopped(self) -> None:
        self._pace = SamplePace(self._options.interval_s, boot_time_s())
        while not self._stop.is_set():
            due_s = self._pace.due_after(boot_time_s())
            # Not by the clock of samples, which goes on while the machine sleeps.
            self._late_s = time.monotonic() + (due_s - boot_time_s()) + LONGEST_LOOK_S
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(max(0.0, due_s - boot_time_s()), self._stop.wait())
                return
            await self._take_sample()
            self._follow_watched()

    async def _take_sample(self) -> None:
        at_s = boot_time_s()
        try:
            sample, ended = await asyncio.to_thread(self._look, at_s)
            self._problem = ""
        except (ProviderLost, OSError) as error:
            # The next sample may be better; until then the graph stays as it is.
            self._problem = f"the last sample failed: {error}"
            log("error", "sample failed", reason=error)
            self._service.announce()
            return
        seen = {end for flow in sample.flows for end in (flow.a, flow.b)} | {
            flow.a for flow in sample.remotes
        }
        gone = await self._identities.refresh(seen, at_s, ended)
        flows, known = self._named(sample.flows, self._identities, self._graph)
        remotes = [replace(flow, a=self._identities.resolve(flow.a)) for flow in sample.remotes]
        self._remote.observe(sample.seconds, remotes, self._options.half_life_s)
        lost = {self._identities.resolve(end): count for end, count in sample.lost.items()}
        self._parts.observe(sample.seconds, flows, lost, self._options.half_life_s)
        self._graph.observe(sample.seconds, flows, known)
        # Only now: the last that containers have sent belongs to their owners. Whose cgroup is not found, but runs by
        # the runtime's word, has not ended: the scan may have missed it.
        ended = gone | (ended - self._identities.by_id.keys())
        self._graph.forget(ended)
        self._remote.forget(ended)
        self._parts.forget(ended)
        # Nothing was looked at (the last rung, or the first sample after a step): the graph is as old as it was.
        is_seen = sample.seconds > 0
        self._last = (
            replace(sample, flows=(), remotes=(), lost={})
            if is_seen
            else replace(self._last, counters=sample.counters, fill=0.0)
        )
        self._pace.follow(self._options.interval_s, sample.fill)
        self._service.announce()
        notify(f"STATUS={self._sentence()}")
        if at_s - self._saved_s >= SAVE_EVERY_S:
            self._save(at_s)

    def _look(self, at_s: float) -> tuple[Sample, frozenset[str]]:
        """In a thread: a sample, and the containers that have ended."""
        ended = self._owners.refresh() if self._owners is not None else frozenset()
        return self._ladder.sample(at_s), ended

    # ------------------------------------------------------------------ telling

    def _status(self) -> pb.Status:
        provider = self._ladder.provider
        # Without sight the reasons are what matters; else they are only why it could be better.
        blind = self._ladder.refused if provider.name == "declared" else ()
        problems = [text for text in (*blind, self._problem, self._identities.problem) if text]
        return pb.Status(
            provider=provider.name,
            detail="; ".join([provider.detail, *problems]),
            refused=self._ladder.refused,
            counters=dict(self._last.counters),
            sample_s=self._last.seconds,
            sampled_at_s=self._last.at_s,
            resident_bytes=_resident_bytes(),
            observed_s=self._graph.observed_s,
            half_life_s=self._graph.settings.half_life_s,
            trust=self._parts.trust,
            pairs_fill=self._last.fill,
            next_sample_s=self._pace.pause_s,
        )

    def _sentence(self) -> str:
        return f"sees by {self._ladder.provider.name}, {self._graph.edge_count} edges"

    async def _feed_watchdog(self) -> None:
        while (period_s := watchdog_period_s()) is not None:
            # An event loop that turns is not enough: the look, in its thread, may hang.
            if time.monotonic() <= self._late_s:
                notify("WATCHDOG=1")
            await asyncio.sleep(period_s)

    def _save(self, at_s: float) -> None:
        self._saved_s = at_s
        try:
            self._file.save(self._graph, self._remote, at_s)
        except OSError as error:
            log("error", "graph not saved", reason=error)
        _trim()

    # ------------------------------------------------------------------ reload

    def _start_reload(self) -> None:
        self._supervisor.begin("reload", self._reload())

    def _follow_watched(self) -> None:
        """Read the options again if the file that is watched is another one than at the last look."""
        now = _signature(self._options.watch)
        if now != self._watched:
            self._watched = now
            self._start_reload()

    async def _reload(self) -> None:
        """Read the options again; what cannot change while running is named."""
        try:
            newer = await self._newer_options()
        except BadOptions as error:
            log("error", "reload failed", reason=error)
            return
        self._options = self._options.live_part_of(newer)
        self._graph.settings = self._options.graph
        self._graph.refresh()
        self._service.announce()
        if newer != self._options:
            log("warning", "some options need a restart of the observer")
        log("info", "reloaded")

    async def _newer_options(self) -> Options:
        if self._argument.startswith("@"):
            return read_options(self._argument)
        if not self._options.reload:
            raise BadOptions("the options were given as text, not as @FILE: there is nothing to read again")
        newer = parse_options(await _output_of(self._options.reload), self._options.reload[0])
        return replace(newer, reload=self._options.reload)  # it does not print itself


def _signature(path: str) -> tuple[int, int]:
    """A value that changes when a file is replaced; (0, 0) = there is none, or none is watched."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        found = None
    return (0, 0) if found is None else (found.st_ino, found.st_mtime_ns)


async def _output_of(command: tuple[str, ...]) -> str:
    """The output of a command. :raises BadOptions: it fails, with its message."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise BadOptions(f"{command[0]} cannot be run: {error.strerror}") from None
    try:
        output, errors = await wait_within(RELOAD_TIMEOUT_S, process.communicate())
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        raise BadOptions(f"{command[0]} has not answered within {RELOAD_TIMEOUT_S:g} s") from None
    if process.returncode:
        raise BadOptions(errors.decode(errors="replace").strip() or f"{command[0]} failed")
    return output.decode(errors="replace")


def _give_back_memory() -> None:
    """Frees the objects that only the start needed; the garbage collector never looks at the rest again."""
    gc.collect()
    _trim()
    gc.freeze()


def _trim() -> None:
    """Free memory that malloc keeps is counted as ours: 1 MB after a busy minute."""
    with contextlib.suppress(AttributeError):  # musl has none
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


# ---------------------------------------------------------------------- pace

# Samples are taken every interval, and sooner while the table of pairs fills, so that no pair finds it full. A sample
# empties the table. One that was more than half full might not hold what comes until the next, as an interval may
# bring twice what the one before brought.

_MUCH, _LITTLE = 0.5, 0.25
#: A sample of 40,000 pairs costs 0.7 s of CPU time: more often than every 2.5 s would cost more than a third of a CPU.
_SHORTEST_PART = 1 / 4


def next_pause_s(interval_s: float, pause_s: float, fill: float) -> float:
    """How long after a sample the next one comes: a quarter of the interval at least, the whole at most.

    ``pause_s``: how long the sample took that has found the table so full. More than half: half of that. Less than a
    quarter: twice that would have fitted as well.
    """
    if fill > _MUCH:
        pause_s /= 2
    elif fill < _LITTLE:
        pause_s *= 2
    return min(max(pause_s, interval_s * _SHORTEST_PART), interval_s)


class SamplePace:
    """The times at which samples are due. Call ``due_after`` before each wait, ``follow`` after each sample."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self.pause_s = interval_s
        self._due_s = now_s

    def due_after(self, now_s: float) -> float:
        """When the next sample is due: a pause after the one before was, so that nothing drifts.

        Samples that were missed meanwhile are not made up for.
        """
        self._due_s += self.pause_s
        if self._due_s < now_s:
            self._due_s = now_s + self.pause_s
        return self._due_s

    def follow(self, interval_s: float, fill: float) -> None:
        """Take in how full the last sample has found the table, and the interval of the options, which may be new."""
        self.pause_s = next_pause_s(interval_s, self.pause_s, fill)


# ---------------------------------------------------------------------- graph file

_BOOT_ID = "sys/kernel/random/boot_id"


class GraphFile:
    """The graph on disk, so that a restart of the observer forgets nothing: written as a whole or not at all.

    ``path`` "" keeps nothing. ``proc``: where the number of this boot is read."""

    def __init__(self, path: str, proc: str = "/proc") -> None:
        self._path = path
        self._proc = proc

    def save(self, graph: Graph, remote: RemoteRates, now_s: float) -> None:
        """Write it; ``now_s`` is CLOCK_BOOTTIME.

        :raises OSError: that cannot be done; the file of before is still there.
        """
        if not self._path:
            return
        document = {"boot": self._boot(), "at_s": now_s, "graph": graph.state(), "remote": remote.state()}
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        write_json(self._path, document)

    def restore(self, graph: Graph, remote: RemoteRates, now_s: float) -> str:
        """Restore graph and rates from the file. Of another boot only the owners' part: its containers are gone.

        :return: the fault in a sentence, "" = none. A file that cannot be used is set aside.
        """
        if not self._path or not os.path.exists(self._path):
            return ""
        try:
            with open(self._path) as file:
                document = json.load(file)
            _restore(graph, remote, document, self._boot(), now_s)
        except OSError as error:
            return f"{self._path} cannot be read: {error.strerror}; the graph starts empty"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            aside = set_aside(self._path)
            return f"{self._path} holds no graph ({error}); it is set aside as {aside}, and the graph starts empty"
        return ""

    def _boot(self) -> str:
        return (read_text(f"{self._proc}/{_BOOT_ID}") or "").strip()


def _restore(graph: Graph, remote: RemoteRates, document: Any, boot: str, now_s: float) -> None:
    is_same_boot = document["boot"] == boot
    # How long the machine was down is not known.
    elapsed_s = max(0.0, now_s - float(document["at_s"])) if is_same_boot else 0.0
    graph.restore(document["graph"], elapsed_s, with_edges=is_same_boot)
    if is_same_boot:
        # Observers of the version before keep none.
        remote.restore(document.get("remote", []))
