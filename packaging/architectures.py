"""The architectures packages are built for, on any build machine; each has the names others call it by.

Standard library only: the spec runs ``stage.py``, which has the ELF files of a package checked here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Architecture:
    """``name``: that of ``uname -m``, rpm and wheels. ``elf_machine``: e_machine (elf.h, EM_*)."""

    name: str
    debian: str
    elf_machine: int


X86_64 = Architecture("x86_64", "amd64", 62)
AARCH64 = Architecture("aarch64", "arm64", 183)
#: In the order of the hashes in the lock files (vendor.py).
ARCHITECTURES = (X86_64, AARCH64)

_MAGIC = b"\x7fELF"
#: Of the ELF header: the byte order, and where e_machine is.
_DATA, _MACHINE = 5, slice(18, 20)
_BIG_ENDIAN = 2


def named(name: str) -> Architecture:
    """That of ``uname -m``'s or Debian's name.

    :raises SystemExit: no package is built for it.
    """
    for known in ARCHITECTURES:
        if name in (known.name, known.debian):
            return known
    names = ", ".join(known.name for known in ARCHITECTURES)
    sys.exit(f"packaging: ARCH={name}: packages are built for {names}")


def check_elf_files(root: Path, wanted: Architecture) -> None:
    """Every ELF file below ``root`` is for this architecture.

    :raises SystemExit: one is for another; the sentence has its name.
    """
    for path in sorted(found for found in root.rglob("*") if found.is_file() and not found.is_symlink()):
        found = elf_architecture(path)
        if found not in (None, wanted.name):
            sys.exit(
                f"packaging: {path.relative_to(root)} is built for {found}, the package for {wanted.name}"
            )


def elf_architecture(path: Path) -> Optional[str]:
    """What an ELF file is built for; ``None``: it is another file. All we build for is little-endian."""
    with path.open("rb") as file:
        header = file.read(_MACHINE.stop)
    if not header.startswith(_MAGIC) or len(header) < _MACHINE.stop:
        return None
    is_big = header[_DATA] == _BIG_ENDIAN
    machine = int.from_bytes(header[_MACHINE], "big" if is_big else "little")
    names = {known.elf_machine: known.name for known in ARCHITECTURES}
    return ("big-endian " if is_big else "") + names.get(machine, f"ELF machine {machine}")
