"""The option ``control.rdt``: Intel's section and nri-plugins' are read as they are, and what is wrong has its line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.isolation.rdt import ROOT_CLASS, RdtSection
from tests.config.configs import errors_of, read

PARTITIONS = """\
  options: {l3: {optional: true}, MB: {Optional: yes}, l2: {optional: false}}
  partitions:
    shared:
      l3Allocation: "40%"
      MBAllocation: [50%, 2000MBps]
      classes:
        BestEffort: {l3Allocation: 50%}
        "": {}
    exclusive:
      l3allocation: {all: 60%, "0,2-3": {unified: 20%, code: 0xf, data: 4-7}}
      classes: {gold:, silver: {l3Allocation: {}}}
"""
OURS = f"control:\n rdt:\n  enable: true\n{PARTITIONS}"
INTEL = f"rdt:\n{PARTITIONS}"
NRI_RESOURCE = (
    "kind: BalloonsPolicy\nspec:\n control:\n  rdt:\n   enable: true\n   usePodQoSAsDefaultClass: true\n"
    + PARTITIONS.replace("\n  ", "\n   ").replace("  options", "   options", 1)
)


def section(text: str) -> RdtSection:
    found = read(text).config["control.rdt"]
    assert isinstance(found, RdtSection)
    return found


def test_a_file_without_a_section_does_not_have_its_rules_imported() -> None:
    lines = "import sys\nfrom cri_proxy.config.config import SettingsSource, read_config\n"
    lines += "read_config([SettingsSource('c.yaml', 'log: {level: debug}')])\n"
    lines += "assert not [name for name in sys.modules if name.startswith('cri_proxy.isolation')]\n"
    subprocess.run([sys.executable, "-c", lines], check=True, timeout=60)


def test_a_section_is_read_whatever_the_case_of_its_keys_and_names_are_as_they_are_written() -> None:
    found = section(OURS)
    assert found.optional == {"L3", "MB"}
    assert {name: [*each.classes] for name, each in found.partitions.items()} == {
        "shared": ["BestEffort", ROOT_CLASS],
        "exclusive": ["gold", "silver"],
    }
    shared, exclusive = found.partitions["shared"].own, found.partitions["exclusive"].own
    assert shared.bandwidth is not None
    assert (shared.bandwidth.of(7).percent, shared.bandwidth.of(7).mbps) == (50, 2000)
    by_id = exclusive.caches["L3"]
    assert (by_id.of(1).unified.text, by_id.of(1).code) == ("60%", None)
    assert [part.text for part in (by_id.of(3).unified, by_id.of(3).code, by_id.of(3).data) if part] == [
        "20%",
        "0xf",
        "4-7",
    ]
    assert found.partitions["exclusive"].classes["gold"].caches == {}
    assert found.partitions["exclusive"].classes["silver"].caches["L3"].of(0).unified.text == "100%"


@pytest.mark.parametrize(
    ("text", "by_qos"),
    [(OURS, False), (INTEL, True), (NRI_RESOURCE, True)],
    ids=["ours", "Intel's", "nri-plugins'"],
)
def test_the_section_is_the_same_wherever_it_stands_and_intels_gives_classes_by_qos(
    text: str, by_qos: bool
) -> None:
    found, ours = section(text), section(OURS)
    assert (found.partitions, found.optional) == (ours.partitions, ours.optional)
    assert found.by_qos is by_qos
    assert read(f"{text}isolation: {{caches: observe}}\n", strict=True).warnings == ()


@pytest.mark.parametrize("text", [OURS, INTEL, NRI_RESOURCE], ids=["ours", "Intel's", "nri-plugins'"])
def test_a_section_that_is_shown_is_read_as_the_same(text: str) -> None:
    shown = {key: value for key, value, _ in read(text).config.show()}["control.rdt"]
    again = section(f"control: {{rdt: {shown}}}")
    assert again == section(text)


@pytest.mark.parametrize("text", ["control: {rdt: {}}", ""])
def test_an_empty_section_is_none(text: str) -> None:
    assert read(text).config["control.rdt"] is None


@pytest.mark.parametrize(
    "text",
    [
        "control: {rdt: {enable: false, partitions: {p: {classes: {c: {}}}}}}",
        "rdt: {options: {mode: Disabled}, partitions: {p: {classes: {c: {}}}}}",
        "rdt: {options: {mode: Discovery}, partitions: {p: {classes: {c: {}}}}}",
        "control: {rdt: {partitions: {p: {classes: {c: {}}}}}}",
    ],
)
def test_a_section_that_is_switched_off_has_no_classes(text: str) -> None:
    assert section(text).partitions == {}
    assert not section(text).by_qos


def test_partitions_without_a_switch_are_likely_a_mistake() -> None:
    text = "control: {rdt: {partitions: {p: {}}}}"
    assert errors_of(text, strict=True) == (
        "c.yaml:1: control.rdt has partitions and no enable, expected enable: true; it counts as off",
    )
    noted = read("rdt: {options: {mode: Discovery}, partitions: {p: {}}}", strict=True).warnings
    assert noted == (
        'c.yaml:1: rdt has the mode "Discovery"; it counts as off, as groups of others are left alone',
    )


ODD = {
    "no mapping": ("rdt: 5", 'c.yaml:1: rdt is "5", expected a mapping with enable and partitions'),
    "no mapping of partitions": (
        "rdt: {partitions: [a]}",
        'c.yaml:1: rdt.partitions is ["a"], expected a mapping',
    ),
    "a word for a flag": (
        "control: {rdt: {enable: maybe}}",
        'c.yaml:1: control.rdt.enable is "maybe", expected true or false',
    ),
    "another mode": (
        "rdt: {options: {mode: Half}}",
        'c.yaml:1: rdt.options.mode is "Half", expected Full, Discovery or Disabled',
    ),
    "a percentage beyond all": (
        "rdt:\n partitions:\n  p:\n   l3Allocation: 160%",
        'c.yaml:4: rdt.partitions.p.l3Allocation is "160%", expected percentages up to 100, the lower one first',
    ),
    "bits apart from each other": (
        "rdt:\n partitions:\n  p:\n   l3Allocation: {all: 0x5}",
        'c.yaml:4: rdt.partitions.p.l3Allocation.all is "0x5", expected bits in one block, at least one',
    ),
    "no value": (
        "rdt:\n partitions:\n  p:\n   l3Allocation: {all: }",
        "c.yaml:4: rdt.partitions.p.l3Allocation.all is empty, expected "
        'a percentage ("60%", "20-60%"), a mask ("0xf0") or numbers of bits ("4-7")',
    ),
    "no cache ids": (
        "rdt: {partitions: {p: {l3Allocation: {unified: 5%}}}}",
        'c.yaml:1: a key of rdt.partitions.p.l3Allocation is "unified", expected cache ids such as '
        '"0,2,4-7", or all',
    ),
    "a cache id twice": (
        'rdt: {partitions: {p: {l3Allocation: {"1-3": 5%, "2": 6%}}}}',
        "c.yaml:1: rdt.partitions.p.l3Allocation has cache id 2 twice, expected each once",
    ),
    "code alone": (
        "rdt: {partitions: {p: {l3Allocation: {all: {unified: 5%, code: 5%}}}}}",
        "c.yaml:1: rdt.partitions.p.l3Allocation.all has unified and code, expected unified, or unified, code and data",
    ),
    "code and data alone": (
        "rdt: {partitions: {p: {l3Allocation: {all: {data: 5%, code: 5%}}}}}",
        "c.yaml:1: rdt.partitions.p.l3Allocation.all has data and code, expected unified, or unified, code and data",
    ),
    "a bandwidth without a unit": (
        "rdt: {partitions: {p: {mbAllocation: [50]}}}",
        'c.yaml:1: rdt.partitions.p.mbAllocation is ["50"], expected a list of a percentage and a rate, such as '
        '["50%", "1000MBps"]',
    ),
    "a class twice": (
        "rdt: {partitions: {p: {classes: {c: {}}}, q: {classes: {c: {}}}}}",
        'c.yaml:1: rdt: class "c" is in partition "p" and in partition "q", expected one partition',
    ),
    "both names of the root's class": (
        'rdt: {partitions: {p: {classes: {"": {}, system/default: {}}}}}',
        "c.yaml:1: rdt.partitions.p.classes has system/default twice, expected it once",
    ),
    "a class that is no folder": (
        "rdt: {partitions: {p: {classes: {a/b: {}}}}}",
        'c.yaml:1: rdt: a class of partition "p" is called "a/b", expected a name of a folder, without a slash, '
        "or system/default",
    ),
    "a class of nothing": (
        "rdt: {partitions: {p: {classes: {c: {l3Allocation: 5%, mbAllocation: [5%]}}, l2Allocation: 5%}}}",
        'c.yaml:1: rdt: class "c" has L3, of which partition "p" has none, expected l3Allocation there, too',
        'c.yaml:1: rdt: class "c" has MB, of which partition "p" has none, expected mbAllocation there, too',
    ),
    "a class of no percent": (
        "rdt: {partitions: {p: {l3Allocation: 5%, classes: {c: {l3Allocation: 0%}}}}}",
        'c.yaml:1: rdt: L3 of class "c" is "0%", expected at least 1%',
    ),
}


@pytest.mark.parametrize("case", ODD.values(), ids=ODD)
def test_what_is_wrong_is_a_sentence_with_the_value_its_place_and_what_was_expected(
    case: tuple[str, ...],
) -> None:
    text, *sentences = case
    assert errors_of(text) == tuple(sentences)


def test_keys_that_are_not_known_and_texts_that_do_not_count_are_named() -> None:
    text = """\
