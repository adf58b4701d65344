"""The kernel's own resctrl, by hand: what it offers, what it refuses, and what follows a task into its group."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm.guest.installation import run
from tests.vm.guest.node import Node, until

MOUNT = Path("/sys/fs/resctrl")
SYSFS = Path("/sys/devices/system/cpu")
#: Of the machine that QEMU shows (tests/vm/qemu/resctrl.c).
WAYS, RMIDS, COUNTED_RMIDS, L3_BYTES = 16, 32, 24, 16 << 20
#: Groups beside the root: Intel's bandwidth has half as many classes as its caches.
GROUPS = {"Dhyana-v1": 15, "EPYC-v1": 15, "Icelake-Server-v1": 7}
INTEL = "Icelake-Server-v1"
FORKS = 40
#: Waits for a word, then starts processes that start processes, and says so.
_STORM = f"read word; for i in $(seq {FORKS}); do (sleep 900 & exec sleep 900) & done; echo started; wait"
_THREADS = (
    "import threading, time; [threading.Thread(target=time.sleep, args=(900,)).start() for _ in range(3)]; "
    "print(flush=True); time.sleep(900)"
)


async def the_kernel_divides_the_l3_of_each_ccx_and_its_bandwidth(node: Node) -> None:
    mount()
    domains = {domain_of(cpus) for cpus in node.shape.ccxs}
    shown = schemata(MOUNT)
    print((MOUNT / "schemata").read_text())
    assert len(domains) == len(node.shape.ccxs)
    assert set(shown) == {"L3", "MB"}
    assert set(shown["L3"]) == set(shown["MB"]) == domains
    assert set(shown["L3"].values()) == {"ffff"}
    for path in sorted((MOUNT / "info").glob("*/*")):
        print(path.relative_to(MOUNT / "info"), path.read_text().split())


async def what_the_hardware_cannot_is_refused_with_a_sentence(node: Node) -> None:
    is_intel = node.shape.model == INTEL
    first = domain_of(node.shape.ccxs[0])
    with group("refused") as folder:
        before = schemata(folder)
        for line in (
            f"L3:{first}=1ffff",
            f"L3:{first}=x",
            "L3:99=f",
            f"L9:{first}=f",
            f"MB:{first}=99999",
            "L3",
            "",
        ):
            assert refusal(folder / "schemata", f"{line}\n") == errno.EINVAL, line
            print(repr(line), (MOUNT / "info" / "last_cmd_status").read_text().strip())
        # Intel's masks have no gaps.
        assert refusal(folder / "schemata", f"L3:{first}=5\n") == (errno.EINVAL if is_intel else 0)
        assert refusal(folder / "schemata", f"L3:{first}=ffff\n") == 0
        assert schemata(folder) == before
        assert refusal(folder / "tasks", "999999\n") == errno.ESRCH
        assert refusal(folder / "cpus_list", "4096\n") != 0


async def a_value_is_rounded_as_its_vendor_has_it_and_others_stay(node: Node) -> None:
    first, *others = sorted(domain_of(cpus) for cpus in node.shape.ccxs)
    with group("rounded") as folder:
        before = schemata(folder)
        assert refusal(folder / "schemata", f"L3:{first}=3\nMB:{first}=33\n") == 0
        now = schemata(folder)
        assert int(now["L3"][first], 16) == 3
        # Percentages in steps of ten; eighths of GB/s as they are.
        assert now["MB"][first] == ("40" if node.shape.model == INTEL else "33")
        for domain in others:
            assert (now["L3"][domain], now["MB"][domain]) == (before["L3"][domain], before["MB"][domain])


async def groups_run_out_and_a_removed_one_is_free_again(node: Node) -> None:
    made: list[Path] = []
    try:
        while make(folder := MOUNT / f"one-{len(made)}") == 0:
            made.append(folder)
        assert len(made) == GROUPS[node.shape.model], len(made)
        assert make(MOUNT / "more") == errno.ENOSPC
        made.pop().rmdir()
        assert make(MOUNT / "more") == 0
        (MOUNT / "more").rmdir()
    finally:
        for folder in made:
            folder.rmdir()


async def what_a_task_starts_is_in_its_group(node: Node) -> None:
    with group("storm") as folder, process("sh", "-c", _STORM) as storm:
        assert refusal(folder / "tasks", f"{storm.pid}\n") == 0
        assert storm.stdin is not None and storm.stdout is not None
        storm.stdin.write("go\n")
        storm.stdin.flush()
        assert storm.stdout.readline() == "started\n"
        all_of_it = await until(lambda: session(storm.pid), lambda pids: len(pids) == 2 * FORKS + 1)
        assert tasks(folder) == all_of_it
        # The kernel's own rule of the way back: they are the root's again.
        folder.rmdir()
        assert all_of_it <= tasks(MOUNT)
        folder.mkdir()


async def threads_that_are_there_stay_where_they_are(node: Node) -> None:
    with group("threads") as folder, process(sys.executable, "-c", _THREADS) as threaded:
        assert threaded.stdout is not None
        threaded.stdout.readline()
        threads = {int(path.name) for path in Path(f"/proc/{threaded.pid}/task").iterdir()}
        assert len(threads) == 4
        assert refusal(folder / "tasks", f"{threaded.pid}\n") == 0
        assert tasks(folder) == {threaded.pid}
        for thread in threads:
            assert refusal(folder / "tasks", f"{thread}\n") == 0
        assert tasks(folder) == threads


async def a_monitoring_group_counts_what_its_tasks_do_in_their_ccx(node: Node) -> None:
    own, other = (domain_of(cpus) for cpus in node.shape.ccxs[:2])
    with group("watched") as folder, process("sh", "-c", "while :; do :; done") as busy:
        os.sched_setaffinity(busy.pid, {0})
        watched = with_counter(folder, own)
        assert refusal(folder / "tasks", f"{busy.pid}\n") == 0
        assert refusal(watched / "tasks", f"{busy.pid}\n") == 0
        assert tasks(watched) == {busy.pid}
        before = counted(watched, own, "mbm_total_bytes")
        await until(lambda: counted(watched, own, "mbm_total_bytes") > before + (1 << 20))
        assert counted(watched, own, "mbm_local_bytes") > 0
        assert counted(watched, other, "mbm_total_bytes") == 0
        # A mask bounds what it fills.
        assert refusal(folder / "schemata", f"L3:{own}=3\n") == 0
        full = L3_BYTES // WAYS * 2
        await until(lambda: full * 0.9 < counted(watched, own, "llc_occupancy") <= full)
        assert refusal(watched / "tasks", "1\n") != 0


async def monitoring_groups_run_out_and_what_has_no_counter_says_so(node: Node) -> None:
    made: list[Path] = []
    own = domain_of(node.shape.ccxs[0])
    try:
        while (why := make(folder := MOUNT / "mon_groups" / f"one-{len(made)}")) == 0:
            made.append(folder)
        print(f"{len(made)} monitoring groups, then {errno.errorcode[why]}")
        assert why in (errno.ENOSPC, errno.EBUSY)
        # Groups that are gone keep their RMIDs as long as much of what they filled is left.
        assert 0 < len(made) < RMIDS
        said = [(folder / f"mon_data/mon_L3_{own:02}/mbm_total_bytes").read_text().strip() for folder in made]
        assert said.count("Unavailable") >= len(made) - COUNTED_RMIDS
        assert [text for text in said if not text.isdigit() and text != "Unavailable"] == []
    finally:
        for folder in made:
            folder.rmdir()


# --- the tree


def mount() -> None:
    """Where it is not; it stays until the machine goes off."""
    if not (MOUNT / "info").exists():
        run("mount", "-t", "resctrl", "resctrl", str(MOUNT))


def domain_of(cpus: str) -> int:
    """The id of the L3 of CPUs that share one: "0-1"."""
    return int((SYSFS / f"cpu{cpus.split('-')[0]}" / "cache/index3/id").read_text())


def schemata(folder: Path) -> dict[str, dict[int, str]]:
    """{"L3": {0: "ffff", 1: "ffff"}, "MB": ...}"""
    found = {}
    for line in (folder / "schemata").read_text().splitlines():
        resource, _, values = line.strip().partition(":")
        pairs = (value.split("=") for value in values.split(";"))
        found[resource] = {int(domain): value.strip() for domain, value in pairs}
    return found


def tasks(folder: Path) -> set[int]:
    return {int(line) for line in (folder / "tasks").read_text().split()}


def counted(folder: Path, domain: int, what: str) -> int:
    return int((folder / f"mon_data/mon_L3_{domain:02}/{what}").read_text())


def with_counter(folder: Path, domain: int) -> Path:
    """A new monitoring group of a group whose RMID has a counter of bandwidth: the kernel gives them in turn."""
    for number in range(RMIDS - COUNTED_RMIDS + 1):
        made = folder / "mon_groups" / f"try-{number}"
        made.mkdir()
        if (made / f"mon_data/mon_L3_{domain:02}/mbm_total_bytes").read_text().strip() != "Unavailable":
            return made
    raise AssertionError("no monitoring group has a counter of bandwidth")


def make(folder: Path) -> int:
    """0, or the number of the error."""
    try:
        folder.mkdir()
    except OSError as error:
        return error.errno or -1
    return 0


def refusal(path: Path, text: str) -> int:
    """Of a write: 0, or the number of the error."""
    try:
        with path.open("w") as file:
            file.write(text)
    except OSError as error:
        return error.errno or -1
    return 0


def session(leader: int) -> set[int]:
    """Processes of a session, as it is the leader's."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            found.add(int(path.parent.name))
    return found


@contextmanager
def group(name: str) -> Iterator[Path]:
    """A group that goes again."""
    folder = MOUNT / name
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a session of its own, which ends with it."""
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
