"""The examination of a node for ``cri-resmgr doctor``: all facts, each read by itself, in bounded time.

What fails or hangs is a sentence among the facts, and the others are there. Nothing is changed, and nobody is woken:
a daemon behind a socket unit that is down stays down.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from cri_proxy.core.diagnosis_facts import ConfigFacts, Facts
from cri_proxy.shell.examine_host import (
    read_cgroup_facts,
    read_kernel_facts,
    read_machine_facts,
    read_system_facts,
)
from cri_proxy.shell.examine_parts import (
    Places,
    compared_with_daemon,
    find_files,
    read_config_facts,
    read_daemon_facts,
    read_kubelet_facts,
    read_rows,
    read_runtime_facts,
    read_state_facts,
)

#: All of it takes half a second; what hangs (a file system, systemctl) is left after this.
EXAMINE_S = 5.0

Part = TypeVar("Part")


@dataclass
class _Examination:
    """Parts read so far, by the names they have in ``Facts``; failures by topic."""

    parts: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def read(self, name: str, topic: str, reader: Callable[[], Part]) -> Optional[Part]:
        """Read a part now; whatever goes wrong is kept as a sentence."""
        try:
            part = reader()
        except subprocess.TimeoutExpired as error:
            program = Path(error.cmd[0]).name
            self.failures[topic] = (
                f"this could not be found out: {program} has not ended within {error.timeout:g} s"
            )
            return None
        except Exception as error:
            reason = str(error) or type(error).__name__
            self.failures[topic] = f"this could not be found out: {reason}"
            return None
        self.parts[name] = part
        return part


def examine(
    config_file: Optional[Path] = None,
    control: Optional[Path] = None,
    root: Path = Path("/"),
    proc: Optional[Path] = None,
    systemctl: str = "systemctl",
) -> Facts:
    """Read everything. ``root``, ``proc`` (processes) and ``systemctl`` are for tests; ``control``: the daemon's."""
    found = _Examination()
    files = find_files(root, config_file)
    config_facts, config = read_config_facts(files)
    places = Places(root, proc or root / "proc", config, control or Path("."))
    if control is None:
        places = Places(root, places.proc, config, places.at("control.socket"))
    readers: dict[str, tuple[str, Callable[[], object]]] = {
        "machine": (
            "machine",
            lambda: read_machine_facts(root, places.at("topology.source"), places.at("kubelet.directory")),
        ),
        "kernel": ("machine", lambda: read_kernel_facts(root)),
        "cgroups": ("cgroups", lambda: read_cgroup_facts(root, places.at("topology.cgroup_root"))),
        "system": ("units", lambda: read_system_facts(root, places.proc, systemctl)),
        "kubelet": ("kubelet", lambda: read_kubelet_facts(places)),
    }
    # 1. What may hang is read beside, each in a thread that the end of the process does not wait for.
    deadline = time.monotonic() + EXAMINE_S
    threads = {
        name: threading.Thread(target=found.read, args=(name, topic, reader), daemon=True)
        for name, (topic, reader) in readers.items()
    }
    for thread in threads.values():
        thread.start()
    # 2. The daemon, and what depends on whether it answers; all of these have timeouts.
    _examine_daemon(found, places, config_facts)
    # 3. Who is not back by now is left behind.
    for thread in threads.values():
        thread.join(max(deadline - time.monotonic(), 0.0))
    parts, failures = dict(found.parts), dict(found.failures)
    for name, thread in threads.items():
        if thread.is_alive():
            topic = readers[name][0]
            failures[topic] = f"this could not be found out within {EXAMINE_S:.0f} s: something hangs"
    return Facts(**parts, failures=failures)


def _examine_daemon(found: _Examination, places: Places, config: ConfigFacts) -> None:
    daemon = found.read("daemon", "daemon", lambda: read_daemon_facts(places))
    status = daemon.status if daemon else None
    if status is not None:
        found.read("rows", "containers", lambda: read_rows(places.control))
        with contextlib.suppress(Exception):  # then it is not compared
            config = compared_with_daemon(config, places.config, places.control)
    found.parts["config"] = config
    known = str(status["runtime"]["socket"]) if status is not None else ""
    found.read("runtime", "runtime", lambda: read_runtime_facts(places, known))
    found.read("state", "state", lambda: read_state_facts(places.at("state.directory"), status is not None))
