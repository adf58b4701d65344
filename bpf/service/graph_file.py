"""The graph on disk, so that a restart of the observer forgets nothing: JSON, written as a whole or not at all."""

from __future__ import annotations

import json
import os
from typing import Any

from bpf.kernel.procfs import read_text
from bpf.service.json_file import set_aside, write_json
from policies.affinity.graph.graph import Graph
from policies.affinity.graph.remote import RemoteRates

_BOOT_ID = "sys/kernel/random/boot_id"


class GraphFile:
    """``path`` "" keeps nothing. ``proc``: where the number of this boot is read."""

    def __init__(self, path: str, proc: str = "/proc") -> None:
        self._path = path
        self._proc = proc

    def save(self, graph: Graph, remote: RemoteRates, now_s: float) -> None:
        """Write it; ``now_s`` is CLOCK_BOOTTIME.

        :raises OSError: that cannot be done; what was there before is still there.
        """
        if not self._path:
            return
        document = {"boot": self._boot(), "at_s": now_s, "graph": graph.state(), "remote": remote.state()}
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        write_json(self._path, document)

    def restore(self, graph: Graph, remote: RemoteRates, now_s: float) -> str:
        """Give graph and rates what was saved. Of another boot only what concerns owners: its containers are gone.

        :return: what is wrong, in a sentence, "" = nothing. A file that cannot be used is set aside.
        """
        if not self._path or not os.path.exists(self._path):
            return ""
        try:
            with open(self._path) as file:
                document = json.load(file)
            _restore(graph, remote, document, self._boot(), now_s)
        except OSError as error:
            return f"{self._path} cannot be read: {error.strerror}; the graph starts empty"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            aside = set_aside(self._path)
            return f"{self._path} holds no graph ({error}); it is set aside as {aside}, and the graph starts empty"
        return ""

    def _boot(self) -> str:
        return (read_text(f"{self._proc}/{_BOOT_ID}") or "").strip()


def _restore(graph: Graph, remote: RemoteRates, document: Any, boot: str, now_s: float) -> None:
    is_same_boot = document["boot"] == boot
    # How long the machine was down is not known.
    elapsed_s = max(0.0, now_s - float(document["at_s"])) if is_same_boot else 0.0
    graph.restore(document["graph"], elapsed_s, with_edges=is_same_boot)
    if is_same_boot:
        # Observers of the version before keep none.
        remote.restore(document.get("remote", []))
