"""What the node's agent may ask of a running daemon, and what a person may to see it and to take it off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cri_api.control import ControlError
from cri_proxy.config.cluster_policy import BadPolicy, read_policy
from cri_proxy.control import Command
from cri_proxy.engine.orders import BadOrder, read_overrides

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon


class ClusterCommands:
    """The commands ``cluster-policy``, ``overrides`` and ``freeze`` of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def table(self) -> Mapping[str, Command]:
        """The commands by the name they have on the wire."""
        return {"cluster-policy": self.policy, "overrides": self.overrides, "freeze": self.freeze}

    async def policy(self, arguments: dict[str, Any]) -> Any:
        """Put a policy in force; ``name`` null takes it back, and ``held_off`` says whether another one is let in.

        Without arguments: the policy in force, and what is told of it.
        """
        layer = self._daemon.cluster
        if not arguments:
            policy = layer.kept.policy
            return {**layer.document(), "config": None if policy is None else policy.values}
        try:
            if arguments.get("name") is None:
                held_off = _flag_or_none(arguments, "held_off")
                return await (layer.let_in() if held_off is False else layer.take_back(held_off))
            return await layer.take(self._read(arguments))
        except BadPolicy as error:
            raise ControlError(str(error)) from None

    def _read(self, arguments: dict[str, Any]) -> Any:
        try:
            return read_policy(arguments)
        except BadPolicy as error:
            self._daemon.cluster.refuse(error)
            raise

    async def overrides(self, arguments: dict[str, Any]) -> Any:
        """Replace all overrides and carry them out; without arguments only say what became of them."""
        orders = self._daemon.orders
        if arguments:
            try:
                overrides = read_overrides(arguments.get("overrides"))
            except BadOrder as error:
                raise ControlError(str(error)) from None
            await orders.pin(overrides)
        return {"overrides": orders.states()}

    async def freeze(self, arguments: dict[str, Any]) -> Any:
        """Stop moving containers that run, or start again; without arguments only say how it is."""
        orders = self._daemon.orders
        on = _flag_or_none(arguments, "on")
        if on is not None and on != orders.orders.freeze:
            await orders.freeze(on)
        return {"freeze": orders.orders.freeze, "rebalance": self._daemon.affinity.status()["rebalance"]}


def _flag_or_none(arguments: Mapping[str, Any], name: str) -> Any:
    value = arguments.get(name)
    if value is not None and not isinstance(value, bool):
        raise ControlError(f"{name} is {value!r}, expected true or false")
    return value