rdt:
  force: true
  optoins: {}
  options: {l4: {optional: true}, l3: {optional: true, needed: no}}
  partitions:
    p:
      l3allocations: 5%
      mbAllocation: [50%, 3GBps]
      classes: {c: {kubernetes: {denyPodAnnotation: true}}}
      classes: {d: }
isolation: {caches: observe}
"""
    assert read(text).warnings == (
        "c.yaml:2: rdt.force has no meaning here: groups of others are never taken away",
        "c.yaml:3: unknown key rdt.optoins",
        "c.yaml:4: unknown key rdt.options.l4",
        "c.yaml:4: unknown key rdt.options.l3.needed",
        "c.yaml:10: rdt.partitions.p.classes is given twice; the later value counts",
        "c.yaml:7: unknown key rdt.partitions.p.l3allocations",
        'c.yaml:8: rdt.partitions.p.mbAllocation has "3GBps", expected a number with % or MBps; it is passed over',
    )


def test_classes_that_no_subject_writes_are_noted() -> None:
    (note,) = read(INTEL, strict=True).warnings
    assert note == (
        "c.yaml:1 (rdt): control.rdt has classes, and isolation.caches and isolation.bandwidth are off: "
        "nothing is written for them"
    )
    assert read(f"{INTEL}isolation: {{bandwidth: enforce}}\n").warnings == ()


def test_the_section_of_a_later_file_is_in_the_place_of_an_earlier_one() -> None:
    sources = [
        SettingsSource("a.yaml", OURS),
        SettingsSource("b.yaml", "rdt: {partitions: {q: {classes: {z: }}}}"),
    ]
    config = read_config(sources).config
    assert [*config["control.rdt"].partitions] == ["q"]
    assert config.origins["control.rdt"] == "b.yaml:1 (rdt)"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: 1}\nb: &b {p: *a, q: *a, r: *a, s: *a, t: *a, u: *a, v: *a, w: *a}\n"
        "c: &c {p: *b, q: *b, r: *b, s: *b, t: *b, u: *b, v: *b, w: *b}\n"
        "d: &d {p: *c, q: *c, r: *c, s: *c, t: *c, u: *c, v: *c, w: *c}\n"
        "e: &e {p: *d, q: *d, r: *d, s: *d, t: *d, u: *d, v: *d, w: *d}\n"
        "f: &f {p: *e, q: *e, r: *e, s: *e, t: *e, u: *e, v: *e, w: *e}\nrdt: {force: *f}\n",
        "rdt: &r {force: *r}\n",
    ],
    ids=["mappings of mappings", "a mapping in itself"],
)
def test_aliases_make_no_endless_section(text: str) -> None:
    assert errors_of(text)[-1].endswith(": rdt is too large, expected at most 4096 keys")
