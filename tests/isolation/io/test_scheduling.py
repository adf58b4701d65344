"""Threads of containers have the policy, nice value and I/O priority of their class, and then what they had: real threads in
real cgroups, looked at with util-linux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_proxy.isolation.io import originals
from cri_proxy.isolation.io.originals import Originals
from cri_proxy.isolation.io.scheduling import ThreadScheduling
from cri_proxy.isolation.io.tasks import Tasks
from cri_proxy.isolation.io.writer import Writer
from cri_proxy.isolation.model import ROOT, Setting
from cri_proxy.isolation.plan import Plan
from cri_proxy.isolation.scheduling import SUBJECT, threads_place
from cri_proxy.node.cgroups import Cgroups
from tests.isolation.io.hierarchy import STORM, Hierarchy, Node, cgroup_roots, node, seen_attributes
from tests.isolation.kernel import KernelModel

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("chrt") is None or shutil.which("ionice") is None,
    reason="needs root, and chrt and ionice of util-linux",
)

KEY, OTHER = "a" * 64, "b" * 64
#: A program that has set two of its threads: one has another nice value, one SCHED_RESET_ON_FORK. The first is plain.
OWN_MIND = """
import os, sys, threading
def own(act):
    ready = threading.Event()
    def run():
        act()
        ready.set()
        sys.stdin.buffer.peek()
    threading.Thread(target=run, daemon=True).start()
    ready.wait()
