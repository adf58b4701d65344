"""How long containers have waited, read from cgroup files as kernels write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri_proxy.affinity.io.executor import NOTHING, PSI, THROTTLING, PressureReader
from cri_proxy.affinity.pressure_guard import PressureReading

POD = "/kubepods/pod1/c1"
PSI_TEXT = (
    "some avg10=1.53 avg60=0.87 avg300=0.20 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
)
V1_STAT = "nr_periods 10\nnr_throttled 4\nthrottled_time 7000000\n"
V2_STAT = "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 10\nnr_throttled 4\nthrottled_usec 8000\n"


@pytest.mark.parametrize(
    ("files", "waited_us", "source"),
    [
        pytest.param({"cpu.pressure": PSI_TEXT}, 2500000, PSI, id="v2"),
        pytest.param({"unified:cpu.pressure": PSI_TEXT, "cpu:cpu.stat": V1_STAT}, 2500000, PSI, id="hybrid"),
        pytest.param(
            {"cpuacct:cpu.pressure": PSI_TEXT, "cpu:cpu.stat": V1_STAT},
            2500000,
            PSI,
            id="v1 with PSI (openEuler)",
        ),
        pytest.param(
            {"cpu,cpuacct:cpu.pressure": PSI_TEXT, "cpu,cpuacct:cpu.stat": V1_STAT},
            2500000,
            PSI,
            id="both in one",
        ),
        pytest.param({"cpu:cpu.stat": V1_STAT}, 7000, THROTTLING, id="v1"),
        pytest.param({"cpu,cpuacct:cpu.stat": V1_STAT}, 7000, THROTTLING, id="v1, by its other name"),
        pytest.param({"cpu.stat": V2_STAT}, 8000, THROTTLING, id="v2 without PSI"),
        pytest.param({"cpu.pressure": "", "cpu.stat": V2_STAT}, 8000, THROTTLING, id="PSI is off"),
    ],
)
def test_the_best_that_a_host_tells_is_read(
    tmp_path: Path, files: dict[str, str], waited_us: int, source: str
) -> None:
    for name, text in files.items():
        mount, _, file = name.rpartition(":")
        folder = tmp_path / mount / POD.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    look = PressureReader(tmp_path).look({"c1": POD}, now_s=5.0)
    assert look.readings == {"c1": PressureReading(5.0, waited_us)}
    assert look.source == source


@pytest.mark.parametrize("text", ["", "rubbish\n", "some avg10=0.00 total=\n"])
def test_a_container_that_tells_nothing_is_left_out(tmp_path: Path, text: str) -> None:
    folder = tmp_path / POD.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cpu.pressure").write_text(text)
    look = PressureReader(tmp_path).look({"c1": POD, "gone": "/kubepods/none"}, now_s=5.0)
    assert (look.readings, look.source) == ({}, NOTHING)


def test_this_kernels_own_files_can_be_read() -> None:
    root = Path("/sys/fs/cgroup")
    if not any((root / mount / "cpu.pressure").exists() for mount in ("", "unified")):
        pytest.skip("this kernel has no cpu.pressure at the root of its cgroups")
    assert PressureReader(root).look({"root": "/"}, 1.0).readings["root"].waited_us >= 0
