"""Writes the state file of a busy node as the code at hand does: ``python -m tests.data.state.record NAME``.

Beside ``NAME.db.gz``, ``NAME.json`` says what was placed where, so that a later version is held to it.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.cri.annotations.read import understood
from cri_proxy.engine.build import make_policy
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.snapshot import everything
from cri_proxy.state.store import Store
from policies.machine.cpus import format_cpus
from policies.model import Qos
from policies.settings import EngineOptions
from tests.machines import HYGON_7285_2S
from tests.scenes import again, constraint, host_of, make_container, make_pod, run

FOLDER = Path(__file__).parent
#: The records' boot, which the reading daemon is started in.
BOOT_ID = "0d2a8c1e-recorded"
CONTAINERS = 100


def busy_engine(active: str = "topology-aware") -> Engine:
    """A hundred containers of all kinds, some on their way, some ended; the same ones whenever it is made."""
    host = host_of(HYGON_7285_2S)
    config = read_config([SettingsSource("c", f"policy: {{Active: {active}}}")]).config
    engine = Engine(host, make_policy(config, host.topology), EngineOptions())
    for number in range(CONTAINERS):
        annotations = {"cri-resmgr.io/numa": "require"} if number % 7 == 0 else {}
        pod = make_pod(f"web-{number}", size=(0.5, 1) if number % 5 == 0 else None, annotations=annotations)
        engine.add_pod(pod)
        if number % 10 == 3:
            container = make_container("own", 2, pod=pod, qos=Qos.GUARANTEED, memory=1)
        else:
            container = make_container("app", 1 + number % 3, 0.25, pod, memory=number % 4)
        run(engine, understood(container), f"id-{number:03}", float(number))
    engine.release("id-000")
    engine.exited("id-001", 1, 200.0)
    engine.exited("id-002", 0, 201.0)
    engine.start_failed("id-004", "runc: cpuset.cpus: invalid argument", 202.0)
    engine.end_pod("sandbox-web-5")
    resources = engine.grants["id-006"].container.resources
    resize = engine.resize("id-006", resources, constraint("0-31"), 203.0)
    assert resize is not None
    engine.doubt(resize.ticket)
    engine.admit(again(engine.grants["id-001"].container, 1), constraint(), 204.0)
    late = engine.admit(make_container("late", 3, pod=make_pod("late")), constraint(), 205.0)
    engine.doubt(late.ticket)
    return engine


def main(name: str) -> None:
    engine = busy_engine()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.load()
        meta = {"boot_id": BOOT_ID, "topology": engine.host.topology.hash(), "mode": "observe"}
        assert store.write(everything(engine), {**meta, "mode_configured": "enforce"})
        store.checkpoint()
        store.close()
        (FOLDER / f"{name}.db.gz").write_bytes(gzip.compress(store.path.read_bytes(), mtime=0))
    places = {
        key: [g.stance.value, g.life.value, format_cpus(g.cpus), format_cpus(g.exclusive), g.placement.level]
        for key, g in sorted(engine.grants.items())
    }
    found = {"placements": places, "tickets": sorted(engine.tickets), "history": len(engine.history)}
    (FOLDER / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
