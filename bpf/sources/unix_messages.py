"""What containers send each other over unix sockets: counted where the kernel has sent and read it (unix.c).

Needs the kernel's description of its types (BTF), and programs of functions (5.10 on x86_64, 6.0 on arm64), which only
unix sockets pay for; or, where those are refused, the tracepoints of all sockets (6.4). Loaded when it is first wanted, and
attached only while it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from bpf.kernel.compiler import Compiler
from bpf.kernel.kernel_types import VMLINUX, KernelTypes, read_types
from bpf.kernel.loader import Attachment, LoadedPrograms, attach, load
from bpf.service.log import log
from bpf.sources.samples import ProviderLate, ProviderLost

SOURCE = Path(__file__).with_name("unix.c")
_FUNCTIONS = {
    "crm_aff_ssent": "unix_stream_sendmsg",
    "crm_aff_staken": "unix_stream_recvmsg",
    # Of SOCK_SEQPACKET too.
    "crm_aff_dsent": "unix_dgram_sendmsg",
    "crm_aff_dtaken": "unix_dgram_recvmsg",
}
_TRACEPOINTS = {"crm_aff_asent": "sock_send_length", "crm_aff_ataken": "sock_recv_length"}
_SOCK, _PEER, _SOCKET = ("socket", "sk"), ("unix_sock", "peer"), ("sock", "sk_socket")
_FAMILY = ("sock_common", "skc_family")
#: From a struct socket to the inode beside it.
_BESIDE, _INODE, _NUMBER = ("socket_alloc", "socket"), ("socket_alloc", "vfs_inode"), ("inode", "i_ino")
_FIELDS = (_SOCK, _PEER, _SOCKET, _FAMILY, _BESIDE, _INODE, _NUMBER)


class UnixMessages:
    """The programs of unix.c. ``problem``: why they do not count though they are wanted, a sentence; "" = they do."""

    def __init__(self, compiler: Optional[Compiler], edges: int, types: str = VMLINUX) -> None:
        self._compiler = compiler
        self._edges = edges
        self._types = types
        self._kernel: Optional[KernelTypes] = None
        self._attachments: Sequence[Attachment] = ()
        self._loaded = LoadedPrograms()
        self._is_refused = False
        self.problem = ""

    @property
    def is_on(self) -> bool:
        """Whether they count."""
        return bool(self._loaded.links)

    @property
    def maps(self) -> Mapping[str, int]:
        """Their descriptors by name; none before they were wanted."""
        return self._loaded.maps

    def follow(self, is_wanted: bool) -> None:
        """Count or do not; once a sample. What is refused is not tried again, what is still being compiled is."""
        if not is_wanted:
            self._detach()
        elif not self.is_on and not self._is_refused:
            try:
                self._attach()
                self.problem = ""
            except ProviderLate as late:
                self.problem = f"unix sockets by wake-ups only, as yet: {late}"
            except (OSError, ProviderLost) as error:
                self._detach()
                self._is_refused = True
                self.problem = f"unix sockets by wake-ups only: {error}"
                log("warning", "messages of unix sockets are not counted", reason=error)

    def close(self) -> None:
        """Detach and unload; a second time does nothing."""
        self._loaded.close()

    def _attach(self) -> None:
        if not self._attachments:
            self._load()
            return
        for wanted in self._attachments:
            self._loaded.links.append(attach(self._loaded.programs[wanted.program], wanted))

    def _load(self) -> None:
        """Load and attach in the first way that this kernel allows."""
        if self._kernel is None:
            # Once: a compile that is late is asked for again and again.
            self._kernel = read_types(_FIELDS, _FUNCTIONS.values(), self._types)
        offsets, functions = self._kernel.offsets, self._kernel.functions
        defines = {
            "EDGES": self._edges,
            "AT_SOCK": offsets[_SOCK],
            "AT_PEER": offsets[_PEER],
            "AT_SOCKET": offsets[_SOCKET],
            "AT_FAMILY": offsets[_FAMILY],
            "AT_INODE": offsets[_INODE] - offsets[_BESIDE] + offsets[_NUMBER],
        }
        reasons = []
        for attachments in (
            [
                Attachment("function_exit", program, name, number=functions[name])
                for program, name in _FUNCTIONS.items()
            ],
            [Attachment("raw_tracepoint", program, name) for program, name in _TRACEPOINTS.items()],
        ):
            try:
                self._loaded = load(SOURCE, attachments, self._compiler, defines)
                self._attachments = attachments
                return
            except ProviderLate:
                raise
            except ProviderLost as error:
                reasons.append(str(error))
        raise ProviderLost("; ".join(reasons))

    def _detach(self) -> None:
        for link in self._loaded.links:
            os.close(link)
        self._loaded.links.clear()
