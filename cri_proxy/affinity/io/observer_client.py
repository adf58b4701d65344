"""The daemon's side of the affinity service: follows the observer's graph, and keeps the last one when it is gone.

An observer that is absent, dead, hung or new never moves a container: the picture stays as it was and says why it is
old (``Traffic.frozen``). It is kept on disk as well, so that a restart of the daemon begins with it. How a new
observer's graph takes the place of the old one is in policies/affinity/graph/replica.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Callable, Optional

from bpf.kernel.clock import boot_time_s
from bpf.service.json_file import set_aside, write_json
from cri_api import affinity_pb2 as pb
from cri_api.waiting import wait_within
from cri_proxy.bounded_files import SMALL_FILE_S, within
from cri_proxy.relay.io.channel import Channel
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.text.ages import Old
from policies.affinity.graph.remote import RemotePeer
from policies.affinity.graph.replica import GraphReplica, News
from policies.affinity.graph.traffic import Edge, Traffic

FILE = "affinity.json"
SAVE_EVERY_S = 60.0
FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 10.0
#: An observer that says nothing, or does not look, for so many of its samples hangs; at least so long, if they are short.
SILENT_SAMPLES = 3
LEAST_SILENCE_S = 10.0
#: Before the first sample it is not known how long one is.
FIRST_SILENCE_S = 120.0
_METHOD = "/cri_resmgr.affinity.v1.Affinity/WatchGraph"
_NEVER_SEEN = "the observer has not answered yet"
_IS_NEW = (
    "the observer has just started: until it has looked for a half-life, what was known before counts as well"
)


class AffinityClient:
    """Follows one observer. ``run()`` goes on until it is cancelled; ``on_change`` is called after every change."""

    def __init__(
        self, socket: Path, state_directory: Path, log: Any, on_change: Optional[Callable[[], None]] = None
    ) -> None:
        self.on_change = on_change
        #: Has something done with the disk, by a thread; here by itself.
        self.later: Callable[[Callable[[], None]], object] = lambda work: work()
        self._socket = socket
        self._file = state_directory / FILE
        self._log = log
        self._picture = GraphReplica()
        self._frozen = _NEVER_SEEN
        self._status = pb.Status()
        #: What containers exchange with other nodes, the heaviest first, and how many more there are.
        self.remote: tuple[tuple[RemotePeer, ...], int] = ((), 0)
        self._heard_s: Optional[float] = None
        #: Of the sample that its figures are of: its boot time, and Unix time; None = that is not known.
        self._sampled_at_s = 0.0
        self._seen_s: Optional[float] = None
        self._saved_s = time.monotonic()
        self._is_saved = True
        self._restore()

    @property
    def traffic(self) -> Traffic:
        """The graph as it was told last; ``frozen`` says why it is old."""
        return self._picture.traffic(self._frozen)

    def old(self) -> Optional[Old]:
        """Since when what is known is not of now, and why; None = it is, or nothing is known."""
        if not self._frozen or not (self._picture.traffic(self._frozen).listed or self.remote[0]):
            return None
        return Old(self._seen_s, self._frozen)

    def status(self) -> dict[str, Any]:
        """The observer's status, for people; ``problem`` "" = it is there."""
        told = self._status
        return {
            "problem": "" if self._frozen == _IS_NEW else self._frozen,
            "note": self._frozen,
            "socket": str(self._socket),
            "provider": told.provider,
            "detail": told.detail,
            "refused": list(told.refused),
            "counters": dict(told.counters),
            "trust": dict(told.trust),
            "sample_s": told.sample_s,
            "next_sample_s": told.next_sample_s,
            "pairs_fill": told.pairs_fill,
            "observed_s": told.observed_s,
            "resident_bytes": told.resident_bytes,
            "age_s": None if self._heard_s is None else round(time.monotonic() - self._heard_s, 1),
        }

    async def run(self) -> None:
        """Follow the observer for ever; connect again, at growing intervals, when it is gone."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                heard_s = self._heard_s
                try:
                    self._freeze(await self._follow())
                except Exception:
                    # A bug of ours costs the graph, never the daemon.
                    self._log.exception("affinity client failed")
                    self._freeze("the observer's graph could not be read; see the log")
                pause_s = FIRST_PAUSE_S if self._heard_s != heard_s else min(2 * pause_s, MOST_PAUSE_S)
                await asyncio.sleep(pause_s)
        finally:
            if not self._is_saved:
                self._save(self._picture.state())

    async def _follow(self) -> str:
        """Read one stream to its end; returns why it has ended, in a sentence."""
        # A channel of our own each time: one that has failed waits before it tries again, longer than we would.
        channel = Channel(str(self._socket), "the observer")
        stream = channel.stream(_METHOD, pb.WatchGraphRequest().SerializeToString())
        try:
            while (delta := await wait_within(self._patience_s(), stream.read())) is not None:
                await self._take(pb.GraphDelta.FromString(delta))
            return "the observer has ended"
        except RpcError as error:
            if error.code == Code.UNAVAILABLE:
                return f"no observer answers at {self._socket}"
            return f"the observer refuses: {error}"
        except asyncio.TimeoutError:
            return self._not_looked() or f"the observer has said nothing for {self._patience_s():.0f} s"
        finally:
            stream.cancel()
            await channel.close()

    def _patience_s(self) -> float:
        if self._status.sample_s <= 0:
            return FIRST_SILENCE_S
        return max(LEAST_SILENCE_S, SILENT_SAMPLES * self._status.sample_s)

    async def _take(self, delta: pb.GraphDelta) -> None:
        before = self.traffic
        # In a thread: of 10,000 edges this takes 50 ms, in which calls are to be relayed.
        if await asyncio.to_thread(_take_into, self._picture, delta):
            self._is_saved = False
        self._status.CopyFrom(delta.status)
        # An observer of an older version tells none.
        self.remote = read_remote(delta), delta.remote_left_out
        self._heard_s = time.monotonic()
        if not self._picture.is_waiting:
            self._note_sample()
        self._say(self._not_looked() or (_IS_NEW if self._picture.is_waiting else ""))
        self._tell(before)
        if not self._is_saved and self._heard_s - self._saved_s >= SAVE_EVERY_S:
            self._save(await asyncio.to_thread(self._picture.state))

    def _note_sample(self) -> None:
        told_s = self._status.sampled_at_s
        if not told_s:  # an observer of an older version
            self._seen_s = time.time()
        elif told_s != self._sampled_at_s:
            self._sampled_at_s, self._seen_s = told_s, time.time() - max(0.0, boot_time_s() - told_s)

    def _not_looked(self) -> str:
        """Why its graph is old although the observer answers: its samples fail, or have stopped; "" = it is not old."""
        told, patience_s = self._status, self._patience_s()
        # Both sides go by the clock of the machine.
        if not told.sampled_at_s or boot_time_s() - told.sampled_at_s <= patience_s:
            return ""
        return f"the observer has not looked for more than {patience_s:.0f} s; it says: {told.detail}"

    def _freeze(self, sentence: str) -> None:
        before = self.traffic
        self._say(sentence)
        self._tell(before)

    def _say(self, sentence: str) -> None:
        if sentence not in (self._frozen, _IS_NEW, ""):
            self._log.warning("affinity graph frozen", reason=sentence)
        self._frozen = sentence

    def _tell(self, before: Traffic) -> None:
        if self.on_change is None or self.traffic is before:
            return
        try:
            self.on_change()
        except Exception:
            self._log.exception("affinity listener failed")

    # ------------------------------------------------------------------ on disk

    def _restore(self) -> None:
        try:
            text = within(SMALL_FILE_S, lambda: self._file.read_text(encoding="utf-8"))
            self._picture.restore(json.loads(text))
            self._seen_s = within(SMALL_FILE_S, lambda: self._file.stat().st_mtime)
        except FileNotFoundError:
            return
        except TimeoutError:
            self._log.warning(
                "affinity graph not read", file=str(self._file), reason="the disk does not answer"
            )
        except OSError as error:
            self._log.warning("affinity graph not read", file=str(self._file), reason=error.strerror)
        except (ValueError, RecursionError) as error:
            aside = set_aside(str(self._file))
            self._log.warning("affinity graph set aside", file=aside, reason=str(error))

    def _save(self, state: Any) -> None:
        """As a whole or not at all; what cannot be saved is seen anew by the observer."""
        self._saved_s, self._is_saved = time.monotonic(), True
        self.later(lambda: self._write(state))

    def _write(self, state: Any) -> None:
        try:
            write_json(str(self._file), state)
        except OSError as error:
            self._log.warning("affinity graph not saved", file=str(self._file), reason=error.strerror)


def _take_into(picture: GraphReplica, delta: pb.GraphDelta) -> bool:
    return picture.take(read_delta(delta))


def read_delta(delta: pb.GraphDelta) -> News:
    """The observer's message in our words. Edges without two different ends or a weight are left out."""
    half_life_s = delta.status.half_life_s
    return News(
        edges=tuple(_edge(edge) for edge in delta.edges if edge.a and edge.b and edge.weight > 0),
        owners={(edge.a, edge.b): edge.weight for edge in delta.owner_edges if edge.weight > 0},
        gone_edges=tuple((key.a, key.b) for key in delta.gone_edges),
        gone_owners=tuple((key.a, key.b) for key in delta.gone_owner_edges),
        is_whole=delta.is_whole,
        half_lives=delta.status.observed_s / half_life_s if half_life_s > 0 else 1.0,
        trust=dict(delta.status.trust),
    )


def read_remote(delta: pb.GraphDelta) -> tuple[RemotePeer, ...]:
    """Its rates to other nodes. A row without end, address or rate is left out."""
    return tuple(
        RemotePeer(peer.id, peer.address, peer.bytes_per_s)
        for peer in delta.remote_peers
        if peer.id and peer.address and 0 < peer.bytes_per_s < float("inf")
    )


def _edge(edge: pb.Edge) -> Edge:
    return Edge(
        a=edge.a,
        b=edge.b,
        weight=edge.weight,
        bytes_per_s=edge.bytes_ab_per_s + edge.bytes_ba_per_s,
        messages_per_s=edge.messages_per_s,
        kinds=tuple(edge.kinds),
        is_pod_level=edge.is_pod_level,
        steady_weight=edge.steady_weight,
    )
