"""Threads of real containers are where they belong: nothing is left behind, and nothing else is moved."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.isolation.io.tasks import AGAIN_S, STARTING_S, Tasks
from cri_proxy.isolation.model import Group, Wanted
from cri_proxy.node.cgroups import is_own, pod_of
from tests.isolation.io.hierarchy import STORM, Hierarchy, Node, cgroup_roots, mounted, node

A, B = "a" * 64, "b" * 64
BATCH, GOLD = "cri-resmgr.batch", "cri-resmgr.gold"
ROOTS = cgroup_roots()
#: What the boot clock says at first in these tests, long after all that runs here has started.
LATER_S = 1e9


class Clock:
    """Each look at it is ``step_s`` later."""

    def __init__(self, step_s: float = AGAIN_S) -> None:
        self.now_s, self.step_s = LATER_S, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture(params=["v1", "v2"])
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with the groups BATCH and GOLD, and one of another program."""
    if request.param not in ROOTS:
        pytest.skip(f"No cgroups {request.param} can be made here.")
    with mounted(request.config) as hierarchy:
        if hierarchy is None:
            pytest.skip("No hierarchy of its own can be mounted here.")
        hierarchy.make(BATCH, GOLD, "kepler")
        with node(ROOTS[request.param], hierarchy) as made:
            yield made


@pytest.fixture
def tasks(machine: Node) -> Tasks:
    """Each of its rounds looks at all containers."""
    return Tasks(machine.hierarchy, machine.cgroups, Clock())


def wanted(**members: str) -> Wanted:
    """Containers by group: BATCH is ``batch``, GOLD is ``gold``."""
    return Wanted(
        tuple(Group(f"cri-resmgr.{name}", {}, frozenset(keys.split())) for name, keys in members.items())
    )


def row(tasks: Tasks, key: str = A) -> Mapping[str, Any]:
    return tasks.status()[key]


def test_all_threads_of_a_member_are_moved_and_those_of_nested_cgroups(machine: Node, tasks: Tasks) -> None:
    path, nested = machine.cgroup(A), machine.cgroup(A, "nested")
    machine.run(path, number=3)
    machine.run(nested)
    assert tasks.follow(wanted(batch=A), {A: path}) == 6
    assert machine.groups_of(path) == {BATCH}
    found = row(tasks)
    assert (found["group"], found["threads"], found["moved"], found["left"]) == (BATCH, 6, 6, 0)


def test_nothing_is_written_where_nothing_changed(machine: Node, tasks: Tasks) -> None:
    path = machine.cgroup(A)
    machine.run(path)
    tasks.follow(wanted(batch=A), {A: path})
    machine.hierarchy.moves.clear()
    for _ in range(3):
        assert tasks.follow(wanted(batch=A), {A: path}) == 0
    assert machine.hierarchy.moves == []


def test_a_round_in_between_looks_only_at_containers_that_are_not_known_to_be_right(machine: Node) -> None:
    first, second = machine.cgroup(A), machine.cgroup(B)
    machine.run(first)
    machine.run(second)
    clock = Clock(step_s=0.0)
    tasks = Tasks(machine.hierarchy, machine.cgroups, clock)
    assert tasks.follow(wanted(batch=A), {A: first}) == 2
    machine.run(first)  # an exec
    assert tasks.follow(wanted(batch=f"{A} {B}"), {A: first, B: second}) == 2
    assert (machine.groups_of(first), machine.groups_of(second)) == ({"", BATCH}, {BATCH})
    assert tasks.follow(wanted(batch=A), {A: first, B: second}) == 2
    assert machine.groups_of(second) == {""}
    clock.now_s += AGAIN_S
    assert tasks.follow(wanted(batch=A), {A: first, B: second}) == 2
    assert machine.groups_of(first) == {BATCH}


def test_a_container_that_forks_all_the_time_is_in_its_group_and_stays_there(
    machine: Node, tasks: Tasks
) -> None:
    path = machine.cgroup(A)
    machine.run(path, STORM, 6)
    rounds = 0
    while tasks.follow(wanted(batch=A), {A: path}) or row(tasks)["left"]:
        rounds += 1
        assert rounds < 100
    # Generations later it is still so.
    for _ in range(20):
        assert machine.groups_of(path) == {BATCH}


