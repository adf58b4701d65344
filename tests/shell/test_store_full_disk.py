"""A full disk under the state file, on real file systems: changes wait in memory, and nothing ends the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent import ROOT

#: The disk is filled while the file is open, then with it closed; each time something is written, then there is room.
CODE = """
import sys
from pathlib import Path
from cri_proxy.shell.store import Store

disk = Path(sys.argv[1])


def fill():
    size = 1 << 16
    with (disk / "filler").open("ab", buffering=0) as filler:
        while size:
            try:
                filler.write(bytes(size))
            except OSError:
                size //= 2


store = Store(disk / "state")
store.load()
assert store.write({}, {"before": "1"}), store.problem
fill()
changes = {f"change {number}": "x" * 500 for number in range(200)}
assert not all([store.write({}, {key: text}) for key, text in changes.items()])
assert "full" in store.problem, store.problem
(disk / "filler").unlink()
assert store.write({}, {"after": "1"}), store.problem
store.close()

fill()
again = Store(disk / "state")
loaded = again.load()
fill()
again.write({}, {"while full": "x" * 5000})
(disk / "filler").unlink()
assert again.write({}, {"at last": "1"}), again.problem
again.close()
assert {"before", "after", "while full", "at last", *changes} <= set(Store(disk / "state").load().meta)
"""


@pytest.mark.parametrize(
    "make",
    [
        ("mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024"),  # gives mapped pages their place late
        ("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096"),
    ],
    ids=" ".join,
)
def test_state_outlives_a_full_disk(make: tuple[str, ...], tmp_path: Path) -> None:
    if os.geteuid() or not (shutil.which(make[0]) and shutil.which("unshare")):
        pytest.skip(f"needs root, {make[0]} and unshare")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run([*make, image], check=True)
    # In a mount namespace of its own: the disk is gone when the process has ended, however it ends.
    command = 'mount -o loop "$1" "$2" || exit 77; exec "$3" -c "$4" "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, "sh", image, disk, sys.executable, CODE],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"no loop device can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
