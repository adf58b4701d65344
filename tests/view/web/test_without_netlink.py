"""What Chromium is started by here: it gets no netlink socket, and all others."""

from __future__ import annotations

import subprocess
import sys

from tests.view.web.browser import WITHOUT_NETLINK

TRY = """
import errno, socket
socket.socket(socket.AF_UNIX).close()
socket.socket(socket.AF_INET).close()
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def test_it_gets_all_sockets_but_those_of_netlink() -> None:
    words = [sys.executable, str(WITHOUT_NETLINK), sys.executable, "-c", TRY]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "EAFNOSUPPORT\n"
