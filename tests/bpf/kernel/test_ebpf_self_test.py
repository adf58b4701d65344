"""Where the self-test of the eBPF programs makes its cgroup, and with which rights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.kernel.ebpf_self_test import child_cgroup, own_cgroup
from tests.bpf.pods import UNIFIED, Host
from tests.bpf.talkers import needs_bcc
from tests.systemd.units import OBSERVER, words_of

ROOT = Path(__file__).parents[3]
#: What the observer does when it tries eBPF again: by then its rights have been given up.
TRIED_AGAIN = """
from bpf.kernel.capabilities import NEEDED, keep_only
from bpf.kernel.ebpf_self_test import own_cgroup
from bpf.sources.ebpf import EbpfProvider, cgroup_v2_root
print(*keep_only(NEEDED["auto"], own_cgroup(cgroup_v2_root())))
EbpfProvider(lambda number: "").close()
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/system.slice/observer.service\n", "system.slice/observer.service"),
        ("4:cpuset:/a\n0::/system.slice/observer.service\n", "system.slice/observer.service"),
        ("0::/\n", ""),
        ("0::/not.seen\n", ""),
        ("0::/../elsewhere\n", ""),
        ("4:cpuset:/a\n", ""),
    ],
    ids=["a unit", "hybrid", "the root", "another namespace", "above this namespace", "v1 only"],
)
def test_the_own_cgroup_is_found_and_else_the_root(tmp_path: Path, text: str, found: str) -> None:
    root, own = tmp_path / "root", tmp_path / "cgroup"
    (root / "system.slice" / "observer.service").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    own.write_text(text)
    assert own_cgroup(str(root), str(own)) == root / found


@pytest.fixture
def cgroup() -> Iterator[str]:
    host = Host()
    try:
        yield str(host.cgroups("observer")[0])
    finally:
        host.close()


def try_again(cgroup: str, *prefix: str) -> str:
    """Try eBPF in a cgroup without the rights of the start; the capabilities that were kept."""
    command = [
        "sh",
        "-c",
        'echo $$ > "$0/cgroup.procs" && exec "$@"',
        cgroup,
        *prefix,
        sys.executable,
        "-c",
        TRIED_AGAIN,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@needs_bcc
def test_ebpf_is_tried_again_in_the_root_cgroup_with_the_rights_that_are_kept() -> None:
    before = {path.name for path in UNIFIED.iterdir()}
    assert "dac_override" in try_again(str(UNIFIED))
    assert not [
        path.name for path in UNIFIED.iterdir() if "self-test" in path.name and path.name not in before
    ]


@needs_bcc
def test_ebpf_is_tried_again_with_the_rights_of_the_unit(cgroup: str) -> None:
    names = [word[len("CAP_") :].lower() for word in words_of(OBSERVER, "Service.CapabilityBoundingSet")]
    bounding = ",".join(["-all", *(f"+{name}" for name in names)])
    assert "dac_override" not in try_again(cgroup, "setpriv", f"--bounding-set={bounding}", "--no-new-privs")


def test_two_self_tests_have_two_cgroups_whatever_their_processes_numbers(tmp_path: Path) -> None:
    with child_cgroup(str(tmp_path)) as first, child_cgroup(str(tmp_path)) as second:
        assert first != second
        assert first.is_dir() and second.is_dir()
    assert not list(tmp_path.iterdir())