own(lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3))
own(lambda: os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0)))
print(flush=True)
sys.stdin.read()
"""


class Places:
    """A writer and its threads; ``apply`` is a round in which these containers should have these words."""

    def __init__(self, found: Node, folder: Path) -> None:
        self.node = found
        self.folder = folder
        self.now_s = 0.0
        self._take_over()

    def _take_over(self) -> None:
        """Another daemon: it knows what is on disk."""

        class Subject:
            name = SUBJECT

        self.threads = ThreadScheduling(self.node.cgroups, clock=lambda: self.now_s)
        kept = Originals(self.folder, "boot")
        kept.load()
        self.originals = kept
        self.writer = Writer(KernelModel({}), kept, lambda: self.now_s)
        self.writer._threads = self.threads  # what the daemon finds among its subjects

    restart = _take_over

    def apply(self, **wanted: str) -> None:
        """Two rounds: what had to be set is looked at once more."""
        for _ in range(2):
            self.round(**wanted)

    def round(self, **wanted: str) -> None:
        self.now_s += 1000.0
        names = {"one": KEY, "other": OTHER}
        files = tuple(
            Setting(SUBJECT, threads_place(self.node.pod, names[name], words), words)
            for name, words in wanted.items()
        )
        self.writer.apply(Plan(files=files))

    def seen(self, path: str) -> list[str]:
        return seen_attributes(self.node.cgroups, path)


@pytest.fixture(params=["v1", "v2"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    root = cgroup_roots().get(request.param)
    if root is None:
        pytest.skip(f"no cgroups of {request.param} can be made here")
    with node(root, Hierarchy(tmp_path)) as found:
        yield Places(found, tmp_path / "state")


def said_by_util_linux(thread: int) -> str:
    """What chrt and ionice say of a thread."""
    chrt = subprocess.run(["chrt", "-p", str(thread)], capture_output=True, text=True, check=True).stdout
    policy = next(line.split()[-1] for line in chrt.splitlines() if "policy" in line)
    priority = next((line.split()[-1] for line in chrt.splitlines() if "priority" in line), "")
    io = subprocess.run(["ionice", "-p", str(thread)], capture_output=True, text=True, check=True).stdout
    nice = os.getpriority(os.PRIO_PROCESS, thread)
    return f"{policy} {priority} nice {nice} {io.strip()}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nice=7", "SCHED_OTHER 0 nice 7 none: prio 0"),
        ("nice=-5 io=be:2", "SCHED_OTHER 0 nice -5 best-effort: prio 2"),
        ("batch nice=10 io=idle", "SCHED_BATCH 0 nice 10 idle"),
        ("idle nice=17 io=be:6", "SCHED_IDLE 0 nice 17 best-effort: prio 6"),
        ("fifo priority=42", "SCHED_FIFO 42 nice 0 none: prio 0"),
        ("rr priority=1 io=rt:3", "SCHED_RR 1 nice 0 realtime: prio 3"),
        ("io=rt", "SCHED_OTHER 0 nice 0 realtime: prio 0"),
    ],
)
def test_every_thread_has_what_the_class_says_and_then_what_it_had(
    places: Places, words: str, said: str
) -> None:
    path = places.node.cgroup(KEY)
    process = places.node.run(path, number=3)
    before = places.seen(path)
    places.apply(one=words)
    threads = places.node.cgroups.threads(path)
    assert len(threads) == 4
    assert {said_by_util_linux(thread) for thread in threads} == {said}
    assert places.threads.status()[KEY]["set"] == 4
    places.apply(one=words)
    assert places.threads.status()[KEY]["set"] == 4  # nothing is set twice
    places.apply()
    assert places.seen(path) == before
    assert not (places.folder / originals.FILE_NAME).exists()
    places.node.stop(process)


def test_what_forks_without_end_is_found(places: Places) -> None:
    path = places.node.cgroup(KEY)
    places.node.run(path, STORM, 6)
    for _ in range(20):  # on a busy machine a round may see each process only once it has forked the next one
        places.apply(one="batch nice=5 io=idle")
        if places.seen(path) == ["batch nice=5 io=idle:0"]:
            break
    assert places.seen(path) == ["batch nice=5 io=idle:0"]


def test_what_a_program_has_set_itself_is_left_and_counted_and_is_not_put_back_either(places: Places) -> None:
    path = places.node.cgroup(KEY)
    places.node.run(path, OWN_MIND)
    own = ["other nice=0 flags=reset-on-fork io=none:0", "other nice=3 io=none:0"]
    assert places.seen(path) == sorted(["other nice=0 io=none:0", *own])
    places.apply(one="batch nice=5")
    assert places.seen(path) == sorted(["batch nice=5 io=none:0", *own])
    assert places.threads.status()[KEY] == {
        "class": "batch nice=5",
        "threads": 3,
        "own": 2,
        "set": 1,
        "problem": "",
    }
    # A program that sets itself after us.
    first = min(places.node.cgroups.threads(path))
    os.setpriority(os.PRIO_PROCESS, first, 9)
    places.apply(one="batch nice=5")
    places.apply()
    assert places.seen(path) == sorted(["batch nice=9 io=none:0", *own])


def test_another_class_takes_over_what_the_one_before_has_set(places: Places) -> None:
    path = places.node.cgroup(KEY)
    places.node.run(path, number=2)
    places.apply(one="batch nice=5 io=be:6")
    places.apply(one="idle io=be:6")
    assert places.seen(path) == ["idle nice=0 io=be:6"]
    assert len(places.originals.values) == 1  # that of now
    # Threads that came between the two daemons have what the first one's class says.
    places.restart()
    places.apply(one="rr priority=3 io=be:6")
    assert places.seen(path) == ["rr priority=3 io=be:6"]
    places.apply()
    assert places.seen(path) == ["other nice=0 io=none:0"]


def test_what_threads_begin_with_is_what_the_process_has_that_forks_them(places: Places) -> None:
    """A runtime with a nice value of its own, such as Nice= in its unit."""
    pod = places.node
    path = pod.cgroup(KEY)
    procs = pod.cgroups.base / path.strip("/") / "cgroup.procs"
    program = (
        "import os, subprocess, sys; os.nice(4); os.write(1, b'\\n'); sys.exit(subprocess.call(sys.argv[2:]))"
    )
    inner = f"open({str(procs)!r}, 'w').write('0'); print(flush=True); import sys; sys.stdin.read()"
    nothing = pod.folder / "cgroup.procs" if pod.cgroups.is_v1 else Path("/dev/null")
    shim = pod.start([sys.executable, "-S", "-c", program, "-", sys.executable, "-S", "-c", inner], nothing)
    assert shim.stdout is not None
    shim.stdout.readline()
    places.apply(one="nice=11")
    assert places.seen(path) == ["other nice=11 io=none:0"]
    places.apply()
    assert places.seen(path) == ["other nice=4 io=none:0"]


def test_a_class_with_reset_on_fork_is_of_the_first_thread_alone(places: Places) -> None:
    path = places.node.cgroup(KEY)
    places.node.run(path, number=2)
    words = "deadline runtime=1000 deadline=20000 period=20000 flags=reset-on-fork"
    for _ in range(2):
        places.apply(one=words)
        assert places.seen(path) == [f"{words} io=none:0", "other nice=0 io=none:0"]
    places.apply()
    assert places.seen(path) == ["other nice=0 io=none:0"]


def test_a_refusal_is_the_containers_and_what_is_not_refused_is_set(places: Places) -> None:
    if not places.node.cgroups.is_v1:
        pytest.skip("cpusets are those of v1 here")
    path = places.node.cgroup(KEY)
    (places.node.cgroups.base / path.strip("/") / "cpuset.cpus").write_text("0")
    places.node.run(path, number=2)
    places.apply(one="deadline runtime=1000 deadline=20000 period=20000 io=idle")
    assert places.seen(path) == ["other nice=0 io=idle:0"]
    problem = places.threads.status()[KEY]["problem"]
    assert problem.startswith(
        "the policy deadline is refused to threads that are confined to some of the CPUs"
    )
    places.apply(one="nice=3")
    assert places.seen(path) == ["other nice=3 io=none:0"]
    places.apply()
    assert places.seen(path) == ["other nice=0 io=none:0"]


def test_without_a_daemon_all_is_put_back_and_what_ended_is_no_failure(places: Places) -> None:
    one, other = places.node.cgroup(KEY), places.node.cgroup(OTHER)
    places.node.run(one, number=2)
    ends = places.node.run(other)
    places.apply(one="fifo priority=2 io=rt:1", other="nice=2")
    places.node.stop(ends)
    (places.node.cgroups.base / other.strip("/")).rmdir()
    os.setpriority(os.PRIO_PROCESS, max(places.node.cgroups.threads(one)), 0)
    kept = Originals(places.folder, "boot")
    kept.load()
    back = [originals.put_back_values(kept.values, KernelModel({}), places.node.cgroups) for _ in range(2)]
    # Threads that had to be set may have been forking.
    assert [(len(done), refused) for done, refused in back] == [(1, {}), (2, {})]
    assert places.seen(one) == ["other nice=0 io=none:0"]


def test_nothing_is_set_that_is_not_on_disk(places: Places) -> None:
    path = places.node.cgroup(KEY)
    places.node.run(path)
    places.folder.write_text("no folder")
    places.apply(one="nice=5")
    assert places.seen(path) == ["other nice=0 io=none:0"]
    places.folder.unlink()
    places.apply(one="nice=5")
    assert places.seen(path) == ["other nice=5 io=none:0"]


def test_what_is_on_disk_and_cannot_be_read_is_nothing_to_be_done(places: Places) -> None:
    path = places.node.cgroup(KEY)
    places.node.run(path)
    values = {
        threads_place(places.node.pod, KEY, "what is this"): "other",
        "threads:": "",
        "threads:/x#y nice=1": "z",
    }
    done, refused = originals.put_back_values(values, KernelModel({}), places.node.cgroups)
    assert ({*done}, refused) == ({*values}, {})
    assert places.seen(path) == ["other nice=0 io=none:0"]


def test_a_start_is_set_at_once_where_the_round_knows_the_container(places: Places) -> None:
    places.apply(one="idle")
    assert places.threads.has(KEY) and not places.threads.has(OTHER)
    path = places.node.cgroup(KEY)
    places.node.run(path)
    places.threads.begin(KEY)
    assert places.seen(path) == ["idle nice=0 io=none:0"]


def test_a_start_is_looked_at_until_nothing_had_to_be_set(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is being forked while its parent is set is not listed yet, and has what that had before."""
    places.apply(one="batch nice=7")
    path = places.node.cgroup(KEY)
    places.node.run(path, number=1)
    first = min(places.node.cgroups.threads(path))
    tasks = Tasks(Hierarchy(tmp_path), places.node.cgroups, scheduling=places.threads)
    with monkeypatch.context() as patch:
        patch.setattr(Cgroups, "threads", lambda cgroups, path: frozenset((first,)))
        assert not tasks.catch(KEY, path, ROOT)
    assert places.seen(path) == ["batch nice=7 io=none:0", "other nice=0 io=none:0"]
    assert not tasks.catch(KEY, path, ROOT)
    assert places.seen(path) == ["batch nice=7 io=none:0"]
    assert tasks.catch(KEY, path, ROOT)
