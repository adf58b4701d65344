"""What balloon types say of loads and components: both spellings, and sentences that name the line."""

from __future__ import annotations

import pytest

from cri_proxy.config.config import balloon_settings
from policies.balloons.composites import Composites
from policies.balloons.types import BALANCE, BalloonType, LoadClass
from tests.config.configs import errors_of, read
from tests.config.test_balloons import section, types_of

LOADS = """policy:
  balloons:
    LoadClasses:
    - {Name: avx, Level: core, OverloadsLevelInBalloon: true}
    - name: memory
      level: L3cache
    BalloonTypes:
    - {Name: a, Loads: [memory, avx, memory]}
"""


# ---------------------------------------------------------------- loads


def test_load_classes_are_read_in_both_spellings_and_types_name_them() -> None:
    settings = balloon_settings(read(LOADS, strict=True).config)
    assert settings.loads == (LoadClass("avx", "core", overloads=True), LoadClass("memory", "l3cache"))
    assert settings.types == (BalloonType("a", loads=("memory", "avx")),)


def test_a_custom_resource_of_nri_plugins_has_them_and_components_too() -> None:
    text = """apiVersion: config.nri/v1alpha1
kind: BalloonsPolicy
metadata: {name: default}
spec:
  loadClasses: [{name: avx, level: core, overloadsLevelInBalloon: true}]
  balloonTypes:
  - {name: a, loads: [avx], namespaces: ["*"]}
  - {name: b, components: [{balloonType: a}, {balloonType: a}], componentCreation: all}
"""
    loaded = read(text, strict=True)
    settings = balloon_settings(loaded.config)
    assert loaded.warnings == ()
    assert settings.loads == (LoadClass("avx", "core", overloads=True),)
    assert settings.types == (
        BalloonType("a", namespaces=("*",), loads=("avx",)),
        BalloonType("b", components=("a", "a")),
    )


def test_what_is_shown_of_loads_and_components_reads_back() -> None:
    more = "    - {Name: b, Components: [{BalloonType: a}, {BalloonType: c}], ComponentCreation: balance-balloons}\n"
    config = read(f"{LOADS}{more}    - {{Name: c}}\n", strict=True).config
    shown = {key: value for key, value, _ in config.show()}
    keys = ("policy.balloons.LoadClasses", "policy.balloons.BalloonTypes")
    again = read("".join(f"{key}: {shown[key]}\n" for key in keys), strict=True).config
    assert [again[key] for key in keys] == [config[key] for key in keys]


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        ("avx", 'policy.balloons.LoadClasses is ["avx"], expected a list of load classes'),
        ("{Name: avx}", "a load class has no Level, expected core, l2cache, l3cache, numa, die or package"),
        ("{Level: core}", "a load class has no Name, expected a name without spaces"),
        ("{Name: a b, Level: core}", 'Name is "a b", expected a name without spaces'),
        ("{Name: a, Level: l4}", 'Level is "l4", expected core, l2cache, l3cache, numa, die or package'),
        (
            "{Name: a, Level: core, OverloadsLevelInBalloon: 1}",
            'OverloadsLevelInBalloon is "1", expected true or false',
        ),
        ("{Name: a, Level: core, x: 1}", "unknown key x of a load class"),
    ],
)
def test_a_wrong_load_class_is_an_error_with_file_and_line(one: str, sentence: str) -> None:
    (error,) = errors_of(f"policy:\n  balloons:\n    LoadClasses:\n    - {one}\n", strict=True)
    assert error in (f"c.yaml:4: {sentence}", f"c.yaml:3: {sentence}")


def test_two_load_classes_of_one_name_are_an_error() -> None:
    text = "policy.balloons.LoadClasses: [{Name: a, Level: core}, {Name: a, Level: numa}]\n"
    assert errors_of(text) == ("c.yaml:1: a load class is named a, expected a name of its own",)


def test_a_load_without_a_class_is_a_warning_and_an_error_when_strict() -> None:
    text = section("{Name: a, Loads: [avx]}")
    (warning,) = read(text).warnings
    assert warning == (
        "c.yaml:3: type a has the load avx, expected one of policy.balloons.LoadClasses; it counts for nothing"
    )
    assert errors_of(text, strict=True) == (warning,)


# ---------------------------------------------------------------- components


def test_components_are_of_all_or_of_one() -> None:
    one, every = types_of(
        "[{Name: a, Components: [{BalloonType: default}, {balloonType: b}], componentCreation: balance-balloons},"
        " {Name: b, components: [{BalloonType: default}], componentCreation: ''}]"
    )
    assert one == BalloonType("a", components=("default", "b"), component_creation=BALANCE)
    assert every == BalloonType("b", components=("default",))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            "{Name: a, Components: [x]}",
            'Components is ["x"], expected a list of at most 64 {BalloonType: NAME}',
        ),
        (
            "{Name: a, Components: [{balloonType: default, x: 1}]}",
            "Components: expected BalloonType and a name, and nothing else",
        ),
        ("{Name: a, Components: [{BalloonType: x}]}", "Components of a: there is no type x"),
        ("{Name: a, Components: [{BalloonType: a}]}", "Components of a: expected no circle: a > a"),
        (
            "{Name: a, Components: [{BalloonType: default}], PreferIsolCpus: true}",
            "PreferIsolCpus is given for a type with Components, expected for the types of these",
        ),
        (
            "{Name: a, MaxCPUs: 1, Components: [{BalloonType: default}, {BalloonType: default}]}",
            "MaxCPUs is 1, expected at least 2, a CPU for each part of a balloon",
        ),
        (
            "{Name: a, ComponentCreation: balance-balloons}",
            "ComponentCreation is balance-balloons, expected Components besides",
        ),
        (
            "{Name: a, ComponentCreation: some}",
            'ComponentCreation is "some", expected all or balance-balloons',
        ),
    ],
)
def test_components_of_which_no_balloon_can_be_made_are_an_error(kind: str, sentence: str) -> None:
    assert errors_of(section(kind)) == (f"c.yaml:4: {sentence}",)


def test_a_circle_of_several_types_is_told_at_each_of_them() -> None:
    kinds = [f"{{Name: {a}, Components: [{{BalloonType: {b}}}]}}" for a, b in ("ab", "bc", "cb")]
    assert errors_of(section(*kinds)) == (
        "c.yaml:4: Components of a: expected no circle: b > c > b",
        "c.yaml:5: Components of b: expected no circle: b > c > b",
        "c.yaml:6: Components of c: expected no circle: c > b > c",
    )


def test_components_inside_each_other_come_to_an_end() -> None:
    kinds = [
        f"{{Name: t{n}, Components: [{{BalloonType: t{n + 1}}}, {{BalloonType: t{n + 1}}}]}}"
        for n in range(30)
    ]
    errors = errors_of(section(*kinds, "{Name: t30}"))
    assert errors[0] == "c.yaml:4: Components of t0: expected at most 64 parts"
    chain = [f"{{Name: t{n}, Components: [{{BalloonType: t{n + 1}}}]}}" for n in range(9)]
    assert errors_of(section(*chain, "{Name: t9}")) == (
        "c.yaml:4: Components of t0: expected at most 8 types inside each other",
    )


def test_ways_through_components_are_not_all_gone() -> None:
    many = [", ".join([f"{{BalloonType: t{n + 1}}}"] * 60) for n in range(8)]
    wide = [
        f"{{Name: t{n}, ComponentCreation: balance-balloons, Components: [{inside}]}}"
        for n, inside in enumerate(many)
    ]
    config = read(section(*wide, "{Name: t8}"), strict=True).config
    Composites(balloon_settings(config).types)
