"""Whether a runtime has NRI itself; where a start knows that no plugins are hosted, their host is not loaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy.nri.io.host import unhosted
from cri_proxy.nri.io.host.unhosted import runtime_nri, unhosted_because
from tests.nri.io.host.plugins import REPOSITORY

HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"
LISTENS = "0000000000000000: 00000002 00000000 00010000 0001 01 48417 {}\n"
CONNECTED = "0000000000000000: 00000003 00000000 00000000 0001 03 48418 {}\n"
NRI, RUN_NRI = "/var/run/nri/nri.sock", "/run/nri/nri.sock"
OWN = "/var/run/cri-resmgr/nri/nri.sock"


@pytest.mark.parametrize(
    ("wanted", "sockets", "why"),
    [
        pytest.param("off", "", "nri.host is off", id="off"),
        pytest.param("on", LISTENS.format(NRI), "", id="on, whatever the runtime has"),
        pytest.param(
            "auto", LISTENS.format(NRI), f"the runtime has NRI itself: it listens on {NRI}", id="NRI is there"
        ),
        pytest.param("auto", "", "", id="the runtime may not be there yet"),
    ],
)
def test_it_is_known_why_there_is_no_host(wanted: str, sockets: str, why: str) -> None:
    assert unhosted_because(wanted, lambda: HEAD + sockets, OWN) == why


_PROGRAM = """
import sys
from types import SimpleNamespace
from pathlib import Path
from cri_proxy.front_ends.cri_calls import CriInterceptor
from cri_proxy.nri.io.host.unhosted import Unhosted, make_hosting
from cri_proxy.daemon.proxy import Proxy
config = {"nri.host": "off", "nri.socket": "", "state.directory": sys.argv[1]}
made = make_hosting(SimpleNamespace(config=config, log=None), SimpleNamespace(open=lambda method: method))
assert isinstance(made, Unhosted) and made.open("/x/Y") == "/x/Y", made
print(*(name for name in sys.modules if name.startswith("cri_proxy.nri.io.host.")))
"""


def test_a_proxy_without_plugins_does_not_load_their_host(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    said = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=120)
    loaded = {name.rpartition(".")[2] for name in said.stdout.split()}
    assert loaded == {"intent_log", "unhosted"}


@pytest.mark.parametrize(
    ("table", "own", "found"),
    [
        pytest.param(LISTENS.format(NRI), OWN, NRI, id="a runtime with NRI"),
        pytest.param(LISTENS.format(RUN_NRI), OWN, RUN_NRI, id="by its other name"),
        pytest.param(CONNECTED.format(NRI), OWN, "", id="only connections are left"),
        pytest.param(LISTENS.format("/run/containerd/containerd.sock"), OWN, "", id="a runtime without"),
        pytest.param("0: 2 0 10000 1 1 3\n", OWN, "", id="sockets without names"),
        pytest.param(LISTENS.format(NRI), NRI, "", id="we took the well-known place"),
        pytest.param(LISTENS.format(NRI), RUN_NRI, NRI, id="ours, by another name"),
        pytest.param("", OWN, "", id="no socket"),
    ],
)
def test_a_runtime_has_nri_if_a_socket_listens_where_runtimes_do(table: str, own: str, found: str) -> None:
    assert runtime_nri(lambda: HEAD + table, own) == found


def test_a_table_that_cannot_be_read_says_nothing() -> None:
    def read() -> str:
        raise PermissionError

    assert runtime_nri(read, OWN) == ""


def test_the_kernels_own_table_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "nri.sock")
    monkeypatch.setattr(unhosted, "RUNTIME_NRI_SOCKET", path)
    table = Path("/proc/net/unix")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert runtime_nri(table.read_text, OWN) == ""
        listener.listen()
        assert runtime_nri(table.read_text, OWN) == path
