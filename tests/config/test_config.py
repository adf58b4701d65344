"""The configuration: who wins, what is doubtful, and what the parts get of it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Optional

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.config.config import (
    BadConfig,
    SettingsSource,
    engine_options,
    placement_settings,
    read_config,
    reservation,
)
from cri_proxy.config.options.table import BY_KEY, OPTIONS
from policies.balloons.types import BalloonSettings, BalloonType
from policies.registry import POLICIES
from policies.reserved import Reservation
from policies.settings import EngineOptions, PlacementSettings
from tests.config.configs import AVAILABLE, DURATION, RESERVED, errors_of, read, value_of

ONLINE = frozenset(range(8))

# ---------------------------------------------------------------- several sources


def test_all_errors_of_all_sources_are_reported_at_once() -> None:
    with pytest.raises(BadConfig) as caught:
        read_config(
            [
                SettingsSource("a", "relay: {mode: of}\nlog: {level: x, format: json}"),
                SettingsSource("b", "- x"),
                SettingsSource("c", "relay: {mode: off}"),
                SettingsSource("command line", values={"nri.sync_timeout": 0}),
            ]
        )
    assert caught.value.errors == (
        'a:1: relay.mode is "of", expected enforce, observe or off',
        'a:2: log.level is "x", expected debug, info, warning or error',
        'b:1: the file holds ["x"], expected sections of options',
        f'command line: nri.sync_timeout is "0", {DURATION}',
    )
    assert str(caught.value) == "\n".join(caught.value.errors)


def test_later_sources_win_key_by_key_and_every_value_knows_its_origin() -> None:
    config = read_config(
        [
            SettingsSource(
                "/etc/fallback.cfg", "policy:\n  Active: none\nlog:\n  level: debug\n  format: json\n"
            ),
            SettingsSource("/etc/config.yaml", "relay:\n  mode: observe\n\nlog:\n  level: warning\n"),
            SettingsSource("/tmp/force.yaml", "log: {level: error}", origin_kind="--force-config"),
            SettingsSource(
                "command line", values={"relay.mode": "off", "relay.extra_sockets": ["/run/x.sock"]}
            ),
        ]
    ).config
    given_origins = {key: origin for key, origin in config.origins.items() if origin != "default"}
    assert {key: (config[key], origin) for key, origin in given_origins.items()} == {
        "policy.Active": ("none", "/etc/fallback.cfg:2"),
        "log.format": ("json", "/etc/fallback.cfg:5"),
        "log.level": ("error", "/tmp/force.yaml:1 (--force-config)"),
        "relay.mode": ("off", "command line"),
        "relay.extra_sockets": (("/run/x.sock",), "command line"),
    }


def test_a_key_without_a_value_leaves_the_earlier_one() -> None:
    config = read_config(
        [SettingsSource("a", "relay: {mode: off}"), SettingsSource("b", "relay: {mode: }")]
    ).config
    assert (config["relay.mode"], config.origins["relay.mode"]) == ("off", "a:1")


def test_values_of_the_command_line_may_be_nested_typed_or_wrong() -> None:
    values = {
        "relay": {"mode": False},
        "affinity": {"cooldown": 7},
        "placement.memory_only_nodes": 3,
        "log.level": None,
    }
    loaded = read_config([SettingsSource("command line", values=values)])
    assert loaded.config["relay.mode"] == "off"
    assert loaded.config["affinity.cooldown"] == 7.0
    assert loaded.config["placement.memory_only_nodes"] == {3}
    assert loaded.warnings == ("command line: log.level has no value; it counts as not given",)
    unknown = read_config([SettingsSource("command line", values={"nope": 1})])
    assert unknown.warnings == ("command line: unknown key nope",)


def test_show_writes_values_as_a_file_would_say_them() -> None:
    text = f"nri: {{sync_timeout: 90, request_timeout: 1.25}}\nplacement: {{memory_only_nodes: '3,2'}}\n{RESERVED}: 0.75"
    shown = {key: (value, origin) for key, value, origin in read(text).config.show()}
    assert list(shown) == [option.key for option in OPTIONS]
    assert shown["nri.sync_timeout"] == ("1m30s", "c.yaml:1")
    assert shown["nri.request_timeout"] == ("1s250ms", "c.yaml:1")
    assert shown["placement.memory_only_nodes"] == ("2-3", "c.yaml:2")
    assert shown["policy.ReservedResources.CPU"] == ("750m", "c.yaml:3")
    handlers = '["kata*", "*firecracker*", "*cloud-hypervisor*", "*qemu*"]'
    assert shown["placement.unmanaged_handlers"] == (handlers, "default")
    assert shown["relay.runtime_endpoint"] == ('""', "default")


def test_what_show_writes_reads_as_the_same_configuration() -> None:
    text = f"""\
