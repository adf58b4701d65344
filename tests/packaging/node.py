"""A Debian system in a folder as a node: its systemd runs, in namespaces of its own, before a runtime of the tests.

All its processes are in one cgroup below the machine's, and end with it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from policies.machine.topology_json import write_topology
from tests.e2e.cgroups import cgroup_mounts, remove_cgroup
from tests.machines import HYGON_7285_2S, machine
from tests.packaging.roots import NODE_PACKAGES, REPOSITORY, Root

RUNTIME = "/run/containerd/containerd.sock"
WAIT_S = 300.0
CONFIG = "topology:\n  source: /srv/machine.json\n"
#: $0: the cgroup's procs, $1: the root. What comes after is of namespaces that begin empty.
_ENTER = """
echo $$ >"$0"
exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child sh -euc "$2" "$1"
"""
_BOOT = """
mount --make-rprivate /
cd "$0"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ip link set lo up
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set -sys_module,-sys_time,-sys_boot,-mac_admin,-mac_override,-syslog chroot . /lib/systemd/systemd
"""
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "TERM": "xterm-256color",
    "DEBIAN_FRONTEND": "noninteractive",
    "SYSTEMD_PAGER": "",
}


class Node:
    """``root`` has its files, ``pid`` is its systemd. It has a network of its own, and sets nothing of the kernel's."""

    def __init__(self, root: Root, pid: int) -> None:
        self.root, self._pid = root, pid

    def beside(self, *words: str) -> list[str]:
        """What runs ``words``, programs of this machine, on the node's network and with its ``/run``.

        A socket has the name that it was bound by: what listens there for the node's programs needs the node's names.
        """
        network = ["nsenter", f"--target={self._pid}", "--net", "--"]
        run = [
            "unshare",
            "--mount",
            "sh",
            "-euc",
            'mount --bind "$0" /run; exec "$@"',
            str(self.root.path / "run"),
        ]
        return [*network, *run, *words]

    def command(self, *words: str) -> list[str]:
        """What runs ``words`` on it."""
        return ["nsenter", f"--target={self._pid}", "--all", "--root", "--wdns=/root", "--", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """``words``, which go on; both channels are in ``stdout``."""
        return subprocess.Popen(
            self.command(*words),
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, line: str, code: int = 0, answer: str = "y\n" * 3) -> str:
        """What a line of shell prints, on both channels; asked whether to go on, an operator says yes."""
        done = subprocess.run(
            self.command("bash", "-c", line),
            env=_ENVIRONMENT,
            input=answer,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}{self._journal()}"
        return done.stdout

    def describe_machine(self) -> None:
        """In our configuration: the machine is small, and the described one is not."""
        self.root.write("/srv/machine.json", json.dumps(write_topology(machine(HYGON_7285_2S))))
        self.root.write("/etc/cri-resmgr/config.yaml", CONFIG)

    def of_ours(self) -> set[str]:
        """Files and groups that a package of ours has brought; what is in /root is the tests'."""
        files = (name for name in self.root.files() if not name.startswith("root/"))
        groups = self.root.read("/etc/group").splitlines()
        return {name for name in (*files, *groups) if "cri-res" in name}

    def _journal(self) -> str:
        command = self.command("journalctl", "--no-pager", "--lines=60", "--output=cat")
        return "\n" + subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def booted(suite: str) -> Iterator[Node]:
    """A node of that Debian, on which nothing of ours is installed.

    :raises LookupError: the mirror does not give it.
    """
    (hierarchy,) = [mount for mount, names in cgroup_mounts() if not names]
    with tempfile.TemporaryDirectory(prefix="cri-node-") as folder, contextlib.ExitStack() as stack:
        root = Root(suite, Path(folder), NODE_PACKAGES)
        stack.callback(root.close)
        # Of both mount namespaces, so that sockets in it are reached from here.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root.path / "run")], check=True)
        root.write("/etc/machine-id", "")
        cgroup = hierarchy / Path(folder).name
        cgroup.mkdir()
        stack.callback(lambda: remove_cgroup(cgroup, time.monotonic() + WAIT_S))
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "sh",
            "-euc",
            _ENTER,
            str(cgroup / "cgroup.procs"),
            str(root.path),
            _BOOT,
        ]
        with open(Path(folder) / "console", "wb") as console:
            outside = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        stack.callback(_end, outside)
        node = Node(root, _init_of(outside, Path(folder) / "console"))
        stack.enter_context(_runtime(node))
        yield node


def _end(outside: subprocess.Popen[bytes]) -> None:
    # Its only child is the first process of the node, and takes all others along.
    outside.kill()
    outside.wait()


def _init_of(outside: subprocess.Popen[bytes], console: Path) -> int:
    """The first process of the node, as soon as its systemd has started what it starts at boot."""
    children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and outside.poll() is None:
        found = children.read_text().split()
        if found and Path(f"/proc/{found[0]}/comm").read_text() == "systemd\n":
            command = ["nsenter", f"--target={found[0]}", "--all", "--root", "--"]
            command += ["systemctl", "is-system-running", "--wait"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.stdout.strip() in ("running", "degraded"):
                return int(found[0])
        time.sleep(0.02)
    raise AssertionError(f"the node does not boot:\n{console.read_text(errors='replace')}")


@contextlib.contextmanager
def _runtime(node: Node) -> Iterator[None]:
    """The tests' runtime, where containerd's socket is."""
    (node.root.path / RUNTIME.lstrip("/")).parent.mkdir()
    command = node.beside(sys.executable, "-m", "tests.packaging.runtime", RUNTIME)
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
