from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cri_proxy.nri.io.host import detection as nri_detection
from cri_proxy.nri.io.host.detection import runtime_nri

HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"
LISTENS = "0000000000000000: 00000002 00000000 00010000 0001 01 48417 {}\n"
CONNECTED = "0000000000000000: 00000003 00000000 00000000 0001 03 48418 {}\n"
NRI, RUN_NRI = "/var/run/nri/nri.sock", "/run/nri/nri.sock"
OWN = "/var/run/cri-resmgr/nri/nri.sock"


@pytest.mark.parametrize(
    ("table", "own", "found"),
    [
        pytest.param(LISTENS.format(NRI), OWN, NRI, id="a runtime with NRI"),
        pytest.param(LISTENS.format(RUN_NRI), OWN, RUN_NRI, id="by its other name"),
        pytest.param(CONNECTED.format(NRI), OWN, "", id="only connections are left"),
        pytest.param(LISTENS.format("/run/containerd/containerd.sock"), OWN, "", id="a runtime without"),
        pytest.param("0: 2 0 10000 1 1 3\n", OWN, "", id="sockets without names"),
        pytest.param(LISTENS.format(NRI), NRI, "", id="it is we who took the well-known place"),
        pytest.param(LISTENS.format(NRI), RUN_NRI, NRI, id="ours, by another name"),
        pytest.param("", OWN, "", id="nobody listens"),
    ],
)
def test_a_runtime_has_nri_if_somebody_listens_where_runtimes_do(table: str, own: str, found: str) -> None:
    assert runtime_nri(lambda: HEAD + table, own) == found


def test_a_table_that_cannot_be_read_says_nothing() -> None:
    def read() -> str:
        raise PermissionError

    assert runtime_nri(read, OWN) == ""


def test_the_kernels_own_table_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "nri.sock")
    monkeypatch.setattr(nri_detection, "RUNTIME_NRI_SOCKET", path)
    table = Path("/proc/net/unix")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert runtime_nri(table.read_text, OWN) == ""
        listener.listen()
        assert runtime_nri(table.read_text, OWN) == path