def test_threads_of_other_containers_are_never_touched(machine: Node, tasks: Tasks) -> None:
    path, other = machine.cgroup(A), machine.cgroup(B)
    machine.run(path)
    machine.run(other)
    tasks.follow(wanted(batch=A), {A: path, B: other})
    assert machine.groups_of(other) == {""}
    ours = machine.cgroups.threads(path)
    assert {thread for _, thread in machine.hierarchy.moves} == ours
    # A path that is not the container's own moves nothing.
    assert tasks.follow(wanted(batch=f"{A} {B}"), {A: path, B: machine.pod}) == 0
    assert tasks.follow(wanted(batch=f"{A} {B}"), {A: path, B: f"{path}/../{os.path.basename(path)}"}) == 0


def test_a_container_of_another_class_now_is_moved_and_one_of_none_goes_back_to_the_root(
    machine: Node, tasks: Tasks
) -> None:
    path, other = machine.cgroup(A), machine.cgroup(B)
    machine.run(path, number=2)
    machine.run(other)
    both = {A: path, B: other}
    assert tasks.follow(wanted(batch=f"{A} {B}"), both) == 5
    assert tasks.follow(wanted(batch=B, gold=A), both) == 3
    assert (machine.groups_of(path), machine.groups_of(other)) == ({GOLD}, {BATCH})
    assert (row(tasks)["moment"], row(tasks)["ran_before_s"]) == ("regrouped", 0.0)
    # One that is of no group leaves ours, and no other group.
    machine.hierarchy.move("kepler", min(machine.cgroups.threads(other)))
    assert tasks.follow(wanted(batch="", gold=""), both) == 4
    assert machine.groups_of(path) == {""}
    assert machine.groups_of(other) == {"", "kepler"}
    assert tasks.status() == {}


def test_after_a_restart_of_the_daemon_a_container_of_no_group_leaves_the_one_it_was_left_in(
    machine: Node,
) -> None:
    path = machine.cgroup(A)
    machine.run(path)
    first = Tasks(machine.hierarchy, machine.cgroups)
    first.follow(wanted(batch=A), {A: path})
    again = Tasks(machine.hierarchy, machine.cgroups)
    again.follow(wanted(batch=B), {A: path})
    assert machine.groups_of(path) == {""}


def test_a_thread_in_a_group_of_another_program_stays_there_and_is_counted(
    machine: Node, tasks: Tasks
) -> None:
    path = machine.cgroup(A)
    process = machine.run(path, number=3)
    machine.hierarchy.move("kepler", process.pid)
    assert tasks.follow(wanted(batch=A), {A: path}) == 3
    assert machine.hierarchy.group_of(process.pid) == "kepler"
    assert (row(tasks)["threads"], row(tasks)["elsewhere"]) == (3, 1)


def test_how_long_a_container_ran_in_another_group_before_is_told(machine: Node, tasks: Tasks) -> None:
    path = machine.cgroup(A)
    machine.run(path)
    tasks.follow(wanted(batch=A), {A: path})
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    ran_s = row(tasks)["ran_before_s"]
    assert row(tasks)["moment"] == "round"
    assert LATER_S - uptime_s - 1 <= ran_s < LATER_S + 4 * AGAIN_S
    # What an exec brings later is moved, and says nothing of its start.
    machine.run(path)
    assert tasks.follow(wanted(batch=A), {A: path}) == 2
    assert (row(tasks)["moved"], row(tasks)["ran_before_s"]) == (4, ran_s)


def test_a_container_that_is_gone_is_forgotten(machine: Node, tasks: Tasks) -> None:
    path = machine.cgroup(A)
    process = machine.run(path)
    tasks.follow(wanted(batch=A), {A: path})
    machine.stop(process)
    tasks.follow(wanted(batch=""), {})
    assert tasks.status() == {}


# ---------------------------------------------------------------------- a start


