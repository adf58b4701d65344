"""Where it is known from the beginning that no plugins are hosted, what hosts them is not loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy.nri.io.host.detection import unhosted_because
from tests.nri.io.host.plugins import REPOSITORY

OWN, THEIRS = "/var/run/cri-resmgr/nri/nri.sock", "/var/run/nri/nri.sock"
LISTENS = f"Num\n0000000000000000: 00000002 00000000 00010000 0001 01 48417 {THEIRS}\n"


@pytest.mark.parametrize(
    ("wanted", "sockets", "why"),
    [
        pytest.param("off", "", "nri.host is off", id="off"),
        pytest.param("on", LISTENS, "", id="on, whatever the runtime has"),
        pytest.param(
            "auto", LISTENS, f"the runtime has NRI itself: it listens on {THEIRS}", id="NRI is there"
        ),
        pytest.param("auto", "", "", id="the runtime may not be there yet"),
    ],
)
def test_it_is_known_why_there_is_no_host(wanted: str, sockets: str, why: str) -> None:
    assert unhosted_because(wanted, lambda: sockets, OWN) == why


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
    assert loaded == {"detection", "intent_log", "unhosted"}
