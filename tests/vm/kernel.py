"""What QEMU boots: the kernel out of Debian's package, and an initramfs with the modules it needs.

On x86-64 the kernel is an ELF file, which starts in seconds where a bzImage would first unpack itself under emulation;
Debian's of arm64 is not packed.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import tempfile
from pathlib import Path

INIT = Path(__file__).parent / "guest" / "init"
#: Disk, folders of the host, root in memory; pods' network; what iptables and kubelet's like ask for.
MODULES = (
    *("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "crc32c_generic", "ext4", "overlay", "bfq"),
    *("veth", "bridge", "inet_diag", "tcp_diag", "udp_diag", "unix_diag"),
    # Clocks, where the firmware has some (tests/vm/acpi.py); their governors.
    *("cpufreq_powersave", "acpi_cpufreq"),
)
APPLETS = ("sh", "mount", "mkdir", "insmod", "switch_root", "echo", "ln")
FOLDERS = ("bin", "dev", "proc", "sys", "disk", "memory", "root", "modules")
_XZ = b"\xfd7zXZ\x00"
_ELF = b"\x7fELF"
#: Of an arm64 Image, at byte 56 (Documentation/arm64/booting.rst).
_ARM64, _ARM64_AT = b"ARM\x64", 56


def unpack_kernel(package: Path, busybox: Path, folder: Path) -> None:
    """Write ``vmlinux`` and ``initramfs`` of Debian's linux-image package into a folder. ``busybox``: the guest's, static.

    :raises ValueError: there is no kernel in it, or a module that is needed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = Path(scratch)
        subprocess.run(["dpkg-deb", "-x", str(package), str(tree)], check=True)
        compressed = next((tree / "boot").glob("vmlinuz-*"), None)
        if compressed is None:
            raise ValueError(f"{package} holds no kernel; expected /boot/vmlinuz-VERSION")
        (folder / "vmlinux").write_bytes(bootable(compressed.read_bytes()))
        version = compressed.name.split("-", 1)[1]
        subprocess.run(["depmod", "--basedir", str(tree), version], check=True)
        modules = tree / "lib" / "modules" / version
        order = load_order((modules / "modules.dep").read_text(), MODULES)
        _write_initramfs([modules / path for path in order], busybox, folder / "initramfs")


def bootable(image: bytes) -> bytes:
    """What QEMU starts fastest of a kernel's image.

    :raises ValueError: it is neither a bzImage with an ELF file nor an arm64 Image.
    """
    is_arm64 = image[_ARM64_AT : _ARM64_AT + len(_ARM64)] == _ARM64
    return image if is_arm64 else elf_of(image)


def elf_of(image: bytes) -> bytes:
    """The kernel inside a bzImage (xz).

    :raises ValueError: there is none.
    """
    place = image.find(_XZ)
    while place >= 0:
        try:
            kernel = lzma.LZMADecompressor().decompress(image[place:])
        except lzma.LZMAError:
            kernel = b""
        if kernel.startswith(_ELF):
            return kernel
        place = image.find(_XZ, place + 1)
    raise ValueError("the kernel's image holds no xz-compressed ELF file, as Debian's kernels do")


def load_order(dependencies: str, wanted: tuple[str, ...]) -> list[str]:
    """Paths of the modules and of all they need, in the order in which they can be loaded.

    ``dependencies``: modules.dep. A module that is not there is built in, or is found to be missing by who uses it.
    """
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    paths = {Path(path).name.split(".ko")[0].replace("-", "_"): path for path in needs}
    order: list[str] = []
    for name in wanted:
        if name in paths:
            # A module's line names what it needs, the deepest last.
            for path in (*reversed(needs[paths[name]]), paths[name]):
                if path not in order:
                    order.append(path)
    return order


def _write_initramfs(modules: list[Path], busybox: Path, archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        tree = Path(scratch)
        for name in FOLDERS:
            (tree / name).mkdir()
        shutil.copy(busybox, tree / "bin" / "busybox")
        for applet in APPLETS:
            (tree / "bin" / applet).symlink_to("busybox")
        shutil.copy(INIT, tree / "init")
        (tree / "init").chmod(0o755)
        for number, module in enumerate(modules):
            shutil.copy(module, tree / "modules" / f"{number:02}-{module.name}")
        names = "\n".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
        # Not compressed: the guest would take longer to unpack it than QEMU to hand it over.
        packed = subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"],
            cwd=tree, input=names.encode(), capture_output=True, check=True,
        )  # fmt: skip
        archive.write_bytes(packed.stdout)
