"""Files of Intel's cri-resource-manager and of nri-plugins: they load, and every difference is named."""

from __future__ import annotations

import pytest

from cri_proxy.config.config import SettingsSource, read_config
from tests.config.configs import NAMES, errors_of, read

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

NRI_RESOURCE = """\
apiVersion: config.nri/v1alpha1
kind: BalloonsPolicy
metadata: {name: default, namespace: kube-system}
spec:
  reservedResources: {cpu: 750m, memory: 1Gi}
  availableResources: {cpu: "exclude-cpuset:4-7"}
  pinCPU: true
  pinMemory: false
  reservedPoolNamespaces: [ops]
  allocatorTopologyBalancing: true
  idleCPUClass: idle
  log: {debug: [policy], klog: {skip_headers: true}}
  agent: {nodeResourceTopology: true}
  control: {rdt: {enable: true}, cpu: {classes: {idle: {minFreq: 1}}}}
  instrumentation: {httpEndpoint: ":8891"}
  balloonTypes:
  - name: db
    minCPUs: 2
    cpuClass: fast
"""


def shown(text: str) -> dict[str, str]:
    """The options that a file sets, as it would say them; it must be without doubts."""
    config = read(text, strict=True).config
    return {key: value for key, value, origin in config.show() if origin != "default"}


def notes_of(text: str) -> list[str]:
    """The warnings about a file that is without doubts."""
    return [warning.replace("c.yaml:", "") for warning in read(text, strict=True).warnings]


def test_intels_shipped_sample_loads_with_a_note_for_what_has_no_meaning() -> None:
    loaded = read_config([SettingsSource("/etc/fallback.cfg", FALLBACK_CFG_SAMPLE)], strict=True)
    assert loaded.warnings == (
        "/etc/fallback.cfg:8: dump.Config has no meaning here: it steers their own dump of messages; "
        "log.level: debug logs each request",
    )
    assert [line for line in loaded.config.show() if line[2] != "default"] == [
        ("policy.Active", "topology-aware", "/etc/fallback.cfg:2"),
        ("policy.ReservedResources.CPU", "750m", "/etc/fallback.cfg:4"),
        ("log.level", "debug", "/etc/fallback.cfg:6 (logger.Debug)"),
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("static", "topology-aware"),
        ("static-plus", "topology-aware"),
        ("dynamic-pools", "balloons"),
        ("podpools", "hygon"),
        ("static-pools", "hygon"),
    ],
)
def test_a_policy_of_intels_that_is_not_here_is_replaced_by_the_nearest(theirs: str, ours: str) -> None:
    text = f"policy: {{Active: {theirs}}}"
    assert shown(text) == {"policy.Active": ours}
    assert notes_of(text) == [f'1: policy.Active is "{theirs}"; {ours} is placed by instead']


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("topology-aware", "topology-aware"), ("memtier", "topology-aware"), ("balloons", "balloons"), ("none", "none")],
)  # fmt: skip
def test_a_policy_of_intels_that_is_here_needs_no_note(theirs: str, ours: str) -> None:
    text = f"policy: {{Active: {theirs}}}"
    assert shown(text) == {"policy.Active": ours}
    assert notes_of(text) == []


def test_keys_of_intels_sections_are_known_and_those_without_meaning_are_named_once() -> None:
    text = """\
policy:
  ReservedResources: {CPU: ""}
  topology-aware: {PinCPU: true, PinMemory: true, ColocatePods: false}
  balloons:
    IdleCPUClass: ""
  static: {RelaxedIsolation: true}
  podpools: {Pools: [{Name: a, CPU: 2}]}
cpu: {classes: {}}
dump: {Config: full}
blockio: {}
resource-manager.control: {Controllers: {cpu: disabled}}
instrumentation: off
logger: {LogSource: true, Debug: none}
"""
    assert [note.partition(" has no meaning here: ")[0] for note in notes_of(text)] == [
        "6: policy.static.RelaxedIsolation",
        "7: policy.podpools.Pools",
        "9: dump.Config",
        "11: resource-manager.control",
        "12: instrumentation",
        "13: logger.LogSource",
        "13: logger.Debug",
    ]
    assert not read(text).config.differences(read("").config)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("policy: {topology-aware: {DefaultCPUPriority: low}}", "priorities of CPUs are Speed Select's, "),
        ("policy: {Active: podpools, podpools: {Pools: [{Name: a}]}}", "hygon takes the place of podpools, "),
        ("policy: {AvailableResources: {Memory: 1G}}", "of what is available only CPU counts"),
        ("availableResources: {memory: 1G}", "of what is available only cpu counts"),
        ("spec: {agent: {podResourceAPI: true}}", "it steers their own agent; "),
        ("resource-manager.control: {a: b}", "it steers their own program"),
        ("log: {klog: {v: 2}}", "it steers their own log; "),
        ("Control: {a: b}", "what it holds is read by its own key"),
        ("kind: Foo", "it is no policy's custom resource"),
        ("control.rdt: {enable: true, force: true}", "groups of others are never taken away"),
    ],
)
def test_the_note_on_a_key_without_meaning_says_why(text: str, why: str) -> None:
    (note,) = [note for note in notes_of(text) if " has no meaning here: " in note]
    assert note.partition(" has no meaning here: ")[2].startswith(why)


