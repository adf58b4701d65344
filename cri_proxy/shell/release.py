"""The way back with the daemon down: gives containers their CPUs straight through the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import grpc

from cri_proxy.core.assemble import make_engine, make_host
from cri_proxy.core.config import Config
from cri_proxy.core.engine import Engine
from cri_proxy.core.grants import Life, Stance, Update
from cri_proxy.core.report import find
from cri_proxy.shell.cgroups import Cgroups
from cri_proxy.shell.keeper import Keeper, boot_time_s
from cri_proxy.shell.machine import MachineReader
from cri_proxy.shell.metrics import Metrics
from cri_proxy.shell.reconciler import Reconciler
from cri_proxy.shell.runtime import Runtime, discover, gather_limited
from cri_proxy.shell.store import Store
from cri_proxy.shell.updates import AT_A_TIME, Updates
from policies.cpus import format_cpus


class NothingToRelease(Exception):
    """No such container, or it has no place of ours. The message says which."""


async def release(config: Config, container: Optional[str], log: Any) -> dict[str, Any]:
    """Release one container, or (None) all of them, without a daemon; marks them unmanaged in the state file.

    :raises NothingToRelease: the container is not known.
    :raises grpc.aio.AioRpcError: the runtime does not answer.
    """
    runtime = Runtime(discover(config["relay.runtime_endpoint"]))
    store = Store(Path(config["state.directory"]))
    try:
        cgroups = Cgroups(Path(config["topology.cgroup_root"]))
        machine = MachineReader(Path(config["topology.source"]), cgroups, Path(config["kubelet.directory"])).read()
        host, _ = make_host(config, machine)
        engine = make_engine(config, host)
        loaded = store.load()
        engine.restore(
            loaded.of("grant").values(), loaded.of("ticket").values(), loaded.of("pod").values(), loaded.of("record").values(), {}
        )
        # The runtime's list comes first: containers without a record are adopted, records of dead ones go.
        metrics = Metrics("")
        keeper = Keeper(store, Updates(runtime, metrics, log), metrics, log, engine, mode="observe")
        await Reconciler(runtime, cgroups, keeper).run()
        updates = _release(engine, container)
        results = await gather_limited(AT_A_TIME, [runtime.update(u.id, u.placement) for u in updates])
        store.write(engine.drain())
        rows = []
        for update, result in zip(updates, results):
            if isinstance(result, BaseException) and not isinstance(result, grpc.aio.AioRpcError):
                raise result
            error = result.details() if isinstance(result, grpc.aio.AioRpcError) else ""
            rows.append({"id": update.id, "cpus": format_cpus(update.placement.cpus), "done": not error, "error": error})
        return {"containers": len(engine.grants), "updates": rows, "at_s": boot_time_s()}
    finally:
        store.close()
        await runtime.close()


def _release(engine: Engine, container: Optional[str]) -> list[Update]:
    if container is None:
        chosen = list(engine.grants.values())
    else:
        chosen = find(engine, container)
        if not chosen:
            raise NothingToRelease(f"no container {container!r} is known")
    # One that ran before us without a record may be one of ours whose record is lost: its CPUs are given back too.
    live = [g for g in chosen if g.life not in (Life.CREATING, Life.HELD) and g.stance is not Stance.KUBELET]
    return [u for g in live if (u := engine.release(g.key)) is not None]
