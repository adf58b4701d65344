"""Lists of balloon types: both spellings, what is inherited, and sentences that name the line."""

from __future__ import annotations

import pytest

from cri_proxy.config.balloons import FIELDS, MAX_TYPES, MEANINGLESS
from cri_proxy.config.config import balloon_settings
from policies.balloons.types import BalloonType
from policies.model import MatchExpression
from tests.config.configs import NAMES, errors_of, read


def types_of(text: str, **section: str) -> tuple[BalloonType, ...]:
    """The types of a section ``policy.balloons`` with this list, which must be without doubts."""
    lines = [f"  {key}: {value}" for key, value in section.items()]
    loaded = read("\n".join(["policy.balloons:", *lines, f"  BalloonTypes: {text}"]), strict=True)
    return balloon_settings(loaded.config).types


def section(*types: str) -> str:
    """A file with these types, the first of them in line 4."""
    return "policy:\n  balloons:\n    BalloonTypes:\n" + "".join(f"    - {kind}\n" for kind in types)


# ---------------------------------------------------------------- values

VALUES = {
    "only a name": ("{Name: a}", BalloonType("a")),
    "nri-plugins' spelling": ("{name: a, minCPUs: 2, maxCPUs: 4}", BalloonType("a", min_cpus=2, max_cpus=4)),
    "namespaces": ('{Name: a, Namespaces: [b, "c-*"]}', BalloonType("a", namespaces=("b", "c-*"))),
    "a single namespace": ("{Name: a, Namespaces: b}", BalloonType("a", namespaces=("b",))),
    "banned here": ("{Name: a, MaxCPUs: -1}", BalloonType("a", max_cpus=-1)),
    "numbers of balloons": (
        "{Name: a, MinBalloons: 1, MaxBalloons: 2}",
        BalloonType("a", min_balloons=1, max_balloons=2),
    ),
    "a limit of 0 is none": ("{Name: a, MinCPUs: 8, MaxCPUs: 0}", BalloonType("a", min_cpus=8)),
    "Intel's priority": ("{Name: a, AllocatorPriority: 2}", BalloonType("a", allocator_priority=2)),
    "nri-plugins' priority": ("{Name: a, allocatorPriority: none}", BalloonType("a", allocator_priority=3)),
    "a group": (
        '{Name: a, GroupBy: "${pod/labels/app}-x"}',
        BalloonType("a", group_by="${pod/labels/app}-x"),
    ),
    "sharing in an L3": (
        "{Name: a, ShareIdleCPUsInSame: l3cache}",
        BalloonType("a", share_idle_cpus_in_same="l3cache"),
    ),
    "sharing below a core is sharing in a core": (
        "{Name: a, shareIdleCPUsInSame: thread}",
        BalloonType("a", share_idle_cpus_in_same="core"),
    ),
    "one a domain": ("{Name: a, OneBalloonPer: socket}", BalloonType("a", one_per="package")),
    "one a domain, off": ("{Name: a, OneBalloonPer: off}", BalloonType("a")),
    "no sharing": ('{Name: a, ShareIdleCPUsInSame: ""}', BalloonType("a")),
    "memory is pinned": ("{Name: a, pinMemory: true}", BalloonType("a", memory="prefer")),
    "memory is left alone": ("{Name: a, pinMemory: false}", BalloonType("a", memory="off")),
    "memory is pinned hard": ("{Name: a, pinMemory: pin}", BalloonType("a", memory="pin")),
    "a type of cores": (
        "{Name: a, preferCoreType: efficient}",
        BalloonType("a", prefer_core_type="efficient"),
    ),
    "kinds of memory": (
        "{Name: a, memoryTypes: [HBM, dram]}",
        BalloonType("a", memory_types=frozenset(("hbm", "dram"))),
    ),
    "shown": ("{Name: a, showContainersInNrt: true}", BalloonType("a", show_containers_in_nrt=True)),
    "devices": (
        '{Name: a, preferCloseToDevices: ["0000:41:00.0", /sys/devices/x, "podresourceapi:nvidia.com/*"]}',
        BalloonType(
            "a", prefer_close_to_devices=("0000:41:00.0", "/sys/devices/x", "podresourceapi:nvidia.com/*")
        ),
    ),
    "match expressions": (
        "{Name: a, matchExpressions: [{key: name, operator: In, values: [x, y]}, "
        "{key: labels/z, operator: Exists}]}",
        BalloonType(
            "a", match=(MatchExpression("name", "In", ("x", "y")), MatchExpression("labels/z", "Exists"))
        ),
    ),
    "flags": (
        "{Name: a, PreferNewBalloons: true, PreferSpreadingPods: yes, PreferPerNamespaceBalloon: on, "
        "HideHyperthreads: True, PreferIsolCpus: 'true'}",
        BalloonType(
            "a",
            prefer_new_balloons=True,
            prefer_spreading_pods=True,
            prefer_per_namespace_balloon=True,
            hide_hyperthreads=True,
            prefer_isolated_cpus=True,
        ),
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_type_is_read(case: str) -> None:
    written, expected = VALUES[case]
    assert types_of(f"[{written}]") == (expected,)


def test_types_keep_their_order_and_a_later_file_replaces_the_list() -> None:
    assert [kind.name for kind in types_of("[{Name: b}, {Name: a}]")] == ["b", "a"]
    assert types_of("[]") == ()


def test_what_a_type_does_not_say_it_inherits_from_the_section() -> None:
    said, silent = types_of(
        "[{Name: a, AllocatorTopologyBalancing: false, PreferSpreadOnPhysicalCores: false}, {Name: b}]",
        AllocatorTopologyBalancing="true",
        PreferSpreadOnPhysicalCores="true",
    )
    assert (said.allocator_topology_balancing, said.prefer_spread_on_physical_cores) == (False, False)
    assert (silent.allocator_topology_balancing, silent.prefer_spread_on_physical_cores) == (True, True)


def test_every_field_of_a_type_can_be_configured() -> None:
    made_of_components = {"parts"}
    assert {field.name for field in FIELDS} == set(BalloonType.__dataclass_fields__) - made_of_components


# ---------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("[a, b]", 'a balloon type is ["a", "b"], expected a mapping with Name and others'),
        ("{MinCPUs: 1}", "a balloon type has no Name, expected one"),
        ("{Name: 'a b'}", 'Name is "a b", expected a name without spaces and brackets'),
        ("{Name: 'a[0]'}", 'Name is "a[0]", expected a name without spaces and brackets'),
        ("{Name: a, MinCPUs: x}", 'MinCPUs is "x", expected a whole number from 0 to 65536'),
        ("{Name: a, maxCPUs: -2}", 'maxCPUs is "-2", expected a whole number from -1 to 65536'),
        ("{Name: a, MinCPUs: 4, MaxCPUs: 2}", "MinCPUs is 4, expected at most MaxCPUs, which is 2"),
        ("{Name: a, MinBalloons: 3, MaxBalloons: 2}", "MinBalloons is 3, expected at most MaxBalloons, which is 2"),
        ("{Name: a, PreferNewBalloons: 1}", 'PreferNewBalloons is "1", expected true or false'),
        ("{Name: a, Namespaces: {b: c}}", f"Namespaces is a mapping, {NAMES}"),
        (
            "{Name: a, AllocatorPriority: 4}",
            'AllocatorPriority is "4", expected high, normal, low or none, or 0 (high) to 3',
        ),
        (
            "{Name: a, OneBalloonPer: core}",
            'OneBalloonPer is "core", expected l3cache, numa, die, package, or off',
        ),
        (
            "{Name: a, ShareIdleCPUsInSame: l4}",
            'ShareIdleCPUsInSame is "l4", expected core, l3cache, numa, die, package, system, or off',
        ),
        ("{Name: a, PreferCoreType: big}", 'PreferCoreType is "big", expected performance, efficient or any'),
        ("{Name: a, MemoryTypes: CXL}", 'MemoryTypes is "CXL", expected a list of DRAM, HBM, PMEM'),
        ("{Name: a, PinMemory: maybe}", 'PinMemory is "maybe", expected true, false or pin'),
        (
            "{Name: a, MatchExpressions: [{key: x, operator: Equals, values: [y, z]}]}",
            "MatchExpressions: operator Equals takes one value, found 2",
        ),
        (
            "{Name: a, MatchExpressions: [{key: x, op: Equals}]}",
            "MatchExpressions: expected key and operator as texts, values as a list of texts",
        ),
        (
            "{Name: a, MatchExpressions: [{key: x, operator: Exists, weight: 1}]}",
            "MatchExpressions: weight is not known",
        ),
        (
            "{Name: a, MatchExpressions: x}",
            'MatchExpressions is "x", expected a list of {key: ..., operator: ..., values: [...]}',
        ),
    ],
)  # fmt: skip
def test_a_wrong_value_is_an_error_with_file_and_line(kind: str, sentence: str) -> None:
    assert errors_of(section(kind)) == (f"c.yaml:4: {sentence}",)


