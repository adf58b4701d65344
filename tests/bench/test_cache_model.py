"""The caches' model: by itself against who must hold a line, and as QEMU's plugin against programs whose lines are known."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections import defaultdict
from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cache.plugin import (
    Counts,
    Shape,
    build_model,
    build_program,
    missing,
    plugin_argument,
    read_counted,
)
from bench.cache.user_mode import (
    L3_LINES,
    NEEDED,
    OTHER_CCX,
    OTHER_SOCKET,
    PRODUCER,
    QEMU,
    SAME_CCX,
    SMALL,
    Programs,
    build_programs,
    pass_ring,
    sweep,
)

Caches = Callable[[Shape], "Machine"]
BATCHES, LINES = 20, 4000  # the ring is half of an L2


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("cpus", "cpus_per_ccx", "ccxs_per_socket")] + [
        (name, ctypes.c_uint64) for name in ("l2_bytes", "l3_bytes")
    ]


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Counts.__annotations__]


class Machine:
    """The C code's, from Python."""

    def __init__(self, library: Any, shape: Shape) -> None:
        self._library, self._counts = library, _Counts()
        made = _Shape(shape.cpus, shape.cpus_per_ccx, shape.ccxs_per_socket, shape.l2_bytes, shape.l3_bytes)
        self._machine = ctypes.c_void_p(library.machine_of(made))
        self.is_one = self._machine.value is not None

    def __del__(self) -> None:
        if self.is_one:
            self._library.machine_free(self._machine)

    def access(self, cpu: int, line: int, store: bool = False) -> Counts:
        """What this access alone has counted."""
        before = self.counts
        self._library.machine_access(
            self._machine, cpu, ctypes.c_uint64(line), store, ctypes.byref(self._counts)
        )
        return Counts(
            **{name: getattr(self.counts, name) - getattr(before, name) for name in Counts.__annotations__}
        )

    def load(self, cpu: int, line: int) -> Counts:
        return self.access(cpu, line)

    def store(self, cpu: int, line: int) -> Counts:
        return self.access(cpu, line, True)

    @property
    def counts(self) -> Counts:
        return Counts(**{name: getattr(self._counts, name) for name in Counts.__annotations__})


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Caches:
    if shutil.which("gcc") is None:
        pytest.skip("Not installed for the cache model: gcc.")
    library = ctypes.CDLL(str(build_model(tmp_path_factory.mktemp("model"))))
    library.machine_of.argtypes, library.machine_of.restype = [_Shape], ctypes.c_void_p
    library.machine_access.restype = library.machine_free.restype = None
    library.machine_free.argtypes = [ctypes.c_void_p]
    library.machine_access.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_bool),
        ctypes.POINTER(_Counts),
    ]
    return lambda shape: Machine(library, shape)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    if sentence := missing(*NEEDED):
        pytest.skip(sentence)
    return build_programs(tmp_path_factory.mktemp("programs"))


# --- the model by itself


def test_a_line_comes_from_the_nearest_cache_that_has_it(caches: Caches) -> None:
    machine = caches(SMALL)
    assert machine.load(0, 7).memory == 1
    assert machine.load(0, 7) == Counts(1, 0, 0, 0, 0, 0, 0)
    assert machine.load(SAME_CCX, 7) == Counts(1, 1, 0, 0, 0, 0, 0)
    assert machine.load(OTHER_SOCKET, 7).other_socket == 1
    assert machine.load(OTHER_CCX, 7).other_ccx == 1


def test_a_store_takes_away_all_other_copies(caches: Caches) -> None:
    machine = caches(SMALL)
    for cpu in (0, SAME_CCX, OTHER_CCX, OTHER_SOCKET):
        machine.load(cpu, 7)
    assert machine.store(0, 7).invalidated == 5  # an L2 here, and an L2 and an L3 of two CCXs
    assert machine.store(0, 7) == Counts(1, 0, 0, 0, 0, 0, 0)
    assert machine.load(SAME_CCX, 7).l2_misses == 1
    assert machine.load(OTHER_CCX, 7).other_ccx == 1
    assert machine.store(OTHER_SOCKET, 7).other_socket == 1
    assert machine.load(0, 7).other_socket == 1


@pytest.mark.parametrize(
    "shape",
    [
        Shape(0, 4, 2),
        Shape(16, 0, 2),
        Shape(128, 65, 1),
        Shape(16, 4, 0),
        Shape(16, 4, 2, l2_bytes=500_000),
        Shape(16, 4, 2, l3_bytes=0),
    ],
)
def test_a_shape_that_is_none_is_no_machine(caches: Caches, shape: Shape) -> None:
    assert not caches(shape).is_one