nri: {{sync_timeout: 1h1m1s1ms, request_timeout: 0.0000004}}
placement: {{reserved_namespaces: ['null', '~', '-', a]}}
{RESERVED}: '0,8'
{AVAILABLE}: 'cgroup:/a b'
metrics: {{listen: '[::1]:1'}}
policy.balloons.BalloonTypes:
- {{Name: a, Namespaces: ['*', b], MinCPUs: 1, MaxCPUs: -1, AllocatorPriority: 2, PinMemory: pin}}
- {{Name: b, MatchExpressions: [{{key: 'labels/a:b', operator: In, values: ['x, y', 'z}}']}}, {{operator: AlwaysTrue}}]}}
- {{Name: c, GroupBy: '${{pod/labels/app}}', ShareIdleCPUsInSame: l3cache, PreferCloseToDevices: ['0000:41:00.0']}}
"""
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


def test_what_needs_a_restart_is_sockets_endpoints_directories_the_cgroup_mount_and_who_speaks_nri() -> None:
    assert {option.key for option in OPTIONS if not option.live} == {
        "relay.socket",
        "relay.extra_sockets",
        "relay.runtime_endpoint",
        "relay.image_endpoint",
        "affinity.socket",
        "state.directory",
        "control.socket",
        "control.view_socket",
        "control.view_group",
        "topology.cgroup_root",
        "nri.host",
        "nri.socket",
        "nri.plugin_path",
        "nri.plugin_config_path",
        "nri.plugin.socket",
        "nri.plugin.index",
    }


# ---------------------------------------------------------------- errors of the whole


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("placement: fine", 'c.yaml:1: placement is "fine", expected a mapping of options'),
        ("placement: [ladder]", 'c.yaml:1: placement is ["ladder"], expected a mapping of options'),
        (
            "policy:\n  ReservedResources: 750m",
            'c.yaml:2: policy.ReservedResources is "750m", expected a mapping of options',
        ),
        # A relay that is its own runtime would call itself for ever; /var/run and /run are the same place.
        (
            "relay:\n  runtime_endpoint: unix:///run/cri-resmgr.sock",
            "c.yaml:2: relay.runtime_endpoint is /run/cri-resmgr.sock, "
            "expected another socket than relay.socket",
        ),
        (
            "control:\n  socket: /var/run/cri-resmgr/cri-resmgr.sock",
            "c.yaml:2: control.socket is /var/run/cri-resmgr/cri-resmgr.sock, "
            "expected another socket than relay.extra_sockets",
        ),
        (
            "control:\n  view_socket: /run/cri-resmgr/control.sock",
            "c.yaml:2: control.view_socket is /run/cri-resmgr/control.sock, "
            "expected another socket than control.socket",
        ),
        (
            "nri:\n  socket: /run/cri-resmgr.sock",
            "c.yaml:2: nri.socket is /run/cri-resmgr.sock, expected another socket than relay.socket",
        ),
    ],
)
def test_sections_that_are_none_and_sockets_with_two_roles_are_errors(text: str, sentence: str) -> None:
    assert errors_of(text) == (sentence,)


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("placement:\n  lader: ", "c.yaml:2: unknown key placement.lader; did you mean placement.ladder?"),
        ("policy: {active: none}", "c.yaml:1: unknown key policy.active; did you mean policy.Active?"),
        ("placment: {ladder: fine}", "c.yaml:1: unknown key placment; did you mean placement?"),
        ("ladder: fine", "c.yaml:1: unknown key ladder; did you mean placement.ladder?"),
        ("relay: {level: info}", "c.yaml:1: unknown key relay.level; did you mean log.level?"),
        ("wholly: different", "c.yaml:1: unknown key wholly"),
        ("1: 2", "c.yaml:1: unknown key 1"),
        ("? [a]\n: b", "c.yaml:1: unknown key (a key that is no text)"),
        ('"a\\nb": c', 'c.yaml:1: unknown key "a\\nb"'),
        ("relay: {<<: {mode: off}}", "c.yaml:1: unknown key relay.<<; merge keys are not followed"),
        (
            "log: {level: debug}\nlog: {level: error}",
            "c.yaml:2: log is given twice, first in line 1; the later value counts",
        ),
        (
            "log:\n  level: debug\n  level: error",
            "c.yaml:3: log.level is given twice, first in line 2; the later value counts",
        ),
        ("log:\n  level:", "c.yaml:2: log.level has no value; it counts as not given"),
        ("log:\n  level: ~", "c.yaml:2: log.level has no value; it counts as not given"),
    ],
)
def test_a_doubtful_key_is_a_warning_and_an_error_when_strict(text: str, sentence: str) -> None:
    assert read(text).warnings[:1] == (sentence,)
    assert sentence in errors_of(text, strict=True)


def test_of_a_key_given_twice_the_later_value_counts() -> None:
    assert read("log: {level: debug, format: json}\nlog: {level: error}").config["log.level"] == "error"
    assert read("log: {level: debug, format: json}\nlog: {level: error}").config["log.format"] == "json"


def test_a_foreign_file_does_not_flood_the_log() -> None:
    started = time.process_time()
    warnings = read("\n".join(f"placement_{n}: x" for n in range(2000))).warnings
    assert warnings[-1] == "c.yaml: 1950 more warnings like these"
    assert len(warnings) == 51
    assert time.process_time() - started < 20


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
    assert read(f"{key}: exclude-cpuset:6-9", topology_cpus=ONLINE).warnings == ()


def test_available_cpus_must_not_be_none_of_the_machines() -> None:
    assert errors_of(f"{AVAILABLE}: exclude-cpuset:0-9", topology_cpus=ONLINE) == (
        f"c.yaml:1: {AVAILABLE} is exclude-cpuset:0-9, expected CPUs to be left: online CPUs are 0-7",
    )


def test_without_a_machine_any_set_of_cpus_will_do() -> None:
    assert read(f"{RESERVED}: cpuset:8000", strict=True).config[RESERVED].cpus == {8000}


# ---------------------------------------------------------------- projections


def test_policies_engine_and_reservation_get_what_was_configured() -> None:
    config = read(
        """\