def test_every_item_and_key_is_named_by_its_own_line() -> None:
    text = section(
        "{Name: first}", "7", "Name: a\n      MinCPU: 3\n      MaxCPUs: x", "Name: b\n      MinCPUs: -1"
    )
    assert errors_of(text) == (
        'c.yaml:5: a balloon type is "7", expected a mapping with Name and others',
        'c.yaml:8: MaxCPUs is "x", expected a whole number from -1 to 65536',
        'c.yaml:10: MinCPUs is "-1", expected a whole number from 0 to 65536',
    )


def test_two_types_of_one_name_are_an_error() -> None:
    assert errors_of(section("{Name: a}", "{Name: b}", "{Name: a}")) == (
        "c.yaml:6: a balloon type is named a, expected a name of its own",
    )


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("{Name: a, MinCPU: 3}", "unknown key MinCPU of a balloon type; did you mean MinCPUs?"),
        ("{Name: a, wholly: 3}", "unknown key wholly of a balloon type"),
        ("{Name: a, MinCPUs: }", "MinCPUs has no value; it counts as not given"),
        ("{Name: a, MinCPUs: 1, minCPUs: 2}", "minCPUs is given twice; the earlier value counts"),
    ],
)
def test_a_doubtful_key_is_a_warning_and_an_error_when_strict(kind: str, sentence: str) -> None:
    loaded = read(section(kind))
    assert loaded.warnings == (f"c.yaml:4: {sentence}",)
    assert [spec.type.name for spec in loaded.config["policy.balloons.BalloonTypes"]] == ["a"]
    assert errors_of(section(kind), strict=True) == (f"c.yaml:4: {sentence}",)


@pytest.mark.parametrize("key", [*MEANINGLESS, "PreferFarFromDevices"])
def test_a_key_of_theirs_without_meaning_here_is_a_note_and_no_error(key: str) -> None:
    loaded = read(section(f"{{Name: a, {key}: x}}"), strict=True)
    why = MEANINGLESS[key.lower()]
    assert loaded.warnings == (f"c.yaml:4: {key} of a balloon type has no meaning here: {why}",)


def test_a_list_without_end_comes_to_an_end() -> None:
    text = section(*(f"{{Name: t{number}}}" for number in range(MAX_TYPES + 5)))
    assert errors_of(text) == (f"c.yaml:{4 + MAX_TYPES}: expected at most {MAX_TYPES} balloon types",)
    assert len(errors_of(section("&a [*a]"))) == 1
