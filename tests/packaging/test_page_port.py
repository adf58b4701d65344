"""The unit of the page under systemd itself, beside another user's process that wants its port."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.packaging.node import WAIT_S, Node, booted
from tests.systemd.units import WEB

pytestmark = pytest.mark.packages

Found = TypeVar("Found")

#: Tries to listen where the page does, for as long as it runs, and says once it can.
RIVAL = """
import os, socket
print(os.getpid(), flush=True)
while True:
    rival = socket.socket()
    rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        rival.bind(("127.0.0.1", 8895))
        rival.listen()
        break
    except OSError:
        rival.close()
open("/tmp/rival/listens", "w").close()
rival.accept()[0].recv(9)
"""
#: Asks with a token, as a page does.
ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request("http://127.0.0.1:8895/api/explain", headers={"Authorization": f"Bearer {sys.argv[1]}"})
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    print(error.code)
"""
AS_NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"
GOOD, BAD = "400", "401"  # no container is named; the token is another one


@pytest.fixture
def node(package: Callable[..., Path]) -> Iterator[Node]:
    file = package("deb")
    try:
        with booted("bookworm") as found:
            shutil.copyfile(file, found.root.path / "root" / file.name)
            found.type(f"dpkg -i {file.name}")
            found.root.write("/srv/rival.py", RIVAL)
            found.root.write("/srv/ask.py", ASK)
            found.type("mkdir -m 0777 /tmp/rival")
            yield found
    except LookupError as error:
        pytest.skip(str(error))


def test_no_other_user_can_listen_while_the_unit_restarts_and_a_stopped_units_token_is_dead(
    node: Node,
) -> None:
    node.type(f"systemctl start {WEB}")
    token = _token(node)
    assert _answer(node, token) == GOOD
    node.type(f"{AS_NOBODY} test -r /run/cri-resmgr-web/url", code=1)
    rival = node.start("sh", "-c", f"exec {AS_NOBODY} python3 /srv/rival.py")
    assert rival.stdout is not None
    process_there = int(rival.stdout.readline())
    try:
        # 1. A restart as an upgrade makes it, and an end that is none of its own: the port is never free.
        for end in (f"systemctl try-restart {WEB}", f"systemctl kill --signal=KILL {WEB}"):
            process = _process(node)
            node.type(end)
            _until(node, partial(_is_another, node, process), "another process")
            assert _answer(node, token) == GOOD
            assert _token(node) == token
            assert not _has_port(node)
        # 2. A stop gives the port up: whatever a page sends there now is nobody's token any more.
        node.type(f"systemctl stop {WEB}")
        _until(node, partial(_has_port, node), "the rival's turn")
        node.type(f"systemctl start {WEB}")  # it fails, and is tried again
        assert "no page is served" in node.type("cri-resmgr web --url", code=1)
    finally:
        node.type(f"kill {process_there}")
        rival.communicate(timeout=WAIT_S)
    assert _answer(node, _token(node)) == GOOD
    assert _answer(node, token) == BAD


def _token(node: Node) -> str:
    """As soon as it is written: by Type=exec the unit is active before."""
    return _until(
        node, lambda: node.type("cri-resmgr web --url || :").strip().partition("#token=")[2], "a token"
    )


def _answer(node: Node, token: str) -> str:
    return node.type(f"python3 /srv/ask.py {token}").strip()


def _process(node: Node) -> str:
    return node.type(f"systemctl show --property=MainPID --value {WEB}").strip()


def _is_another(node: Node, before: str) -> bool:
    return _process(node) not in ("0", before)


def _has_port(node: Node) -> bool:
    return (node.root.path / "tmp/rival/listens").exists()


def _until(node: Node, look: Callable[[], Found], what: str) -> Found:
    """What a look finds, as soon as it is something."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"never: {what}\n{node.type('journalctl --no-pager -n 40')}"
        time.sleep(0.05)
    return found
