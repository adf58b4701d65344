"""Packages for machines of another architecture than the builder's: what they say they are, and what is in them."""

from __future__ import annotations

import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.form import compiled
from tests.packaging.conftest import AARCH64, BOOKWORM_PYTHON, X86_64, build_command, started
from tests.packaging.kinds import Kind, ask
from tests.packaging.roots import REPOSITORY

pytestmark = pytest.mark.packages

#: e_machine of elf.h.
EM_386, EM_X86_64, EM_AARCH64 = 3, 62, 183
DEBIAN = {X86_64: "amd64", AARCH64: "arm64"}
#: What pip had to choose for the architecture: the modules that are compiled.
COMPILED = {"_multidict", "_message", "_yaml"}
#: The oldest glibc that a package asks for, and what else its rpm needs: of the base system of openEuler and RHEL.
GLIBC = (2, 17)
BASE = {"/bin/sh", "/usr/lib/cri-resmgr/bin/python", "config(cri-resmgr)", "rtld(GNU_HASH)"}
BASE |= {"coreutils", "findutils", "grep", "sed", "python(abi)"}
BASE_LIBRARIES = re.compile(r"(ld-linux-[a-z0-9-]+|lib(c|m|pthread|rt|dl|gcc_s|stdc\+\+))\.so\.\d+\(")
PT_LOAD, PAGE_64K = 1, 0x10000
#: What a package is made of besides wheels, as stage.py wants it.
PREPARED = (
    "chart/Chart.yaml",
    "site/x.py",
    "licences/x",
    "man/cri-resmgr.8",
    "completion/bash",
    "completion/zsh",
    "completion/fish",
    "config.yaml",
)


def elf_header(machine: int, byte_order: str = "little") -> bytes:
    order = b"\1" if byte_order == "little" else b"\2"
    return b"\x7fELF\2" + order + bytes(10) + bytes(2) + machine.to_bytes(2, byte_order) + bytes(44)


def unpacked(package: Path, folder: Path) -> Path:
    folder.mkdir()
    if package.suffix == ".deb":
        ask("dpkg-deb", "--extract", str(package), str(folder))
    else:
        command = 'rpm2cpio "$0" | cpio --extract --make-directories --quiet --directory "$1"'
        ask("sh", "-euc", command, str(package), str(folder))
    return folder


def elf_machines(root: Path) -> dict[str, int]:
    """e_machine of each ELF file, by the first part of its name."""
    files = [found for found in root.rglob("*") if found.is_file() and not found.is_symlink()]
    headers = {found.name.partition(".")[0]: found.read_bytes()[:20] for found in files}
    return {
        name: int.from_bytes(header[18:20], "little")
        for name, header in headers.items()
        if header.startswith(b"\x7fELF")
    }


def load_alignments(elf: bytes) -> set[int]:
    """p_align of each PT_LOAD segment of a 64-bit little-endian file (elf.h)."""
    (offset,) = struct.unpack_from("<Q", elf, 0x20)
    size, count = struct.unpack_from("<HH", elf, 0x36)
    headers = [offset + place * size for place in range(count)]
    kinds = {header: struct.unpack_from("<I", elf, header)[0] for header in headers}
    return {
        struct.unpack_from("<Q", elf, header + 0x30)[0] for header, kind in kinds.items() if kind == PT_LOAD
    }


def stage(prepared: Path, architecture: str, root: Path) -> subprocess.CompletedProcess[str]:
    """As the spec runs it."""
    for name in PREPARED:
        (prepared / name).parent.mkdir(parents=True, exist_ok=True)
        (prepared / name).touch()
    command = [sys.executable, str(REPOSITORY / "packaging" / "stage.py"), str(prepared)]
    command += [BOOKWORM_PYTHON, architecture, "rpm", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("architecture", "machine"), [(X86_64, EM_X86_64), (AARCH64, EM_AARCH64)])
def test_a_package_names_its_architecture_and_every_elf_file_in_it_is_for_that(
    kind: Kind, architecture: str, machine: int, package: Callable[..., Path], tmp_path: Path
) -> None:
    built = package(kind.name, architecture=architecture)
    if kind.name == "deb":
        assert ask("dpkg-deb", "--field", str(built), "Architecture").strip() == DEBIAN[architecture]
        assert built.name.endswith(f"_{DEBIAN[architecture]}.deb")
    else:
        assert ask("rpm", "-qp", "--queryformat", "%{ARCH}", str(built)) == architecture
        assert built.name.endswith(f".{architecture}.rpm")
    machines = elf_machines(unpacked(built, tmp_path / "root"))
    assert set(machines) >= COMPILED
    assert set(machines.values()) == {machine}