def test_threads_that_wait_for_their_start_are_moved_before_it(machine: Node, tasks: Tasks) -> None:
    path = machine.cgroup(A)
    machine.run(path, number=4)
    assert tasks.begin(A, machine.pod, BATCH)
    assert machine.groups_of(path) == {BATCH}
    found = row(tasks)
    assert (found["moment"], found["threads"], found["ran_before_s"]) == ("start", 5, 0.0)
    # A round that was begun before does not forget it; one that does not know its cgroup yet finds that.
    assert tasks.follow(wanted(batch=""), {}) == 0
    machine.run(path)
    assert tasks.follow(wanted(batch=A), {}) == 2
    assert tasks.follow(wanted(batch=A), {A: path}) == 0
    assert row(tasks)["moment"] == "start"


def test_before_a_container_has_a_process_there_is_nothing_to_move(machine: Node, tasks: Tasks) -> None:
    assert not tasks.begin(A, machine.pod, BATCH)
    path = machine.cgroup(A)
    assert not tasks.begin(A, machine.pod, BATCH)
    assert not tasks.catch(A, path, BATCH)
    machine.run(path)
    assert tasks.catch(A, path, BATCH)
    assert machine.groups_of(path) == {BATCH}
    assert row(tasks)["moment"] == "cgroup"


#: A program by the name of containerd's shim: forks the sandbox's first process, and one more for each line; each says when
#: it is in its cgroup.
SHIM = """
import os, sys, threading
with open("/proc/self/comm", "w") as file:
    file.write("containerd-shim-runc-v2")
def fork(procs):
    if not os.fork():
        with open(procs, "w") as file:
            file.write("0")
        os.write(1, b"\\n")
        os.read(int(sys.argv[2]), 1)
        os._exit(0)
threading.Thread(target=os.read, args=(int(sys.argv[2]), 1), daemon=True).start()
fork(sys.argv[1])
for line in sys.stdin:
    fork(line.strip())
os._exit(0)
"""


class Shim:
    """A pod whose containers are forked by a shim."""

    def __init__(self, machine: Node) -> None:
        self.machine = machine
        self.sandbox = "5" * 64
        reader, self._writer = os.pipe()
        os.set_inheritable(reader, True)
        self._reader = reader
        self.process = self._start(reader)

    def _start(self, reader: int) -> subprocess.Popen[bytes]:
        procs = self._procs(self.machine.cgroup(self.sandbox))
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", SHIM, str(procs), str(reader)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[reader],
        )
        process.stdout.readline()
        return process

    def _procs(self, path: str) -> Path:
        return self.machine.cgroups.base / path.strip("/") / "cgroup.procs"

    def fork(self, path: str) -> None:
        self.process.stdin.write(f"{self._procs(path)}\n".encode())
        self.process.stdin.flush()
        self.process.stdout.readline()

    def close(self) -> None:
        os.close(self._writer)
        os.close(self._reader)
        self.process.communicate()


@pytest.fixture
def shim(machine: Node) -> Iterator[Shim]:
    made = Shim(machine)
    yield made
    made.close()


def test_a_shim_that_is_moved_forks_a_container_into_its_group(
    machine: Node, tasks: Tasks, shim: Shim
) -> None:
    assert tasks.begin_by_shim(A, machine.pod, shim.sandbox, BATCH)
    path = machine.cgroup(A)
    shim.fork(path)
    assert machine.groups_of(path) == {BATCH}
    # It is there already: a round moves nothing, and knows the shim for ours.
    machine.hierarchy.moves.clear()
    assert tasks.follow(wanted(batch=A), {A: path}) == 0
    assert machine.hierarchy.moves == []
    found = row(tasks)
    assert (found["moment"], found["threads"], found["moved"], found["ran_before_s"]) == ("shim", 1, 0, 0.0)


@pytest.mark.parametrize("is_in_time", [True, False])
def test_what_a_shim_that_was_moved_late_has_forked_is_moved_where_that_was_earlier(
    machine: Node, tasks: Tasks, shim: Shim, is_in_time: bool
) -> None:
    path = machine.cgroup(A)
    if not is_in_time:
        shim.fork(path)
    assert tasks.begin_by_shim(A, machine.pod, shim.sandbox, BATCH)
    if is_in_time:
        shim.fork(path)
    machine.hierarchy.moves.clear()
    assert tasks.catch(A, path, BATCH)
    assert machine.groups_of(path) == {BATCH}
    found = row(tasks)
    assert found["threads"] == 1
    assert len(machine.hierarchy.moves) == found["moved"] == (0 if is_in_time else 1)
    assert found["moment"] == ("shim" if is_in_time else "cgroup")
    assert (found["ran_before_s"] == 0.0) == is_in_time


