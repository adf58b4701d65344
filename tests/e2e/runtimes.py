"""The runtimes that these tests run on, by the names that ``--runtime`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from tests.peers.programs import CONTAINERD, CONTAINERD_17, CRIO, Unavailable, find

if TYPE_CHECKING:
    from tests.e2e.runtime import RealRuntime

# A runtime is imported when it is made: that needs grpc, which most tests do not.


def _installed(folder: Path, **options: Any) -> RealRuntime:
    from tests.e2e.containerd import Containerd

    return Containerd(folder, **options)


def _containerd_17(folder: Path, **options: Any) -> RealRuntime:
    from tests.e2e.containerd import Containerd

    return Containerd(folder, find(*CONTAINERD_17)[CONTAINERD_17[0]], **options)


def _containerd_2(folder: Path, *, path: Sequence[Path] = (), **options: Any) -> RealRuntime:
    from tests.e2e.containerd import Containerd

    found = find(*CONTAINERD)
    return Containerd(folder, found["containerd"], path=(*path, found["runc"].parent), **options)


def _crio(folder: Path, **options: Any) -> RealRuntime:
    from tests.e2e.crio import Crio, missing

    if sentence := missing():
        raise Unavailable(sentence)
    return Crio(folder, find(*CRIO), **options)


#: What ``--runtime`` takes, and what makes one in a folder, with the options of :class:`RealRuntime`.
RUNTIMES: dict[str, Callable[..., RealRuntime]] = {
    "containerd": _installed,
    "containerd-1.7": _containerd_17,
    "containerd-2": _containerd_2,
    "cri-o": _crio,
}
#: The machine's own: Debian 12's is containerd 1.6.
DEFAULT = "containerd"
#: Which one tests of the runtime's NRI take in the place of one that has none.
WITH_NRI = {DEFAULT: "containerd-1.7"}


def for_peers(name: str) -> str:
    """What peers that are of the newest CRI (crictl, critest, kubelet) run on in the place of the machine's own."""
    return "containerd-2" if name == DEFAULT else name


def make(name: str, folder: Path, **options: Any) -> RealRuntime:
    """The runtime of this name, which is not started yet.

    :raises Unavailable: one of its programs cannot be had.
    """
    return RUNTIMES[WITH_NRI.get(name, name) if options.get("has_nri") else name](folder, **options)