@given(
    accesses=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), min_size=1, max_size=80)
)
def test_while_all_fits_a_line_is_where_it_was_used_since_the_last_store(
    caches: Caches, accesses: list[tuple[int, int, bool]]
) -> None:
    machine = caches(Shape(cpus=8, cpus_per_ccx=2, ccxs_per_socket=2))
    holders: dict[int, set[int]] = defaultdict(set)
    for cpu, line, store in accesses:
        own_ccx, of_line = cpu // 2, holders[line]
        ccxs = {holder // 2 for holder in of_line}
        found = machine.access(cpu, line, store)
        assert found.l2_misses == (cpu not in of_line)
        assert found.l3_misses == (own_ccx not in ccxs)
        near = any(ccx // 2 == own_ccx // 2 for ccx in ccxs)
        source = (found.other_ccx, found.other_socket, found.memory)
        assert source == ((0, 0, 0) if own_ccx in ccxs else (near, bool(ccxs) and not near, not ccxs))
        assert found.invalidated == (len(of_line - {cpu}) + len(ccxs - {own_ccx}) if store else 0)
        holders[line] = {cpu} if store else of_line | {cpu}


# --- as QEMU's plugin


@pytest.mark.parametrize(("consumer", "counter"), [(OTHER_CCX, "other_ccx"), (OTHER_SOCKET, "other_socket")])
def test_a_ring_between_two_ccxs_fetches_each_of_its_lines_once_a_batch(
    programs: Programs, consumer: int, counter: str
) -> None:
    found = pass_ring(programs, BATCHES, LINES, PRODUCER, consumer)
    assert getattr(found, counter) == pytest.approx(BATCHES * LINES, rel=0.01)
    assert found.l3_misses == pytest.approx(BATCHES * LINES, rel=0.01)


def test_a_ring_inside_a_ccx_fetches_nothing(programs: Programs) -> None:
    found = pass_ring(programs, BATCHES, LINES, PRODUCER, SAME_CCX)
    assert found.l2_misses >= BATCHES * LINES
    assert found.l3_misses <= BATCHES * LINES // 100


@pytest.mark.parametrize(("consumer", "copies"), [(SAME_CCX, 1), (OTHER_CCX, 2), (OTHER_SOCKET, 2)])
def test_each_write_takes_away_what_the_consumer_holds(
    programs: Programs, consumer: int, copies: int
) -> None:
    found = pass_ring(programs, BATCHES, LINES, PRODUCER, consumer)
    assert found.invalidated == pytest.approx(BATCHES * LINES * copies, rel=0.01)


def test_what_fits_into_the_l3_is_read_again_without_a_miss_and_what_does_not_is_not(
    programs: Programs,
) -> None:
    fits, does_not = L3_LINES * 15 // 16, L3_LINES * 17 // 16
    assert sweep(programs, fits, 2).l3_misses <= fits // 100
    # 17 lines for the 16 ways of each set: the oldest goes, which is the one that is needed next.
    assert sweep(programs, does_not, 2).l3_misses == pytest.approx(2 * does_not, rel=0.01)


def test_reading_takes_nothing_away(programs: Programs) -> None:
    assert sweep(programs, L3_LINES // 2, 2).invalidated == 0


def test_a_plugin_that_sleeps_counts_from_a_wake_to_an_end(programs: Programs) -> None:
    counted = programs.folder / "counted"
    load = build_program("load", programs.folder)
    for command, marks in (([str(programs.sweep), "64", "1"], 0), ([str(load), "idle", "1"], 1)):
        plugin = plugin_argument(programs.plugin, counted, SMALL, asleep=True)
        subprocess.run([QEMU, "-plugin", plugin, *command], check=True, capture_output=True, timeout=60)
        found = read_counted(counted)
        assert len(found) == marks + 1  # and "all"
        assert (found["all"].accesses > 0) == (marks > 0)


def test_a_users_lines_count_also_where_an_idle_machines_do_not(programs: Programs) -> None:
    counted = programs.folder / "counted"
    found = {}
    for idle in (True, False):
        plugin = plugin_argument(programs.plugin, counted, SMALL, idle=idle)
        command = [QEMU, "-plugin", plugin, str(programs.sweep), "1000", "1"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        found[idle] = read_counted(counted)["mark 1"]
    assert found[True].accesses == found[False].accesses >= 1000
