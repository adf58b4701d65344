"""How long a stop of the daemon serves on for the calls under way.

Nothing is lost by that wait but time: everything is served meanwhile, new calls and new connections too.
"""

from __future__ import annotations

from typing import Optional

from google.protobuf.message import DecodeError

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.relay.interception import runtime_method
from policies.frozen import dataclass

#: Younger calls are taken to end soon. Most take a few milliseconds, a create or start some hundred.
YOUNG_S = 0.5
#: Calls that may last for minutes: they are ended when the daemon stops; clients call again.
LONG_CALLS = frozenset(["GetContainerEvents", "PullImage"])
#: What a stop of the daemon takes at most besides the calls under way.
STOP_S = 5.0
#: What a call ends with that a stop of the daemon ends.
STOPPING = "cri-resmgr is stopping; call again"


@dataclass(eq=False)
class DrainedCall:
    """A call that may be waited for. ``grace_s``: what a StopContainer asked for, if that is known."""

    method: str
    since_s: float
    grace_s: Optional[float] = None


class Settling:
    """One stop of the daemon, which began at ``begun_s``.

    ``drain_s``: what any call under way has, seconds. ``stops_s``: what StopContainer has at most. Only the runtime can
    end that, for it waits out a container's grace period; the request says how long. ``only_stops``: others are not
    waited for here, for a client that calls while a daemon is away is refused either way.
    """

    def __init__(self, begun_s: float, drain_s: float, stops_s: float, only_stops: bool) -> None:
        self.begun_s = begun_s
        self._drain_s = drain_s
        self._stops_s = stops_s
        self._only_stops = only_stops

    def waits_for(self, call: DrainedCall, now_s: float) -> bool:
        """Whether a call is to be waited for, while everything is served."""
        if now_s >= self.due_s(call):
            return False
        is_new = call.since_s > max(self.begun_s, now_s - YOUNG_S)
        return is_stop(call.method) or not (is_new or self._only_stops)

    def is_due(self, call: DrainedCall, now_s: float) -> bool:
        """Whether a call has had its time: there is no more of it in the drain, which is for those that came later."""
        if is_stop(call.method):
            return now_s >= self.due_s(call)
        return call.since_s <= self.begun_s and not self._only_stops

    def due_s(self, call: DrainedCall) -> float:
        """Until when the wait for a call may last."""
        if not is_stop(call.method):
            return self.begun_s + self._drain_s
        latest_s = self.begun_s + max(self._drain_s, self._stops_s)
        if call.grace_s is None:
            return latest_s
        # At its end the container is killed, which takes a moment, too.
        return min(latest_s, max(self.begun_s, call.since_s + call.grace_s) + self._drain_s)


def is_long(method: str) -> bool:
    """Whether calls of a method last for minutes, so that a stop does not wait for them."""
    name = method.rpartition("/")[2]
    return name in LONG_CALLS or name.startswith("Stream")


def longest_stop_us(drain_s: float) -> int:
    """For systemd, which kills what takes longer. Before the drain there may be a wait as long as it."""
    return int((2 * drain_s + STOP_S) * 1e6)


def is_stop(method: str) -> bool:
    """Whether calls of a method wait for a container to end."""
    return runtime_method(method) == "StopContainer"


def grace_of(method: str, message: bytes) -> Optional[float]:
    """The grace period that a StopContainer asks for, seconds; None: it is none, or cannot be read."""
    if not is_stop(method):
        return None
    try:
        return float(max(0, cri.StopContainerRequest.FromString(message).timeout))
    except DecodeError:
        return None
