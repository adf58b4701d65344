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
FILLED = """
import itertools, sys
from pathlib import Path
from cri_proxy.state.store import Store

disk = Path(sys.argv[1])


def fill():
    size = 1 << 16
    with (disk / "filler").open("ab", buffering=0) as filler:
        while size:
            try:
                filler.write(bytes(size))
            except OSError:
                size //= 2


store = Store(disk / "state", itertools.count().__next__)
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
again = Store(disk / "state", itertools.count().__next__)
loaded = again.load()
fill()
again.write({}, {"while full": "x" * 5000})
(disk / "filler").unlink()
assert again.write({}, {"at last": "1"}), again.problem
again.close()
assert {"before", "after", "while full", "at last", *changes} <= set(Store(disk / "state").load().meta)
"""


#: Without a free inode the file of the log cannot be made.
NO_INODE = """
import itertools, sys
from pathlib import Path
from cri_proxy.state.store import Store

disk = Path(sys.argv[1])
store = Store(disk / "state", itertools.count().__next__)
store.load()
assert store.write({}, {"kept": "1"}), store.problem
store.close()
made = []
try:
    while True:
        made.append(disk / str(len(made)))
        made[-1].touch()
except OSError:
    pass
again = Store(disk / "state", itertools.count().__next__)
loaded = again.load()
assert loaded.meta.get("kept") == "1", loaded
assert not again.write({}, {"waits": "1"}) and "unable to open" in again.problem
made[0].unlink()
made[1].unlink()
assert again.write({}, {"at last": "1"}), again.problem
again.close()
last = Store(disk / "state").load()
assert last.notes == () and {"kept", "waits", "at last"} <= set(last.meta), last
assert not list((disk / "state").glob("*aside*"))
"""


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (("-b", "1024"), FILLED),  # gives mapped pages their place late
        (("-b", "4096"), FILLED),
        (("-b", "4096", "-N", "32"), NO_INODE),
    ],
    ids=["small blocks", "large blocks", "no inode"],
)
def test_state_outlives_a_full_disk(make: tuple[str, ...], code: str, tmp_path: Path) -> None:
    if os.geteuid() or not (shutil.which("mke2fs") and shutil.which("unshare")):
        pytest.skip("needs root, mke2fs and unshare")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", *make, image], check=True)
    # In a mount namespace of its own: the disk is gone when the process has ended, however it ends.
    command = 'mount -o loop "$1" "$2" || exit 77; exec "$3" -c "$4" "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, "sh", image, disk, sys.executable, code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"no loop device can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
