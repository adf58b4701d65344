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

    def set_class(self, cpu: int, of: int) -> bool:
        return bool(self._library.machine_set_class(self._machine, cpu, of))

    def set_mask(self, cpu: int, of: int, mask: int) -> bool:
        return bool(self._library.machine_set_mask(self._machine, cpu, of, ctypes.c_uint64(mask)))

    def empty(self) -> None:
        self._library.machine_empty(self._machine)

    @property
    def counts(self) -> Counts:
        return Counts(**{name: getattr(self._counts, name) for name in Counts.__annotations__})


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Caches:
    if shutil.which("gcc") is None:
        pytest.skip("Not installed for the cache model: gcc.")
    library = ctypes.CDLL(str(build_model(tmp_path_factory.mktemp("model"))))
    library.machine_of.argtypes, library.machine_of.restype = [_Shape], ctypes.c_void_p
    library.machine_access.restype = library.machine_free.restype = library.machine_empty.restype = None
    library.machine_free.argtypes = library.machine_empty.argtypes = [ctypes.c_void_p]
    library.machine_set_class.restype = library.machine_set_mask.restype = ctypes.c_bool
    library.machine_set_class.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    library.machine_set_mask.argtypes = [*library.machine_set_class.argtypes, ctypes.c_uint64]
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


# --- classes of service

FULL_MASK, BATCH = 0xFFFF, 1
#: Lines this far apart lie in one set of an L3, and of an L2.
L3_SETS = L3_LINES // 16


def in_one_set(count: int, first: int = 0) -> list[int]:
    return [(first + number) * L3_SETS for number in range(count)]


def misses(machine: Machine, cpu: int, lines: list[int]) -> int:
    return sum(machine.load(cpu, line).l3_misses for line in lines)


@pytest.mark.parametrize("ways", [1, 5, 16])
def test_a_class_keeps_as_many_lines_of_a_set_as_its_mask_has_ways(caches: Caches, ways: int) -> None:
    machine = caches(SMALL)
    assert machine.set_mask(0, BATCH, (1 << ways) - 1) and machine.set_class(0, BATCH)
    fits, one_more = in_one_set(ways), in_one_set(ways + 1)
    assert misses(machine, 0, fits) == ways
    assert misses(machine, 0, fits) == 0
    assert misses(machine, 0, one_more) == 1
    # The oldest goes, which is the one that is needed next.
    assert misses(machine, 0, one_more) == ways + 1


def test_a_line_is_found_in_a_way_that_its_reader_may_not_fill(caches: Caches) -> None:
    machine = caches(SMALL)
    protected = in_one_set(16)
    misses(machine, 0, protected)
    machine.set_mask(SAME_CCX, BATCH, 0x3)
    machine.set_class(SAME_CCX, BATCH)
    assert misses(machine, SAME_CCX, protected) == 0


def test_a_stream_in_few_ways_leaves_the_lines_in_the_others(caches: Caches) -> None:
    machine = caches(SMALL)
    machine.set_mask(SAME_CCX, BATCH, 0x1F)
    machine.set_class(SAME_CCX, BATCH)
    protected, stream = in_one_set(11), in_one_set(64, first=100)
    # What was fetched into the stream's ways goes once, and comes back into others.
    for expected in (11, 5, 0, 0):
        assert misses(machine, 0, protected) == expected
        assert misses(machine, SAME_CCX, stream) == len(stream)
    machine.set_mask(SAME_CCX, BATCH, FULL_MASK)
    misses(machine, SAME_CCX, stream)
    assert misses(machine, 0, protected) == len(protected)


def test_a_mask_is_one_ccxs_and_a_smaller_one_moves_no_line(caches: Caches) -> None:
    machine = caches(SMALL)
    lines = in_one_set(8)
    for cpu in (0, OTHER_CCX):
        machine.set_class(cpu, BATCH)
        misses(machine, cpu, lines)
    machine.set_mask(0, BATCH, 0x1)
    assert misses(machine, 0, lines) == misses(machine, OTHER_CCX, lines) == 0
    more = in_one_set(8, first=50)
    misses(machine, 0, more)
    misses(machine, OTHER_CCX, more)
    assert misses(machine, OTHER_CCX, more) == 0
    assert misses(machine, 0, more) == len(more)


def test_an_emptied_machine_keeps_classes_and_masks(caches: Caches) -> None:
    machine = caches(SMALL)
    machine.set_mask(0, BATCH, 0x1)
    machine.set_class(0, BATCH)
    machine.load(0, 0)
    machine.empty()
    assert machine.load(0, 0).memory == 1
    assert misses(machine, 0, in_one_set(2)) == 1
    assert misses(machine, 0, in_one_set(2)) == 2


def test_a_mask_without_a_way_and_a_class_that_is_none_are_refused(caches: Caches) -> None:
    machine = caches(SMALL)
    machine.set_mask(0, BATCH, 0x3)
    assert not machine.set_mask(0, BATCH, 0)
    assert not machine.set_mask(0, BATCH, 1 << 16)
    assert not machine.set_mask(0, 16, FULL_MASK)
    assert not machine.set_class(0, 16)
    machine.set_class(0, BATCH)
    misses(machine, 0, in_one_set(3))
    assert misses(machine, 0, in_one_set(3)) == 3


@given(
    accesses=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40), st.booleans()), max_size=200),
    classes=st.lists(st.integers(0, 15), min_size=8, max_size=8),
)
def test_where_all_masks_are_full_classes_change_nothing(
    caches: Caches, accesses: list[tuple[int, int, bool]], classes: list[int]
) -> None:
    shape = Shape(cpus=8, cpus_per_ccx=2, ccxs_per_socket=2)
    plain, classed = caches(shape), caches(shape)
    for cpu, of in enumerate(classes):
        classed.set_class(cpu, of)
        classed.set_mask(cpu, of, FULL_MASK)
    for cpu, line, store in accesses:
        assert classed.access(cpu, line * L3_SETS, store) == plain.access(cpu, line * L3_SETS, store)


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
