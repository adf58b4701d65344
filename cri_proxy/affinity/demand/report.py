"""Demand as people read it: of one container for ``explain``, of all for ``status``; as rows, and as text. Pure."""

from __future__ import annotations

from typing import Any, Optional

from cri_proxy.affinity.demand.controller import DemandController, DemandReport
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, Management
from cri_proxy.text.terminal import duration_text, stance_text
from policies.wanted import size_mode_of

#: As many growths are told, the last ones.
TOLD = 5


def demand_row(
    engine: Engine, grant: ContainerRecord, report: Optional[DemandReport], now_s: float
) -> Optional[dict[str, Any]]:
    """A container's demand; None where it is to be sized by its limit.

    CPUs in thousandths. ``why_not``: why it is not sized although it is to be; then there is nothing else.
    """
    if size_mode_of(grant.container, engine.policy.settings) != "demand":
        return None
    if report is None:
        why = engine.policy.why_not_sized(engine.node, grant.container)
        if not why and grant.stance is not Management.PLACED:
            why = f"its cpuset is not ours ({stance_text(grant.stance.value)})"
        return {"why_not": why or "it was not looked at yet"}
    return {
        "why_not": "",
        "demand_milli": report.milli_demand,
        "need_milli": report.milli_need,
        "window_s": report.window_s,
        "seen_s": round(report.seen_s, 1),
        "set_milli": report.milli_set,
        "by_limit_milli": report.milli_by_limit,
        "by_demand_milli": report.milli_by_demand,
        "growths": [
            {"age_s": round(max(0.0, now_s - growth.at_s), 1), "cause": growth.cause}
            for growth in report.growths[-1 : -1 - TOLD : -1]
        ],
        "why": report.why,
    }


def demand_text(row: dict[str, Any]) -> list[str]:
    """A row of ``demand_row`` for the terminal."""
    if row["why_not"]:
        return [f"no usage-based sizing: {row['why_not']}"]
    if not row["demand_milli"]:
        known = "nothing known yet"
    else:
        known = f"{_cpus(row['demand_milli'])} used, {_cpus(row['need_milli'])} with headroom"
    seen = f"{duration_text(row['seen_s'])} of a window of {duration_text(row['window_s'])} seen"
    lines = [
        f"usage-based sizing: {known}; {seen}",
        f"  domain by limit {_cpus(row['by_limit_milli'])}, by usage {_cpus(row['by_demand_milli'])}, "
        f"its cpuset {_cpus(row['set_milli'])}: {row['why']}",
    ]
    return lines + [f"  grew {duration_text(each['age_s'])} ago: {each['cause']}" for each in row["growths"]]


def _cpus(milli: int) -> str:
    return "1 CPU" if milli == 1000 else f"{milli / 1000:g} CPUs"


def demand_status(controller: DemandController, problem: str, has_triggers: bool) -> dict[str, Any]:
    """``containers``: that are sized by demand; ``shrunk`` of them have less than by their limit. ``watched``: how it is
    seen that a shrunk set is too small; "" while none is."""
    containers, shrunk = controller.counts()
    watched = ""
    if has_triggers:
        watched = "by pressure triggers (500 ms)"
    elif problem and shrunk:
        watched = f"by looks twice a second: {problem}"
    return {"containers": containers, "shrunk": shrunk, "watched": watched}


def status_line(row: dict[str, Any]) -> str:
    """For the terminal; "" where no container is sized by demand."""
    if not row.get("containers"):
        return ""
    watched = f", watched {row['watched']}" if row["watched"] else ""
    return f"by usage for {row['containers']} containers, {row['shrunk']} of them shrunk{watched}"
