"""The configuration, as a specification: what is read, what is refused with which sentence, and who wins."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.core.config import (
    BadConfig,
    Config,
    CpuConstraint,
    Loaded,
    Source,
    engine_options,
    placement_settings,
    read_config,
    reservation,
)
from cri_proxy.core.config_docs import COMMAND, configuration_markdown, sample_config
from cri_proxy.core.config_text import MAX_CHARACTERS
from cri_proxy.core.options import BY_KEY, OPTIONS
from policies.registry import POLICIES
from policies.reserved import Reservation

REPOSITORY = Path(__file__).parents[2]
DURATION = "expected a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
NAMES = 'expected a list of names or globs, such as [kube-system, "ops-*"]'
CPUS = "expected a quantity such as 750m or 4, a set such as cpuset:0-3 or 0-3,8, a cgroup such as cgroup:/system"
RESERVED = "policy.ReservedResources.CPU"
AVAILABLE = "policy.AvailableResources.CPU"
ONLINE = frozenset(range(8))


def read(text: str, **options: Any) -> Loaded:
    return read_config([Source("c.yaml", text)], **options)


def errors_of(text: str, **options: Any) -> tuple[str, ...]:
    with pytest.raises(BadConfig) as caught:
        read(text, **options)
    return caught.value.errors


def value_of(key: str, value: str) -> Any:
    """What the option is after a file that says ``key: value``."""
    return read(f"{key}: {value}").config[key]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("policy.Active", "none", "none"),
        ("placement.ladder", "fine", "fine"),
        ("placement.unlimited", "ccx", "ccx"),
        ("placement.besteffort", "machine", "machine"),
        # YAML 1.1 reads off as false, and tools write it back as false.
        ("relay.mode", "off", "off"),
        ("relay.mode", '"off"', "off"),
        ("relay.mode", "false", "off"),
        ("placement.memory", "off", "off"),
        ("placement.memory_only_nodes", "2", {2}),
        ("placement.memory_only_nodes", "4,8-9", {4, 8, 9}),
        ("placement.memory_only_nodes", '""', set()),
        ("placement.reserved_namespaces", "[a, 'b-*']", ("a", "b-*")),
        ("placement.reserved_namespaces", "[]", ()),
        ("placement.reserved_namespaces", "one", ("one",)),
        # Names that YAML takes for something else.
        ("placement.unmanaged_namespaces", "[true, 007, 1.50, no]", ("true", "007", "1.50", "no")),
        ("placement.restart_hold", "300", 300.0),
        ("placement.restart_hold", '"300"', 300.0),
        ("placement.restart_hold", "0.5", 0.5),
        ("placement.restart_hold", "300s", 300.0),
        ("placement.restart_hold", "5m", 300.0),
        ("placement.restart_hold", "1h30m", 5400.0),
        ("placement.restart_hold", "250ms", 0.25),
        ("placement.restart_hold", "1.5s", 1.5),
        ("placement.restart_hold", "24h", 86400.0),
        ("relay.socket", "/run/x.sock", "/run/x.sock"),
        ("relay.extra_sockets", "[/run/a.sock, /run/b.sock]", ("/run/a.sock", "/run/b.sock")),
        ("relay.extra_sockets", "[]", ()),
        ("relay.runtime_endpoint", "unix:///run/crio/crio.sock", "/run/crio/crio.sock"),
        ("relay.runtime_endpoint", "unix:/run/crio/crio.sock", "/run/crio/crio.sock"),
        ("relay.runtime_endpoint", "/run/crio/crio.sock", "/run/crio/crio.sock"),
        ("relay.runtime_endpoint", '""', ""),
        ("topology.source", "/tmp/machine.json", "/tmp/machine.json"),
        ("metrics.listen", "127.0.0.1:8891", "127.0.0.1:8891"),
        ("metrics.listen", "'[::1]:8891'", "[::1]:8891"),
        ("metrics.listen", "localhost:1", "localhost:1"),
        (RESERVED, "750m", CpuConstraint(milli=750)),
        (RESERVED, "4", CpuConstraint(milli=4000)),
        (RESERVED, "1.5", CpuConstraint(milli=1500)),
        (RESERVED, "0", CpuConstraint()),
        (RESERVED, "cpuset:0-3", CpuConstraint(cpus=frozenset({0, 1, 2, 3}))),
        (RESERVED, '"cpuset:5"', CpuConstraint(cpus=frozenset({5}))),
        (RESERVED, "0-3,8", CpuConstraint(cpus=frozenset({0, 1, 2, 3, 8}))),
        (RESERVED, "0,8", CpuConstraint(cpus=frozenset({0, 8}))),
        (RESERVED, "cgroup:/system.slice", CpuConstraint(cgroup="/system.slice")),
        (RESERVED, "cgroup:system.slice", CpuConstraint(cgroup="system.slice")),
        (RESERVED, "/system.slice", CpuConstraint(cgroup="/system.slice")),
        (AVAILABLE, "cpuset:1-15", CpuConstraint(cpus=frozenset(range(1, 16)))),
        (AVAILABLE, "8", CpuConstraint(milli=8000)),
        (AVAILABLE, '""', CpuConstraint()),
    ],
)
def test_a_value_is_read(key: str, written: str, value: Any) -> None:
    assert value_of(key, written) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("placement:\n  ladder: fien", 'c.yaml:2: placement.ladder is "fien", expected manual or fine'),
        ("placement: {ladder: [fine]}", 'c.yaml:1: placement.ladder is ["fine"], expected manual or fine'),
        ("placement: {ladder: {a: b}}", "c.yaml:1: placement.ladder is a mapping, expected manual or fine"),
        ("policy: {Active: hygn}", 'c.yaml:1: policy.Active is "hygn", expected hygon or none'),
        ("relay: {mode: no}", 'c.yaml:1: relay.mode is "no", expected enforce, observe or off'),
        ("log: {level: 3}", 'c.yaml:1: log.level is "3", expected debug, info, warning or error'),
        ("log: {level: false}", 'c.yaml:1: log.level is "false", expected debug, info, warning or error'),
        ("relay: {drain: -5}", f'c.yaml:1: relay.drain is "-5", {DURATION}'),
        ("relay: {drain: 0}", f'c.yaml:1: relay.drain is "0", {DURATION}'),
        ("relay: {drain: .nan}", f'c.yaml:1: relay.drain is ".nan", {DURATION}'),
        ("relay: {drain: nan}", f'c.yaml:1: relay.drain is "nan", {DURATION}'),
        ("relay: {drain: .inf}", f'c.yaml:1: relay.drain is ".inf", {DURATION}'),
        ("relay: {drain: true}", f'c.yaml:1: relay.drain is "true", {DURATION}'),
        ("relay: {drain: 25h}", f'c.yaml:1: relay.drain is "25h", {DURATION}'),
        ("relay: {drain: 24h1ms}", f'c.yaml:1: relay.drain is "24h1ms", {DURATION}'),
        ("relay: {drain: 1:30}", f'c.yaml:1: relay.drain is "1:30", {DURATION}'),
        ("relay: {drain: 5 m}", f'c.yaml:1: relay.drain is "5 m", {DURATION}'),
        ("relay: {drain: 30m1h}", f'c.yaml:1: relay.drain is "30m1h", {DURATION}'),
        ("relay: {drain: 1d}", f'c.yaml:1: relay.drain is "1d", {DURATION}'),
        ('relay: {drain: ""}', f'c.yaml:1: relay.drain is "", {DURATION}'),
        ("relay: {drain: [5]}", f'c.yaml:1: relay.drain is ["5"], {DURATION}'),
        ("relay: {socket: cri.sock}", 'c.yaml:1: relay.socket is "cri.sock", expected an absolute path of at most 107 bytes'),
        ('relay: {socket: ""}', 'c.yaml:1: relay.socket is "", expected an absolute path of at most 107 bytes'),
        (
            "relay: {socket: /" + "s" * 107 + "}",
            'c.yaml:1: relay.socket is "/' + "s" * 56 + '...", expected an absolute path of at most 107 bytes (it has 108 bytes)',
        ),
        (
            "relay: {socket: /" + "é" * 54 + "}",
            'c.yaml:1: relay.socket is "/' + "é" * 54 + '", expected an absolute path of at most 107 bytes (it has 109 bytes)',
        ),
        (
            'relay: {socket: "/run/\\0.sock"}',
            'c.yaml:1: relay.socket is "/run/\\u0000.sock", expected an absolute path of at most 107 bytes',
        ),
        (
            "relay: {extra_sockets: [/run/a.sock, b]}",
            'c.yaml:1: relay.extra_sockets is ["/run/a.sock", "b"], expected a list of absolute paths of at most 107 bytes each',
        ),
        (
            "relay: {runtime_endpoint: 'tcp://1.2.3.4:5'}",
            'c.yaml:1: relay.runtime_endpoint is "tcp://1.2.3.4:5", '
            'expected unix:///PATH or an absolute path of at most 107 bytes, or "" for the first found',
        ),
        (
            "relay: {image_endpoint: 'unix://images.sock'}",
            'c.yaml:1: relay.image_endpoint is "unix://images.sock", '
            'expected unix:///PATH or an absolute path of at most 107 bytes, or "" for the runtime\'s',
        ),
        ("state: {directory: lib}", 'c.yaml:1: state.directory is "lib", expected an absolute path'),
        (
            "metrics: {listen: ':8891'}",
            'c.yaml:1: metrics.listen is ":8891", expected HOST:PORT such as 127.0.0.1:8891 or "[::1]:8891", or "" for off',
        ),
        (
            "metrics: {listen: 'localhost:65536'}",
            'c.yaml:1: metrics.listen is "localhost:65536", '
            'expected HOST:PORT such as 127.0.0.1:8891 or "[::1]:8891", or "" for off',
        ),
        (
            "placement: {reserved_namespaces: [a, {b: c}]}",
            f"c.yaml:1: placement.reserved_namespaces is a list that holds more than texts, {NAMES}",
        ),
        (
            "placement: {reserved_namespaces: [a, ~]}",
            f"c.yaml:1: placement.reserved_namespaces is a list with an empty item, {NAMES}",
        ),
        (
            "placement: {reserved_namespaces: 'a, b'}",
            f'c.yaml:1: placement.reserved_namespaces is "a, b", {NAMES}',
        ),
        (
            "placement: {reserved_namespaces: [a, b, c, d, '', f]}",
            f'c.yaml:1: placement.reserved_namespaces is ["a", "b", "c", "d", ...], {NAMES}',
        ),
        (
            "placement: {memory_only_nodes: 3-1}",
            'c.yaml:1: placement.memory_only_nodes is "3-1", expected NUMA nodes such as 2 or 2-3,5, or "" for none '
            "('3-1' is not a CPU list: the range '3-1' runs backwards)",
        ),
        (
            "policy:\n  ReservedResources:\n    CPU: lots",
            f'c.yaml:3: policy.ReservedResources.CPU is "lots", {CPUS}, or "" for none',
        ),
        (
            "policy: {ReservedResources: {CPU: true}}",
            f'c.yaml:1: policy.ReservedResources.CPU is "true", {CPUS}, or "" for none',
        ),
        (
            "policy: {ReservedResources: {CPU: 'cpuset:'}}",
            f'c.yaml:1: policy.ReservedResources.CPU is "cpuset:", {CPUS}, or "" for none (the set names no CPU)',
        ),
        (
            "policy: {ReservedResources: {CPU: '0-3,x'}}",
            f'c.yaml:1: policy.ReservedResources.CPU is "0-3,x", {CPUS}, or "" for none '
            "('0-3,x' is not a CPU list: 'x' is neither an id nor a range)",
        ),
        (
            "policy: {ReservedResources: {CPU: 'cgroup:../x'}}",
            f'c.yaml:1: policy.ReservedResources.CPU is "cgroup:../x", {CPUS}, or "" for none '
            "(a cgroup's path is not empty and has no ..)",
        ),
        (
            "policy: {ReservedResources: {CPU: 1M}}",
            f'c.yaml:1: policy.ReservedResources.CPU is "1M", {CPUS}, or "" for none (no machine has as many)',
        ),
        (
            "policy: {AvailableResources: {CPU: 0}}",
            f'c.yaml:1: policy.AvailableResources.CPU is "0", {CPUS}, or "" for all that are online (no CPU would be left)',
        ),
        ("placement: fine", 'c.yaml:1: placement is "fine", expected a mapping of options'),
        ("policy:\n  ReservedResources: 750m", 'c.yaml:2: policy.ReservedResources is "750m", expected a mapping of options'),
        ("placement: [ladder]", 'c.yaml:1: placement is ["ladder"], expected a mapping of options'),
        # A relay that is its own runtime would call itself for ever; /var/run and /run are the same place.
        (
            "relay:\n  runtime_endpoint: unix:///run/cri-resmgr.sock",
            "c.yaml:2: relay.runtime_endpoint is /run/cri-resmgr.sock, expected another socket than relay.socket",
        ),
        (
            "control:\n  socket: /var/run/cri-resmgr/cri-resmgr.sock",
            "c.yaml:2: control.socket is /var/run/cri-resmgr/cri-resmgr.sock, "
            "expected another socket than relay.extra_sockets",
        ),
    ],
)  # fmt: skip
def test_a_bad_value_is_an_error_that_names_file_line_key_value_and_expectation(text: str, sentence: str) -> None:
    assert errors_of(text) == (sentence,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a", 'c.yaml:1: the file holds ["a"], expected sections of options'),
        ("# x\n\nhygon", 'c.yaml:3: the file holds "hygon", expected sections of options'),
        (
            "a: 1\n\tb: 2",
            "c.yaml:2: this is not YAML: while scanning for the next token, "
            "found character '\\t' that cannot start any token (indent with spaces, not tabs)",
        ),
        ("a: {b: 1", "c.yaml:1: this is not YAML: while parsing a flow mapping, expected ',' or '}', but got '<stream end>'"),
        ("a: 1\n---\nb: 2", "c.yaml:2: this is not YAML: expected a single document in the stream, but found another document"),
        (
            "placement:\n  unmanaged_handlers: [*kata]",
            "c.yaml:2: this is not YAML: found undefined alias 'kata' "
            '(a name that begins with * must be quoted: "*qemu*")',
        ),
        (
            "placement:\n  unmanaged_handlers: [*qemu*]",
            "c.yaml:2: this is not YAML: while scanning an alias, expected alphabetic or numeric character, but found '*' "
            '(a name that begins with * must be quoted: "*qemu*")',
        ),
        ("a: 1\nb: \x07", "c.yaml:2: this is not YAML: the character U+0007 is not allowed"),
        ('a: "\\UFFFFFFFF"', "c.yaml: this is not YAML: a number in it is out of range"),
        ("a: " + "[" * 3000, "c.yaml:1: this is not YAML: values are nested deeper than 50 levels"),
        ("#" * (MAX_CHARACTERS + 1), "c.yaml: the file is too large for a configuration: 262145 characters, expected at most 262144"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_an_error_that_names_the_line(text: str, sentence: str) -> None:
    assert errors_of(text) == (sentence,)


def test_all_errors_of_all_sources_are_reported_at_once() -> None:
    with pytest.raises(BadConfig) as caught:
        read_config(
            [
                Source("a", "relay: {mode: of}\nlog: {level: x, format: json}"),
                Source("b", "- x"),
                Source("c", "relay: {mode: off}"),
                Source("command line", values={"relay.drain": 0}),
            ]
        )
    assert caught.value.errors == (
        'a:1: relay.mode is "of", expected enforce, observe or off',
        'a:2: log.level is "x", expected debug, info, warning or error',
        'b:1: the file holds ["x"], expected sections of options',
        f'command line: relay.drain is "0", {DURATION}',
    )
    assert str(caught.value) == "\n".join(caught.value.errors)


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("placement:\n  lader: fine", "c.yaml:2: unknown key placement.lader; did you mean placement.ladder?"),
        ("policy: {active: none}", "c.yaml:1: unknown key policy.active; did you mean policy.Active?"),
        ("placment: {ladder: fine}", "c.yaml:1: unknown key placment; did you mean placement?"),
        ("ladder: fine", "c.yaml:1: unknown key ladder; did you mean placement.ladder?"),
        ("relay: {level: info}", "c.yaml:1: unknown key relay.level; did you mean log.level?"),
        ("wholly: different", "c.yaml:1: unknown key wholly"),
        ("1: 2", "c.yaml:1: unknown key 1"),
        ("? [a]\n: b", "c.yaml:1: unknown key (a key that is no text)"),
        ('"a\\nb": c', 'c.yaml:1: unknown key "a\\nb"'),
        ("relay: {<<: {mode: off}}", "c.yaml:1: unknown key relay.<<"),
        ("log: {level: debug}\nlog: {level: error}", "c.yaml:2: log is given twice, first in line 1; the later value counts"),
        ("log:\n  level: debug\n  level: error", "c.yaml:3: log.level is given twice, first in line 2; the later value counts"),
        ("log:\n  level:", "c.yaml:2: log.level has no value; it counts as not given"),
        ("log:\n  level: ~", "c.yaml:2: log.level has no value; it counts as not given"),
    ],
)  # fmt: skip
def test_a_doubtful_key_is_a_warning_and_an_error_when_strict(text: str, sentence: str) -> None:
    assert read(text).warnings[:1] == (sentence,)
    assert sentence in errors_of(text, strict=True)


def test_of_a_key_given_twice_the_later_value_counts() -> None:
    assert read("log: {level: debug, format: json}\nlog: {level: error}").config["log.level"] == "error"
    assert read("log: {level: debug, format: json}\nlog: {level: error}").config["log.format"] == "json"


def test_a_foreign_file_does_not_flood_the_log() -> None:
    started = time.monotonic()
    warnings = read("\n".join(f"placement_{n}: x" for n in range(2000))).warnings
    assert warnings[-1] == "c.yaml: 1950 more warnings like these"
    assert len(warnings) == 51
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "~", "{}", "placement:\n", "policy: {ReservedResources: }"])
def test_an_empty_file_is_an_empty_configuration(text: str) -> None:
    loaded = read(text, strict=True)
    assert not loaded.config.differences(read_config([]).config)
    assert not loaded.warnings


def test_aliases_are_followed_but_never_expanded() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert errors_of(bomb + "placement: {reserved_namespaces: *a59}") == (
        f"c.yaml:61: placement.reserved_namespaces is a list that holds more than texts, {NAMES}",
    )
    names = "placement: {reserved_namespaces: &n [a, b], unmanaged_namespaces: *n}"
    assert read(names).config["placement.unmanaged_namespaces"] == ("a", "b")


def test_an_alias_inside_itself_comes_to_an_end() -> None:
    assert read("policy: &p {ReservedResources: *p, Active: none}").config["policy.Active"] == "none"


# ---------------------------------------------------------------- several sources


def test_later_sources_win_key_by_key_and_every_value_knows_its_origin() -> None:
    config = read_config(
        [
            Source("/etc/fallback.cfg", "policy:\n  Active: none\nlog:\n  level: debug\n  format: json\n"),
            Source("/etc/config.yaml", "relay:\n  mode: observe\n\nlog:\n  level: warning\n"),
            Source("/tmp/force.yaml", "log: {level: error}", origin_kind="--force-config"),
            Source("command line", values={"relay.mode": "off", "relay.extra_sockets": ["/run/x.sock"]}),
        ]
    ).config
    found = {key: (config[key], config.origins[key]) for key in config.values if config.origins[key] != "default"}
    assert found == {
        "policy.Active": ("none", "/etc/fallback.cfg:2"),
        "log.format": ("json", "/etc/fallback.cfg:5"),
        "log.level": ("error", "/tmp/force.yaml:1 (--force-config)"),
        "relay.mode": ("off", "command line"),
        "relay.extra_sockets": (("/run/x.sock",), "command line"),
    }


def test_a_key_without_a_value_leaves_the_earlier_one() -> None:
    config = read_config([Source("a", "relay: {mode: off}"), Source("b", "relay: {mode: }")]).config
    assert (config["relay.mode"], config.origins["relay.mode"]) == ("off", "a:1")


def test_values_of_the_command_line_may_be_nested_typed_or_wrong() -> None:
    values = {"relay": {"mode": False, "drain": 7}, "placement.memory_only_nodes": 3, "log.level": None}
    loaded = read_config([Source("command line", values=values)])
    assert loaded.config["relay.mode"] == "off"
    assert loaded.config["relay.drain"] == 7.0
    assert loaded.config["placement.memory_only_nodes"] == {3}
    assert loaded.warnings == ("command line: log.level has no value; it counts as not given",)
    assert read_config([Source("command line", values={"nope": 1})]).warnings == ("command line: unknown key nope",)


def test_show_writes_values_as_a_file_would_say_them() -> None:
    text = "placement: {restart_hold: 90, shrink_wait: 1.25, memory_only_nodes: '3,2'}\npolicy: {ReservedResources: {CPU: 0.75}}"
    shown = {key: (value, origin) for key, value, origin in read(text).config.show()}
    assert list(shown) == [option.key for option in OPTIONS]
    assert shown["placement.restart_hold"] == ("1m30s", "c.yaml:1")
    assert shown["placement.shrink_wait"] == ("1s250ms", "c.yaml:1")
    assert shown["placement.memory_only_nodes"] == ("2-3", "c.yaml:1")
    assert shown["policy.ReservedResources.CPU"] == ("750m", "c.yaml:2")
    assert shown["placement.unmanaged_handlers"] == ('["kata*", "*firecracker*", "*cloud-hypervisor*", "*qemu*"]', "default")
    assert shown["relay.runtime_endpoint"] == ('""', "default")


def test_what_show_writes_reads_as_the_same_configuration() -> None:
    text = (
        "placement: {restart_hold: 1h1m1s1ms, shrink_wait: 0.0000004, reserved_namespaces: ['null', '', a]}"
        "\npolicy: {ReservedResources: {CPU: '0,8'}, AvailableResources: {CPU: 'cgroup:/a b'}}\nmetrics: {listen: '[::1]:1'}"
    ).replace("'', ", "")
    config = read(text).config
    again = read("\n".join(f"{key}: {value}" for key, value, _ in config.show()), strict=True).config
    assert config.differences(again) == ()


def test_differences_name_the_changed_keys_and_those_that_need_a_restart() -> None:
    old = read("").config
    new = read("relay: {mode: off, socket: /run/x.sock}\nstate: {directory: /var/lib/cri-resmgr}").config
    assert old.differences(new) == ("relay.mode", "relay.socket")
    assert old.restart_needed(new) == ("relay.socket",)
    assert old.differences(old) == ()


def test_a_configuration_cannot_be_changed() -> None:
    config = read("").config
    with pytest.raises(TypeError):
        config.values["relay.mode"] = "off"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.values = {}  # type: ignore[misc]


def test_what_needs_a_restart_is_sockets_endpoints_directories_and_the_cgroup_mount() -> None:
    assert {option.key for option in OPTIONS if not option.live} == {
        "relay.socket",
        "relay.extra_sockets",
        "relay.runtime_endpoint",
        "relay.image_endpoint",
        "state.directory",
        "control.socket",
        "topology.cgroup_root",
    }


# ---------------------------------------------------------------- the machine


@pytest.mark.parametrize("key", [RESERVED, AVAILABLE])
def test_a_set_of_cpus_is_held_against_the_machine(key: str) -> None:
    assert errors_of(f"{key}: cpuset:8-9", topology_cpus=ONLINE) == (
        f"c.yaml:1: {key} is cpuset:8-9, expected CPUs of this machine: online CPUs are 0-7",
    )
    assert read(f"{key}: cpuset:6-9", topology_cpus=ONLINE).warnings == (
        f"c.yaml:1: {key} is cpuset:6-9, of which 8-9 is not online; online CPUs are 0-7",
    )
    assert read(f"{key}: cpuset:6-7", topology_cpus=ONLINE).warnings == ()
    assert read(f"{key}: cgroup:/x", topology_cpus=ONLINE).warnings == ()


def test_without_a_machine_any_set_of_cpus_will_do() -> None:
    assert read(f"{RESERVED}: cpuset:8000", strict=True).config[RESERVED].cpus == {8000}


# ---------------------------------------------------------------- Intel's files

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
    loaded = read_config([Source("/etc/cri-resmgr/fallback.cfg", FALLBACK_CFG_SAMPLE)])
    assert loaded.warnings == (
        '/etc/cri-resmgr/fallback.cfg:2: policy.Active is "topology-aware"; this version places by hygon instead',
        "/etc/cri-resmgr/fallback.cfg:8: dump.Config has no meaning here",
    )
    assert [line for line in loaded.config.show() if line[2] != "default"] == [
        ("policy.Active", "hygon", "/etc/cri-resmgr/fallback.cfg:2"),
        ("policy.ReservedResources.CPU", "750m", "/etc/cri-resmgr/fallback.cfg:4"),
        ("log.level", "debug", "/etc/cri-resmgr/fallback.cfg:6 (logger.Debug)"),
    ]


@pytest.mark.parametrize(
    "name",
    ["topology-aware", "memtier", "balloons", "podpools", "static", "static-plus", "static-pools", "dynamic-pools"],
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
        ("cache,policy", "debug"),
        ("on:cache", "debug"),
        ("off:*,on:cache", "debug"),
        ("true", "debug"),
        ("off:*", "info"),
        ("off:cache,policy", "info"),
        ("none", "info"),
        ("false", "info"),
        ("''", "info"),
        ("[cache]", "info"),
    ],
)
def test_debugging_any_of_intels_sources_is_log_level_debug(debug: str, level: str) -> None:
    assert read(f"logger: {{Debug: {debug}}}").config["log.level"] == level


# ---------------------------------------------------------------- projections


def test_policies_engine_and_reservation_get_what_was_configured() -> None:
    config = read(
        """\