policy:
  ReservedResources: {CPU: 750m}
  balloons: {BalloonTypes: [{Name: x, MinCPUs: 2}], AllocatorTopologyBalancing: true}
placement:
  cpus: exclusive
  l3: spread
  smt: hide
  cfs_quota: lift
  hints: mounts
  prefer_isolated: false
  prefer_shared: true
  colocate_pods: true
  colocate_namespaces: true
  max_moves: 1
  move_exclusive: true
  ladder: fine
  unlimited: socket
  besteffort: ccx
  memory: pin
  memory_only_nodes: 8-9
  reserved_namespaces: [a]
  unmanaged_namespaces: [b]
  unmanaged_handlers: [c]
"""
    ).config
    assert placement_settings(config) == PlacementSettings(
        ladder="fine",
        unlimited="socket",
        besteffort="ccx",
        memory="pin",
        memory_only_nodes=frozenset({8, 9}),
        reserved_namespaces=("a",),
        ownership="exclusive",
        l3="spread",
        smt="hide",
        cfs_quota="lift",
        hints=frozenset({"mounts"}),
        prefer_isolated=False,
        prefer_shared=True,
        colocate_pods=True,
        colocate_namespaces=True,
        balloons=BalloonSettings((BalloonType("x", min_cpus=2, allocator_topology_balancing=True),)),
    )
    options = engine_options(config)
    assert options.restart_hold_s == 300.0
    assert (options.max_moves, options.move_exclusive) == (1, True)
    assert (options.unmanaged_namespaces, options.unmanaged_handlers) == (("b",), ("c",))
    assert reservation(config) == Reservation(milli=750)


@pytest.mark.parametrize(
    ("cpu", "cgroup_cpus", "wanted"),
    [
        ('""', None, Reservation()),
        ("2", None, Reservation(milli=2000)),
        ("cpuset:0-1", None, Reservation(cpus=frozenset({0, 1}))),
        ("exclude-cpuset:2-7", None, Reservation(cpus=frozenset({0, 1}))),
        ("cgroup:/x", None, Reservation()),
        ("cgroup:/x", frozenset({5}), Reservation(cpus=frozenset({5}))),
    ],
)
def test_reservation_forms(cpu: str, cgroup_cpus: Optional[frozenset[int]], wanted: Reservation) -> None:
    assert reservation(read(f"{RESERVED}: {cpu}").config, cgroup_cpus, ONLINE) == wanted


@pytest.mark.parametrize(
    ("policy", "cpus", "ownership"),
    [
        ("hygon", "preset", "shared"),
        ("topology-aware", "preset", "exclusive"),
        ("balloons", "preset", "shared"),
        ("hygon", "exclusive", "exclusive"),
        ("topology-aware", "shared", "shared"),
    ],
)
def test_who_owns_cpus_is_the_presets_matter_unless_it_is_said(
    policy: str, cpus: str, ownership: str
) -> None:
    config = read(f"policy.Active: {policy}\nplacement.cpus: {cpus}").config
    assert placement_settings(config).ownership == ownership


def test_the_defaults_are_those_of_the_parts() -> None:
    config = read("").config
    assert placement_settings(config) == PlacementSettings()
    assert engine_options(config).max_moves == EngineOptions().max_moves
    assert config["policy.Active"] in POLICIES


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_there_is_can_be_configured(name: str) -> None:
    assert value_of("policy.Active", name) == name


# ---------------------------------------------------------------- whatever is written

_TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["off", "0-3", "cpuset:0", "5m", "/run/a", "unix:///a", "*"]),
)
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.binary(max_size=4), _TEXTS
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.one_of(
    _TEXTS,
    st.sampled_from(sorted(BY_KEY)),
    st.sampled_from(["policy", "placement", "logger", "dump", "policy.balloons.PinMemory", "logger.Debug"]),
    st.sampled_from(["pinCPU", "spec", "balloonTypes", "Name", "MinCPUs", "reservedResources", "log.debug"]),
)
_MAPPINGS = st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=5)
_YAML_LIKE = st.text("ab: \n-[]{},#&*!|>'\"%@`?~<=\t\\0xU\u2028\ufeff\x07", max_size=60)
_BYTES = st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape"))


def outcome(source: SettingsSource) -> tuple[str, ...]:
    """The errors; without any, the configuration is whole and can be shown."""
    try:
        config = read_config([source], topology_cpus=ONLINE).config
    except BadConfig as refused:
        return refused.errors
    assert set(config.values) == set(BY_KEY)
    assert all("\n" not in value for _, value, _ in config.show())
    return ()


def is_a_sentence(error: str) -> bool:
    return error.startswith("any") and "\n" not in error


@given(_VALUES | _MAPPINGS)
def test_no_document_does_worse_than_bad_config(document: Any) -> None:
    assert all(
        map(is_a_sentence, outcome(SettingsSource("any", yaml.safe_dump(document, allow_unicode=True))))
    )


@given(_MAPPINGS)
def test_no_values_of_the_command_line_do_worse_than_bad_config(values: dict[str, Any]) -> None:
    assert all(map(is_a_sentence, outcome(SettingsSource("any", values=values))))


@given(_YAML_LIKE | st.text(max_size=60) | _BYTES)
def test_no_text_does_worse_than_bad_config(text: str) -> None:
    assert all(map(is_a_sentence, outcome(SettingsSource("any", text))))