def test_a_key_that_theirs_do_not_have_either_is_unknown() -> None:
    text = "policy: {topology-aware: {PinMemroy: no}, balloons: {BaloonTypes: [], wholly: x}}"
    sentences = (
        "c.yaml:1: unknown key policy.topology-aware.PinMemroy; did you mean PinMemory?",
        "c.yaml:1: unknown key policy.balloons.BaloonTypes; did you mean BalloonTypes?",
        "c.yaml:1: unknown key policy.balloons.wholly",
    )
    assert read(text).warnings == sentences
    assert errors_of(text, strict=True) == sentences


# ---------------------------------------------------------------- counterparts

COUNTERPARTS = {
    "memory is not pinned": ("PinMemory: false", "placement.memory", "off"),
    "memory is pinned": ("PinMemory: true", "placement.memory", "prefer"),
    "isolated CPUs": ("PreferIsolatedCPUs: false", "placement.prefer_isolated", "false"),
    "shared CPUs": ("PreferSharedCPUs: true", "placement.prefer_shared", "true"),
    "pods": ("ColocatePods: true", "placement.colocate_pods", "true"),
    "namespaces": ("ColocateNamespaces: true", "placement.colocate_namespaces", "true"),
    # Intel's policies take kube-system as reserved in any case.
    "reserved namespaces": (
        "ReservedPoolNamespaces: ['ops-*']",
        "placement.reserved_namespaces",
        '[kube-system, "ops-*"]',
    ),
    "unlimited in an L3": ("unlimitedBurstable: l3cache", "placement.unlimited", "ccx"),
    "unlimited in a package": ("unlimitedBurstable: package", "placement.unlimited", "socket"),
    "unlimited anywhere": ("unlimitedBurstable: system", "placement.unlimited", "machine"),
}


CONDITION = "{key: name, operator: In, values: [a]}"


@pytest.mark.parametrize(
    "text",
    [
        "preserve: {matchExpressions: [%s]}",
        "spec:\n  preserve:\n    matchExpressions:\n    - %s",
        "policy: {balloons: {Preserve: {MatchExpressions: [%s]}}}",
        "placement: {preserve: [%s]}",
    ],
)
def test_containers_to_preserve_are_left_alone(text: str) -> None:
    assert shown(text % CONDITION) == {"placement.preserve": f"[{CONDITION}]"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "{preserve: {matchExpressions: [{key: a, operator: Is}]}}",
            'operator "Is" is not known, expected one of',
        ),
        ("{placement: {preserve: [{key: a, operator: In, x: y}]}}", "x is not known"),
        (
            "{preserve: {matchExpressions: a}}",
            'preserve.matchExpressions is "a", expected a list of {key: ..., ',
        ),
    ],
)
def test_a_wrong_condition_to_preserve_is_an_error_with_its_line(text: str, sentence: str) -> None:
    (found,) = errors_of(text)
    assert found.startswith("c.yaml:1: ") and sentence in found


@pytest.mark.parametrize("case", COUNTERPARTS)
@pytest.mark.parametrize("policy", ["topology-aware", "balloons"])
def test_what_has_a_counterpart_is_translated_and_says_where_from(policy: str, case: str) -> None:
    theirs, key, value = COUNTERPARTS[case]
    text = f"policy:\n  Active: {policy}\n  {policy}: {{{theirs}}}"
    assert shown(text) == {"policy.Active": policy, key: value}
    name = theirs.partition(":")[0]
    assert read(text).config.origins[key] == f"c.yaml:3 (policy.{policy}.{name})"
    assert notes_of(text) == []


@pytest.mark.parametrize("case", COUNTERPARTS)
def test_the_same_keys_stand_at_the_top_of_nri_plugins_files_whatever_their_case(case: str) -> None:
    theirs, key, value = COUNTERPARTS[case]
    assert shown(f"{theirs[0].lower()}{theirs[1:]}") == {key: value}
    assert shown(f"spec: {{{theirs[0].lower()}{theirs[1:]}}}") == {key: value}
    assert shown(theirs.upper().replace(theirs.partition(": ")[2].upper(), theirs.partition(": ")[2])) == {
        key: value
    }


def test_a_level_that_is_not_here_is_replaced_by_the_nearest_with_a_note() -> None:
    assert shown("unlimitedBurstable: die") == {"placement.unlimited": "numa"}
    assert notes_of("unlimitedBurstable: die") == [
        '1: unlimitedBurstable is "die"; placement.unlimited has no die, and is numa'
    ]


