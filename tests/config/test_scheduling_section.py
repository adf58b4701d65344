"""The option ``control.scheduling``: nri-plugins' three keys are read where they stand and as one mapping of ours, and what
is wrong has its line."""

from __future__ import annotations

import pytest

from cri_proxy.isolation.scheduling import SchedulingClass, SchedulingSection
from tests.config.configs import errors_of, read

KEYS = """\
schedulingClasses:
- {name: realtime, policy: fifo, priority: 42}
- {name: run-when-free, policy: idle, nice: 17, ioClass: be, ioPriority: 6}
- {name: kept, policy: none, flags: [keep-policy, reset-on-fork], ioClass: ""}
namespaceSchedulingClasses: {ci: run-when-free}
podQoSSchedulingClasses: {bestEffort: kept}
"""


def indented(width: int) -> str:
    return "".join(f"{' ' * width}{line}\n" for line in KEYS.splitlines())


FORMS = {
    "ours": f"control:\n scheduling:\n{indented(2)}",
    "theirs, at the top": KEYS,
    "a custom resource": f"kind: TopologyAwarePolicy\nspec:\n{indented(1)}",
    "a policy's section": f"policy:\n Active: topology-aware\n topology-aware:\n{indented(2)}",
    "another case": KEYS.replace("schedulingClasses", "SchedulingClasses"),
}


def section(text: str) -> SchedulingSection:
    found = read(text, strict=True).config["control.scheduling"]
    assert isinstance(found, SchedulingSection)
    return found


@pytest.mark.parametrize("name", FORMS)
def test_it_is_the_same_wherever_it_stands_and_reads_back_as_it_is_shown(name: str) -> None:
    found = section(FORMS[name])
    assert found.classes == {
        "realtime": SchedulingClass("fifo", priority=42),
        "run-when-free": SchedulingClass("idle", 17, io_class="be", io_priority=6),
        "kept": SchedulingClass(flags=frozenset(("keep-policy", "reset-on-fork"))),
    }
    assert (found.namespaces, found.qos) == ({"ci": "run-when-free"}, {"besteffort": "kept"})
    shown = {key: value for key, value, _ in read(FORMS[name]).config.show()}["control.scheduling"]
    assert section(f"control: {{scheduling: {shown}}}") == found


def one(fields: str) -> str:
    return f"schedulingClasses: [{{name: a, {fields}}}]"


WRONG = {
    "no list": ("schedulingClasses: 5", 'c.yaml:1: schedulingClasses is "5", expected a list of mappings'),
    "no name": (
        "schedulingClasses: [{nice: 1}]",
        "c.yaml:1: schedulingClasses has a class without a name, expected one",
    ),
    "twice": (
        "schedulingClasses: [{name: a}, {name: a}]",
        'c.yaml:1: schedulingClasses has "a" twice, expected it once',
    ),
    "policy": (
        one("policy: iso"),
        'c.yaml:1: schedulingClasses.policy is "iso", expected none, other, fifo, rr, batch, idle, deadline',
    ),
    "nice": (
        one("nice: 20"),
        'c.yaml:1: schedulingClasses.nice is "20", expected a whole number from -20 to 19',
    ),
    "realtime without priority": (
        one("policy: rr"),
        'c.yaml:1: schedulingClasses "a" has the policy rr and no priority, expected one from 1 to 99',
    ),
    "priority of no realtime policy": (
        one("policy: batch, priority: 3"),
        'c.yaml:1: schedulingClasses "a" has a priority with the policy batch, expected fifo or rr',
    ),
    "deadline above period": (
        one("policy: deadline, flags: [reset-on-fork], runtime: 1, deadline: 9, period: 8"),
        'c.yaml:1: schedulingClasses "a" has the policy deadline, expected runtime, deadline and period in microseconds, '
        "none above the next",
    ),
    "a class that is not there": (
        "namespaceSchedulingClasses: {x: y}",
        'c.yaml:1: namespaceSchedulingClasses.x is "y", expected the name of one of the schedulingClasses',
    ),
    "a QoS class that is not there": (
        "schedulingClasses: [{name: a}]\npodQoSSchedulingClasses: {best: a}",
        'c.yaml:2: a key of podQoSSchedulingClasses is "best", expected Guaranteed, Burstable or BestEffort',
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_has_its_line(name: str) -> None:
    text, said = WRONG[name]
    assert errors_of(text) == (said,)


ON = "\nisolation: {scheduling: observe}"


def test_what_has_no_effect_is_said() -> None:
    text = one("policy: fifo, priority: 1, nice: 3, flags: [util-clamp-min]")
    assert read(text + ON).warnings == (
        "c.yaml:1: schedulingClasses.flags has util-clamp-min, and no value for it; it is passed over",
        'c.yaml:1: schedulingClasses "a" has a nice value, and the policy fifo has none; it is passed over',
    )
    assert read(one("policy: deadline, runtime: 1, period: 9") + ON).warnings == (
        'c.yaml:1: schedulingClasses "a" has the policy deadline without the flag reset-on-fork; what has it cannot fork',
    )


def test_a_balloon_type_that_names_no_class_of_the_section_is_told() -> None:
    text = f"{one('nice: 1')}{ON}\nballoonTypes: [{{name: x, schedulingClass: a}}, {{name: y, schedulingClass: b}}]"
    (said,) = read(text).warnings
    assert said.endswith(
        "type y has the scheduling class b, expected one of control.scheduling; it counts for nothing"
    )
