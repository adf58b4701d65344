"""The way back with the daemon down: gives containers their CPUs straight through the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import grpc

from cri_proxy.core.assemble import make_engine, make_host
from cri_proxy.core.config import Config
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Life, Stance, Update
from cri_proxy.core.quota import unlimited_pods
from cri_proxy.core.report import find_one
from cri_proxy.shell.assembly import BOOT_KEY, QUOTAS_KEY, read_boot_id, restore
from cri_proxy.shell.cgroups import Cgroups
from cri_proxy.shell.keeper import Keeper
from cri_proxy.shell.machine import MachineReader
from cri_proxy.shell.metrics import Metrics
from cri_proxy.shell.quotas import Quotas
from cri_proxy.shell.reconciler import Reconciler
from cri_proxy.shell.runtime import Runtime, discover, gather_limited
from cri_proxy.shell.store import Loaded, Store
from cri_proxy.shell.updates import AT_A_TIME, Updates
from policies.cpus import format_cpus


async def release(config: Config, container: Optional[str], log: Any) -> dict[str, Any]:
    """Release one container, or (None) all of them, without a daemon; marks them unmanaged in the state file.

    ``problem`` of the result: why the mark could not be kept; a daemon started later then manages them again.

    :raises NotOne: the name means no container, or several.
    :raises grpc.aio.AioRpcError: the runtime does not answer.
    """
    runtime = Runtime(discover(config["relay.runtime_endpoint"]))
    store = Store(Path(config["state.directory"]))
    try:
        loaded = store.load()
        for note in loaded.notes:
            log.warning(note)
        cgroups = Cgroups(Path(config["topology.cgroup_root"]))
        reader = MachineReader(Path(config["topology.source"]), cgroups, Path(config["kubelet.directory"]))
        for pod in loaded.of("pod").values():
            reader.note_cgroup(pod.cgroup_parent)
        host, _ = make_host(config, reader.read())
        engine = make_engine(config, host)
        try:
            restore(engine, loaded, store, read_boot_id())
        except Exception:
            # The way back must work with whatever was left behind: all containers are then adopted.
            log.error("the state makes no sense and is not used", exc_info=True)
        # The runtime's list comes first: containers without a record are adopted, records of dead ones go.
        metrics = Metrics("")
        keeper = Keeper(store, Updates(runtime, metrics, log), metrics, log, engine, mode="observe")
        await Reconciler(runtime, cgroups, keeper).run()
        updates = _release(engine, container)
        results = await gather_limited(AT_A_TIME, [runtime.update(u) for u in updates])
        store.write(engine.drain())
        _give_back_quotas(config, engine, loaded, store, log)
        rows = []
        for update, result in zip(updates, results):
            if isinstance(result, BaseException) and not isinstance(result, grpc.aio.AioRpcError):
                raise result
            error = result.details() if isinstance(result, grpc.aio.AioRpcError) else ""
            place = update.placement
            row = {"id": update.id, "cpus": format_cpus(place.cpus), "mems": format_cpus(place.mems)}
            rows.append({**row, "done": not error, "error": error})
        return {"containers": len(engine.grants), "updates": rows, "problem": store.problem}
    finally:
        store.close()
        await runtime.close()


def _release(engine: Engine, container: Optional[str]) -> list[Update]:
    chosen = list(engine.grants.values()) if container is None else [find_one(engine, container)]
    # One without a record may be one of ours whose record is lost: its CPUs are given back too.
    live = [g for g in chosen if g.life not in (Life.CREATING, Life.HELD) and g.stance is not Stance.KUBELET]
    return [u for g in live if (u := engine.release(g.key)) is not None]


def _give_back_quotas(config: Config, engine: Engine, loaded: Loaded, store: Store, log: Any) -> None:
    """Give the limits of pods back that no released container keeps away any more."""
    quotas = Quotas(
        Path(config["topology.cgroup_root"]), log, lambda text: store.write({}, {QUOTAS_KEY: text})
    )
    if loaded.meta.get(BOOT_KEY) == read_boot_id():
        quotas.recall(loaded.meta.get(QUOTAS_KEY, ""))
    quotas.follow(unlimited_pods(engine.around_lifted()), lift=False)
