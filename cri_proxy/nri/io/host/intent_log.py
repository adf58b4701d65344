"""Unfinished containers and sandboxes, on disk: if the daemon is killed meanwhile, the next one removes them.

One small file, replaced as a whole before a request is sent and when it is over. It survives ``kill -9``; after a power
cut it may be older, and name finished containers (they run, and are left alone) or ones that are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from cri_proxy import effects
from cri_proxy.bounded_files import SMALL_FILE_S, within
from cri_proxy.cri.visibility import ContainerKey, SandboxKey
from cri_proxy.state.writer import StateWriter

FILE = "nri-unfinished.json"


class IntentLog:
    """The file in the state directory. ``problem`` is "" while it can be written."""

    def __init__(self, directory: Path, log: Any, disk: Optional[StateWriter] = None) -> None:
        """``disk``: the writer, for the event loop; None: each change is written at once, which may block."""
        self._disk = disk
        self._path = directory / FILE
        self._log = log
        self.containers: set[ContainerKey] = set()
        self.sandboxes: set[SandboxKey] = set()
        self.problem = ""

    def load(self) -> tuple[frozenset[ContainerKey], frozenset[SandboxKey]]:
        """The marks of an earlier daemon, kept from now on. An unreadable file counts as empty."""
        try:
            document = json.loads(within(SMALL_FILE_S, self._path.read_text))
            containers = {(str(s), str(n), int(a)) for s, n, a in document["containers"]}
            sandboxes = {(str(n), str(ns), str(u), int(a)) for n, ns, u, a in document["sandboxes"]}
        except FileNotFoundError:
            return frozenset(), frozenset()
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._log.error(f"{self._path} is not what cri-resmgr writes; it is begun anew", error=str(error))
            return frozenset(), frozenset()
        self.containers |= containers
        self.sandboxes |= sandboxes
        return frozenset(containers), frozenset(sandboxes)

    def add(self, containers: Iterable[ContainerKey] = (), sandboxes: Iterable[SandboxKey] = ()) -> None:
        """These are about to be made."""
        self.containers.update(containers)
        self.sandboxes.update(sandboxes)
        self._write()

    def drop(self, containers: Iterable[ContainerKey] = (), sandboxes: Iterable[SandboxKey] = ()) -> None:
        """These are finished, or gone."""
        self.containers.difference_update(containers)
        self.sandboxes.difference_update(sandboxes)
        self._write()

    async def settled(self) -> None:
        """Wait until the last change is on disk, as long as a call may wait for its record."""
        if self._disk is not None:
            await self._disk.settled()

    def _write(self) -> None:
        document: dict[str, list[Any]] = {
            "containers": sorted(self.containers),
            "sandboxes": sorted(self.sandboxes),
        }
        if self._disk is None:
            self._replace(document)
        else:
            self._disk.later(lambda: self._replace(document))

    def _replace(self, document: dict[str, list[Any]]) -> None:
        try:
            if not any(document.values()):
                with contextlib.suppress(FileNotFoundError):
                    effects.before(effects.STATE, FILE)
                    self._path.unlink()
            else:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                beside = self._path.with_name(FILE + ".new")
                beside.write_text(json.dumps(document))
                effects.before(effects.STATE, FILE)
                os.replace(beside, self._path)
        except OSError as error:
            if not self.problem:
                self._log.error(
                    "unfinished containers are not remembered", path=str(self._path), error=str(error)
                )
            self.problem = f"{self._path}: {error.strerror or error}"
        else:
            self.problem = ""
