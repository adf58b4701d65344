"""The kernel's rules of cpufreq and cpuidle as a table: what is written, one after the other, and what is there then.

The same table is gone through on the model (tests/isolation/test_clocks_kernel.py) and on the kernel itself in a virtual
machine (clocks.py). The frequencies are those of tests/vm/acpi.py.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

_LOW, _HIGH, _GOVERNOR = "scaling_min_freq", "scaling_max_freq", "scaling_governor"
_OK, _EINVAL, _EBUSY = "ok", "EINVAL", "EBUSY"
#: A kernel shows limits when a worker of its own has come to them (cpufreq_notifier_max); waited for so long, seconds.
WORKER_S = 5.0

#: File, text, answer, and then the two limits and the governor.
RULES = (
    (_HIGH, "2000000", _OK, (1200000, 2000000, "schedutil")),
    # A request above the maximum waits for a higher one.
    (_LOW, "2500000", _OK, (2000000, 2000000, "schedutil")),
    (_HIGH, "3000000", _OK, (2500000, 3000000, "schedutil")),
    (_HIGH, "2000000", _OK, (2000000, 2000000, "schedutil")),
    (_HIGH, "9000000", _OK, (2500000, 3000000, "schedutil")),
    # Within what the hardware can, and of the table: the minimum goes up, the maximum down, and if none is between, up.
    (_LOW, "100", _OK, (1200000, 3000000, "schedutil")),
    (_HIGH, "100", _OK, (1200000, 1200000, "schedutil")),
    (_HIGH, "2200000", _OK, (1200000, 2000000, "schedutil")),
    (_LOW, "2200000", _OK, (2500000, 2500000, "schedutil")),
    (_LOW, "2100000", _OK, (2500000, 2500000, "schedutil")),
    (_HIGH, "3000000", _OK, (2500000, 3000000, "schedutil")),
    (_LOW, "0", _OK, (1200000, 3000000, "schedutil")),
    # What is no number, and no governor.
    (_HIGH, "fast", _EINVAL, (1200000, 3000000, "schedutil")),
    (_HIGH, "-1", _EINVAL, (1200000, 3000000, "schedutil")),
    (_GOVERNOR, "nosuch", _EINVAL, (1200000, 3000000, "schedutil")),
    (_GOVERNOR, "performance", _OK, (1200000, 3000000, "performance")),
    (_GOVERNOR, "powersave", _OK, (1200000, 3000000, "powersave")),
    (_GOVERNOR, "schedutil", _OK, (1200000, 3000000, "schedutil")),
)
#: Text, answer, and what an idle state's ``disable`` says then.
IDLE_RULES = (
    ("1", _OK, "1"),
    ("2", _OK, "1"),
    ("0", _OK, "0"),
    ("1", _OK, "1"),
    ("-1", _EINVAL, "1"),
    ("x", _EINVAL, "1"),
    ("0", _OK, "0"),
)


def differences(
    policy: Path,
    disable: Path,
    write: Callable[[str, str], None],
    read: Callable[[str], str],
    set_online: Callable[[bool], None],
) -> list[str]:
    """Where the answers are others, a sentence each. ``set_online``: of all CPUs of the policy."""
    told = []

    def asked(path: Path, text: str, answer: str, what: str) -> None:
        if (given := _answer(lambda: write(str(path), f"{text}\n"))) != answer:
            told.append(f"{what}: {given}, expected {answer}")

    for number, (name, text, answer, state) in enumerate(RULES):
        asked(policy / name, text, answer, f"rule {number}, {name}={text}")
        end_s = time.monotonic() + WORKER_S
        while (there := _state(policy, read)) != state and time.monotonic() < end_s:
            time.sleep(0.01)
        if there != state:
            told.append(f"rule {number}, after {name}={text}: {there}, expected {state}")
    for text, answer, value in IDLE_RULES:
        asked(disable, text, answer, f"disable={text}")
        if (seen := read(str(disable)).strip()) != value:
            told.append(f"after disable={text}: {seen}, expected {value}")
    # A policy without a CPU cannot be read or written; what was asked of it is there when one comes.
    asked(policy / _HIGH, "2000000", _OK, "before it goes offline")
    set_online(False)
    if (given := _answer(lambda: read(str(policy / _HIGH)))) != _EBUSY:
        told.append(f"reading it offline: {given}, expected {_EBUSY}")
    asked(policy / _HIGH, "3000000", _EBUSY, "writing it offline")
    set_online(True)
    if (seen := read(str(policy / _HIGH)).strip()) != "2000000":
        told.append(f"online again: {seen}, expected 2000000")
    asked(policy / _HIGH, "3000000", _OK, "online again")
    return told


def _state(policy: Path, read: Callable[[str], str]) -> tuple[int, int, str]:
    low, high, governor = (read(str(policy / name)).strip() for name in (_LOW, _HIGH, _GOVERNOR))
    return int(low), int(high), governor


def _answer(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return _OK
