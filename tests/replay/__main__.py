"""The real observer, which plays a file in the place of this machine's traffic: for tests and demonstrations.

python -m tests.replay FILE --options JSON      the options as of ``python -m bpf``

Nothing large is imported before the observer keeps ``ssl`` out: tests measure its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from bpf.__main__ import main

if TYPE_CHECKING:
    from bpf.identity.identities import Identities
    from bpf.sources.samples import Flow
    from policies.affinity.graph.graph import EndpointIdentity, Graph
    from tests.replay.provider import ReplayProvider


class ReplaySource:
    """A file in the place of traffic (``bpf.__main__.Source``)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._provider: Optional[ReplayProvider] = None

    def open(self, now_s: float) -> ReplayProvider:
        from tests.replay.provider import ReplayProvider

        self._provider = ReplayProvider(self._path, now_s)
        return self._provider

    def named(
        self, flows: Sequence[Flow], identities: Identities, graph: Graph
    ) -> tuple[Sequence[Flow], Mapping[str, EndpointIdentity]]:
        from tests.replay.provider import named

        assert self._provider is not None
        return named(self._provider, flows, identities, graph)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], ReplaySource(sys.argv[1])))
