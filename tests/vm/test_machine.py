"""The arguments for QEMU: every CPU has its place, every node its memory, and the sums are right."""

from __future__ import annotations

import re

import pytest

from tests.vm.guest.placement import ladder, memory_of
from tests.vm.machine import CORES_8, DOCUMENTED, SHAPES, SMT_8, SMT_16, Shape, cpu_arguments

SHAPES_BY_NAME = [pytest.param(shape, id=name) for name, shape in SHAPES.items() if not shape.smp]


@pytest.mark.parametrize("shape", SHAPES_BY_NAME)
def test_there_is_a_processor_for_every_cpu_each_in_its_own_place(shape: Shape) -> None:
    places = re.findall(r"-cpu,(socket-id=\S+)", " ".join(cpu_arguments(shape)))
    assert len(set(places)) == len(places) == shape.cpus - 1  # the first is there by itself


@pytest.mark.parametrize("shape", SHAPES_BY_NAME)
def test_the_nodes_have_all_of_the_memory(shape: Shape) -> None:
    sizes = re.findall(r"memory-backend-ram,id=m\d+,size=(\d+)M", " ".join(cpu_arguments(shape)))
    assert sum(map(int, sizes)) == shape.memory_mib
    assert len(sizes) == shape.nodes


def test_a_machine_as_users_write_it_has_their_words() -> None:
    words = " ".join(cpu_arguments(DOCUMENTED))
    assert "-smp 16,sockets=1,dies=2,cores=4,threads=2 " in words
    assert "nodeid=0,memdev=m0,cpus=0-7 " in words
    assert "nodeid=1,memdev=m1,cpus=8-15 " in words
    assert "-device" not in words


@pytest.mark.parametrize(
    ("shape", "wanted", "rung", "sets"),
    [
        (SMT_8, 1, "ccx", {"0-1", "2-3", "4-5", "6-7"}),
        (SMT_8, 3, "numa", {"0-3", "4-7"}),
        (SMT_8, 6, "numa+ccx", {"0-5", "0-3,6-7", "0-1,4-7", "2-7"}),
        (SMT_8, 7, "machine", {"0-7"}),
        (CORES_8, 2, "ccx", {"0-1", "2-3", "4-5", "6-7"}),
        (SMT_16, 4, "ccx", {"0-3", "4-7", "8-11", "12-15"}),
        (SMT_16, 12, "numa+ccx", {"0-11", "0-7,12-15", "0-3,8-15", "4-15"}),
        (Shape("four nodes", nodes_per_socket=2), 6, "numa+ccx", {"0-5", "0-3,6-7", "0-1,4-7", "2-7",
                                                                   "8-13", "8-11,14-15", "8-9,12-15", "10-15"}),
        (Shape("four nodes", nodes_per_socket=2), 8, "2numa", {"0-7", "8-15"}),
    ],
)  # fmt: skip
def test_the_ladder_that_the_guest_is_held_to(shape: Shape, wanted: int, rung: str, sets: set[str]) -> None:
    assert ladder(shape, wanted) == (rung, sets)


def test_memory_is_that_of_the_cpus_nodes() -> None:
    assert [memory_of(SMT_8, cpus) for cpus in ("0-1", "4-7", "0-5")] == ["0", "1", "0-1"]
