"""The option ``control.cpu``: Intel's section and nri-plugins' keys are read as they are, and what is wrong has its line."""

from __future__ import annotations

import random

import pytest

from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.isolation.clocks import CpuClass, CpuSection
from tests.config.configs import errors_of, read

CLASSES = """\
    turbo: {minFreq: base, maxFreq: 3.2GHz, freqGovernor: performance, disabledCstates: [C6, C1E], turboPriority: 10}
    normal: {minFreq: 800000, maxFreq: 2500MHz, energyPerformancePreference: 128, boost: no}
    idle: {maxFreq: min, minFreq: 0}
"""
TYPED = {
    "turbo": CpuClass("base", 3_200_000, "performance", "", ("C6", "C1E"), None, 10),
    "normal": CpuClass(800_000, 2_500_000, "", "balance_performance", (), False),
    "idle": CpuClass(None, "min"),
}
OURS = f"control:\n cpu:\n  idle: idle\n  classes:\n{CLASSES}"
INTEL = f"policy: {{Active: balloons, balloons: {{IdleCPUClass: idle}}}}\ncpu:\n  classes:\n{CLASSES}"
NRI_PLUGINS = (
    "kind: BalloonsPolicy\nspec:\n idleCPUClass: idle\n"
    " control: {cpu: {classes: {normal: {minFreq: 1}, idle: {maxFreq: min}}}}\n cpuClasses:\n"
    + CLASSES.replace("    ", "  - {name: ").replace(": {", ", ").replace("name, ", "name: ")
)
AT_THE_TOP = NRI_PLUGINS.replace("spec:\n", "").replace("\n ", "\n").replace("kind: BalloonsPolicy\n", "")


def section(text: str) -> CpuSection:
    found = read(text, strict=True).config["control.cpu"]
    assert isinstance(found, CpuSection)
    return found


FORMS = pytest.mark.parametrize(
    "text", [OURS, INTEL, NRI_PLUGINS, AT_THE_TOP], ids=["ours", "Intel's", "nri-plugins'", "at the top"]
)


@FORMS
def test_classes_are_the_same_wherever_they_stand(text: str) -> None:
    found = section(text)
    assert found.classes == TYPED and found.idle == "idle"


@FORMS
def test_a_section_that_is_shown_is_read_as_the_same(text: str) -> None:
    shown = {key: value for key, value, _ in read(text).config.show()}["control.cpu"]
    assert section(f"control: {{cpu: {shown}}}") == section(text)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_a_section_says_it_is_read_back_as_the_same(seed: int) -> None:
    chance = random.Random(seed)
    pick, names = chance.choice, ["a", "null", "true", "a: b", "{x}", 'q"', "ä", "- 1", "#", "C,D", "~"]
    classes = {
        name: {
            "minFreq": pick([0, "min", 800_000, ".5GHz"]),
            "maxFreq": pick(["", "turbo", "3.3 GHz", 3_000_000]),
            "freqGovernor": pick(["", "performance"]),
            "energyPerformancePreference": pick(["", "power", 77, 0]),
            "disabledCstates": pick([[], ["C6", "haltpoll idle"], "C6, C1E"]),
            "boost": pick([None, True, False]),
            "turboPriority": pick([0, 7]),
        }
        for name in chance.sample(names, chance.randint(1, 5))
    }
    values = {"control": {"cpu": {"classes": classes, "idle": pick(list(classes)), "turboDomain": "system"}}}
    found = read_config([SettingsSource("test", values=values)]).config["control.cpu"]
    assert section(f"control: {{cpu: {found.written}}}") == found and {*found.classes} == {*classes}


def test_topology_awares_classes_of_pools_are_ours() -> None:
    text = (
        "kind: TopologyAwarePolicy\nspec:\n cpuClasses: [{name: a}, {name: b, turboPriority: 2}, {name: c}]\n"
        " sharedPoolCPUClass: a\n reservedPoolCPUClass: b\n defaultExclusiveCPUClass: c\n turboDomain: system\n"
    )
    found = section(text)
    assert (found.shared, found.reserved, found.exclusive, found.turbo_domain) == ("a", "b", "c", "system")


