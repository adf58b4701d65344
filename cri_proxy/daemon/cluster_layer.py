"""The cluster's policy on a running daemon: taken, refused, taken back, held off; and what is told of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from cri_proxy.config.cluster_policy import BadPolicy, ClusterPolicy, misfit, waits_for
from cri_proxy.config.config import BadConfig, SettingsSource, read_config
from cri_proxy.config.io import files as settings
from cri_proxy.config.io.cluster_policy_file import NOTHING, PolicyFile, StoredPolicy
from cri_proxy.node.machine import NoMachine

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon

HELD_OFF = (
    "this node takes no policy of the cluster: `cri-resmgr config cluster-policy --clear` has been said here;"
    " `cri-resmgr config cluster-policy --accept` lets one in again"
)


class ClusterLayer:
    """The layer of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._file = PolicyFile()
        self.kept: StoredPolicy = NOTHING
        #: What the configuration in force was made of, without a policy.
        self._sources: tuple[SettingsSource, ...] = ()
        #: What was handed over while the node takes none: its agent does not ask again.
        self._offered: Optional[ClusterPolicy] = None
        #: Why the last policy that was handed over is not in force; "" = it is, or was taken back.
        self._refused = ""
        #: What of it does not count until a restart.
        self._waiting: list[str] = []

    def loaded(self, loaded: settings.ConfigInForce) -> None:
        """A configuration was read, with the policy on disk."""
        self.kept, self._sources = loaded.cluster, loaded.sources

    def document(self) -> dict[str, Any]:
        """For ``report`` and ``status``."""
        policy, orders = self.kept.policy, self._daemon.orders
        sentence = self._refused or self.kept.problem
        state = "refused" if sentence else "applied" if policy is not None else "none"
        return {
            "policy": None if policy is None else policy.document,
            "state": state,
            "sentence": sentence or (HELD_OFF if self.kept.held_off else ""),
            "needs_restart": list(self._waiting),
            "freeze": orders.orders.freeze,
            "overrides": orders.states(),
        }

    async def take(self, policy: ClusterPolicy) -> dict[str, Any]:
        """Put a policy in force, in the place of the one before; returns which options have changed.

        :raises BadPolicy: it does not fit this node, or this node takes none; nothing has changed.
        """
        async with self._daemon.reloading:
            if self.kept.held_off:
                self._offered = policy
                raise self._refuse(BadPolicy(HELD_OFF))
            if policy == self.kept.policy:
                self._refused = ""
                return {"state": "applied", "changed": [], "needs_restart": list(self._waiting)}
            try:
                loaded = await asyncio.to_thread(self._load, policy)
                await self._check(loaded, policy)
                return await self._follow(loaded)
            except BadPolicy as error:
                raise self._refuse(error) from None

    def refuse(self, error: BadPolicy) -> None:
        """A policy was handed over that cannot be one: the one before stays."""
        self._refuse(error)

    def _refuse(self, error: BadPolicy) -> BadPolicy:
        self._refused = str(error)
        self._daemon.log.warning("a policy of the cluster is refused", why=str(error))
        return error

    async def let_in(self) -> dict[str, Any]:
        """Take policies again; the one that was handed over meanwhile is put in force.

        :raises BadPolicy: as ``take``, and ``take_back``.
        """
        answer = await self.take_back(held_off=False) if self.kept.held_off else {"state": "none"}
        offered, self._offered = self._offered, None
        return answer if offered is None else await self.take(offered)

    async def take_back(self, held_off: Optional[bool] = None) -> dict[str, Any]:
        """Go on without a policy. ``held_off``: whether another one is let in; None = as it is.

        Where the node's own files have become wrong it goes back to what they said when they were read.

        :raises BadPolicy: they never made a configuration, or the disk cannot be written.
        """
        async with self._daemon.reloading:
            self._refused = ""
            wanted = StoredPolicy(held_off=self.kept.held_off if held_off is None else held_off)
            if wanted == self.kept:
                return {"state": "none", "changed": [], "needs_restart": []}
            loaded = await asyncio.to_thread(self._load, None)
            return await self._follow(replace(loaded, cluster=wanted))

    def _load(self, policy: Optional[ClusterPolicy]) -> settings.ConfigInForce:
        """The node's files with a policy; to go on without one is no matter of files that have become wrong since."""
        files = self._daemon.options.files
        try:
            layers = files.layers()
            own = layers.read()
        except BadConfig as error:
            if policy is None and self._sources:
                config = read_config(self._sources, constants=files.constants).config
                problem = settings.reload_problem(error, is_default=False)
                return settings.ConfigInForce(config, problem=problem, sources=self._sources)
            raise BadPolicy(f"this node's own files make no configuration: {error.errors[0]}") from None
        loaded, kept = settings.with_kept_policy(layers, own, StoredPolicy(policy))
        if kept.problem:
            raise BadPolicy(kept.problem)
        sources = tuple(layers.with_policy(None))
        return settings.ConfigInForce(loaded.config, loaded.warnings, sources=sources, cluster=kept)

    async def _check(self, loaded: settings.ConfigInForce, policy: ClusterPolicy) -> None:
        services = self._daemon.services
        engine = services.node_state.engine
        if engine is None:
            raise BadPolicy("the daemon is degraded and places nothing: see cri-resmgr status")
        config = services.config.taking_over(loaded.config)
        try:
            machine = await asyncio.to_thread(services.machine.read, engine.host.topology)
        except NoMachine as error:
            raise BadPolicy(f"the machine could not be read: {error}") from None
        host, _ = self._daemon.assembly.host_by(config, machine)
        if wrong := misfit(config, policy, host.topology, host.usable, host.reserved):
            raise BadPolicy(wrong)

    async def _follow(self, loaded: settings.ConfigInForce) -> dict[str, Any]:
        """Keep it, then have it count: a daemon that is killed in between starts with it."""
        old = self._daemon.services.config
        folder = Path(old["state.directory"])
        try:
            await self._file.keep(folder, loaded.cluster, self.kept, settings.ANSWER_S)
        except asyncio.TimeoutError:
            raise BadPolicy(
                f"{folder}: the policy cannot be kept over a restart: the disk does not answer"
            ) from None
        except OSError as error:
            raise BadPolicy(
                f"{folder}: the policy cannot be kept over a restart: {error.strerror or error}"
            ) from None
        changed = old.differences(loaded.config)
        await self._daemon.take_over(loaded)
        self._refused = ""
        self._waiting = waits_for(changed, old.restart_needed(loaded.config))
        state = "none" if loaded.cluster.policy is None else "applied"
        return {"state": state, "changed": list(changed), "needs_restart": list(self._waiting)}
