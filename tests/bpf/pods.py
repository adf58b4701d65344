"""Small pods for the tests of attribution: cgroups, network namespaces and processes of their own, all real."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = CGROUPS / "unified"
CPUSET = CGROUPS / "cpuset"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups and network namespaces: needs root")
needs_hybrid = pytest.mark.skipif(
    os.geteuid() != 0 or not (UNIFIED / "cgroup.controllers").exists() or not CPUSET.is_dir(),
    reason="needs root and a host with cgroup v1 and v2 (/sys/fs/cgroup/unified)",
)


def container_id() -> str:
    """A new id, as runtimes make them."""
    return secrets.token_hex(32)


def pod_uid() -> str:
    """A new pod UID, of the usual shape."""
    digits = secrets.token_hex(16)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Talker:
    """A Python process that runs the lines it is given: ``talker.do("import socket; ...")`` answers its ``print``s."""

    def __init__(self, cgroups: list[Path], netns: str = "") -> None:
        code = "import sys, traceback\nnames = {}\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
        code += "    try:\n        exec(line.replace(chr(1), chr(10)), names)\n"
        code += "    except BaseException:\n        traceback.print_exc()\n    print(chr(2), flush=True)\n"
        prefix = ["ip", "netns", "exec", netns] if netns else []
        # The shell joins the cgroups before Python starts: sockets belong to the cgroup of their maker.
        joins = "".join(f"echo $$ > {cgroup}/cgroup.procs; " for cgroup in cgroups)
        command = ["sh", "-c", f'{joins}exec "$@"', "sh", *prefix, sys.executable, "-c", code]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout and self._process.stdout.readline() == "ready\n"
        self.pid = self._process.pid

    def do(self, code: str) -> str:
        """Run code in the process; what it printed."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(code.replace("\n", "\1") + "\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line == "\2\n":
                break
            lines.append(line)
        answer = "".join(lines)
        assert "Traceback" not in answer, answer
        return answer.strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Host:
    """Makes pods and takes everything away again. ``v2``: whether containers get a cgroup in the v2 tree."""

    def __init__(self, v2: bool = True) -> None:
        self._name = f"crm{secrets.token_hex(3)}"
        self._roots = [UNIFIED, CPUSET] if v2 else [CPUSET]
        self._stack = ExitStack()
        self._namespaces = 0
        self.cgroups("kubepods")

    def run(self, command: str) -> None:
        """A command of the host's."""
        subprocess.run(["sh", "-ec", command], check=True, capture_output=True)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call something when all is taken away, the last first."""
        self._stack.callback(callback)

    def run_on_close(self, command: str) -> None:
        """Run a command then."""
        self._stack.callback(subprocess.run, ["sh", "-c", command], check=False, capture_output=True)

    def rewrite(self, rule: str) -> None:
        """A rule of the nat table, until all is taken away."""
        self.run_on_close(f"iptables -w -t nat -D {rule}")
        self.run(f"iptables -w -t nat -A {rule}")

    def namespace(self) -> str:
        """A new network namespace with loopback up. Its name, at most 12 characters."""
        if shutil.which("ip") is None:
            pytest.skip("makes network namespaces: needs iproute2")
        name = f"{self._name}n{self._namespaces}"
        self._namespaces += 1
        self.run(f"ip netns add {name}; ip -n {name} link set lo up")
        self.run_on_close(f"ip netns del {name}")
        return name

    def join(self, name: str, bridge: str, address: str, gateway: str = "") -> None:
        """Connect a namespace to a bridge of the host's."""
        outside = f"v{name}"[:15]
        self.run(
            f"ip link add {outside} type veth peer name eth0 netns {name}; ip link set {outside} master {bridge} up; "
            f"ip -n {name} addr add {address} dev eth0 nodad; ip -n {name} link set eth0 up"
        )
        # Not left to the namespace's end: sockets that still say goodbye to a dead peer keep it for minutes.
        self.run_on_close(f"ip link del {outside}")
        if gateway:
            self.run(f"ip -n {name} route add default via {gateway}")

    def bridge(self, *addresses: str) -> str:
        """A bridge with these addresses (with prefix lengths)."""
        name = f"{self._name}b"
        self.run(f"ip link add {name} type bridge; ip link set {name} up")
        self.run_on_close(f"ip link del {name}")
        for address in addresses:
            self.run(f"ip addr add {address} dev {name} {'nodad' if ':' in address else ''}")
        return name

    def cgroups(self, path: str) -> list[Path]:
        """The cgroups with this path below one of this host's own, made where they are missing."""
        made = []
        for root in self._roots:
            cgroup = root
            for component in (self._name, *path.split("/")):
                cgroup = cgroup / component
                cgroup.mkdir(exist_ok=True)
                self._fill_cpuset(cgroup)
            made.append(cgroup)
        return made

    def start(self, container: str, pod: str, netns: str = "", below: str = "") -> Talker:
        """A process in a container (``below``: in a cgroup inside it)."""
        path = f"kubepods/burstable/pod{pod}/{container}" + (f"/{below}" if below else "")
        talker = Talker(self.cgroups(path), netns)
        self._stack.callback(talker.close)
        return talker

    def start_outside(self, netns: str = "") -> Talker:
        """A process of the host's own."""
        talker = Talker([], netns)
        self._stack.callback(talker.close)
        return talker

    def root(self, folder: Path, with_v2: bool = True) -> str:
        """A cgroup root that shows only this host's cgroups."""
        for hierarchy in self._roots:
            if hierarchy != UNIFIED or with_v2:
                link = folder / hierarchy.name
                link.symlink_to(hierarchy / self._name)
        return str(folder)

    def close(self) -> None:
        self._stack.close()
        for root in self._roots:
            top = root / self._name
            folders = sorted((Path(folder) for folder, _, _ in os.walk(top)), key=lambda f: -len(f.parts))
            for folder in folders:
                with suppress(FileNotFoundError):
                    folder.rmdir()

    def _fill_cpuset(self, folder: Path) -> None:
        """A cpuset of v1 takes processes only when it has CPUs and memory nodes."""
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = folder / name
            if file.exists() and not file.read_text().strip():
                file.write_text((folder.parent / name).read_text())