def test_a_shim_whose_containers_are_of_several_groups_goes_back_to_the_root(
    machine: Node, tasks: Tasks, shim: Shim
) -> None:
    assert tasks.begin_by_shim(A, machine.pod, shim.sandbox, BATCH)
    first = machine.cgroup(A)
    shim.fork(first)
    # The start of another one says so.
    assert tasks.begin_by_shim(B, machine.pod, shim.sandbox, "")
    second = machine.cgroup(B)
    shim.fork(second)
    assert (machine.groups_of(first), machine.groups_of(second)) == ({BATCH}, {""})
    assert machine.hierarchy.group_of(shim.process.pid) == ""
    # Or a round, where a class has become another.
    assert tasks.begin_by_shim(A, machine.pod, shim.sandbox, BATCH)
    tasks.follow(wanted(batch=A), {A: first, B: second})
    assert machine.hierarchy.group_of(shim.process.pid) == ""
    assert tasks.begin_by_shim(A, machine.pod, shim.sandbox, BATCH)
    tasks.follow(wanted(gold=f"{A} {B}", batch=""), {A: first, B: second})
    assert machine.hierarchy.group_of(shim.process.pid) == GOLD


def test_a_pod_without_a_shim_has_none_moved(machine: Node, tasks: Tasks) -> None:
    machine.run(machine.cgroup("5" * 64))
    assert not tasks.begin_by_shim(A, machine.pod, "5" * 64, BATCH)
    assert not tasks.begin_by_shim(A, machine.pod, "6" * 64, BATCH)
    assert machine.hierarchy.moves == []


def test_a_container_whose_start_has_failed_is_forgotten_some_time_later(machine: Node) -> None:
    clock = Clock(step_s=0.0)
    tasks = Tasks(machine.hierarchy, machine.cgroups, clock)
    machine.run(machine.cgroup(A))
    tasks.begin(A, machine.pod, BATCH)
    tasks.follow(wanted(batch=""), {})
    assert A in tasks.status()
    clock.now_s += STARTING_S
    tasks.follow(wanted(batch=""), {})
    assert tasks.status() == {}


# ---------------------------------------------------------------------- what fails


class Refusing(Hierarchy):
    """Refuses every move."""

    error = errno.EPERM

    def move(self, group: str, thread: int) -> None:
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize(
    ("error", "problem"),
    [(errno.ESRCH, ""), (errno.EPERM, "stays outside cri-resmgr.batch: Operation not permitted")],
)
def test_a_thread_that_has_ended_is_no_failure_and_a_refusal_is_told(
    machine: Node, error: int, problem: str
) -> None:
    refusing = Refusing(machine.hierarchy.folder)
    refusing.error = error
    tasks = Tasks(refusing, machine.cgroups)
    path = machine.cgroup(A)
    machine.run(path)
    assert tasks.follow(wanted(batch=A), {A: path}) == 0
    assert row(tasks)["problem"].endswith(problem)
    assert bool(row(tasks)["problem"]) == bool(problem)
    assert row(tasks)["left"] == 2
    assert tasks.begin(A, machine.pod, BATCH)


def test_a_group_that_is_gone_leaves_its_members_where_they_are(machine: Node, tasks: Tasks) -> None:
    path = machine.cgroup(A)
    machine.run(path)
    assert tasks.follow(wanted(silver=A), {A: path}) == 0
    assert "No such file" in row(tasks)["problem"]


@pytest.mark.parametrize(
    ("path", "own", "pod"),
    [
        (f"/kubepods/burstable/pod1/{A}", True, "/kubepods/burstable/pod1"),
        (f"/kubepods.slice/p.slice/crio-{A}.scope/container", True, "/kubepods.slice/p.slice"),
        (f"/kubepods/pod1/{B}", False, ""),
        ("/", False, ""),
        ("", False, ""),
        (f"/kubepods/{A}/../x", False, ""),
    ],
)
def test_a_cgroup_is_a_containers_own_by_the_id_in_its_path(path: str, own: bool, pod: str) -> None:
    assert is_own(A, path) is own
    if own:
        assert pod_of(A, path) == pod
    assert not is_own("", path)
