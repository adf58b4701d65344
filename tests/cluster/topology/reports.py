"""Reports of engines, as a daemon gives them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import zones_of
from cri_proxy.engine.report import container_row, machine_document, running, zone_rows


def report_of(engine: Engine, **changed: Any) -> dict[str, Any]:
    """The parts of a report that NodeResourceTopology is made of. ``changed``: other values for some of them."""
    zones = zones_of(engine.host.topology)
    return {
        "policy": "hygon",
        "mode": "enforce",
        "mode_wanted": "enforce",
        "degraded": {},
        "machine": machine_document(engine.host.topology),
        "zones": zone_rows(engine.node, zones),
        "placements": [container_row(engine, grant, zones) for grant in running(engine)],
        **changed,
    }