@pytest.mark.parametrize(
    "text", ["control: {cpu: {}}", "cpu: {classes: {}}", "idleCPUClass: ''", "cpuClasses: []"]
)
def test_an_empty_section_is_none(text: str) -> None:
    assert read(text, strict=True).config["control.cpu"] is None


def test_what_is_intels_hardware_alone_is_named_with_the_reason() -> None:
    one = "name: a, uncoreMinFreq: 2GHz, pctPriority: high, sstClosID: 1, maxfreq: 1GHz"
    text = f"isolation: {{clocks: observe}}\ncpuClasses: [{{{one}}}]"
    assert [warning.partition(" has")[0] for warning in read(text, strict=True).warnings] == [
        "c.yaml:2: cpuClasses.a.uncoreMinFreq",
        "c.yaml:2: cpuClasses.a.pctPriority",
        "c.yaml:2: cpuClasses.a.sstClosID",
    ]


FREQUENCY = "expected a frequency such as 3.2GHz, 800MHz or 2400000 (kHz), or min, base or turbo"
ODD = {
    "a frequency": ("minFreq: fast", f'minFreq is "fast", {FREQUENCY}'),
    "a frequency too high": ("maxFreq: 300000000kHz", f'maxFreq is "300000000kHz", {FREQUENCY}'),
    "a frequency below one": ("maxFreq: 0.0001kHz", f'maxFreq is "0.0001kHz", {FREQUENCY}'),
    "a negative one": ("maxFreq: -1", f'maxFreq is "-1", {FREQUENCY}'),
    "a preference": (
        "energyPerformancePreference: 256",
        'energyPerformancePreference is "256", expected performance, balance_performance, balance_power, power, '
        "or a number from 0 to 255",
    ),
    "a governor": (
        "freqGovernor: a b",
        'freqGovernor is "a b", expected the name of a cpufreq governor, such as performance or schedutil',
    ),
    "idle states": ("disabledCstates: {C6: true}", "disabledCstates is a mapping, expected a list of texts"),
    "a priority": ("turboPriority: -1", 'turboPriority is "-1", expected a number from 0 to 1000000'),
    "boost": ("boost: 2", 'boost is "2", expected true or false'),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_wrong_in_a_class_is_named_with_its_place(case: str) -> None:
    wrong, sentence = ODD[case]
    text = f"control:\n  cpu:\n    classes:\n      a: {{{wrong}}}"
    assert errors_of(text) == (f"c.yaml:4: control.cpu.classes.a.{sentence}",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cpuClasses: [{minFreq: 1}]", "cpuClasses has a class without a name, expected one"),
        ("cpu: {classes: {' ': {}}}", "cpu.classes has a class without a name, expected one"),
        ("cpuClasses: [{name: a}, {name: a}]", "cpuClasses has a twice, expected it once"),
        (
            "cpu: {classes: {a: {minFreq: 2GHz, maxFreq: 1GHz}}}",
            "cpu.classes.a has minFreq 2000000 above maxFreq 1000000, expected at most that",
        ),
        (
            "cpu: {classes: {a: {minFreq: turbo, maxFreq: base}}}",
            "cpu.classes.a has minFreq turbo above maxFreq base, expected at most that",
        ),
        ("turboDomain: core", 'turboDomain is "core", expected package or system'),
    ],
)
def test_what_is_wrong_in_a_section_is_named_with_its_place(text: str, sentence: str) -> None:
    assert errors_of(text) == (f"c.yaml:1: {sentence}",)


def test_a_name_that_is_no_class_is_likely_a_mistake() -> None:
    assert errors_of("control: {cpu: {classes: {a: {}}, idle: b}}", strict=True) == (
        "c.yaml:1: control.cpu.idle names the CPU class b, and there are a; it counts as not given",
    )
