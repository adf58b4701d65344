"""The option ``control.interrupts``, nri-plugins' key for it, and what balloon types say of interrupts."""

from __future__ import annotations

import pytest

from cri_proxy.isolation.interrupts import InterruptSection
from policies.machine.cpus import parse_cpus
from tests.config.configs import errors_of, read

OWN = "control: {interrupts: {controllable: ['*nvme*', '*eth[0-3]'], sink: '0-1,8'}}"
TYPES = (
    "balloonTypes: [{name: net, irqClaim: ['*eth0 *', '42'], irqMode: isolate}, {name: house, irqMode: Sink}]"
)


def test_the_section_is_read_and_reads_back_to_the_same() -> None:
    found = read(OWN).config["control.interrupts"]
    assert (found.controllable, found.sink) == (("*nvme*", "*eth[0-3]"), parse_cpus("0-1,8"))
    again = read(f"control: {{interrupts: {found.written}}}").config["control.interrupts"]
    assert again == found
    assert read("control: {interrupts: {}}").config["control.interrupts"] is None


@pytest.mark.parametrize(
    "text",
    [
        "controllableInterrupts: ['*nvme*']",
        "spec: {controllableInterrupts: ['*nvme*']}",
        "policy: {Active: balloons, balloons: {ControllableInterrupts: ['*nvme*']}}",
    ],
)
def test_the_key_of_nri_plugins_is_a_part_of_it(text: str) -> None:
    loaded = read(text)
    assert loaded.config["control.interrupts"] == InterruptSection(
        ("*nvme*",), written='{controllable: ["*nvme*"]}'
    )
    assert not loaded.warnings


def test_balloon_types_claim_isolate_and_gather() -> None:
    net, house = read(TYPES).config["policy.balloons.BalloonTypes"]
    assert (net.type.irq_claim, net.type.irq_mode) == (("*eth0 *", "42"), "isolate")
    assert (house.type.irq_claim, house.type.irq_mode) == ((), "sink")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "control: {interrupts: {sink: none}}",
            'c.yaml:1: control.interrupts.sink is "none", expected CPUs such as "0-3,8"',
        ),
        (
            "control: {interrupts: {controllable: ['a[']}}",
            "c.yaml:1: control.interrupts.controllable has \"a[\", expected a pattern such as '*nvme*': "
            "a bracket or backslash that does not end",
        ),
        (
            "controllableInterrupts: {a: b}",
            "c.yaml:1: controllableInterrupts is a mapping, expected a list of texts",
        ),
        (
            "balloonTypes: [{name: a, irqMode: both}]",
            'c.yaml:1: irqMode is "both", expected sink, isolate or off',
        ),
        (
            "balloonTypes: [{name: a, irqClaim: ['[']}]",
            'c.yaml:1: irqClaim is ["["], expected a list of numbers and patterns',
        ),
    ],
)
def test_what_is_wrong_has_its_line(text: str, sentence: str) -> None:
    assert errors_of(text) == (sentence,)