def test_a_custom_resource_of_nri_plugins_loads_as_it_is() -> None:
    assert shown(NRI_RESOURCE) == {
        "policy.Active": "balloons",
        "policy.ReservedResources.CPU": "750m",
        "policy.ReservedResources.Memory": "1Gi",
        "policy.AvailableResources.CPU": "exclude-cpuset:4-7",
        "policy.balloons.BalloonTypes": "[{Name: db, MinCPUs: 2, CpuClass: fast}]",
        "policy.balloons.AllocatorTopologyBalancing": "true",
        "placement.memory": "off",
        "placement.reserved_namespaces": "[kube-system, ops]",
        "log.level": "debug",
        "control.cpu": "{classes: {idle: {minFreq: 1}}, idle: idle}",
        "control.rdt": "{enable: true}",
    }
    assert [note.partition(" has no meaning here: ")[0] for note in notes_of(NRI_RESOURCE)] == [
        "12: spec.log.klog",
        "13: spec.agent",
        "15: spec.instrumentation",
        "14 (spec.control.cpu): control.cpu has classes, and isolation.clocks is off: nothing is written for them",
    ]


def test_types_of_dynamic_pools_are_types_of_balloons() -> None:
    types = "DynamicPoolTypes: [{Name: a, Namespaces: [b], AllocatorPriority: 1}]"
    assert shown(f"policy: {{Active: dynamic-pools, dynamic-pools: {{{types}}}}}") == {
        "policy.Active": "balloons",
        "policy.balloons.BalloonTypes": "[{Name: a, Namespaces: [b], AllocatorPriority: normal}]",
    }


# ---------------------------------------------------------------- no pinning

UNPINNED = {
    "Intel's": "policy: {Active: balloons, balloons: {PinCPU: false}}",
    "whatever comes first": "policy: {topology-aware: {PinCPU: no}, Active: topology-aware}",
    "nri-plugins'": "kind: BalloonsPolicy\nspec: {pinCPU: false}",
    "at the top": "pinCPU: off",
}


@pytest.mark.parametrize("case", UNPINNED)
def test_who_pins_no_cpus_has_nothing_placed(case: str) -> None:
    loaded = read(UNPINNED[case], strict=True)
    assert loaded.config["policy.Active"] == "none"
    assert loaded.warnings[-1].endswith("; nothing is placed: policy.Active is none")


def test_a_section_that_is_not_active_unpins_nothing() -> None:
    loaded = read("policy: {Active: balloons, topology-aware: {PinCPU: false}}")
    assert loaded.config["policy.Active"] == "balloons"


def test_a_wrong_word_for_pinning_is_a_doubt_and_counts_as_true() -> None:
    text = "policy: {Active: balloons, balloons: {PinCPU: maybe}}"
    sentence = 'c.yaml:1: policy.balloons.PinCPU is "maybe", expected true or false; it counts as true'
    assert read(text).warnings == (sentence,)
    assert read(text).config["policy.Active"] == "balloons"
    assert errors_of(text, strict=True) == (sentence,)


# ---------------------------------------------------------------- who wins


def test_only_the_section_of_the_active_policy_is_translated() -> None:
    sections = "balloons: {PinMemory: false}, topology-aware: {ReservedPoolNamespaces: [a]}"
    loaded = read(f"policy: {{Active: memtier, {sections}}}")
    assert loaded.config["placement.memory"] == "prefer"
    assert loaded.config["placement.reserved_namespaces"] == ("kube-system", "a")
    assert loaded.warnings == (
        "c.yaml:1: policy.balloons.PinMemory has no meaning here: "
        "of policies' sections only that of memtier, the active one, counts",
    )


def test_our_own_option_wins_over_a_translated_one_of_the_same_file() -> None:
    assert read("log: {level: error}\nlogger: {Debug: '*'}").config["log.level"] == "error"
    assert read("logger: {Debug: '*'}\nlog: {level: error}").config["log.level"] == "error"
    assert read("placement: {memory: pin}\npinMemory: false").config["placement.memory"] == "pin"


def test_a_translated_value_of_the_wrong_type_is_an_error_under_its_own_name() -> None:
    assert errors_of("policy: {balloons: {ReservedPoolNamespaces: {a: b}}}") == (
        f"c.yaml:1: policy.balloons.ReservedPoolNamespaces is a mapping, {NAMES}",
    )
    assert errors_of("colocatePods: maybe") == ('c.yaml:1: colocatePods is "maybe", expected true or false',)


def test_keys_of_ours_beside_theirs_stay_ours() -> None:
    assert read("control: {sockt: x}\nlog: {lvel: x}\nspec: x").warnings == (
        "c.yaml:1: unknown key control.sockt; did you mean control.socket?",
        "c.yaml:2: unknown key log.lvel; did you mean log.level?",
        "c.yaml:3: unknown key spec",
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
