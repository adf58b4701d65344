"""The option ``control.memory``: the configuration of nri-plugins' memory-qos is read as it is, with more keys."""

from __future__ import annotations

import pytest

from cri_proxy.isolation.memory_classes import Amount, MemoryClass, MemorySection
from tests.config.configs import errors_of, read

#: As nri-plugins' sample configuration has it.
THEIRS = """\
control:
  memory:
    classes:
    - name: bronze
      swaplimitratio: 0.5
    - name: silver
      swapLimitRatio: 0.25
    - name: noswap
      swaplimitratio: 0
    UnifiedAnnotations: [memory.swap.max, memory.high]
"""


def section(text: str) -> MemorySection:
    found = read(text).config["control.memory"]
    assert isinstance(found, MemorySection)
    return found


def test_their_file_is_read_as_it_is() -> None:
    found = section(THEIRS)
    assert found.classes == (
        MemoryClass("bronze", high=Amount(part=0.5), swap_max=Amount()),
        MemoryClass("silver", high=Amount(part=0.75), swap_max=Amount()),
        MemoryClass("noswap"),
    )
    assert found.unified == ("memory.swap.max", "memory.high")


def test_more_keys_are_ours_and_those_that_say_more_count() -> None:
    text = "control: {memory: {classes: [{name: a, swapMax: 10%, swap: true, swaplimitratio: 0.1, high: max, LOW: 1Gi, "
    text += "min: 5%}, {name: b, swap: off}, {name: c, swap: on}]}}"
    assert section(text).classes == (
        MemoryClass("a", Amount(), Amount(1 << 30), Amount(part=0.05), Amount(part=0.1)),
        MemoryClass("b", swap_max=Amount(0)),
        MemoryClass("c", swap_max=Amount()),
    )


@pytest.mark.parametrize("text", [THEIRS, "control: {memory: {classes: [{name: 'a b', high: 80%}]}}"])
def test_what_is_shown_is_read_as_the_same(text: str) -> None:
    shown = {key: value for key, value, _ in read(text).config.show()}["control.memory"]
    assert section(f"control: {{memory: {shown}}}") == section(text)


@pytest.mark.parametrize(
    "text", ["control: {memory: {}}", "control: {memory: {classes: []}}", "control: {memory: }"]
)
def test_an_empty_section_is_none(text: str) -> None:
    assert read(text).config["control.memory"] is None


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ("{classes: [{name: a, swaplimitratio: 1.5}]}",
         'control.memory.classes.swaplimitratio is "1.5", expected a number from 0 to 1'),
        ("{classes: [{name: a, high: lots}]}", 'control.memory.classes.high is "lots", expected a percentage such as "80%", '
         'memory such as "512Mi", or max'),
        ("{classes: [{high: 1Gi}]}",
         "a class of control.memory.classes has no name, expected mappings with name and what the class has"),
        ("{classes: [{name: a}, {name: a}]}", 'control.memory.classes has "a" twice, expected it once'),
        ("{classes: {a: {}}}", "control.memory.classes is a mapping, expected a list of mappings"),
        ("{classes: [{name: a, swap: maybe}]}", 'control.memory.classes.swap is "maybe", expected true or false'),
        ("[]", "control.memory is [], expected a mapping with classes and unifiedannotations"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_line(section: str, error: str) -> None:
    (found,) = errors_of(f"control: {{memory: {section}}}")
    assert found == f"c.yaml:1: {error}"


def test_a_value_that_pods_may_not_set_is_a_warning() -> None:
    (warning,) = read("control: {memory: {unifiedannotations: [memory.max]}}").warnings
    assert warning == (
        'c.yaml:1: control.memory.unifiedannotations has "memory.max", expected of memory.high, memory.low, memory.min, '
        "memory.swap.max; pods may not set it"
    )
