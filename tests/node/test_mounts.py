"""Mounts are read when they have changed, and only then; of those that were known nothing is parsed again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cri_proxy.node.mounts import Mount, Mounts

ROOT = "21 1 8:1 / / rw - ext4 /dev/sda1 rw"
VOLUME = "40 21 8:17 / /var/lib/kubelet/pods/x/volumes/a rw shared:1 - xfs /dev/sdb1 rw"
OVER = "41 40 8:33 / /var/lib/kubelet/pods/x/volumes/a rw - ext4 /dev/sdc1 rw"
BLANK = r"42 21 0:52 / /mnt/with\040blank rw - tmpfs a\011tab rw"


def write(path: Path, *lines: str) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc", Mount("/", "8:1", "/dev/sda1")),
        ("/", Mount("/", "8:1", "/dev/sda1")),
        (
            "/var/lib/kubelet/pods/x/volumes/a",
            Mount("/var/lib/kubelet/pods/x/volumes/a", "8:33", "/dev/sdc1"),
        ),
        (
            "/var/lib/kubelet/pods/x/volumes/a/b/../c/",
            Mount("/var/lib/kubelet/pods/x/volumes/a", "8:33", "/dev/sdc1"),
        ),
        ("/var/lib/kubelet/pods/x/volumes/ab", Mount("/", "8:1", "/dev/sda1")),
        ("/mnt/with blank/file", Mount("/mnt/with blank", "0:52", "a\ttab")),
    ],
)
def test_a_path_is_on_the_last_of_the_nearest_mounts(path: str, expected: Mount, tmp_path: Path) -> None:
    write(tmp_path / "mountinfo", ROOT, VOLUME, OVER, BLANK, "half a line")
    assert Mounts(tmp_path / "mountinfo").of(path) == expected


@pytest.mark.parametrize(
    ("line", "is_followed"),
    [
        (ROOT, False),
        ("21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw", True),
        ("21 1 8:1 / / rw master:7 propagate_from:2 - ext4 /dev/sda1 rw", True),
        ("21 1 8:1 / / rw unbindable - ext4 /dev/sda1 rw,shared:1", False),
    ],
)
def test_a_shared_or_slave_mount_is_followed(line: str, is_followed: bool, tmp_path: Path) -> None:
    write(tmp_path / "mountinfo", line)
    assert Mounts(tmp_path / "mountinfo").of("/etc").is_followed == is_followed


def test_only_what_is_new_is_parsed(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    write(file, ROOT, *[f"{n} 21 0:{n} / /pods/{n} rw - tmpfs tmpfs rw" for n in range(100, 1100)])
    mounts = Mounts(file)
    for _ in range(50):
        assert mounts.of("/pods/500/volume").number == "0:500"
    assert (mounts.read, mounts.parsed) == (1, 1001)
    with file.open("a") as more:
        more.write(VOLUME + "\n")
    assert mounts.of("/var/lib/kubelet/pods/x/volumes/a").source == "/dev/sdb1"
    assert (mounts.read, mounts.parsed) == (2, 1002)


def test_a_file_that_is_not_there_knows_no_mount_until_it_is(tmp_path: Path) -> None:
    mounts = Mounts(tmp_path / "mountinfo")
    assert mounts.of("/etc") == Mount("", "", "")
    write(tmp_path / "mountinfo", ROOT)
    assert mounts.of("/etc").source == "/dev/sda1"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_the_kernel_says_when_a_mount_comes_and_goes(tmp_path: Path) -> None:
    mounts = Mounts(Path("/proc/self/mountinfo"))
    elsewhere = mounts.of(str(tmp_path))
    read = mounts.read
    assert mounts.of(str(tmp_path)) == elsewhere
    subprocess.run(["mount", "-t", "tmpfs", "from-a-test", str(tmp_path)], check=True)
    try:
        assert mounts.of(str(tmp_path / "file")).source == "from-a-test"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert mounts.of(str(tmp_path / "file")) == elsewhere
    assert mounts.read >= read + 2
