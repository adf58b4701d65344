"""Which agents are silent, by the Leases that they renew. Pure.

Clocks of two machines are never compared: an agent is silent when its Lease has not changed for ``SILENT_S`` *as seen
here*. What was not looked at for long is waited for anew, and so an API server that comes back finds no agent silent. A
node without a Lease has an agent of a version before, of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cluster.api.heartbeat import Heartbeat, agent_wrote
from cluster.api.reader import Object
from cluster.operator.objects import read_time

#: Agents renew every 45 to 60 s, and there is a look every 60 s: three have seen nothing.
SILENT_S = 170.0
#: A look that is so long after the one before begins anew.
GAP_S = 150.0


class Beat(NamedTuple):
    """What is known of one agent. ``since``: when its Lease was first seen so, by a clock that never goes back."""

    heartbeat: Heartbeat
    since: float
    #: It was renewed between two looks, or the agent was heard otherwise.
    is_alive: bool = False
    is_silent: bool = False


def looked(
    before: Mapping[str, Beat], found: Iterable[Heartbeat], now: float, before_at: float
) -> dict[str, Beat]:
    """By node, after a look at ``now``; the one before was at ``before_at``."""
    is_gap = now - before_at > GAP_S
    beats = {}
    for heartbeat in found:
        known = before.get(heartbeat.node)
        if known is None or is_gap:
            beat = Beat(heartbeat, now)
        elif known.heartbeat.renewed != heartbeat.renewed:
            beat = Beat(heartbeat, now, is_alive=True)
        else:
            is_silent = now - known.since >= SILENT_S
            beat = known._replace(is_silent=is_silent, is_alive=known.is_alive and not is_silent)
        beats[heartbeat.node] = beat
    return beats


def has_outlived(placement: Object, heartbeat: Heartbeat) -> bool:
    """Whether the agent has gone on writing its status without its Lease: it is of a version before, or has no right to it
    any more. Both times are the API server's.
    """
    renewed, wrote = read_time(heartbeat.written), read_time(agent_wrote(placement))
    return 0 < renewed <= wrote - SILENT_S
