"""The examination of a node for ``cri-resmgr doctor``: all facts, each read by itself, in bounded time.

What fails or hangs is a sentence among the facts, and the others are there. Nothing is changed, and no process is woken:
a daemon behind a socket unit that is down stays down.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union

from cri_proxy.config.config import read_config, subjects_on
from cri_proxy.doctor.checks.disks import SUBJECT as DISKS
from cri_proxy.doctor.facts import ConfigFacts, Facts, IsolationFacts, StateFacts
from cri_proxy.doctor.findings import EXAMINE_S
from cri_proxy.doctor.io.claims import read_claim_facts
from cri_proxy.doctor.io.disks import read_disk_facts
from cri_proxy.doctor.io.host import (
    read_cgroup_facts,
    read_file_facts,
    read_isolation_facts,
    read_kernel_facts,
    read_machine_facts,
    read_system_facts,
)
from cri_proxy.doctor.io.parts import (
    ANSWER_PART,
    ANSWER_S,
    Places,
    compared_with_daemon,
    find_files,
    read_config_facts,
    read_daemon_facts,
    read_kubelet_facts,
    read_rows,
    read_runtime_facts,
)
from cri_proxy.engine.snapshot import UnreadableRecord
from cri_proxy.machine_root import below, machine_root
from cri_proxy.state.file import FILE, is_environment, read_tables
from cri_proxy.state.log import SUFFIX, read_log

Part = TypeVar("Part")
_CHECK_S = 1.0
#: Where a copy may be made: where temporary files are (None), else in memory, as the disk may be full.
_COPIES = (None, "/dev/shm", str(below(machine_root(), "run")))


class _Hangs(Exception):
    pass


@dataclass
class _Examination:
    """Parts read so far, by the names they have in ``Facts``; failures by topic."""

    parts: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    limit_s: float = EXAMINE_S

    def attempt(self, topic: str, reader: Callable[[], Part]) -> Optional[Part]:
        """Read something now; whatever goes wrong is kept as a sentence."""
        try:
            return reader()
        except _Hangs:
            self.failures[topic] = f"this could not be found out within {self.limit_s:g} s: something hangs"
        except subprocess.TimeoutExpired as error:
            program = Path(error.cmd[0]).name
            reason = f"{program} has not ended within {error.timeout:g} s"
            self.failures[topic] = f"this could not be found out: {reason}"
        except Exception as error:
            reason = str(error) or type(error).__name__
            self.failures[topic] = f"this could not be found out: {reason}"
        return None

    def read(self, name: str, topic: str, reader: Callable[[], Part]) -> Optional[Part]:
        """The same for a part."""
        part = self.attempt(topic, reader)
        if part is not None:
            self.parts[name] = part
        return part


def _beside(reader: Callable[[], Part]) -> Future[Part]:
    """Start reading what may hang, in a thread that the end of the process does not wait for."""
    future: Future[Part] = Future()

    def work() -> None:
        try:
            future.set_result(reader())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def _result(future: Future[Part], until_s: float) -> Part:
    """:raises _Hangs: it is not there by then."""
    wait([future], max(until_s - time.monotonic(), 0.0))
    if not future.done():
        raise _Hangs
    return future.result()


def examine(
    config_file: Optional[Path] = None,
    control: Optional[Path] = None,
    root: Path = Path("/"),
    proc: Optional[Path] = None,
    systemctl: str = "systemctl",
    limit_s: float = EXAMINE_S,
) -> Facts:
    """Read everything, at most this long. ``root``, ``proc`` (processes) and ``systemctl`` are for tests.

    ``control``: the daemon's socket, if it is not where the configuration has it.
    """
    found = _Examination(limit_s=limit_s)
    # 1. Where everything is; by the defaults, if the configuration cannot be read.
    reading = _beside(lambda: read_config_facts(find_files(root, config_file)))
    until_s = time.monotonic() + limit_s
    configured = found.attempt("configuration", partial(_result, reading, until_s))
    config_facts, config = configured or (None, read_config([]).config)
    answer_s = max(ANSWER_S, ANSWER_PART * limit_s)
    places = Places(root, proc or root / "proc", config, control or Path("."), answer_s)
    if control is None:
        places = replace(places, control=places.at("control.socket"))
    # 2. What may hang is read beside.
    readers = _readers(places, systemctl)
    started = {name: (topic, _beside(reader)) for name, (topic, reader) in readers.items()}
    until_s = time.monotonic() + limit_s
    # 3. The daemon, and what depends on whether it answers; all of these have timeouts, but for the state's disk.
    status = _examine_daemon(found, places, config_facts)
    state = _beside(lambda: read_state_facts(places.at("state.directory"), status is not None))
    known = str(status["runtime"]["socket"]) if status is not None else ""
    found.read("runtime", "runtime", lambda: read_runtime_facts(places, known))
    # 4. A look that is not back by now is left behind.
    for name, (topic, future) in {**started, "state": ("state", state)}.items():
        found.read(name, topic, partial(_result, future, until_s))
    return Facts(**found.parts, failures=found.failures)


def _readers(places: Places, systemctl: str) -> dict[str, tuple[str, Callable[[], Any]]]:
    """What is read of the host: by the name of the part its topic, and how."""
    root, source, kubelet = places.root, places.at("topology.source"), places.at("kubelet.directory")
    return {
        "machine": ("machine", lambda: read_machine_facts(root, source, kubelet)),
        "kernel": ("machine", lambda: read_kernel_facts(root)),
        "cgroups": ("cgroups", lambda: read_cgroup_facts(root, places.at("topology.cgroup_root"))),
        "system": ("units", lambda: read_system_facts(root, places.proc, systemctl)),
        "kubelet": ("kubelet", lambda: read_kubelet_facts(places)),
        "isolation": ("isolation", lambda: _isolation_facts(places)),
        "claims": ("claims", lambda: read_claim_facts(places)),
    }


def _isolation_facts(places: Places) -> IsolationFacts:
    modes = subjects_on(places.config)
    found = read_isolation_facts(places.root, modes)
    if DISKS not in modes:
        return found
    return replace(
        found, disks=read_disk_facts(places.root, places.at("topology.cgroup_root"), places.config)
    )


def _examine_daemon(
    found: _Examination, places: Places, config: Optional[ConfigFacts]
) -> Optional[Mapping[str, Any]]:
    """What the daemon says of itself; None: it does not answer."""
    daemon = found.read("daemon", "daemon", lambda: read_daemon_facts(places))
    status = daemon.status if daemon else None
    if status is not None:
        found.read("rows", "containers", lambda: read_rows(places))
        if config is not None:
            with contextlib.suppress(Exception):  # then it is not compared
                config = compared_with_daemon(config, places)
    if config is not None:
        found.parts["config"] = config
    return status


def read_state_facts(directory: Path, is_up: bool) -> StateFacts:
    """``is_up``: whether the daemon has it open.

    :raises OSError: the folder cannot be looked at.
    """
    folder, path = read_file_facts(directory), directory / FILE
    if folder.kind != "directory":
        return StateFacts(folder)
    space, file = os.statvfs(directory), read_file_facts(path)
    written = path.stat().st_mtime if file.kind else 0.0
    size = sum(one.stat().st_size for one in directory.glob(f"{FILE}*") if ".aside" not in one.name)
    check = unchecked = ""
    if file.kind:
        try:
            check = _check(path, is_up)
        except (OSError, sqlite3.Error) as error:
            unchecked = str(error)
    return StateFacts(
        folder,
        space.f_bavail * space.f_frsize,
        size,
        os.access(directory, os.W_OK) and not space.f_flag & os.ST_RDONLY,
        check,
        max(written - time.time(), 0.0),
        file,
        unchecked,
    )


def _check(file: Path, is_up: bool) -> str:
    if not is_up:
        return _check_copy(file)
    # The daemon lets no other process in. A copy that was made while it moved its log into the file may be torn.
    found = _check_copy(file)
    return found if found == "ok" else _check_copy(file)


def _check_copy(file: Path) -> str:
    # SQLite would first repair what a killed daemon left, and that is not ours to do.
    obstacle: Optional[Union[OSError, sqlite3.Error]] = None
    for place in _COPIES:
        try:
            with tempfile.TemporaryDirectory(prefix="cri-resmgr-doctor-", dir=place) as folder:
                for path in file.parent.glob(f"{file.name}*"):
                    if path.name in (file.name, f"{file.name}-wal", file.name + SUFFIX):
                        shutil.copyfile(path, Path(folder) / path.name)
                return _quick_check(Path(folder) / file.name)
        except (OSError, sqlite3.Error) as error:
            obstacle = obstacle or error
    assert obstacle is not None
    raise obstacle


def _quick_check(file: Path) -> str:
    """What the daemon would say of it."""
    deadline = time.monotonic() + _CHECK_S
    db = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=_CHECK_S)
    try:
        db.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
        found = " ".join(str(row[0]) for row in db.execute("PRAGMA quick_check(1)"))
        if found == "ok":
            return read_log(db, file).lost or found if read_tables(db) else "it is empty"
        return found
    except UnreadableRecord as error:
        return str(error)
    except sqlite3.DatabaseError as error:
        if time.monotonic() > deadline or is_environment(error):
            raise
        return str(error)
    finally:
        db.close()
