"""Which of the daemon's figures are not of now: for status, affinity, explain and report, and so for all that draws."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Optional

from cri_proxy.text.ages import CONTAINERS, Old, old_document

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon

#: By these topics of its health the daemon says that it does not learn of containers, the plainest first.
_SILENT = ("runtime", "list", "nri", "reconcile")


def old_of(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """What is old, by what it is of; empty = everything is of now."""
    return old_document({CONTAINERS: _containers(daemon), **daemon.affinity.old()}, time.time())


def _containers(daemon: Daemon) -> Optional[Old]:
    engine, reasons = daemon.services.node_state.engine, daemon.health.reasons
    if engine is None or not engine.grants:
        return None
    why = next((reasons[topic] for topic in _SILENT if topic in reasons), "")
    return Old(daemon.rounds.listed_s, why) if why else None
