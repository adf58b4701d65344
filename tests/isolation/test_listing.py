"""Values of files, as tables that stay short however many there are."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.isolation.listing import alike, container_lines, files_text, several, value_name
from cri_proxy.isolation.report import isolation_text

CGROUPS, CPUS = "file:/sys/fs/cgroup/kubepods", "file:/sys/devices/system/cpu"


def row(subject: str, place: str, value: str, why: str = "", *containers: str, **more: Any) -> dict[str, Any]:
    found = {"subject": subject, "place": place, "value": value, "why": why, "state": "enforce"}
    return {**found, "containers": list(containers), **more}


def batch(number: int) -> list[dict[str, Any]]:
    path, cgroup = f"default/job{number}/main", f"{CGROUPS}/pod{number}"
    why = f"{path} is batch"
    return [
        row("cpu", f"{cgroup}/cpu.weight", "1", why, path),
        row("cpu", f"{cgroup}/cpu.idle", "1", why, path),
    ]


def test_containers_that_are_treated_alike_are_one_line() -> None:
    rows = [each for number in range(500) for each in batch(number)]
    lines = files_text(rows)
    assert lines[:2] == ["", "cpu: 1000 values"] and len(lines) == 3
    assert lines[2].startswith("  default/job0/main, default/job1/main, ")
    assert lines[2].endswith(" and 492 more: cpu.weight 1, cpu.idle 1, as it is batch")


def test_cpus_interrupts_and_devices_are_named_by_their_numbers() -> None:
    why = "default/web/app is protected"
    rows = [
        *(row("clocks", f"{CPUS}/cpufreq/policy{cpu}/scaling_max_freq", "3300000", why) for cpu in range(4)),
        *(row("clocks", f"{CPUS}/cpu{cpu}/cpuidle/state2/disable", "1", why) for cpu in (0, 1)),
        *(row("interrupts", f"file:/proc/irq/{irq}/smp_affinity_list", "8-15", why) for irq in (24, 25, 31)),
        row("interrupts", "file:/proc/irq/default_smp_affinity", "ff00", why),
        row("disks", f"{CGROUPS}/a/io.max#8:16 rbps", "1048576", "x", "default/a/b", state="observed"),
    ]
    assert files_text(rows) == [
        "",
        "clocks: 6 values",
        "  CPUs 0-1: scaling_max_freq 3300000, cpuidle/state2/disable 1, as default/web/app is protected",
        "  CPUs 2-3: scaling_max_freq 3300000, as default/web/app is protected",
        "",
        "interrupts: 4 values",
        "  interrupts 24-25,31: smp_affinity_list 8-15, as default/web/app is protected",
        "  /proc/irq: default_smp_affinity ff00, as default/web/app is protected",
        "",
        "disks: 1 value, only told",
        "  default/a/b: io.max 8:16 rbps 1048576, as x",
    ]


def test_a_container_is_told_each_treatment_of_its_own_and_of_its_cpus() -> None:
    path = "default/web/app"
    rows = [
        *batch(1),
        row("cpu", f"{CGROUPS}/x/cpu.max.burst", "200000", f"{path} is protected", path),
        *(
            row("clocks", f"{CPUS}/cpufreq/policy{cpu}/scaling_min_freq", "3000000", "class turbo", path)
            for cpu in (2, 3)
        ),
        row("memory", f"{CGROUPS}/x/memory.low", "1024", "", path, state="observed"),
    ]
    assert container_lines(rows, path) == [
        f"cpu: cpu.max.burst 200000, as {path} is protected",
        "clocks: scaling_min_freq 3000000 of CPUs 2-3, as class turbo",
        "memory: would have memory.low 1024",
    ]
    assert container_lines(rows, "default/other/app") == []


def test_refusals_that_are_alike_are_one_line_with_the_containers_that_lack_something() -> None:
    rows = [each for number in range(20) for each in batch(number)]
    places = [each["place"] for each in rows if each["place"].endswith("idle")]
    document = {
        "subjects": {"cpu": {"configured": "enforce", "mode": "enforce"}},
        "files": rows,
        "refusals": [
            *({"place": each, "value": "1", "sentence": "no", "tries": 2} for each in places),
            {
                "place": "file:/proc/irq/9/smp_affinity_list",
                "value": "1",
                "sentence": "EIO",
                "tries": 1,
                "final": True,
            },
        ],
    }
    text = isolation_text(document)
    assert "L3" not in text
    [line] = [
        line for line in text.splitlines() if line.startswith("  cpu.idle at 20 places = 1 of default/job0")
    ]
    assert line.endswith(" and 12 more: no (tried 2 times)")
    assert "  /proc/irq/9/smp_affinity_list = 1: EIO (for good)" in text


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("file:/sys/fs/cgroup/a/cpu.idle", "cpu.idle"),
        ("file:/sys/fs/cgroup/a/io.max#8:16 rbps", "io.max 8:16 rbps"),
        ("file:/sys/devices/system/cpu/cpu12/cpuidle/state3/disable", "cpuidle/state3/disable"),
        ("file:/sys/devices/system/cpu/cpufreq/policy12/scaling_governor", "scaling_governor"),
        ("resctrl:cri-resmgr.batch#L3:0", "resctrl:cri-resmgr.batch#L3:0"),
    ],
)
def test_a_value_has_the_name_of_its_file(place: str, name: str) -> None:
    assert value_name(place) == name


def test_places_of_one_kind_and_one_sentence_are_together() -> None:
    refused = {"file:/a/x": "no", "file:/b/x": "no", "file:/c/x": "busy"}
    assert [several(places) for places in alike(refused).values()] == ["x at 2 places, such as /a/x", "/c/x"]
