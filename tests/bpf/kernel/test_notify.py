"""systemd is told if it asks to be; nothing that is wrong with its socket is our problem."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

from bpf.kernel.notify import notify, watchdog_period_s
from tests.agent import ROOT


@pytest.mark.parametrize("abstract", [False, True], ids=["a path", "an abstract name"])
def test_a_message_is_one_datagram(abstract: bool, folder: Path) -> None:
    address = f"@crs-{os.getpid()}" if abstract else str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        manager.settimeout(10)
        notify("READY=1\nSTATUS=placing", {"NOTIFY_SOCKET": address})
        assert manager.recv(1000) == b"READY=1\nSTATUS=placing"


def test_without_a_manager_nothing_is_sent() -> None:
    notify("READY=1", {})
    notify("READY=1", {"NOTIFY_SOCKET": ""})


#: All descriptors but the standard ones are refused.
NO_DESCRIPTORS = """
import resource
from bpf.kernel.notify import notify

resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
notify("WATCHDOG=1", {"NOTIFY_SOCKET": "/run/systemd/notify"})
print("goes on")
"""


def test_a_process_without_descriptors_tells_nothing_and_goes_on() -> None:
    command = [sys.executable, "-c", NO_DESCRIPTORS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("goes on\n", "")


def test_a_manager_that_is_gone_is_no_error(folder: Path) -> None:
    notify("READY=1", {"NOTIFY_SOCKET": str(folder / "missing")})


@pytest.mark.parametrize(
    ("micros", "period_s"),
    [("30000000", 15.0), ("1", 5e-7), ("0", None), ("", None), ("-5", None), ("soon", None), (None, None)],
)
def test_the_watchdog_is_fed_twice_in_its_time(micros: Optional[str], period_s: Optional[float]) -> None:
    assert watchdog_period_s({} if micros is None else {"WATCHDOG_USEC": micros}) == period_s
