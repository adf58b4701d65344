"""Tells programs in containers which CPUs and memory nodes are theirs: a file in a folder that is mounted into them.

``cpuset`` is replaced by a rename, so that a reader has the old one or the new one, and what watches the folder (inotify,
IN_MOVED_TO) hears of it: for programs that place their own threads, such as those of DPDK. It says what was decided: the
kernel has it a moment before or after. A thread writes, in ``/run``; a container whose folder cannot be had in
``PATIENCE_S`` goes without it, and one that the runtime does not make or start with it gets none the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.waiting import wait_within
from cri_proxy.engine.ledger import JournalKey, JournalValue
from cri_proxy.engine.records import Grant, Stance
from cri_proxy.event_loop import THREADS
from policies.machine.cpus import format_cpus
from policies.model import Container, Placement

#: Where containers find it. A name of its own: what a pod mounts there is not covered.
INSIDE = "/run/cri-resmgr.io"
FILE = "cpuset"
FOLDER = "cpusets"
OFF, ANNOTATED, ALL = "off", "annotated", "all"
MODES = (OFF, ANNOTATED, ALL)
#: How long a create waits for its folder, seconds: it is in memory.
PATIENCE_S = 0.5
#: As many containers that did not start with it are remembered.
REFUSED = 1000


class CpusetFiles:
    """The folders of one node's containers, below one folder. ``mode``: which containers that are created get one."""

    def __init__(self, root: Path, log: Any) -> None:
        self.mode = OFF
        self._root = root
        self._log = log
        #: The names of folders by the keys of grants.
        self._folders: dict[str, str] = {}
        #: Names of the folders there are, with what their files say; None: not known.
        self._told: dict[str, Optional[str]] = {}
        self._refused: dict[tuple[str, str], None] = {}
        # One thread: what is written later comes later.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREADS)

    def wants(self, container: Container, mounted: Iterable[str]) -> bool:
        """Whether a container that is to be created gets a folder; ``mounted``: what its request mounts, by its own paths.

        One that mounts something at or above our place gets none: it might be a folder of the host.
        """
        asked = container.preferences.cpuset_file
        is_wanted = (self.mode == ALL and asked is not False) or (self.mode == ANNOTATED and asked is True)
        if not is_wanted or (container.pod.uid, container.name) in self._refused:
            return False
        places = {os.path.normpath(path) for path in mounted}
        return places.isdisjoint({"/", "/run", "/var/run", "/var", INSIDE, "/var" + INSIDE})

    async def prepare(self, key: str, container: Container, placement: Placement) -> str:
        """Make the folder of a container that is about to be created: its path; "" = it cannot be had, or not in time.

        ``key``: of its grant.
        """
        name = self._folders[key] = _name(container)
        self._told[name] = text = _text(placement.cpus, placement.mems, placement.exclusive)
        making = asyncio.get_running_loop().run_in_executor(self._thread, self._write, name, text)
        try:
            await wait_within(PATIENCE_S, asyncio.shield(making))
        except (OSError, asyncio.TimeoutError) as error:
            making.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._told.pop(name, None)
            self._folders.pop(key, None)
            self._log.warning(
                "no cpuset file", container=container.path, error=str(error) or "it takes too long"
            )
            return ""
        return str(self._root / name)

    def refused(self, container: Container) -> None:
        """A container with a folder was not created, or did not start: its next attempt gets none."""
        if _name(container) in self._told:
            self._refused[container.pod.uid, container.name] = None
            while len(self._refused) > REFUSED:
                del self._refused[next(iter(self._refused))]

    def follow(self, changes: Mapping[JournalKey, JournalValue]) -> None:
        """Tell containers what of their records has changed; the folders of those that are gone go, too."""
        if not self._told:
            return
        for (kind, key), value in changes.items():
            if kind == "grant" and isinstance(value, Grant):
                self._tell(key, value)
        for (kind, key), value in changes.items():
            if kind == "grant" and value is None:
                name = self._folders.pop(key, "")
                # A create's ticket gives way to the container's id.
                if name and name not in self._folders.values():
                    self._drop(name)

    async def recall(self, grants: Mapping[str, Grant]) -> None:
        """Take over the folders that an earlier daemon has left: their containers run on with them."""
        names = await asyncio.get_running_loop().run_in_executor(self._thread, self._list)
        for name in names:
            self._told.setdefault(name, None)
        for key, grant in grants.items():
            self._tell(key, grant)

    def tidy(self, grants: Mapping[str, Grant]) -> None:
        """Remove folders whose containers are gone: the runtime's list was compared just now."""
        if self._told:
            known = {_name(grant.container) for grant in grants.values()}
            for name in [name for name in self._told if name not in known]:
                self._drop(name)

    def close(self) -> None:
        """Nothing more is written. The folders stay: their containers run on."""
        self._thread.shutdown(wait=False)

    def _tell(self, key: str, grant: Grant) -> None:
        name = _name(grant.container)
        if name not in self._told:
            return
        self._folders[key] = name
        is_ours = grant.stance is Stance.PLACED
        cpus = grant.placement.cpus if is_ours else grant.runs_on
        mems = grant.placement.mems if is_ours else grant.runs_on_mems
        text = _text(cpus, mems, grant.exclusive)
        if text != self._told[name]:
            self._told[name] = text
            self._submit(self._write, name, text)

    def _drop(self, name: str) -> None:
        del self._told[name]
        self._submit(shutil.rmtree, self._root / name, True)

    def _submit(self, work: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed
            self._thread.submit(self._guarded, work, *arguments)

    # ------------------------------------------------------------------ the thread

    def _guarded(self, work: Callable[..., object], *arguments: Any) -> None:
        try:
            work(*arguments)
        except OSError as error:
            self._log.warning("a cpuset file could not be written", error=str(error))

    def _write(self, name: str, text: str) -> None:
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # whatever the umask: programs that are not root read it
        new = folder / f".{FILE}"
        new.write_text(text)
        new.chmod(0o644)
        new.rename(folder / FILE)

    def _list(self) -> list[str]:
        try:
            return [path.name for path in self._root.iterdir() if path.is_dir()]
        except OSError:
            return []


def _name(container: Container) -> str:
    """The same for one container after a restart, also where its record was lost; without what paths give a meaning."""
    told = f"{container.pod.uid}\n{container.name}\n{container.attempt}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _text(cpus: frozenset[int], mems: frozenset[int], exclusive: frozenset[int]) -> str:
    """The file: a shell can source it. Nothing behind a "=" is that nothing is set."""
    return f"cpus={format_cpus(cpus)}\nmems={format_cpus(mems)}\nexclusive={format_cpus(exclusive & cpus)}\n"
