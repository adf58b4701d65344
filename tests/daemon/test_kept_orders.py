"""What is kept beside the engine's records outlives a reload, another machine and a new state file, and then a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from policies.machine.topology_json import write_topology
from tests.effects.node import Life, World
from tests.machines import UNEVEN_CCX, machine, take_offline


@pytest.fixture
def world() -> Iterator[World]:
    made = World.make(machine(UNEVEN_CCX), {})
    yield made
    made.close()


@pytest.mark.parametrize("event", ["reload", "machine", "reset-policy"])
def test_orders_are_those_that_were_given_last(world: World, event: str) -> None:
    async def order(life: Life) -> None:
        await life.rest()
        await life.command("freeze", on=True)
        override: dict[str, Any] = {"namespace": "default", "pod": "a", "container": "a", "zone": "socket-0"}
        await life.command("overrides", overrides=[override])
        if event == "reload":
            life.configure({"placement": {"max_moves": 1}})
            await life.daemon.reload()
        elif event == "machine":
            data = take_offline(machine(UNEVEN_CCX), {1})
            (world.folder / "machine.json").write_text(json.dumps(write_topology(data)))
            await life.daemon.assembly.follow_machine()
        else:
            await life.command("reset-policy")
        await life.rest()

    async def look(life: Life) -> None:
        orders = life.daemon.orders.orders
        assert (orders.freeze, [override.zone for override in orders.overrides]) == (True, ["socket-0"])

    Life(world).play(order)
    Life(world).play(look)
