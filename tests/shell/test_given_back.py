"""Memory goes back to the kernel once after each flood, when it is quiet again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from cri_proxy.shell import given_back
from cri_proxy.shell.given_back import QUIET_TICKS, WORTH_BYTES, GivingBack, give_back

#: Small pieces, of which every hundredth stays: below it the C library keeps what is free.
HOLES = """
from cri_proxy.shell.given_back import give_back
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
give_back()
before = resident_mb()
pieces = [bytes(1000 + n % 7) for n in range(60_000)]
del pieces[:-1]
give_back()
print(resident_mb() - before)
"""


def test_it_is_given_back_once_when_it_is_quiet_after_a_flood() -> None:
    calls: list[int] = []
    giving = GivingBack(lambda: calls.append(len(seen)))
    seen: list[int] = []
    for peak, total in [(0, 0)] * 5 + [(WORTH_BYTES, 0)] + [(0, 0)] * 9:
        seen.append(peak)
        giving.tick(peak, total)
    assert calls == [6 + QUIET_TICKS]


@pytest.mark.parametrize("total", [0, WORTH_BYTES])
def test_it_is_not_while_anything_goes_on_nor_for_a_little(total: int) -> None:
    calls: list[None] = []
    giving = GivingBack(lambda: calls.append(None))
    for _ in range(20):
        giving.tick(WORTH_BYTES - 1, total)
    for _ in range(20):
        giving.tick(0, total)
    assert calls == []


def test_what_lies_below_something_in_use_is_given_back_too() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library has no malloc_trim")
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


def test_a_c_library_without_malloc_trim_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_back.ctypes, "CDLL", lambda name: object())
    give_back()
