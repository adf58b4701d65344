"""The way back with the daemon down: gives containers their CPUs straight through the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cri_proxy.config.config import Config
from cri_proxy.daemon.engine_host import BOOT_KEY, LOST_KEY, QUOTAS_KEY, read_boot_id, restore
from cri_proxy.engine.build import make_engine, make_host
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import CpusetUpdate, Life, Management
from cri_proxy.engine.report import find_one, path_of
from cri_proxy.metrics import Metrics
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader
from cri_proxy.node.quotas import Quotas, TakenFile
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import RuntimeClient, discover, gather_limited
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.reconciler import Reconciler
from cri_proxy.services.updates import AT_A_TIME, Updates
from cri_proxy.state.file import LoadedState, StateLocked
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter
from policies.machine.cpus import format_cpus


@dataclass(frozen=True)
class _Node:
    """What there is of a node whose daemon is down."""

    config: Config
    runtime: RuntimeClient
    store: StateWriter
    log: Any


async def release(config: Config, container: Optional[str], log: Any) -> dict[str, Any]:
    """Release one container, or (None) all of them, without a daemon; marks them unmanaged in the state file.

    The caller owns the node (``Ownership``). ``problem`` of the result: why the mark could not be kept; a daemon
    started later then manages them again.

    :raises NotOne: the name means no container, or several.
    :raises NoRuntime, NoMachine: there is none.
    :raises RpcError: the runtime does not answer.
    """
    runtime = RuntimeClient(discover(config["relay.runtime_endpoint"]))
    store = StateWriter(Store(Path(config["state.directory"])), Metrics(""), log)
    node = _Node(config, runtime, store, log)
    if container is None:  # for which neither state nor runtime is needed
        _give_back_isolation(node)
    try:
        loaded = await _load(node)
        engine = await _engine(node, loaded)
        updates = _release(engine, container)
        results = await gather_limited(AT_A_TIME, [runtime.update(u) for u in updates])
        # What was lost is for the next daemon to tell.
        lost = "; ".join(filter(None, [loaded.meta.get(LOST_KEY), loaded.lost]))
        store.write(engine.drain(), {LOST_KEY: lost} if lost else {})
        _give_back_quotas(node, engine, loaded)
        await store.settled()
        rows = [_row(engine, update, result) for update, result in zip(updates, results)]
        return {"containers": engine.container_count, "updates": rows, "problem": store.problem}
    finally:
        await store.close()
        await runtime.close()


async def _load(node: _Node) -> LoadedState:
    try:
        loaded = await node.store.load()
    except StateLocked as error:
        loaded = LoadedState(notes=(str(error),))
    for note in loaded.notes:
        node.log.warning(note)
    return loaded


async def _engine(node: _Node, loaded: LoadedState) -> Engine:
    """An engine that knows what runs."""
    config = node.config
    cgroups = Cgroups(Path(config["topology.cgroup_root"]))
    reader = MachineReader(Path(config["topology.source"]), cgroups, Path(config["kubelet.directory"]))
    parents = [pod.cgroup_parent for pod in loaded.of("pod").values()]
    for parent in parents:
        reader.note_cgroup(parent)
    host, _ = make_host(config, reader.read(pods=parents))
    engine = make_engine(config, host)
    try:
        restore(engine, loaded, node.store, read_boot_id())
    except Exception:
        # The way back must work with whatever was left behind: all containers are then adopted.
        node.log.error("the state makes no sense and is not used", exc_info=True)
    # The runtime's list comes first: containers without a record are adopted, records of dead ones go.
    metrics = Metrics("")
    updates = Updates(node.runtime, metrics, node.log)
    await updates.close()  # what is sent here is sent by hand
    node_state = NodeState(node.store, updates, metrics, node.log, mode="observe")
    node_state.engine = engine
    await Reconciler(node.runtime, cgroups, node_state).run()
    return engine


def _release(engine: Engine, container: Optional[str]) -> list[CpusetUpdate]:
    chosen = list(engine.grants.values()) if container is None else [find_one(engine, container)]
    # One without a record may be one of ours whose record is lost: its CPUs are given back too.
    live = [g for g in chosen if g.is_made and g.life is not Life.HELD and g.stance is not Management.KUBELET]
    for grant in live:
        engine.release(grant.key)
    lacking = {update.id: update for update in engine.lacking(gives_back=True)}
    return [lacking[grant.key] for grant in live if grant.key in lacking]


def _give_back_quotas(node: _Node, engine: Engine, loaded: LoadedState) -> None:
    """Give the limits of pods back that no released container keeps away any more."""
    root = Path(node.config["topology.cgroup_root"])
    limits = TakenFile(Path(node.config["state.directory"]), read_boot_id())

    def keep(text: str) -> None:
        node.store.write({}, {QUOTAS_KEY: text})
        limits.write(text)

    quotas = Quotas(root, node.log, keep)
    kept = limits.read()
    if kept or loaded.meta.get(BOOT_KEY) == read_boot_id():
        quotas.recall(kept or loaded.meta.get(QUOTAS_KEY, ""))
    quotas.give_back(quotas.taken.keys() - engine.unlimited_pods())


def _give_back_isolation(node: _Node) -> None:
    """Have caches, bandwidth and the like as they were before isolation wrote there."""
    from cri_proxy.isolation.io.originals import put_back

    for sentence in put_back(Path(node.config["state.directory"])):
        node.log.warning(sentence)


def _row(engine: Engine, update: CpusetUpdate, result: Any) -> dict[str, Any]:
    """What came of one update."""
    if isinstance(result, BaseException) and not isinstance(result, RpcError):
        raise result
    error = result.details or result.code.name if isinstance(result, RpcError) else ""
    cpus, mems = format_cpus(update.placement.cpus), format_cpus(update.placement.mems)
    names = {"id": update.id, "container": path_of(engine, update.id)}
    return {**names, "cpus": cpus, "mems": mems, "done": not error, "error": error}
