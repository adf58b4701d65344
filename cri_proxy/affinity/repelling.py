"""Why containers are kept apart: which of them fetch more from memory together than one L3 can. Pure: for ``explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.peer_text import NAMED


def apart_row(
    engine: Engine, key: str, fills: Mapping[str, int], settings: AffinitySettings, why_not: str
) -> Optional[dict[str, Any]]:
    """What a container fetches, from which others it is kept apart, and with which it is in an L3 that is saturated.

    ``fills``: lines a second from memory by id; ``why_not``: why nothing is counted. None where there is nothing to tell.
    """
    if not settings.repel:
        return None
    if why_not:
        return {"why_not": why_not}
    mine, grant = fills.get(key, 0), engine.grants.get(key)
    if grant is None or mine < settings.least_fills:
        return None
    most = settings.saturated_fills
    near: dict[str, int] = {}
    apart: dict[str, int] = {}
    for other, theirs in fills.items():
        if other == key or other not in engine.grants or theirs < settings.least_fills:
            continue
        if _l3s(engine, key) & _l3s(engine, other):
            near[other] = theirs
        elif mine + theirs > most:
            apart[other] = theirs
    is_saturated = mine + sum(near.values()) > most
    return {
        "why_not": "",
        "fills": mine,
        "saturated_fills": most,
        "from": _listed(engine, apart),
        "beside": _listed(engine, near) if is_saturated else [],
    }


def _l3s(engine: Engine, key: str) -> frozenset[str]:
    cpus = engine.grants[key].cpus
    return frozenset(cache.name for cache in engine.host.topology.caches if cache.cpus & cpus)


def _listed(engine: Engine, fills: Mapping[str, int]) -> list[dict[str, Any]]:
    """Heaviest first."""
    return [
        {"container": engine.grants[key].container.path, "fills": fills[key]}
        for key in sorted(fills, key=lambda key: (-fills[key], key))
    ]


def apart_text(row: Mapping[str, Any]) -> str:
    """The same as a line."""
    if row["why_not"]:
        return f"not kept apart from others: {row['why_not']}"
    text = f"fetches {fills_text(row['fills'])} from memory, and {fills_text(row['saturated_fills'])} saturate an L3"
    if row["from"]:
        text += f"; kept apart: from {_names(row['from'])}"
    if row["beside"]:
        text += f"; its L3 is saturated, together with {_names(row['beside'])}"
    return text


def fills_text(fills: int) -> str:
    """Lines a second."""
    return f"{fills / 1e6:.0f} million lines a second"


def _names(rows: list[Mapping[str, Any]]) -> str:
    more = [f"{len(rows) - NAMED} more"] if len(rows) > NAMED else []
    return ", ".join(
        [*(f"{row['container']} ({row['fills'] / 1e6:.0f} million)" for row in rows[:NAMED]), *more]
    )
