"""A node that the kernel takes for a Hygon machine: the package from its installation to its purge, in QEMU.

Each test is one check in the guest (guest/table.py), all checks of a run are one boot; ``-k`` chooses among them.
What a check printed there is shown for a failed one, and with -rP for all.
"""

from __future__ import annotations

from typing import Callable

import pytest

from tests.vm.guest.table import RUNS
from tests.vm.run import VirtualMachine

pytestmark = pytest.mark.vm
MachineOf = Callable[[str], VirtualMachine]


def _checks(run: str) -> list[object]:
    marks = [] if run in ("hygon", "resctrl-hygon") else [pytest.mark.long]
    return [pytest.param(run, name, id=f"{run}-{name}", marks=marks) for name in RUNS[run].names]


@pytest.mark.parametrize(("run", "check"), [one for run in RUNS for one in _checks(run)])
def test_on_the_virtual_node(machine_of: MachineOf, run: str, check: str) -> None:
    verdict = machine_of(run).verdict(check)
    print(f"{verdict.seconds:g} s in the guest\n{verdict.said}")
    assert verdict.passed, verdict.said
