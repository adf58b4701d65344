"""What the command line and the node's agent can ask of a running daemon; each command returns plain data for JSON."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from cri_api.control import ControlError
from cri_proxy.affinity.io.rebalancer import AffinityController, CannotRebalance
from cri_proxy.affinity.report import edge_rows, endpoint_name, nearness_rows, owner_rows
from cri_proxy.config.cluster_policy import BadPolicy, read_policy
from cri_proxy.config.config import BadConfig, SettingsSource
from cri_proxy.config.io import files as settings
from cri_proxy.control import Command
from cri_proxy.daemon.ages import old_of
from cri_proxy.daemon.claims_host import COMMANDS as CLAIM_COMMANDS
from cri_proxy.daemon.commands_view import SHARED, ViewCommands, read_most, sliced
from cri_proxy.daemon.engine_host import COMMAND, NODE_PLACEMENT
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import unmet_in_short
from cri_proxy.engine.model import BadOrder, ContainerRecord, Management, read_overrides
from cri_proxy.engine.report import (
    NotOne,
    engine_status,
    explain,
    find_one,
    ledger_rows,
    path_of,
    placement_rows,
)
from cri_proxy.engine.transitions import is_adoptable
from cri_proxy.node.machine import NoMachine
from cri_proxy.relay.http2 import pipe
from cri_proxy.relay.status import RpcError
from cri_proxy.services.node_state import ENFORCE, MODES
from cri_proxy.simulator.preview import diff_document, records_of
from cri_proxy.version import VERSION, form_of
from policies import node
from policies.affinity.graph.groups import groups_of
from policies.affinity.graph.traffic import Traffic
from policies.machine.cpus import format_cpus
from policies.machine.topology_json import write_topology
from policies.model import BudgetSpent, PlacementRefused

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon

#: How long a command waits for the runtime to take updates.
WAIT_S = 30.0
#: As many edges are looked up at once: a few milliseconds.
EDGES_AT_ONCE = 300


class Commands:
    """The commands of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._view = ViewCommands(daemon)
        self._started = time.monotonic()

    def table(self) -> Mapping[str, Command]:
        """The commands by the name they have on the wire."""
        return {
            "status": self.status,
            "mode": self.mode,
            "topology": self.topology,
            "placements": self.placements,
            "explain": self.explain,
            "release": self.release,
            "adopt": self.adopt,
            "metrics": self.metrics,
            "config": self.config,
            "config-diff": self.config_diff,
            "reset-policy": self.reset_policy,
            "acknowledge": self.acknowledge,
            **AffinityCommands(self._daemon).table(),
            **self._view.table(),
            **ClusterCommands(self._daemon).table(),
            **{name: partial(self._about_claims, name) for name in CLAIM_COMMANDS},
        }

    def view_table(self) -> Mapping[str, Command]:
        """Those of them that change nothing."""
        commands = self.table()
        return {name: commands[name] for name in (*SHARED, *self._view.table())}

    def _engine(self) -> Engine:
        engine: Optional[Engine] = self._daemon.services.node_state.engine
        if engine is None:
            reasons = "; ".join(self._daemon.health.reasons.values()) or "it is starting"
            raise ControlError(f"the daemon is degraded and passes bytes only: {reasons}")
        return engine

    async def _about_claims(self, name: str, arguments: dict[str, Any]) -> Any:
        from cri_proxy.daemon.claim_commands import ClaimCommands  # few nodes have claims

        return await ClaimCommands(self._daemon).table()[name](arguments)

    # ------------------------------------------------------------------ questions

    async def status(self, arguments: dict[str, Any]) -> Any:
        daemon, services = self._daemon, self._daemon.services
        node_state, runtime = services.node_state, services.runtime
        # They may be younger than the last round.
        services.health.note("state", services.store.problem)
        if (engine := node_state.active()) is not None:
            services.health.note("invariants", unmet_in_short(engine))
            await asyncio.sleep(0)  # calls pass in between
        document: dict[str, Any] = {
            "version": VERSION,
            "form": form_of(pipe, node),
            "mode": daemon.mode,
            "mode_wanted": node_state.mode,
            "mode_from": daemon.assembly.mode_from,
            "degraded": services.health.told(node_state.engine is not None),
            "warnings": services.health.warnings,
            "background": [worker.document() for worker in services.supervisor.workers],
            "uptime_s": round(time.monotonic() - self._started, 1),
            "front_end": daemon.front.name,
            **daemon.front.status(),
            "runtime": {
                "socket": runtime.path,
                "connected": runtime.is_connected,
                "name": runtime.name,
                "version": runtime.version,
                "api": runtime.api,
            },
            "exits": self._exits(),
            "books": node_state.books.sentence(),
            "state_unsaved": services.store.waiting,
            "updates_waiting": len(node_state.updates.pending),
            "old": old_of(daemon),
            "affinity": daemon.affinity.status(),
            "demand": daemon.sizer.status(),
            "monitoring": daemon.monitoring.status(),
            "cluster": daemon.cluster.document(),
            "claims": daemon.claims.status(),
            "counters": counters(services.metrics.registry),
        }
        if node_state.engine is not None:
            status = engine_status(node_state.engine, services.config["policy.Active"], node_state.clock())
            document.update(status, **ledger_rows(node_state.engine.node))
        return document

    def _exits(self) -> str:
        if self._daemon.services.events.streams:
            return str(self._daemon.front.exits)
        return "own event stream" if self._daemon.services.events.own_stream else "polling"

    async def topology(self, arguments: dict[str, Any]) -> Any:
        return write_topology(self._engine().host.topology.data)

    async def placements(self, arguments: dict[str, Any]) -> Any:
        return placement_rows(self._engine())

    async def explain(self, arguments: dict[str, Any]) -> Any:
        name = str(arguments.get("container", ""))
        engine = self._engine()
        document = explain(engine, name, self._daemon.services.node_state.clock())
        if document is None:
            known = "is known, nor was one among the last decisions; see: cri-resmgr placements"
            raise ControlError(f"no container or pod {name!r} {known}")
        for row in document["containers"]:
            grant = engine.grants[row["id"]]
            row["would_move"] = self._daemon.affinity.would_move(grant)
            row["demand"] = self._daemon.sizer.explained(engine, grant)
            row["treatment"] = self._daemon.isolation.explained(grant)
            row["caches"] = self._daemon.monitoring.explained(engine, grant.key)
        return {**document, "unsaved": self._is_unsaved(name), "old": old_of(self._daemon)}

    def _is_unsaved(self, name: str) -> bool:
        """Whether a container's record is not in the state file as it is, and cannot be had there just now."""
        if not self._daemon.services.store.problem:
            return False  # what waits to be written with others is, some 10 ms later
        with contextlib.suppress(NotOne):
            grant = find_one(self._engine(), name)
            return any(
                kind == "grant" and key == grant.key for kind, key in self._daemon.services.store.unsaved
            )
        return False

    async def metrics(self, arguments: dict[str, Any]) -> Any:
        found = []
        for piece in self._daemon.services.metrics.pieces():
            found.append(piece)
            await asyncio.sleep(0)  # calls are relayed in between
        return "".join(found)

    async def config(self, arguments: dict[str, Any]) -> Any:
        shown = self._daemon.services.config.show()
        return [{"key": key, "value": value, "origin": origin} for key, value, origin in shown]

    async def config_diff(self, arguments: dict[str, Any]) -> Any:
        """What a reload would move if a text (``name``: its file's absolute path) were in the place of its file."""
        services, running = self._daemon.services, self._daemon.services.config
        source = SettingsSource(str(arguments.get("name", "")), str(arguments.get("text", "")))
        try:
            layers = self._daemon.options.files.layers_with(source)
            loaded, _ = settings.with_kept_policy(layers, layers.read(), self._daemon.cluster.kept)
            wanted = loaded.config
        except BadConfig as error:
            raise ControlError(str(error)) from None
        live = running.taking_over(wanted)
        reader = replace(
            services.machine, source=Path(live["topology.source"]), kubelet=Path(live["kubelet.directory"])
        )
        try:
            machine = await asyncio.to_thread(reader.read, self._engine().host.topology)
        except NoMachine as error:
            raise ControlError(str(error)) from None
        host, _ = self._daemon.assembly.host_by(live, machine)
        # A second engine for all containers is made and moved; requests must not wait for that.
        return await asyncio.to_thread(diff_document, records_of(self._engine()), running, wanted, host)

    # ------------------------------------------------------------------ actions

    async def mode(self, arguments: dict[str, Any]) -> Any:
        """Tell the mode, or change it. ``by`` NODE_PLACEMENT: the agent asks, and with ``mode`` "" no longer does."""
        wanted = arguments.get("mode")
        by = NODE_PLACEMENT if arguments.get("by") == NODE_PLACEMENT else COMMAND
        if wanted is not None:
            if wanted not in MODES and (wanted or by == COMMAND):
                raise ControlError(f"{wanted!r} is not a mode; modes are {', '.join(MODES)}")
            self._daemon.assembly.set_mode(wanted, by)
            await self._daemon.services.store.settled()
        return {"mode": self._daemon.mode, "wanted": self._daemon.services.node_state.mode}

    async def release(self, arguments: dict[str, Any]) -> Any:
        engine = self._engine()
        if arguments.get("all"):
            grants = [g for g in engine.grants.values() if g.is_made]
        else:
            grants = [self._one(str(arguments.get("container", "")))]
        for grant in grants:
            engine.release(grant.key)
        self._daemon.services.node_state.give_back_quotas({g.container.pod.cgroup_parent for g in grants})
        if arguments.get("all"):
            await self._daemon.isolation.release()
            await self._daemon.monitoring.release()
        return await self._carry_out(len(grants))

    async def adopt(self, arguments: dict[str, Any]) -> Any:
        """Place a container that is not managed; or (``all``) those that were released or ran before us."""
        self._require_enforcing()
        await self._look()
        if arguments.get("all"):
            engine = self._engine()
            waiting = [g for g in engine.grants.values() if is_adoptable(engine, g)]
            left = self._manage_all(engine, waiting)
            self._daemon.isolation.reconfigured()
            self._daemon.monitoring.reconfigured()
            return {**await self._carry_out(len(waiting)), "left": left}
        grant = self._one(str(arguments.get("container", "")))
        if grant.stance is Management.PLACED:
            path = grant.container.path
            raise ControlError(f"{path} is managed already; see: cri-resmgr explain {path}")
        try:
            is_managed = self._engine().manage(grant.key)
        except (PlacementRefused, BudgetSpent) as error:
            path = grant.container.path
            sentence = f"{path} cannot be placed, and stays as it is: {error}"
            raise ControlError(f"{sentence}; see: cri-resmgr explain {path}") from None
        if not is_managed:
            raise ControlError(f"{grant.container.path} cannot be placed: {grant.why or grant.life.value}")
        return await self._carry_out(1)

    async def reset_policy(self, arguments: dict[str, Any]) -> Any:
        """Set the state aside and adopt what runs; with ``replace`` place all of it anew."""
        if arguments.get("replace"):
            self._require_enforcing()
        self._engine()
        moved = await self._daemon.assembly.start_over()
        await self._look()
        engine = self._engine()
        left: list[dict[str, str]] = []
        if arguments.get("replace"):
            waiting = [g for g in engine.grants.values() if g.stance is Management.ADOPTED]
            left = self._manage_all(engine, waiting)
        count = engine.container_count
        result = await self._carry_out(count)
        return {**result, "left": left, "state": await moved, "adopted": count}

    async def acknowledge(self, arguments: dict[str, Any]) -> Any:
        """The loss of records was seen: it is no reason any more."""
        sentence = self._daemon.assembly.acknowledge()
        await self._daemon.services.store.settled()
        return {"acknowledged": sentence}

    def _manage_all(self, engine: Engine, adopted: list[ContainerRecord]) -> list[dict[str, str]]:
        """Place them; those that are left as they are, and why."""
        refused = engine.manage_all([grant.key for grant in adopted])
        left = [{"id": key, "container": path_of(engine, key), "why": why} for key, why in refused.items()]
        for row in left:
            self._daemon.log.warning("left as it is", container=row["container"], why=row["why"])
        return left

    async def _look(self) -> None:
        """Have the runtime's containers as they are now in the books: some may have been made past the daemon."""
        services = self._daemon.services
        if not services.runtime.api:  # none, or none that answers: NRI tells
            if sentence := services.node_state.books.sentence():
                raise ControlError(sentence)
            return
        try:
            await services.reconciler.run()
        except RpcError as error:
            raise ControlError(f"the runtime does not list its containers: {error.details}") from None

    def _require_enforcing(self) -> None:
        mode = self._daemon.mode
        if mode != ENFORCE:
            raise ControlError(f"in mode {mode} nothing is placed; first: cri-resmgr mode {ENFORCE}")

    def _one(self, name: str) -> ContainerRecord:
        try:
            return find_one(self._engine(), name)
        except NotOne as error:
            raise ControlError(str(error)) from None

    async def _carry_out(self, count: int) -> Any:
        """Have containers told what they lack by a command, and wait for the runtime; what they were told."""
        engine, node_state = self._engine(), self._daemon.services.node_state
        updates = sorted(engine.lacking(node_state.updates.gives_back), key=lambda update: update.id)
        await node_state.saved()
        await node_state.updates.tried([update.id for update in updates], WAIT_S)
        waiting = node_state.updates.pending
        return {
            "containers": count,
            "updates": [
                {
                    "id": u.id,
                    "container": path_of(engine, u.id),
                    "cpus": format_cpus(u.placement.cpus),
                    "mems": format_cpus(u.placement.mems),
                    "done": u.id not in waiting,
                }
                for u in updates
            ],
        }


def counters(registry: Any) -> dict[str, float]:
    """The counters that are not zero, by name and labels."""
    found = {}
    for family in registry.collect("counter"):
        for sample in family.samples:
            if family.type == "counter" and sample.value and not sample.name.endswith("_created"):
                labels = ",".join(f"{k}={v}" for k, v in sample.labels.items())
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


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
            return {**self._head(), **await graph_document(engine, controller.traffic())}
        traffic = controller.traffic()
        heaviest = nlargest(most, traffic.listed, key=lambda edge: edge.bytes_per_s)
        rows = await sliced(heaviest, lambda some: edge_rows(engine, some))
        return {**self._head(), "version": traffic.version, "edges": rows}

    def _head(self) -> dict[str, Any]:
        return {**self._controller.status(), "old": old_of(self._daemon)}

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
    for start in range(0, len(edges), EDGES_AT_ONCE):
        rows += edge_rows(engine, edges[start : start + EDGES_AT_ONCE])
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
