"""QEMU with resctrl, built of Debian's source and kept: a machine of the tests that the kernel takes for one with RDT.

Its source is fetched from the Debian mirror by name and hash, edited (edit.py), and only x86_64-softmmu is built, with the
few devices of ``tests/vm``. Kept in ``.cache/qemu-HASH``, of all that it is made from.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Callable

from tests.vm.qemu.edit import CPU, EDITS, edited

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache"
SOURCE = "http://deb.debian.org/debian/pool/main/q/qemu/qemu_7.2+dfsg.orig.tar.xz"
SHA256 = "91aca71520040edc40b8d437aa3004dae614f58e286cf653ee8996c07af2962f"
PROGRAM = "qemu-system-x86_64"
RESCTRL, DEVICES = HERE / "resctrl.c", HERE / "devices.mak"
CONFIGURE = (
    *("--target-list=x86_64-softmmu", "--without-default-features", "--without-default-devices"),
    *("--with-devices-x86_64=tests", "--enable-tcg", "--enable-fdt=system"),
    *("--enable-virtfs", "--enable-attr", "--enable-cap-ng", "--enable-plugins"),
    *("--disable-install-blobs", "--disable-debug-info", "--disable-werror", "--disable-docs", "--disable-tools"),
)  # fmt: skip
#: Programs that the build calls, by the Debian package that has them; make installs the libraries.
NEEDED = {"meson": "meson", "ninja": "ninja-build", "gcc": "gcc", "pkg-config": "pkg-config"}
FETCH_TIMEOUT_S = 120
#: Against 17 minutes on two CPUs beside a load of 15.
BUILD_TIMEOUT_S = 3600
MOST_SAID = 2000


class Unavailable(Exception):
    """It cannot be built on this machine; says why."""


def kept(cache: Path = CACHE) -> Path:
    """Where the program is once it is built of what stands here now."""
    digest = hashlib.sha256(repr((SHA256, EDITS, CONFIGURE)).encode())
    for path in (RESCTRL, DEVICES):
        digest.update(path.read_bytes())
    return cache / f"qemu-{digest.hexdigest()[:12]}" / PROGRAM


def missing(cache: Path = CACHE) -> str:
    """Why there is no such QEMU here, as a sentence for a skip; "" if there is one."""
    return "" if kept(cache).exists() else "QEMU with resctrl is not built here: make resctrl-qemu builds it."


def build(say: Callable[[str], None], cache: Path = CACHE) -> Path:
    """The program; built if it is not kept. Another process that builds it is waited for.

    :raises Unavailable: a program is not installed, the source cannot be had or is another one, or a command failed.
    """
    program = kept(cache)
    program.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(program.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            lacking = sorted(package for name, package in NEEDED.items() if shutil.which(name) is None)
            if lacking:
                raise Unavailable(f"not installed: {', '.join(lacking)}")
            say("building QEMU 7.2 with resctrl: ten to twenty minutes, once")
            with tempfile.TemporaryDirectory(prefix="qemu-", dir=cache) as scratch:
                _build(Path(scratch), program)
            for old in cache.glob(f"qemu-{'?' * 12}"):
                if old != program.parent:
                    shutil.rmtree(old)
    finally:
        os.close(lock)
    return program


def _build(scratch: Path, program: Path) -> None:
    # 1. The source.
    archive = scratch / "source.tar.xz"
    archive.write_bytes(_source())
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    tree = next(path for path in scratch.iterdir() if path.is_dir())
    # 2. What is ours in it.
    for name, edits in EDITS.items():
        path = tree / name
        try:
            path.write_text(edited(name, path.read_text(), edits))
        except (OSError, ValueError) as reason:
            raise Unavailable(f"the source of QEMU cannot be edited: {reason}") from None
    shutil.copy(RESCTRL, (tree / CPU).with_name(RESCTRL.name))
    shutil.copy(DEVICES, tree / "configs" / "devices" / "x86_64-softmmu" / "tests.mak")
    # 3. The program, without its symbols.
    _run(tree, "./configure", *CONFIGURE)
    _run(tree, "nice", "ninja", "-C", "build", PROGRAM)
    _run(tree, "strip", "-o", str(program.with_suffix(".new")), f"build/{PROGRAM}")
    program.with_suffix(".new").rename(program)


def _source() -> bytes:
    try:
        with urllib.request.urlopen(SOURCE, timeout=FETCH_TIMEOUT_S) as reply:
            source: bytes = reply.read()
    except OSError as reason:
        raise Unavailable(f"{SOURCE} cannot be fetched: {reason}") from None
    found = hashlib.sha256(source).hexdigest()
    if found != SHA256:
        raise Unavailable(f"{SOURCE} has the SHA-256 {found}, expected {SHA256}")
    return source


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S, stdin=subprocess.DEVNULL
    )  # fmt: skip
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-MOST_SAID:]
        raise Unavailable(f"{' '.join(command[:4])} failed ({done.returncode}): {said}")
