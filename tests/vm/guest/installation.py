"""The package, from its installation to its purge. Standard library only: nothing else is there before it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

PRIVATE = Path("/usr/lib/cri-resmgr")
PACKAGE = "cri-resmgr"
SERVICE = "cri-resource-manager.service"
SOCKET_UNIT = "cri-resource-manager.socket"
OBSERVER = "cri-resmgr-observer.service"
CONFIG = Path("/etc/cri-resmgr/config.yaml")
#: A call must end within it at a restart, and so must the daemon. Emulation is twenty times slower than a node.
SLOW_CONFIG = "nri:\n  request_timeout: 20s\n"
SLOW_CONSTANTS = {"relay_drain_s": 30, "nri_registration_timeout_s": 20}
SLOW_UNIT = Path(f"/etc/systemd/system/{SERVICE}.d/slow.conf")
CONSTANTS_UNITS = [Path(f"/etc/systemd/system/{name}.d/constants.conf") for name in (SERVICE, OBSERVER)]
SLOW_LIMITS = "[Service]\nTimeoutStartSec=600\nWatchdogSec=300\n"
STATE = Path("/var/lib/cri-resmgr")
CONTROL = Path("/var/run/cri-resmgr/control.sock")
RELAY = Path("/var/run/cri-resmgr.sock")
#: Against a second, and 130 that dpkg took under emulation on two CPUs that eight others used.
COMMAND_TIMEOUT_S = 400


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command that must succeed, unless told otherwise; what it says is in the error."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{said}")
    return done


def unit(name: str) -> dict[str, str]:
    """What systemd knows of a unit."""
    properties = "ActiveState,SubState,MainPID,NRestarts,StatusText,Result"
    shown = run("systemctl", "show", name, f"--property={properties}").stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


def set_constants(**differ: float) -> None:
    """What daemon and observer are started with from now on, besides what emulation needs."""
    written = json.dumps({**SLOW_CONSTANTS, **differ})
    for path in CONSTANTS_UNITS:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Service]\nEnvironment='CRI_RESMGR_CONSTANTS={written}'\n")
    run("systemctl", "daemon-reload")


def private_modules() -> Path:
    """The folder from which the installed program imports."""
    found = sorted(PRIVATE.rglob("hpack/__init__.py"), key=lambda path: len(path.parts))
    assert found, f"no hpack below {PRIVATE}"
    return found[0].parent.parent


def files_of_the_package() -> list[str]:
    """Files that dpkg has put somewhere; folders left out."""
    listed = run("dpkg-query", "--listfiles", PACKAGE).stdout.splitlines()
    return [name for name in listed if not os.path.isdir(name) or os.path.islink(name)]


# --- checks


def the_package_installs(deb: Path) -> None:
    """By dpkg, which refuses where a dependency is not there."""
    run("dpkg", "--install", str(deb))
    status = run("dpkg-query", "--show", "--showformat=${db:Status-Status}", PACKAGE).stdout
    assert status == "installed", status
    print(run("cri-resmgr", "--version").stdout.strip())


def the_packages_units_are_sound() -> None:
    """Known to systemd, and nothing in them that it warns of."""
    said = run("systemd-analyze", "verify", "--man=no", SERVICE, SOCKET_UNIT, OBSERVER, check=False).stderr
    ours = [line for line in said.splitlines() if "cri-res" in line]
    assert not ours, "\n".join(ours)
