"""Files of Intel's cri-resource-manager: they load, and every difference is named."""

from __future__ import annotations

import pytest

from cri_proxy.core.config import Source, read_config
from tests.core.configs import NAMES, errors_of, read

FALLBACK_CFG_SAMPLE = """\
policy:
  Active: topology-aware
  ReservedResources:
    CPU: 750m
logger:
  Debug: resource-manager,cache,resource-control
dump:
  Config: off:.*,full:((Create)|(Remove)|(Run)|(Update)|(Start)|(Stop)).*
"""


def test_intels_shipped_sample_loads_with_warnings_that_name_what_is_different() -> None:
    loaded = read_config([Source("/etc/fallback.cfg", FALLBACK_CFG_SAMPLE)])
    assert loaded.warnings == (
        '/etc/fallback.cfg:2: policy.Active is "topology-aware"; this version places by hygon instead',
        "/etc/fallback.cfg:8: dump.Config has no meaning here",
    )
    assert [line for line in loaded.config.show() if line[2] != "default"] == [
        ("policy.Active", "hygon", "/etc/fallback.cfg:2"),
        ("policy.ReservedResources.CPU", "750m", "/etc/fallback.cfg:4"),
        ("log.level", "debug", "/etc/fallback.cfg:6 (logger.Debug)"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "topology-aware",
        "memtier",
        "balloons",
        "podpools",
        "static",
        "static-plus",
        "static-pools",
        "dynamic-pools",
    ],
)
def test_every_policy_of_intels_is_replaced_by_hygon(name: str) -> None:
    loaded = read(f"policy: {{Active: {name}}}")
    assert loaded.config["policy.Active"] == "hygon"
    assert loaded.warnings == (f'c.yaml:1: policy.Active is "{name}"; this version places by hygon instead',)


def test_keys_of_intels_sections_are_known_and_each_is_named_once() -> None:
    text = """\
policy:
  topology-aware: {PinCPU: true, PinMemory: true, ColocatePods: false}
  balloons:
    BalloonTypes:
      - {Name: a, Namespaces: [b]}
  static: ~
cpu: {classes: {a: {minFreq: 1}}}
rdt: {options: {mode: Full}, partitions: {}}
blockio: {}
resource-manager.control: {Controllers: {cpu: disabled}}
instrumentation: off
logger: {LogSource: true, Debug: none}
"""
    assert [w.replace(" has no meaning here", "") for w in read(text).warnings] == [
        "c.yaml:2: policy.topology-aware.PinCPU",
        "c.yaml:2: policy.topology-aware.PinMemory",
        "c.yaml:2: policy.topology-aware.ColocatePods",
        "c.yaml:4: policy.balloons.BalloonTypes",
        "c.yaml:7: cpu.classes",
        "c.yaml:8: rdt.options",
        "c.yaml:8: rdt.partitions",
        "c.yaml:10: resource-manager.control",
        "c.yaml:11: instrumentation",
        "c.yaml:12: logger.LogSource",
        "c.yaml:12: logger.Debug",
    ]
    assert not read(text).config.differences(read("").config)


@pytest.mark.parametrize("policy", ["topology-aware", "balloons"])
def test_what_has_a_counterpart_is_translated_and_says_where_from(policy: str) -> None:
    section = f"{policy}: {{ReservedPoolNamespaces: ['ops-*'], PinMemory: no}}"
    config = read_config([Source("f", f"policy:\n  Active: {policy}\n  {section}")]).config
    # Intel's policies take kube-system as reserved in any case.
    assert config["placement.reserved_namespaces"] == ("kube-system", "ops-*")
    assert config.origins["placement.reserved_namespaces"] == f"f:3 (policy.{policy}.ReservedPoolNamespaces)"
    assert config["placement.memory"] == "off"


def test_only_the_section_of_the_active_policy_is_translated() -> None:
    sections = "balloons: {PinMemory: false}, topology-aware: {ReservedPoolNamespaces: [a]}"
    loaded = read(f"policy: {{Active: memtier, {sections}}}")
    assert loaded.config["placement.memory"] == "prefer"
    assert loaded.config["placement.reserved_namespaces"] == ("kube-system", "a")
    assert loaded.warnings[1:] == ("c.yaml:1: policy.balloons.PinMemory has no meaning here",)


def test_our_own_option_wins_over_a_translated_one_of_the_same_file() -> None:
    assert read("log: {level: error}\nlogger: {Debug: '*'}").config["log.level"] == "error"
    assert read("logger: {Debug: '*'}\nlog: {level: error}").config["log.level"] == "error"


def test_a_translated_value_of_the_wrong_type_is_an_error_under_its_own_name() -> None:
    assert errors_of("policy: {balloons: {ReservedPoolNamespaces: {a: b}}}") == (
        f"c.yaml:1: policy.balloons.ReservedPoolNamespaces is a mapping, {NAMES}",
    )


@pytest.mark.parametrize(
    ("debug", "level"),
    [
        ("'*'", "debug"),
        ("'cache,policy'", "debug"),
        ("on:cache", "debug"),
        ("'off:*,on:cache'", "debug"),
        ("true", "debug"),
        ("off:*", "info"),
        ("'off:cache,policy'", "info"),
        ("none", "info"),
        ("false", "info"),
        ("''", "info"),
        ("[cache]", "info"),
    ],
)
def test_debugging_any_of_intels_sources_is_log_level_debug(debug: str, level: str) -> None:
    assert read(f"logger: {{Debug: {debug}}}").config["log.level"] == level