policy: {ReservedResources: {CPU: 750m}}
placement:
  ladder: fine
  unlimited: socket
  besteffort: ccx
  memory: pin
  memory_only_nodes: 8-9
  reserved_namespaces: [a]
  unmanaged_namespaces: [b]
  unmanaged_handlers: [c]
  restart_hold: 1m
"""
    ).config
    assert dataclasses.astuple(placement_settings(config)) == ("fine", "socket", "ccx", "pin", {8, 9}, ("a",))
    options = engine_options(config)
    assert (options.restart_hold_s, options.unmanaged_namespaces, options.unmanaged_handlers) == (60.0, ("b",), ("c",))
    assert reservation(config) == Reservation(milli=750)


@pytest.mark.parametrize(
    ("cpu", "cgroup_cpus", "wanted"),
    [
        ('""', None, Reservation()),
        ("2", None, Reservation(milli=2000)),
        ("cpuset:0-1", None, Reservation(cpus=frozenset({0, 1}))),
        ("cgroup:/x", None, Reservation()),
        ("cgroup:/x", frozenset({5}), Reservation(cpus=frozenset({5}))),
    ],
)
def test_reservation_forms(cpu: str, cgroup_cpus: frozenset[int] | None, wanted: Reservation) -> None:
    assert reservation(read(f"{RESERVED}: {cpu}").config, cgroup_cpus) == wanted


def test_the_defaults_are_those_of_the_parts() -> None:
    config = read("").config
    assert placement_settings(config) == type(placement_settings(config))()
    assert config["policy.Active"] in POLICIES


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_there_is_can_be_configured(name: str) -> None:
    assert value_of("policy.Active", name) == name


# ---------------------------------------------------------------- documentation


def test_the_documentation_is_what_the_table_says() -> None:
    written = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert written == configuration_markdown(), f"run: {COMMAND}"


def test_the_command_writes_the_documentation_and_the_sample() -> None:
    module = [sys.executable, "-m", "cri_proxy.core.config_docs"]
    page = subprocess.run(module, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    sample = subprocess.run([*module, "sample"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    assert (page, sample) == (configuration_markdown(), sample_config())


def test_the_sample_sets_nothing_and_without_its_comments_every_default() -> None:
    lines = sample_config().splitlines()
    assert all(line.startswith("#") for line in lines)
    assert all(len(line) <= 110 for line in lines)
    loaded = read("\n".join(line[1:] for line in lines), strict=True)
    assert loaded.config.differences(read("").config) == ()
    assert "default" not in loaded.config.origins.values()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_is_described_and_its_default_is_valid(option: Any) -> None:
    assert option.help.endswith(".")
    assert f"### `{option.key}`" in configuration_markdown()
    assert value_of(option.key, option.check.write(option.default)) == option.default


# ---------------------------------------------------------------- whatever is written

_TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["off", "0-3", "cpuset:0", "5m", "/run/a", "unix:///a", "*"]))
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.binary(max_size=4), _TEXTS)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3), max_leaves=6
)
_KEYS = st.one_of(
    _TEXTS,
    st.sampled_from(sorted(BY_KEY)),
    st.sampled_from(["policy", "placement", "relay", "logger", "dump", "policy.balloons.PinMemory", "logger.Debug"]),
)
_DOCUMENTS = st.one_of(_VALUES, st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=5))
_YAML_LIKE = st.text(st.sampled_from("ab: \n-[]{},#&*!|>'\"%@`?~<=\t\\0xU\u2028\ufeff\x07"), max_size=60)


def read_or_refuse(source: Source) -> None:
    try:
        loaded = read_config([source], topology_cpus=ONLINE)
    except BadConfig as error:
        assert error.errors
        assert all(sentence.startswith("any") and "\n" not in sentence for sentence in error.errors)
        return
    assert isinstance(loaded.config, Config)
    assert set(loaded.config.values) == set(BY_KEY)
    assert all("\n" not in value for _, value, _ in loaded.config.show())


@given(_DOCUMENTS)
def test_no_document_does_worse_than_bad_config(document: Any) -> None:
    read_or_refuse(Source("any", yaml.safe_dump(document, allow_unicode=True)))


@given(st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=5))
def test_no_values_of_the_command_line_do_worse_than_bad_config(values: dict[str, Any]) -> None:
    read_or_refuse(Source("any", values=values))


@given(_YAML_LIKE | st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("utf-8", "surrogateescape")))
def test_no_text_does_worse_than_bad_config(text: str) -> None:
    read_or_refuse(Source("any", text))


@given(st.floats(min_value=1e-6, max_value=86400))
def test_durations_are_written_to_the_microsecond(seconds: float) -> None:
    check = BY_KEY["relay.drain"].check
    assert check.read(check.write(seconds)) == pytest.approx(seconds, abs=1.1e-6)
    assert re.fullmatch(r"[0-9hms.]+", check.write(seconds))
