"""The cluster's installer on this node as its Job runs it: an image's root, the host at /host, all processes in sight."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Optional

from cluster.installer.job import install_job, uninstall_job
from tests.vm.guest.installation import PACKAGE, RELAY, SERVICE, SOCKET_UNIT, STATE, run, unit
from tests.vm.guest.kubelet import CONFIG, FILES, FLAGS, KUBELET, PROGRAM, kubelet_runs
from tests.vm.guest.node import Node

IMAGE, TREE = Path("/run/installer-image"), Path("/run/installer-tree")
CARRIED = "usr/share/cri-resmgr/packages"
RECORD = Path("/var/lib/cri-resmgr-installer")
#: Emulation is twenty times slower than a node.
SLOW = "[Service]\nTimeoutStartSec=600\nWatchdogSec=300\n"
DROP_INS = Path(f"/etc/systemd/system/{SERVICE}.d")
#: The distribution's Python stands for the image's, which is the same Debian's; the program is the package's.
_ENTER = """\
mount -t overlay overlay -o lowerdir={tree}:/ {image}
mount --rbind / {image}/host
for name in proc sys dev; do mount --rbind /$name {image}/$name; done
mount -t tmpfs tmpfs {image}/run
exec chroot {image} "$@"
"""
#: What no installer is asked to give back: the package manager's own books, logs, and what the kernel makes.
_NOT_COMPARED = (
    *("/proc", "/sys", "/dev", "/run", "/job", "/tmp", "/var/tmp", "/var/log", "/var/cache"),
    *("/var/lib/containerd", "/var/lib/dpkg", "/var/lib/systemd"),
)
#: Their content counts; of all other files the size and the time are believed.
_READ = ("/etc/", "/var/lib/kubelet/", "/usr/lib/systemd/", "/usr/bin/kubelet")


async def the_installer_installs_a_node_restarts_nothing_for_the_same_bytes_and_leaves_it_as_it_was(
    node: Node,
) -> None:
    """Package, units, kubelet, a doctor without a problem: on a node that has a kubelet and no package of ours."""
    prepare(node, node.job)
    had = listed()
    # 1. The first time.
    said = job("install")
    assert "doctor: no problem" in said, said
    status = run("dpkg-query", "--show", "--showformat=${db:Status-Status}", PACKAGE).stdout
    assert status == "installed", status
    assert run("systemctl", "is-enabled", SOCKET_UNIT, SERVICE).stdout.split() == ["enabled"] * 2
    assert f"unix://{RELAY}" in FLAGS.read_text()
    # 2. Again.
    running = started()
    said = job("install")
    assert "installed already, nothing was changed" in said, said
    assert started() == running
    # 3. Back.
    job("uninstall")
    the_same(had)
    clean()


async def a_package_that_is_broken_is_taken_back(node: Node) -> None:
    await _taken_back(node, {}, "package installed", node.job / "broken")


async def a_unit_that_does_not_start_is_taken_back(node: Node) -> None:
    drop_in = {f"{DROP_INS}/fails.conf": "[Service]\nExecStartPre=/bin/false\n"}
    await _taken_back(node, drop_in, "units started")


async def a_kubelet_that_does_not_come_back_is_taken_back(node: Node) -> None:
    refuses = FILES[PROGRAM].replace(
        "\nsignal.pause()", '\n"cri-resmgr" in sys.argv[-2] and sys.exit(1)\nsignal.pause()'
    )
    assert refuses != FILES[PROGRAM]
    await _taken_back(node, {PROGRAM: refuses}, "kubelet switched")


async def a_problem_that_the_doctor_finds_has_it_taken_back(node: Node) -> None:
    other = {"systemd": "cgroupfs", "cgroupfs": "systemd"}[node.driver]
    await _taken_back(node, {CONFIG: f"{FILES[CONFIG]}cgroupDriver: {other}\n"}, "doctor: ")


async def _taken_back(node: Node, files: dict[str, str], why: str, packages: Optional[Path] = None) -> None:
    prepare(node, packages or node.job, files)
    had = listed()
    last = job("install", fails=True)
    assert why in last and last.endswith("the node is as it was"), last
    the_same(had)
    clean()


# --- the node


def prepare(node: Node, packages: Path, files: Optional[dict[str, str]] = None) -> None:
    """A kubelet that runs and points at the runtime, and the image with the deb of a folder."""
    if run("dpkg-query", "--show", PACKAGE, check=False).returncode == 0:
        run("dpkg", "--purge", PACKAGE)
    for name, text in {**FILES, f"{DROP_INS}/slow.conf": SLOW, **(files or {})}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path(PROGRAM).chmod(0o755)
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", KUBELET)
    (deb,) = packages.glob("cri-resmgr_*.deb")
    if not TREE.exists():
        (whole,) = node.job.glob("cri-resmgr_*.deb")
        run("dpkg-deb", "--extract", str(whole), str(TREE))
        for name in (CARRIED, "host"):
            (TREE / name).mkdir(parents=True)
        IMAGE.mkdir()
    for old in (TREE / CARRIED).iterdir():
        old.unlink()
    shutil.copy(deb, TREE / CARRIED)


def clean() -> None:
    """Without a kubelet again."""
    run("systemctl", "stop", KUBELET)
    for name in FILES:
        Path(name).unlink()
    shutil.rmtree(DROP_INS)
    run("systemctl", "daemon-reload")


def job(action: str, fails: bool = False) -> str:
    """What the Job's container does; returns its last words."""
    made = {"install": install_job, "uninstall": uninstall_job}[action]("node", "image")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    enter = _ENTER.format(tree=TREE, image=IMAGE)
    # A pod has namespaces of its own, but for the processes'.
    own = ("unshare", "--mount", "--uts", "--ipc", "--net")
    done = run(*own, "sh", "-euc", enter, "sh", *container["command"], check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == (1 if fails else 0), done.stdout + done.stderr
    return done.stdout.strip()


def started() -> list[str]:
    """Which processes of the units and of kubelet there are, and since when."""
    properties = "--property=MainPID,ActiveEnterTimestampMonotonic,NRestarts"
    return [run("systemctl", "show", name, properties).stdout for name in (SOCKET_UNIT, SERVICE, KUBELET)]


def the_same(had: dict[str, str]) -> None:
    """Files are as they were, and so is what runs."""
    now = listed()
    differs = {
        name: (had.get(name), now.get(name))
        for name in had.keys() | now.keys()
        if had.get(name) != now.get(name)
    }
    assert differs == {}
    assert run("dpkg-query", "--show", PACKAGE, check=False).returncode != 0
    assert unit(SERVICE)["ActiveState"] != "active"
    assert not (RELAY.exists() or RECORD.exists() or STATE.exists())
    kubelet_runs()


def listed() -> dict[str, str]:
    """Every file: mode, owner, and its content or what tells of it."""
    found = {}
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in _NOT_COMPARED]
        for path in (os.path.join(folder, name) for name in (*folders, *names)):
            if "__pycache__" not in path:
                found[path] = _told(path)
    return found


def _told(path: str) -> str:
    status = os.lstat(path)
    owned = f"{status.st_mode:o} {status.st_uid}:{status.st_gid}"
    if os.path.islink(path):
        return f"{owned} -> {os.readlink(path)}"
    if os.path.isdir(path):
        return owned
    if path.startswith(_READ):
        return f"{owned} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    return f"{owned} {status.st_size} {status.st_mtime_ns}"
