"""``python -m bpf --options JSON``, or ``@FILE``: the observer in the foreground. Started by ``cri-resmgr observer run``.

Exit codes: 0 ended by a signal, 1 a sentence on stderr says why not. The order of the start matters: ``ssl`` is kept
out before asyncio would import it (5 MB), and capabilities are given up before there is a second thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Protocol

from bpf.service.options import BadOptions, Options, read_options
from cri_api.printable import printable, printable_lines

if TYPE_CHECKING:
    from bpf.identity.identities import Identities
    from bpf.sources.samples import Flow, Provider
    from policies.affinity.graph.graph import EndpointIdentity, Graph

USAGE = "usage: python -m bpf --options JSON-or-@FILE (see: cri-resmgr observer run)"
#: mallopt(3): without it each thread has an arena of its own, which is never given back.
_M_ARENA_MAX = -8


class Source(Protocol):
    """Flows that tests and demonstrations show in the place of this machine's traffic."""

    def open(self, now_s: float) -> Provider: ...

    def named(
        self, flows: Sequence[Flow], identities: Identities, graph: Graph
    ) -> tuple[Sequence[Flow], Mapping[str, EndpointIdentity]]: ...


def main(arguments: list[str], source: Optional[Source] = None) -> int:
    """Run the observer; returns the exit code."""
    if len(arguments) != len(("--options", "JSON")) or arguments[0] != "--options":
        print(printable_lines(USAGE), file=sys.stderr)
        return 2
    try:
        options = read_options(arguments[1])
        _stay_small(options)
        return _run(options, arguments[1], source)
    except BadOptions as error:
        print(printable(f"cri-resmgr observer: {error}"), file=sys.stderr)
        return 1


def _stay_small(options: Options) -> None:
    with contextlib.suppress(AttributeError):  # musl has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    if not options.listen:
        # asyncio and grpclib do without it where it cannot be imported.
        sys.modules["ssl"] = None  # type: ignore[assignment]
    if importlib.util.find_spec("google._upb") and not os.environ.get(
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
    ):
        # protobuf in Python, with pickle and datetime: 1.2 MB that generated code imports and, where protobuf is
        # the one in C, never uses.
        name = "google.protobuf.internal.python_message"
        sys.modules.setdefault(name, types.ModuleType(name))


def _run(options: Options, argument: str, source: Optional[Source]) -> int:
    import asyncio

    from bpf.identity.attribution import Attribution
    from bpf.kernel.capabilities import NEEDED, keep_only
    from bpf.kernel.clock import boot_time_s
    from bpf.kernel.compiler import Compiler
    from bpf.service.log import log
    from bpf.service.server import ServiceSockets
    from bpf.service.service import Observer, of_runtime
    from bpf.sources.fallback import Owners, ProviderFallback, Rung, rungs_of
    from bpf.sources.samples import ProviderLost

    listener = ServiceSockets(options)
    looks = source is None and options.provider != "declared"
    attribution = Attribution(options.cgroup_root, options.proc) if looks else None
    owners = Owners(attribution) if attribution is not None else None
    folder = os.path.join(os.path.dirname(options.state_file), "ebpf") if options.state_file else ""
    compiler = Compiler(options.python, folder, options.compile_patience_s)
    rungs = (
        rungs_of(options, attribution, owners, compiler) if source is None else [Rung("replay", source.open)]
    )
    ladder = ProviderFallback(rungs)
    named = of_runtime if source is None else source.named
    try:
        ladder.open(boot_time_s())
    except ProviderLost as error:
        listener.release()
        compiler.close()
        raise BadOptions(str(error)) from None
    try:
        own_cgroup = _cgroup_of_self_test(options.provider) if source is None else ""
        kept = keep_only(NEEDED[options.provider], own_cgroup)
        log("info", "capabilities", kept=",".join(kept) or "none")
    except OSError as error:
        log("warning", "capabilities not dropped", reason=error.strerror)

    async def serve() -> None:
        await Observer(options, argument, ladder, owners, named).run(listener)

    try:
        asyncio.run(serve())
    finally:
        compiler.close()
    return 0


def _cgroup_of_self_test(provider: str) -> str:
    """The cgroup below which eBPF is tried out, now and later; "" = nowhere."""
    if provider not in ("auto", "ebpf"):
        return ""
    from bpf.kernel.ebpf_self_test import own_cgroup
    from bpf.sources.ebpf import cgroup_v2_root
    from bpf.sources.samples import ProviderLost

    with contextlib.suppress(ProviderLost):
        return str(own_cgroup(cgroup_v2_root()))
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
