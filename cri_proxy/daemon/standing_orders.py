"""Carries out what people ask of this node besides its configuration, and keeps it over restarts (engine/model.py).

Overrides are tried again now and then, and whenever orders change: a zone that was full has room one day, and a
container that an override names starts hours after it was written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from cri_api.waiting import wait_within
from cri_proxy.affinity.io.executor import AT_ONCE, Mover
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import NotableEvents, Orders, Override, read_orders, write_orders
from cri_proxy.engine.place import FROZEN, override_states
from cri_proxy.services.services import Services

#: The name under which orders are kept in the state file.
ORDERS_KEY = "orders"
#: How long until overrides that could not be carried out are tried again.
AGAIN_S = 30.0


@dataclass
class StandingOrders:
    """The orders of one daemon. ``run`` is the part that goes on by itself."""

    services: Services
    mover: Mover
    #: What owners of containers should hear of, through all engines of this daemon.
    notable: NotableEvents = field(default_factory=NotableEvents)
    _is_told: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def orders(self) -> Orders:
        """Those in force."""
        return self.services.node_state.orders

    def recall(self, meta: Mapping[str, str]) -> dict[str, str]:
        """Take over what the state file says, unless orders came since the start; what it is to say from now on."""
        if not self._is_told:
            self.services.node_state.orders, left_out = read_orders(meta.get(ORDERS_KEY, ""))
            for why in left_out:
                self.services.log.warning("a kept order is left out", why=why)
        return self.kept()

    def kept(self) -> dict[str, str]:
        """What the state file is to say."""
        return {ORDERS_KEY: write_orders(self.orders)}

    def engaged(self, engine: Engine) -> None:
        """Another engine is at work."""
        engine.set_orders(self.orders)
        engine.notable = self.notable
        self._wake.set()

    async def freeze(self, on: bool) -> None:
        """Let no container that runs be moved from now on, or let them be moved again; returns when that is kept."""
        self.services.log.info(
            "containers are frozen by command" if on else "containers are no longer frozen"
        )
        await self._follow(replace(self.orders, freeze=on))

    async def pin(self, overrides: tuple[Override, ...]) -> None:
        """Replace all overrides; returns when they are kept, and carried out as far as they can be."""
        if overrides != self.orders.overrides:
            self.services.log.info("overrides", count=len(overrides))
            await self._follow(replace(self.orders, overrides=overrides))
        await self.carry_out()

    async def _follow(self, orders: Orders) -> None:
        services, self._is_told = self.services, True
        services.node_state.set_orders(orders)
        services.store.write({}, self.kept())
        await services.store.settled()
        self._wake.set()

    def still(self) -> str:
        """Why overrides of containers that run are not carried out now; "" = they are."""
        if self.orders.freeze:
            return FROZEN
        return self.services.node_state.still()

    def states(self) -> list[dict[str, Any]]:
        """Every override with what became of it."""
        engine: Optional[Engine] = self.services.node_state.engine
        if engine is None:
            told = {"state": "waiting", "sentence": "the daemon is degraded and places nothing"}
            return [{**vars(override), **told} for override in self.orders.overrides]
        return override_states(engine, self.still())

    async def carry_out(self) -> None:
        """Move containers into the zones they are pinned to, as far as they fit."""
        async with self._lock:
            engine = self.services.node_state.active()
            if engine is None or not self.orders.overrides or self.still():
                return
            keys = engine.pinned_outside()
            for start in range(0, len(keys), AT_ONCE):
                await self._move(engine, keys[start : start + AT_ONCE])
                if self.still() or engine is not self.services.node_state.active():
                    return

    async def _move(self, engine: Engine, keys: tuple[str, ...]) -> None:
        """Move some containers into their zones, as far as they fit; calls are relayed afterwards."""
        plan = engine.pinning_plan(keys, self.services.node_state.clock())
        if plan.moves:
            outcome = await self.mover.make(engine, plan)
            for failed in outcome.failed:
                engine.unpinned[failed.id] = f"{failed.path} was moved, and is back: {failed.error}"
            self.services.log.info(
                "overrides carried out", moved=len(outcome.made), refused=len(outcome.failed)
            )
        await asyncio.sleep(0)

    async def run(self) -> None:
        """Try what could not be done before, until cancelled."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(AGAIN_S, self._wake.wait())
            self._wake.clear()
            await self.carry_out()
