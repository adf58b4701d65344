"""Annotations to preferences: each key by its table, which key counts before which, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.cri.annotations.keys import GONE, KEYS, NOT_DONE, OUR_NAMES
from cri_proxy.cri.annotations.koordinator import NUMA_SPEC, QOS_LABEL, RESOURCE_SPEC
from cri_proxy.cri.annotations.read import MAX_NOTES, read_preferences
from cri_proxy.text.annotation_value import MAX_CHARACTERS
from policies.model import MatchExpression, PlacementPreferences, Pod, Qos
from tests.scenes import make_pod

NRI, INTEL = "resource-policy.nri.io", "cri-resource-manager.intel.com"
RDT = "rdt.resources.beta.kubernetes.io"
DOCUMENTATION = Path(__file__).parents[3] / "docs" / "annotations.md"


def read(
    annotations: dict[str, str],
    name: str = "app",
    qos: Optional[Qos] = None,
    own: Any = None,
    labels: Any = None,
) -> PlacementPreferences:
    pod = replace(make_pod("web", annotations=annotations), labels=labels or {})
    return read_preferences(name, own or {}, pod, qos)


def asked(annotations: dict[str, str], **more: Any) -> dict[str, Any]:
    """The fields of the preferences that are not as without annotations."""
    preferences, nothing = read(annotations, **more), PlacementPreferences()
    return {key: value for key, value in vars(preferences).items() if value != getattr(nothing, key)}


ALL_TYPES = frozenset(("dram", "pmem", "hbm"))
ALL_HINTS = frozenset(("devices", "mounts"))

# ---------------------------------------------------------------------- one key, one value

OURS = [
    ("cri-resmgr.io/cpus", "shared", {"ownership": "shared"}),
    ("cri-resmgr.io/cpus", "exclusive", {"ownership": "exclusive"}),
    ("cri-resmgr.io/l3", "prefer", {"l3": "prefer"}),
    ("cri-resmgr.io/l3", "require", {"l3": "require"}),
    ("cri-resmgr.io/l3", "exclusive", {"l3": "exclusive"}),
    ("cri-resmgr.io/l3", "spread", {"l3": "spread"}),
    ("cri-resmgr.io/l3", " Require\n", {"l3": "require"}),
    ("cri-resmgr.io/numa", "require", {"numa": "require"}),
    ("cri-resmgr.io/numa", "prefer", {}),
    ("cri-resmgr.io/smt", "full-core", {"smt": "full-core"}),
    ("cri-resmgr.io/smt", "hide", {"smt": "hide"}),
    ("cri-resmgr.io/smt", "spread", {"smt": "spread"}),
    ("cri-resmgr.io/isolated", "avoid", {"isolated": "avoid"}),
    ("cri-resmgr.io/isolated", "prefer", {"isolated": "prefer"}),
    ("cri-resmgr.io/isolated", "require", {"isolated": "require"}),
    ("cri-resmgr.io/reserved", "true", {"reserved": True}),
    ("cri-resmgr.io/reserved", "false", {"reserved": False}),
    ("cri-resmgr.io/cfs-quota", "keep", {"cfs_quota": "keep"}),
    ("cri-resmgr.io/cfs-quota", "lift", {"cfs_quota": "lift"}),
    ("cri-resmgr.io/memory-type", "dram", {"memory_types": frozenset(("dram",))}),
    ("cri-resmgr.io/memory-type", "HBM, dram", {"memory_types": frozenset(("dram", "hbm"))}),
    ("cri-resmgr.io/memory-type", "mixed", {"memory_types": ALL_TYPES}),
    ("cri-resmgr.io/hints", "devices", {"hints": frozenset(("devices",))}),
    ("cri-resmgr.io/hints", "none", {"hints": frozenset()}),
    ("cri-resmgr.io/balloon", "fast", {"balloon": "fast"}),
    ("cri-resmgr.io/rdt-class", "gold", {"rdt_class": "gold"}),
    ("cri-resmgr.io/blockio-class", "slow", {"blockio_class": "slow"}),
]

THEIRS = [
    ("prefer-isolated-cpus", "true", {"isolated": "prefer"}),
    ("prefer-isolated-cpus", "false", {"isolated": "avoid"}),
    ("prefer-shared-cpus", "true", {"ownership": "shared"}),
    ("prefer-shared-cpus", "false", {"ownership": "exclusive"}),
    ("prefer-reserved-cpus", "true", {"reserved": True}),
    ("prefer-reserved-cpus", "false", {"reserved": False}),
    ("memory-type", "dram,pmem", {"memory_types": frozenset(("dram", "pmem"))}),
    ("memory-type", "mixed", {"memory_types": ALL_TYPES}),
    ("topologyhints", "true", {"hints": ALL_HINTS}),
    ("topologyhints", "false", {"hints": frozenset()}),
    ("topologyhints", "all", {"hints": ALL_HINTS}),
    ("topologyhints", "none", {"hints": frozenset()}),
    ("topologyhints", "mounts", {"hints": frozenset(("mounts",))}),
    ("topologyhints", "mounts,devices", {"hints": ALL_HINTS}),
    ("topologyhints", "pod-resources", {"hints": frozenset(("devices",))}),
    ("balloon.balloons", "fast", {"balloon": "fast"}),
    ("rdtclass", "system/default", {"rdt_class": "system/default"}),
    ("blockioclass", "slow", {"blockio_class": "slow"}),
    # Classes of other resources are no placement, and nothing is said of them.
    ("toptierlimit", "1G", {}),
]

ONLY_NRI = [
    ("require-isolated-cpus", "true", {"isolated": "require"}),
    ("require-isolated-cpus", "false", {}),
    ("hide-hyperthreads", "true", {"smt": "hide"}),
    ("hide-hyperthreads", "false", {}),
    ("strict.topologyhints", "true", {"strict_hints": True}),
    ("strict.topologyhints", "false", {}),
    ("pick-resources-by-hints", "false", {}),
    ("allow.topologyhints", "{paths: [/dev/a]}", {"hints_allow": ("/dev/a*",)}),
    ("allow.topologyhints", "type: glob\npaths:\n- /a*/b\n- /c\n", {"hints_allow": ("/a*/b", "/c")}),
    ("deny.topologyhints", "type: prefix\npaths:\n- /a*b[1]?\n", {"hints_deny": ("/a[*]b[[]1][?]*",)}),
    ("deny.topologyhints", "type: prefix\n", {}),
    ("cpu.preserve", "true", {}),
]

DEPRECATED = [
    ("prefer-isolated-cpus", "true", {"isolated": "prefer"}),
    ("prefer-isolated-cpus", "app: true\nother: false\n", {"isolated": "prefer"}),
    ("prefer-isolated-cpus", '{"app": false}', {"isolated": "avoid"}),
    ("prefer-isolated-cpus", "other: true\n", {}),
    ("prefer-shared-cpus", "true", {"ownership": "shared"}),
    ("prefer-shared-cpus", "{app: false}", {"ownership": "exclusive"}),
    ("memory-type", "dram,hbm", {"memory_types": frozenset(("dram", "hbm"))}),
    ("memory-type", "app: dram\n", {"memory_types": frozenset(("dram",))}),
    ("memory-type", "app: [dram, hbm]\n", {"memory_types": frozenset(("dram", "hbm"))}),
]

ONE_KEY = [
    *OURS,
    *((f"{key.partition('/')[2]}.cri-resmgr.io", value, preferences) for key, value, preferences in OURS),
    *((f"{key}.{INTEL}", value, preferences) for key, value, preferences in THEIRS),
    *((f"{key}.{NRI}", value, preferences) for key, value, preferences in [*THEIRS, *ONLY_NRI]),
    *((f"{INTEL}/{key}", value, preferences) for key, value, preferences in DEPRECATED),
]


@pytest.mark.parametrize(("key", "value", "preferences"), ONE_KEY, ids=[f"{k}={v!r}" for k, v, _ in ONE_KEY])
def test_an_annotation_asks_what_its_table_says(key: str, value: str, preferences: dict[str, Any]) -> None:
    assert asked({key: value}) == preferences


@pytest.mark.parametrize(
    "text", ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"]
)
def test_true_and_false_are_spelt_as_go_does(text: str) -> None:
    assert asked({f"prefer-reserved-cpus.{NRI}": text}) == {"reserved": text[0] in "1tT"}


KOORDINATOR = [
    ('{"requiredCPUBindPolicy": "FullPCPUs"}', {"smt": "full-core"}),
    ('{"requiredCPUBindPolicy": "SpreadByPCPUs"}', {"smt": "spread"}),
    ('{"requiredCPUBindPolicy": "Default"}', {}),
    ('{"preferredCPUBindPolicy": "FullPCPUs"}', {"smt": "full-core"}),
    ('{"preferredCPUBindPolicy": "SpreadByPCPUs"}', {"smt": "spread"}),
    ('{"preferredCPUExclusivePolicy": "PCPULevel"}', {"smt": "full-core"}),
    ('{"preferredCPUExclusivePolicy": "None"}', {}),
    (
        '{"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUBindPolicy": "SpreadByPCPUs"}',
        {"smt": "full-core"},
    ),
    (
        '{"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}',
        {"smt": "spread"},
    ),
    ('{"preferredCPUBindPolicy": "", "somethingNew": {"a": 1}}', {}),
    ("{}", {}),
]


@pytest.mark.parametrize(("spec", "preferences"), KOORDINATOR)
def test_a_resource_spec_of_koordinator_asks_for_cores(spec: str, preferences: dict[str, Any]) -> None:
    assert asked({RESOURCE_SPEC: spec}) == preferences


NUMA_SPECS = [
    ('{"numaTopologyPolicy": "SingleNUMANode"}', {"numa": "require"}),
    ('{"numaTopologyPolicy": "BestEffort"}', {}),
    ('{"numaTopologyPolicy": ""}', {}),
]


@pytest.mark.parametrize(("spec", "preferences"), NUMA_SPECS)
def test_a_numa_spec_of_koordinator_asks_for_one_node(spec: str, preferences: dict[str, Any]) -> None:
    assert asked({NUMA_SPEC: spec}) == preferences


@pytest.mark.parametrize(
    ("qos_class", "preferences"),
    [
        ("LSE", {"ownership": "exclusive"}),
        ("LSR", {"ownership": "exclusive"}),
        ("LS", {}),
        ("BE", {}),
        ("SYSTEM", {}),
    ],
)
def test_a_class_of_koordinator_is_read_from_the_pods_label(
    qos_class: str, preferences: dict[str, Any]
) -> None:
    assert asked({}, labels={QOS_LABEL: qos_class}) == preferences


@pytest.mark.parametrize(
    ("qos", "ownership"),
    [(None, "exclusive"), (Qos.GUARANTEED, "exclusive"), (Qos.BURSTABLE, ""), (Qos.BESTEFFORT, "")],
)
def test_not_preferring_shared_cpus_gives_cpus_to_guaranteed_containers_only(
    qos: Optional[Qos], ownership: str
) -> None:
    assert read({f"prefer-shared-cpus.{INTEL}": "false"}, qos=qos).ownership == ownership
    assert read({"cri-resmgr.io/cpus": "exclusive"}, qos=qos).ownership == "exclusive"


def test_without_annotations_nothing_is_asked() -> None:
    assert read({"example.com/some": "thing"}) == PlacementPreferences()


# ---------------------------------------------------------------------- which one counts

L3 = "l3.cri-resmgr.io"
SCOPES = [
    ({f"{L3}/container.app": "require", f"{L3}/pod": "spread", L3: "prefer"}, "require"),
    ({f"{L3}/container.other": "require", f"{L3}/pod": "spread", L3: "prefer"}, "spread"),
    ({f"{L3}/container.other": "require", L3: "prefer"}, "prefer"),
    ({f"{L3}/container.other": "require"}, ""),
    ({f"{L3}/container.app": "require", "cri-resmgr.io/l3": "spread"}, "require"),
    ({f"{L3}/pod": "require", "cri-resmgr.io/l3": "spread"}, "require"),
    ({L3: "require", "cri-resmgr.io/l3": "spread"}, "require"),
    # Runtimes and their clients take such keys, though Kubernetes does not.
    ({"cri-resmgr.io/l3/container.app": "require", f"{L3}/pod": "spread"}, "require"),
]


@pytest.mark.parametrize(("annotations", "l3"), SCOPES)
def test_a_container_counts_before_its_pod(annotations: dict[str, str], l3: str) -> None:
    assert asked(annotations) == ({"l3": l3} if l3 else {})


RANKS = [
    ("ours before nri-plugins'", {"cri-resmgr.io/cpus": "shared", f"prefer-shared-cpus.{NRI}": "false"}),
    (
        "ours for the pod before nri-plugins' for the container",
        {"cri-resmgr.io/cpus": "shared", f"prefer-shared-cpus.{NRI}/container.app": "false"},
    ),
    (
        "nri-plugins' before cri-resource-manager's",
        {f"prefer-shared-cpus.{NRI}": "true", f"prefer-shared-cpus.{INTEL}": "false"},
    ),
    (
        "the new form before the deprecated one",
        {f"prefer-shared-cpus.{INTEL}": "true", f"{INTEL}/prefer-shared-cpus": "false"},
    ),
]


@pytest.mark.parametrize("annotations", [a for _, a in RANKS], ids=[name for name, _ in RANKS])
def test_who_counts_before_whom(annotations: dict[str, str]) -> None:
    assert asked(annotations, labels={QOS_LABEL: "LSR"}) == {"ownership": "shared"}


RDT_CLASSES = [
    ({f"{RDT}/pod": "gold"}, "gold"),
    ({f"{RDT}/pod": "gold", f"{RDT}/container.app": "silver"}, "silver"),
    ({f"{RDT}/container.other": "silver"}, ""),
    ({f"{RDT}/container.app": "silver", f"rdtclass.{INTEL}/pod": "gold"}, "gold"),
    ({f"rdtclass.{INTEL}/container.app": "silver", f"rdtclass.{NRI}/pod": "gold"}, "gold"),
    ({f"rdtclass.{NRI}/container.app": "silver", "rdt-class.cri-resmgr.io": "gold"}, "gold"),
    ({"rdt-class.cri-resmgr.io/container.app": "Best Effort"}, "Best Effort"),
]


@pytest.mark.parametrize(("annotations", "name"), RDT_CLASSES)
def test_a_class_of_caches_and_bandwidth_is_read_as_others_are_containerds_last(
    annotations: dict[str, str], name: str
) -> None:
    assert asked(annotations).get("rdt_class", "") == name


@pytest.mark.parametrize("key", [f"cpu-class.{NRI}", "cri-resmgr.io/cpu-class", "cpu-class.cri-resmgr.io"])
def test_a_class_of_cpus_is_read_as_nri_plugins_have_it(key: str) -> None:
    assert asked({f"{key}/container.app": "fast", f"{key}/pod": "slow"}) == {"cpu_class": "fast"}


def test_what_is_said_of_different_things_adds_up() -> None:
    annotations = {
        "cri-resmgr.io/l3": "require",
        f"prefer-isolated-cpus.{NRI}": "true",
        f"memory-type.{INTEL}": "dram",
        RESOURCE_SPEC: '{"preferredCPUBindPolicy": "FullPCPUs"}',
    }
    types = frozenset(("dram",))
    expected = {"l3": "require", "isolated": "prefer", "memory_types": types, "smt": "full-core"}
    assert asked(annotations) == expected


def test_requiring_isolated_cpus_is_more_than_preferring_them() -> None:
    both = {f"require-isolated-cpus.{NRI}": "true", f"prefer-isolated-cpus.{NRI}": "false"}
    assert read(both).isolated == "require"
    assert read({**both, f"require-isolated-cpus.{NRI}": "false"}).isolated == "avoid"


def test_a_container_can_be_left_out_of_its_pods_demand() -> None:
    annotations = {
        "numa.cri-resmgr.io/container.app": "prefer",
        NUMA_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}',
    }
    assert asked(annotations) == {}
    assert asked(annotations, name="other") == {"numa": "require"}


def test_the_pods_annotations_count_before_the_containers_own() -> None:
    own = {"cri-resmgr.io/l3": "spread", "cri-resmgr.io/smt": "hide"}
    assert asked({"cri-resmgr.io/l3": "require"}, own=own) == {"l3": "require", "smt": "hide"}


def test_the_next_one_counts_where_the_first_is_not_understood() -> None:
    preferences = read({"cri-resmgr.io/cpus": "mine", f"prefer-shared-cpus.{NRI}": "true"})
    assert preferences.ownership == "shared"
    assert preferences.notes == (
        'annotation cri-resmgr.io/cpus: "mine" is not understood, expected shared or exclusive; it is ignored',
    )


# ---------------------------------------------------------------------- what cannot be understood

NOTES = [
    (
        "cri-resmgr.io/l3",
        "spraed",
        '"spraed" is not understood, expected prefer, require, exclusive or spread',
    ),
    ("smt.cri-resmgr.io/pod", "", '"" is not understood, expected full-core, hide or spread'),
    ("cri-resmgr.io/reserved", "yes", '"yes" is not understood, expected true or false'),
    ("cri-resmgr.io/balloon", " ", "the value is empty, expected a name"),
    (
        "cri-resmgr.io/memory-type",
        "dram,ram",
        '"dram,ram" is not understood, expected a list of dram, pmem, hbm, or mixed',
    ),
    (
        "cri-resmgr.io/hints",
        "gpus",
        '"gpus" is not understood, expected true, false, all, none, or a list of devices, mounts, pod-resources',
    ),
    (
        f"prefer-isolated-cpus.{NRI}/container.app",
        "maybe",
        '"maybe" is not understood, expected true or false',
    ),
    (f"hide-hyperthreads.{NRI}", "on", '"on" is not understood, expected true or false'),
    (f"allow.topologyhints.{NRI}", "/dev", "found a text, expected {type: prefix or glob, paths: a list}"),
    (f"deny.topologyhints.{NRI}", "type: regex", 'type is "regex", expected prefix or glob'),
    (f"deny.topologyhints.{NRI}", "paths: [[a]]", "paths is not a list of texts"),
    (
        f"deny.topologyhints.{NRI}",
        "path: [a]",
        'unknown key "path", expected {type: prefix or glob, paths: a list}',
    ),
    (f"{INTEL}/prefer-shared-cpus", "app: maybe", '"maybe" is not understood, expected true or false'),
    (f"{INTEL}/prefer-shared-cpus", "app: {a: b}", '"app" is a mapping, expected a text'),
    (f"{INTEL}/prefer-shared-cpus", "[a: b]", "found a list, expected a value or values by container name"),
    (
        f"cold-start.{INTEL}",
        "duration: 60s",
        "nothing here does that (memory that is slow first and fast later)",
    ),
    (f"pick-resources-by-hints.{NRI}/pod", "true", "nothing here does that (single CPUs chosen by device)"),
    (f"pool.podpools.{INTEL}", "p", "nothing here does that (pools of pods)"),
    (RESOURCE_SPEC, "FullPCPUs", "found a text, expected a JSON object"),
    (
        RESOURCE_SPEC,
        '{"preferredCPUBindPolicy": "Full"}',
        'preferredCPUBindPolicy "Full" is not understood, '
        "expected FullPCPUs, SpreadByPCPUs, Default or ConstrainedBurst",
    ),
    (
        RESOURCE_SPEC,
        '{"preferredCPUExclusivePolicy": "NUMANodeLevel"}',
        "preferredCPUExclusivePolicy NUMANodeLevel is known, but there is nothing like it here",
    ),
    (
        NUMA_SPEC,
        '{"numaTopologyPolicy": ["a"]}',
        "numaTopologyPolicy a list is not understood, expected SingleNUMANode, BestEffort or Restricted",
    ),
    ("cri-resmgr.io/l4", "require", "there is no such key (did you mean cri-resmgr.io/l3?)"),
    ("l33.cri-resmgr.io/container.app", "x", "there is no such key (did you mean cri-resmgr.io/l3?)"),
    ("cri-resmgr.io/anti_affinity", "x", "there is no such key (did you mean cri-resmgr.io/anti-affinity?)"),
    ("cri-resmgr.io/cpuset-file", "true", GONE["cpuset-file"]),
    ("cpuset-file.cri-resmgr.io/container.app", "false", GONE["cpuset-file"]),
    ("cri-resmgr.io/zzz", "x", f"there is no such key (known are {', '.join(OUR_NAMES)})"),
    ("l3.cri-resmgr.io/app", "x", '"app" is not understood, expected pod or container.NAME behind the slash'),
]


@pytest.mark.parametrize(("key", "value", "phrase"), NOTES, ids=[f"{k}={v!r}" for k, v, _ in NOTES])
def test_what_is_not_understood_is_ignored_and_noted(key: str, value: str, phrase: str) -> None:
    assert asked({key: value}) == {"notes": (f"annotation {key}: {phrase}; it is ignored",)}


def test_a_class_of_koordinator_that_does_not_exist_is_noted() -> None:
    note = f'label {QOS_LABEL}: "LSX" is not understood, expected LSE, LSR, LS, BE or SYSTEM; it is ignored'
    assert asked({}, labels={QOS_LABEL: "LSX"}) == {"notes": (note,)}


@pytest.mark.parametrize(
    "key", ["cri-resmgr.io/manage", "manage.cri-resmgr.io/container.app", "x.example/l3"]
)
def test_what_is_read_elsewhere_is_not_noted(key: str) -> None:
    assert asked({key: "no idea"}) == {}


def test_a_pod_full_of_unknown_keys_gets_few_notes() -> None:
    notes = read({f"cri-resmgr.io/x{n}": "" for n in range(500)}).notes
    assert len(notes) == MAX_NOTES + 1
    assert notes[-1] == "480 more annotations are not understood"


REFUSALS = [
    ("cri-resmgr.io/l3", "requried", "expected prefer, require, exclusive or spread"),
    ("l3.cri-resmgr.io/container.app", "Required!", "expected prefer, require, exclusive or spread"),
    ("cri-resmgr.io/isolated", "required", "expected avoid, prefer or require"),
    ("cri-resmgr.io/numa", "yes", "expected require or prefer"),
    (f"require-isolated-cpus.{NRI}", "yes", "expected true or false"),
    (f"strict.topologyhints.{NRI}/pod", "", "expected true or false"),
]


@pytest.mark.parametrize(("key", "value", "expected"), REFUSALS)
def test_a_demand_that_is_not_understood_is_a_refusal(key: str, value: str, expected: str) -> None:
    sentence = (
        f'default/web/app demands by annotation {key} what is not understood: "{value}" is not understood'
    )
    assert asked({key: value}) == {"refusal": f"{sentence}, {expected}"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (RESOURCE_SPEC, '{"requiredCPUBindPolicy": "Full"}'),
        (RESOURCE_SPEC, '{"requiredCPUBindPolicy": 7}'),
        (RESOURCE_SPEC, '{"requiredCPUBindPolicy": "FullPCPUs"'),
        (NUMA_SPEC, '{"numaTopologyPolicy": "SingleNUMANode"'),
    ],
)
def test_so_is_one_of_koordinator(key: str, value: str) -> None:
    found = asked({key: value})
    assert list(found) == ["refusal"]
    assert found["refusal"].startswith(
        f"default/web/app demands by annotation {key} what is not understood: "
    )


def test_a_demand_that_something_else_overrides_is_none() -> None:
    preferences = read({"cri-resmgr.io/isolated": "avoid", f"require-isolated-cpus.{NRI}": "yes"})
    assert not preferences.refusal
    assert len(preferences.notes) == 1


# ---------------------------------------------------------------------- affinity

SAME_POD = MatchExpression("pod/uid", "Equals", ("uid-web",))


@pytest.mark.parametrize(
    "key",
    [
        "cri-resmgr.io/affinity",
        "affinity.cri-resmgr.io",
        "affinity.cri-resmgr.io/pod",
        f"{NRI}/affinity",
        f"{INTEL}/affinity",
    ],
)
def test_affinity_is_read_under_every_name(key: str) -> None:
    (term,) = read({key: "app: [db]"}).affinity
    assert (term.scope, term.match, term.weight) == (SAME_POD, MatchExpression("name", "In", ("db",)), 1)


def test_affinity_and_anti_affinity_add_up() -> None:
    terms = read({f"{NRI}/affinity": "app: [db]", f"{INTEL}/anti-affinity": "app: [log]"}).affinity
    assert [(term.match.values, term.weight) for term in terms] == [(("db",), 1), (("log",), -1)]


def test_the_first_with_terms_for_the_container_counts() -> None:
    annotations = {
        "cri-resmgr.io/affinity": "other: [x]",
        f"{NRI}/affinity": "app: [db]",
        f"{INTEL}/affinity": "app: [z]",
    }
    assert [term.match.values for term in read(annotations).affinity] == [("db",)]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("app", "found a text, expected terms by container name"),
        ("app: db", '"app" is a text, expected a list of terms or of containers'),
        (
            "app: [{match: x}]",
            'term 1 of "app": match is a text, expected a mapping of key, operator, values',
        ),
        ("app: [", "this is neither YAML nor JSON: "),
        (
            "x" * (MAX_CHARACTERS + 1),
            f"it has {MAX_CHARACTERS + 1} characters, expected at most {MAX_CHARACTERS}",
        ),
    ],
)
def test_a_malformed_affinity_never_fails_a_container(text: str, phrase: str) -> None:
    preferences = read({f"{INTEL}/affinity": text, "cri-resmgr.io/l3": "require"})
    assert preferences.l3 == "require"
    assert not preferences.refusal
    (note,) = preferences.notes
    assert note.startswith(f"annotation {INTEL}/affinity: {phrase}")
    assert note.endswith("; it is ignored")


# ---------------------------------------------------------------------- whatever people write

_KEYS = [
    *(key.key for key in KEYS),
    *(key.alias for key in KEYS if key.alias),
    *NOT_DONE,
    *(
        f"{namespace}/{kind}"
        for namespace in ("cri-resmgr.io", NRI, INTEL)
        for kind in ("affinity", "anti-affinity")
    ),
    RESOURCE_SPEC,
    NUMA_SPEC,
]
_PIECES = [
    "app",
    ":",
    " ",
    "\n",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "match",
    "scope",
    "key",
    "operator",
]
_PIECES += [
    "values",
    "Matches",
    "Equals",
    "weight",
    "1",
    "-5",
    "true",
    "null",
    '"',
    "'",
    "? ",
    "<<",
    "|",
    "---\n",
    "#",
]
_PIECES += [
    "!!python/name:os.system ",
    "%YAML 1.1\n",
    "requiredCPUBindPolicy",
    "\t",
    "\x00",
    "\ud800",
    "é",
    "\\U",
]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(_PIECES), max_size=40).map("".join),
    st.sampled_from(["[" * 5000, "- " * 3000, "{a: " * 2000, "? " * 3000, "a: " * 2000, "'" * 7999]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.one_of(st.sampled_from(_KEYS), st.text(max_size=20)), TEXTS, max_size=6),
    st.sampled_from(["", "/pod", "/container.app"]),
    TEXTS,
)
def test_whatever_annotations_hold_wishes_are_read(given_: dict[str, str], scope: str, label: str) -> None:
    annotations = {key + scope: text for key, text in given_.items()}
    pod = Pod("id", "uid", "p", "n", labels={QOS_LABEL: label}, annotations=annotations)
    preferences = read_preferences("app", annotations, pod)
    assert preferences == read_preferences("app", annotations, pod)
    assert all(term.weight for term in preferences.affinity)


# ---------------------------------------------------------------------- the documentation


def test_every_annotation_is_documented() -> None:
    text = DOCUMENTATION.read_text()
    keys = [*(key.alias or key.key for key in KEYS), *NOT_DONE, RESOURCE_SPEC, NUMA_SPEC, QOS_LABEL]
    names = [key.replace(f".{NRI}", "").replace(f".{INTEL}", "").replace(f"{INTEL}/", "") for key in keys]
    assert [name for name in names if f"`{name}`" not in text] == []
