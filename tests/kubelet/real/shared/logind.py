"""The machine's own logind, on a bus of the tests': kubelet asks it for time, and is told that the machine goes down.

dbus-daemon and systemd-logind are Debian's. logind sees no device of the machine and no folder of the system's; there
is no service manager on the bus, so it could end nothing. The signal alone is sent by the test: logind's own order
would be that to a service manager.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Optional

LOGIND = Path("/lib/systemd/systemd-logind")
NAME, OBJECT = "org.freedesktop.login1", "/org/freedesktop/login1"
START_TIMEOUT_S = 60.0
_BUS = """\
<busconfig>
  <type>system</type>
  <listen>{address}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
  </policy>
</busconfig>
"""
#: It has a /run of its own and empty folders where devices are: of seats and terminals it finds none.
_START = """
mount --bind "$0" /run
mkdir -p /run/systemd
for folder in /sys/class /sys/bus; do mount -t tmpfs tmpfs $folder; done
mkdir /run/dev && mknod -m 666 /run/dev/null c 1 3 && mount --bind /run/dev /dev
exec "$@"
"""


class Logind:
    """``address``: of the bus, for kubelet's environment; nothing listens there before `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix:path={folder}/bus"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both, and wait until logind answers.

        :raises AssertionError: one is not installed or has ended, or it took too long; with what they have said.
        """
        assert shutil.which("dbus-daemon") is not None, "dbus-daemon is not installed"
        assert LOGIND.exists(), "systemd is not installed"
        config = self._folder / "bus.conf"
        config.write_text(_BUS.format(address=self.address))
        self._spawn("dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile")
        self._wait(lambda: (self._folder / "bus").exists())
        (self._folder / "run").mkdir()
        apart = ("unshare", "--mount", "--ipc", "--propagation", "slave")
        self._spawn(*apart, "sh", "-ec", _START, str(self._folder / "run"), str(LOGIND))
        self._wait(lambda: self._ask("Get", "string:InhibitDelayMaxUSec") is not None)

    def inhibitors(self) -> str:
        """Which programs hold which locks, as logind lists them."""
        return self._call("org.freedesktop.login1.Manager.ListInhibitors") or ""

    def prepare_for_shutdown(self) -> None:
        """Send what logind sends when the machine begins to go down.

        Not that it does not after all: then kubelet closes its old lock a second time, which may be the new one.
        """
        member = f"{NAME}.Manager.PrepareForShutdown"
        self._run("dbus-send", "--system", "--type=signal", OBJECT, member, "boolean:true")

    def close(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn(self, *command: str) -> None:
        with (self._folder / "log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self._environment()))

    def _wait(self, is_done: object) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_done():  # type: ignore[operator]
            ended = [process.args for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"ended: {ended}\n{(self._folder / 'log').read_text(errors='replace')}")
            time.sleep(0.05)

    def _ask(self, *words: str) -> Optional[str]:
        return self._call("org.freedesktop.DBus.Properties.Get", f"string:{NAME}.Manager", *words[1:])

    def _call(self, member: str, *words: str) -> Optional[str]:
        """What logind answers; None where it does not."""
        try:
            return self._run(
                "dbus-send", "--system", "--print-reply", f"--dest={NAME}", OBJECT, member, *words
            )
        except subprocess.CalledProcessError:
            return None

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=self._environment())
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": self.address}
