"""The model of resctrl answers what the kernel does: the table that a virtual machine's kernel is asked, too."""

from __future__ import annotations

import itertools

import pytest

from tests.isolation.kernel import AMD, INTEL, KernelModel
from tests.vm.guest.rules import differences

CPUS = {number: frozenset({2 * number, 2 * number + 1}) for number in range(4)}


class Beside:
    """Other programs, on the model."""

    def __init__(self, kernel: KernelModel) -> None:
        self._kernel = kernel
        self._numbers = itertools.count(1000)
        self.make_other, self.remove_other = kernel.make_other, kernel.remove_other
        self.end = kernel.end

    def start(self, parent: int = 0) -> int:
        thread = next(self._numbers)
        self._kernel.start(thread, parent)
        return thread


@pytest.mark.parametrize(("vendor", "closids"), [(AMD, 16), (INTEL, 8)])
def test_the_model_answers_as_the_kernel_does(vendor: str, closids: int) -> None:
    kernel = KernelModel(CPUS, vendor, closids)
    assert differences(kernel, Beside(kernel), vendor) == []


def test_another_answer_is_told_with_its_rule() -> None:
    kernel = KernelModel(CPUS, INTEL, 8)
    told = differences(kernel, Beside(kernel), AMD)
    assert "rule 3, value cri-resmgr.batch MB 0: '100', expected '2048'" in told
