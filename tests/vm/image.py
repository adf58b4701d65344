"""What a virtual machine boots from: a Debian with systemd, containerd and Python, its kernel, and an initramfs.

Made of packages of the Debian mirror that this machine's apt uses, and kept in a folder named by a hash of what it
is made from. Needs root and the programs of ``NEEDED``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from tests.vm.kernel import INIT, unpack_kernel
from tests.vm.rootfs import prepare_root

#: Programs by the Debian package that has them; and by the guest's architecture.
NEEDED = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "depmod": "kmod",
}
NEEDED_FOR = {
    "amd64": {"qemu-system-x86_64": "qemu-system-x86"},
    "arm64": {
        "qemu-system-aarch64": "qemu-system-arm",
        "qemu-aarch64-static": "qemu-user-static",
        "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
        "dtc": "device-tree-compiler",
    },
}
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "kmod", "iproute2", "procps", "util-linux"),
    *("containerd", "runc", "containernetworking-plugins", "python3"),
    # What its pods and its first process are made of.
    "busybox-static",
)
IMAGE_MIB = 1500
#: Emulated, a package's scripts take minutes on a busy machine.
BUILD_TIMEOUT_S = 1800
#: Has the kernel start programs of another architecture.
EMULATE = Path(__file__).parents[2] / "tools" / "emulate"
_SOURCES = (
    Path(__file__),
    Path(__file__).with_name("kernel.py"),
    Path(__file__).with_name("rootfs.py"),
    INIT,
)
#: The kernel of the same suite, downloaded beside the tree and not installed: its scripts take longer than the rest.
_FETCH_KERNEL = """\
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
package=$(apt-cache depends {kernel} | sed -n 's/.*Depends: \\(linux-image-[0-9][^ ]*\\)/\\1/p' | head -n 1)
cd "{folder}" && apt-get -oAPT::Sandbox::User=root download "$package"
"""


@dataclass(frozen=True)
class System:
    """A Debian release; ``more`` packages besides those that every guest has."""

    suite: str
    more: tuple[str, ...] = ()
    architecture: str = "amd64"

    @property
    def name(self) -> str:
        """ "bookworm"; "bookworm-arm64"."""
        return self.suite if self.architecture == "amd64" else f"{self.suite}-{self.architecture}"

    @property
    def kernel(self) -> str:
        return f"linux-image-{self.architecture}"


#: Kernel 6.1, Python 3.11, containerd 1.6 (CRI v1), bcc 0.26; crun beside runc.
BOOKWORM = System("bookworm", ("python3-bpfcc", "crun"))
#: Kernel 5.10, Python 3.9, containerd 1.4 (CRI v1alpha2 only), bcc 0.18: as old as openEuler 22.03.
BULLSEYE = System("bullseye", ("python3-bpfcc",))
BOOKWORM_ARM64 = replace(BOOKWORM, architecture="arm64")
BULLSEYE_ARM64 = replace(BULLSEYE, architecture="arm64")
SYSTEMS = {system.name: system for system in (BOOKWORM, BULLSEYE, BOOKWORM_ARM64, BULLSEYE_ARM64)}


@dataclass(frozen=True)
class Image:
    """The files of one."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs"

    @property
    def busybox(self) -> Path:
        """The guest's, static."""
        return self.folder / "busybox"


def missing(architecture: str = "amd64") -> str:
    """What this machine lacks to build and boot one, as a sentence for a skip; "" if nothing."""
    if os.geteuid() != 0:
        return "The image of a virtual machine is built as root."
    needed = {**NEEDED, **NEEDED_FOR[architecture]}
    lacking = sorted(package for program, package in needed.items() if shutil.which(program) is None)
    return f"Not installed for virtual machines: {', '.join(lacking)}." if lacking else ""


def image(system: System, cache: Path) -> Image:
    """The image, made if it is not there; another process that makes it is waited for.

    :raises RuntimeError: a program failed, e.g. as the mirror could not be reached.
    """
    folder = cache / f"{system.name}-{_fingerprint(system)}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{system.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # A hash has twelve digits: "bookworm-arm64-..." is no old "bookworm".
            for old in (*cache.glob(f"{system.name}-{'?' * 12}"), *cache.glob(f"{system.name}-unfinished")):
                shutil.rmtree(old)
            unfinished = cache / f"{system.name}-unfinished"
            unfinished.mkdir()
            _build(system, unfinished)
            unfinished.rename(folder)
    return Image(folder)


def _fingerprint(system: System) -> str:
    """Of all that an image is made from, but for the packages' versions: the mirror's newest are as good."""
    digest = hashlib.sha256(repr((system, PACKAGES, IMAGE_MIB)).encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _build(system: System, folder: Path) -> None:
    if system.architecture != "amd64":
        _run(str(EMULATE), system.architecture)
    # 1. The packages in a folder, and the kernel's beside it.
    tree = folder / "tree"
    fetch = _FETCH_KERNEL.format(kernel=system.kernel, folder=folder)
    command = [
        *(
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--architectures={system.architecture}",
            f"--include={','.join(PACKAGES + system.more)}",
        ),
        '--aptopt=APT::Install-Recommends "false"',
        # An old release is signed no more.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
        f"--customize-hook={fetch}",
        *(system.suite, str(tree), _mirror()),
    ]
    _run(*command)
    # 2. Settings of the guest, and the disk.
    prepare_root(tree)
    _run(
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-O",
        "^has_journal",
        "-d",
        str(tree),
        str(folder / "disk"),
        f"{IMAGE_MIB}M",
    )
    # 3. The kernel.
    package = next(folder.glob("linux-image-*.deb"))
    shutil.copy(tree / "bin" / "busybox", folder / "busybox")
    unpack_kernel(package, folder / "busybox", folder)
    package.unlink()
    shutil.rmtree(tree)


def _mirror() -> str:
    """Where this system's apt finds Debian; the official mirror where this is another system."""
    uris = subprocess.run(
        ["apt-get", "--print-uris", "update"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"'(\S+/debian)/dists/[a-z]+/", uris)
    return found[1] if found else "http://deb.debian.org/debian"


def _run(*command: str) -> None:
    """Its output is shown only if it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed ({done.returncode}): {done.stderr[-3000:]}")
