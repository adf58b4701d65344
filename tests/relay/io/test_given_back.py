"""Memory goes back to the kernel once after each flood, when it is quiet again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from cri_proxy.relay.io import given_back
from cri_proxy.relay.io.given_back import (
    QUIET_BYTES,
    QUIET_TICKS,
    WORTH_BYTES,
    GivingBack,
    give_back,
    resident_bytes,
)

MIB = 1 << 20

#: Small pieces, of which every hundredth stays: below it the C library keeps what is free.
HOLES = """
from cri_proxy.relay.io.given_back import give_back
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
give_back()
before = resident_mb()
pieces = [bytes(1000 + n % 7) for n in range(60_000)]
del pieces[:-1]
give_back()
print(resident_mb() - before)
"""


class Process:
    """Memory in use, which giving back makes less."""

    def __init__(self) -> None:
        self.resident = 100 * MIB
        self.given = 0
        self.giving = GivingBack(self.give_back, lambda: self.resident)

    def give_back(self) -> None:
        self.given += 1
        self.resident -= 30 * MIB

    def ticks(self, count: int, kept: int = 0) -> None:
        for _ in range(count):
            self.giving.tick(kept)


def test_it_is_given_back_once_when_it_is_quiet_after_a_flood() -> None:
    process = Process()
    process.ticks(QUIET_TICKS)
    process.resident += 40 * MIB
    process.ticks(100, QUIET_BYTES + 1)
    assert process.given == 0  # the flood goes on
    process.ticks(QUIET_TICKS - 1)
    assert process.given == 0
    process.ticks(100)
    assert process.given == 1
    process.resident += 40 * MIB  # another flood, between two ticks
    process.ticks(100)
    assert process.given == 2


def test_it_is_not_for_a_little_nor_for_what_there_was_from_the_start() -> None:
    process = Process()
    process.ticks(100)
    process.resident += WORTH_BYTES
    process.ticks(100)
    assert process.given == 0


def test_the_memory_of_this_process_is_known() -> None:
    assert resident_bytes() > MIB


def test_what_lies_below_something_in_use_is_given_back_too() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library has no malloc_trim")
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


def test_a_c_library_without_malloc_trim_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_back.ctypes, "CDLL", lambda name: object())
    give_back()