@pytest.mark.parametrize("architecture", [X86_64, AARCH64])
def test_ours_are_compiled_for_the_machine_they_are_built_on_and_their_sources_stay(
    kind: Kind, architecture: str, package: Callable[..., Path], tmp_path: Path
) -> None:
    root = unpacked(package(kind.name, architecture=architecture), tmp_path / "root")
    site = root / f"usr/lib/cri-resmgr/lib/python{BOOKWORM_PYTHON}/site-packages"
    names = {name for names in compiled.modules(REPOSITORY).values() for name in names}
    can = architecture == platform.machine() and compiled.with_headers(BOOKWORM_PYTHON) is not None
    wanted = {name[: -len(".py")] for name in names} if can else set()
    wanted |= {f"{compiled.library_of(part)}__mypyc" for part in compiled.PARTS if can}
    made = [path.relative_to(site) for part in compiled.PARTS for path in (site / part).rglob("*.so")]
    assert {str(path).partition(".")[0] for path in made} == wanted
    assert [name for name in names if not (site / name).is_file()] == []


@pytest.mark.parametrize("architecture", [X86_64, AARCH64])
def test_an_rpm_asks_for_nothing_but_the_base_system(architecture: str, package: Callable[..., Path]) -> None:
    asked = ask("rpm", "-qp", "--requires", str(package("rpm", architecture=architecture))).splitlines()
    assert f"/usr/bin/python{BOOKWORM_PYTHON}" in asked
    names = {line.split()[0] for line in asked} - BASE - {f"/usr/bin/python{BOOKWORM_PYTHON}"}
    others = [name for name in names if not BASE_LIBRARIES.match(name) and not name.startswith("rpmlib(")]
    assert not others
    glibc = [tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", " ".join(asked))]
    assert max(glibc) <= GLIBC


def test_modules_for_aarch64_load_with_pages_of_64_kib(package: Callable[..., Path], tmp_path: Path) -> None:
    root = unpacked(package("deb", architecture=AARCH64), tmp_path / "root")
    modules = {found.name: load_alignments(found.read_bytes()) for found in root.rglob("*.so")}
    assert modules
    assert [name for name, alignments in modules.items() if min(alignments) < PAGE_64K] == []


def test_another_builder_makes_the_same_package_for_aarch64(
    kind: Kind, package: Callable[..., Path], tmp_path: Path
) -> None:
    here = package(kind.name, architecture=AARCH64)
    command = build_command(kind.name, BOOKWORM_PYTHON, "1", tmp_path / "dist", AARCH64)
    builder = started("another", command, tmp_path / "tmp")
    said = builder.communicate()[0]
    assert builder.returncode == 0, said
    there = tmp_path / "dist" / here.name
    assert there.read_bytes() == here.read_bytes()


def test_one_package_to_rebuild_from_serves_all_architectures(
    package: Callable[..., Path], tmp_path: Path
) -> None:
    sources = {
        architecture: next(package("rpm", architecture=architecture).parent.glob("*.src.rpm"))
        for architecture in (X86_64, AARCH64)
    }
    assert sources[X86_64].name == sources[AARCH64].name
    assert sources[X86_64].read_bytes() == sources[AARCH64].read_bytes()
    command = ["rpmbuild", "--rebuild", "--nodeps", f"--target={AARCH64}", f"--define=_topdir {tmp_path}/top"]
    command += [f"--define=python {BOOKWORM_PYTHON}", "--define=packing w1.gzdio", str(sources[X86_64])]
    subprocess.run(command, check=True, capture_output=True)
    (rebuilt,) = (tmp_path / "top" / "RPMS" / AARCH64).iterdir()
    assert set(elf_machines(unpacked(rebuilt, tmp_path / "root")).values()) == {EM_AARCH64}


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (elf_header(EM_X86_64), "x86_64"),
        (elf_header(EM_386), "ELF machine 3"),
        (elf_header(EM_AARCH64, "big"), "big-endian aarch64"),
    ],
    ids=["x86-64", "i386", "big-endian"],
)
def test_a_file_of_another_architecture_stops_the_build_with_one_sentence(
    header: bytes, named: str, tmp_path: Path
) -> None:
    (tmp_path / "prepared/site-aarch64").mkdir(parents=True)
    (tmp_path / "prepared/site-aarch64/_fine.so").write_bytes(elf_header(EM_AARCH64))
    (tmp_path / "prepared/site-aarch64/_fast.so").write_bytes(header)
    done = stage(tmp_path / "prepared", AARCH64, tmp_path / "root")
    assert done.returncode == 1
    where = "usr/lib/cri-resmgr/lib/python3.11/site-packages/_fast.so"
    assert done.stderr == f"packaging: {where} is built for {named}, the package for aarch64\n"


def test_an_architecture_that_no_package_is_built_for_is_refused_by_name(tmp_path: Path) -> None:
    command = build_command("deb", BOOKWORM_PYTHON, "1", tmp_path / "dist", "riscv64")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "packaging: ARCH=riscv64: packages are built for x86_64, aarch64\n"
