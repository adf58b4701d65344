"""What the command line can ask a running daemon about traffic and moves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from cri_api.control import ControlError
from cri_proxy.affinity.io.rebalancer import AffinityController, CannotRebalance
from cri_proxy.affinity.report import edge_rows, endpoint_name, nearness_rows, owner_rows
from cri_proxy.control import Command
from cri_proxy.daemon.commands_view import read_most, sliced
from cri_proxy.engine.engine import Engine
from policies.affinity.graph.groups import groups_of
from policies.affinity.graph.traffic import Traffic

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon

#: As many edges are looked up at once: a few milliseconds.
SLICE = 300


class AffinityCommands:
    """The commands ``affinity`` and ``rebalance`` of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def table(self) -> Mapping[str, Command]:
        """The commands by the name they have on the wire."""
        return {"affinity": self.affinity, "rebalance": self.rebalance}

    @property
    def _controller(self) -> AffinityController:
        controller: AffinityController = self._daemon.affinity
        return controller

    async def affinity(self, arguments: dict[str, Any]) -> Any:
        """The graph as the daemon sees it, with where each container is.

        ``most``: only as many edges, those with the most bytes a second first, and nothing that is made of all of them.
        """
        controller, engine = self._controller, self._daemon.services.node_state.engine
        if engine is None:
            raise ControlError("the daemon is degraded and passes bytes only: see cri-resmgr status")
        most = read_most(arguments)
        if most is None:
            return {**controller.status(), **await graph_document(engine, controller.traffic())}
        traffic = controller.traffic()
        heaviest = nlargest(most, traffic.listed, key=lambda edge: edge.bytes_per_s)
        rows = await sliced(heaviest, lambda some: edge_rows(engine, some))
        return {**controller.status(), "version": traffic.version, "edges": rows}

    async def rebalance(self, arguments: dict[str, Any]) -> Any:
        """A plan; carried out unless ``dry_run``."""
        try:
            return await self._controller.rebalance(bool(arguments.get("dry_run")))
        except CannotRebalance as error:
            raise ControlError(str(error)) from None


async def graph_document(engine: Engine, traffic: Traffic) -> dict[str, Any]:
    """A picture of the traffic as plain data: ``edges`` replaces the count of them that the status has."""
    # 10,000 edges take a tenth of a second: calls are relayed in between.
    rows: list[dict[str, Any]] = []
    edges = sorted(traffic.listed, key=lambda edge: -edge.weight)
    for start in range(0, len(edges), SLICE):
        rows += edge_rows(engine, edges[start : start + SLICE])
        await asyncio.sleep(0)
    found = await asyncio.to_thread(groups_of, traffic.listed)
    groups = [
        {
            "members": [endpoint_name(engine, member) for member in group.members],
            "ids": list(group.members),
            "weight": round(group.weight, 1),
        }
        for group in found
    ]
    return {
        "version": traffic.version,
        "edges": rows,
        "owner_edges": owner_rows(traffic),
        "nearness": nearness_rows(rows),
        "groups": groups,
    }
