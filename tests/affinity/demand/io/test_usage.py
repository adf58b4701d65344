"""What containers have used, read from cgroup files as kernels write them."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import pytest

from cri_proxy.affinity.demand.estimate import DemandSample
from cri_proxy.affinity.demand.io.sizer import UsageReader

POD = "/kubepods/pod1/c1"
PSI = "some avg10=1.53 avg60=0.87 avg300=0.20 total=2500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
V2_STAT = "usage_usec 9000\nuser_usec 5\nsystem_usec 4\nnr_periods 10\nnr_throttled 4\nthrottled_usec 8\n"
V1_STAT = "nr_periods 10\nnr_throttled 4\nthrottled_time 8000\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    """``MOUNT:NAME`` is a file of the container's cgroup; a host has cpusets on v1 if it has a mount of them."""
    if any(":" in name for name in files):
        (root / "cpuset").mkdir()
    for name, text in files.items():
        mount, _, file = name.rpartition(":")
        folder = root / mount / POD.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "throttled_ns", "waited_ns"),
    [
        pytest.param({"cpu.stat": V2_STAT, "cpu.pressure": PSI}, 8000, 2_500_000, id="v2"),
        pytest.param({"cpu.stat": V2_STAT}, 8000, None, id="v2 without PSI"),
        pytest.param({"cpu.stat": V2_STAT, "cpu.pressure": ""}, 8000, None, id="PSI is off"),
        pytest.param({"cpuacct:cpuacct.usage": "9000000\n", "cpu:cpu.stat": V1_STAT}, 8000, None, id="v1"),
        pytest.param(
            {"cpu,cpuacct:cpuacct.usage": "9000000\n", "cpu,cpuacct:cpu.stat": V1_STAT},
            8000,
            None,
            id="v1, joined",
        ),
        pytest.param({"cpuacct:cpuacct.usage": "9000000\n"}, 0, None, id="v1 without a cpu controller"),
        pytest.param(
            {"cpuacct:cpuacct.usage": "9000000\n", "cpu:cpu.stat": V1_STAT, "unified:cpu.pressure": PSI},
            8000,
            2_500_000,
            id="hybrid",
        ),
        pytest.param(
            {"cpuacct:cpuacct.usage": "9000000\n", "cpu:cpu.stat": V1_STAT, "cpuacct:cpu.pressure": PSI},
            8000,
            2_500_000,
            id="v1 with PSI (openEuler)",
        ),
    ],
)
def test_usage_throttling_and_waiting(tmp_path, files, throttled_ns, waited_ns) -> None:
    reader = UsageReader(tree(tmp_path, files), lambda: 2.0)
    assert reader.look({"c1": POD}, {"c1"}) == {
        "c1": DemandSample(2_000_000_000, 9_000_000, throttled_ns, waited_ns)
    }
    reader.close()


def test_of_a_container_at_its_limits_rung_waiting_is_not_read(tmp_path) -> None:
    reader = UsageReader(tree(tmp_path, {"cpu.stat": V2_STAT, "cpu.pressure": PSI}), lambda: 2.0)
    assert reader.look({"c1": POD}, ())["c1"].waited_ns is None
    reader.close()


@pytest.mark.parametrize(
    "text", ["", "usage_usec\n", "usage_usec many\n", "user_usec 5\n", f"usage_usec {'9' * 21}\n"]
)
def test_what_is_no_number_or_not_there_gives_no_sample(tmp_path, text) -> None:
    reader = UsageReader(tree(tmp_path, {"cpu.stat": text}), lambda: 2.0)
    assert reader.look({"c1": POD, "c2": "/kubepods/pod1/c2"}, ()) == {}
    reader.close()


def test_a_second_look_sees_what_has_changed_and_a_container_that_is_gone_is_forgotten(tmp_path) -> None:
    root = tree(tmp_path, {"cpu.stat": V2_STAT})
    reader = UsageReader(root, lambda: 2.0)
    reader.look({"c1": POD}, ())
    file = root / POD.lstrip("/") / "cpu.stat"
    file.write_text(V2_STAT.replace("9000", "12000"))
    assert reader.look({"c1": POD}, ())["c1"].usage_ns == 12_000_000
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    reader.keep(())
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before - 1
    reader.close()


@pytest.mark.parametrize("is_shrunk", [False, True], ids=["by its limit", "shrunk"])
def test_a_file_that_could_not_be_opened_is_tried_again_with_the_next_look(tmp_path, is_shrunk) -> None:
    reader, shrunk = UsageReader(tree(tmp_path, {}), lambda: 2.0), {"c1"} if is_shrunk else set()
    assert reader.look({"c1": POD}, shrunk) == {}
    tree(tmp_path, {"cpu.stat": V2_STAT, "cpu.pressure": PSI})
    assert reader.look({"c1": POD}, shrunk)["c1"].usage_ns == 9_000_000
    reader.close()


def test_a_node_without_descriptors_for_a_moment_costs_a_look(tmp_path) -> None:
    reader = UsageReader(tree(tmp_path, {"cpu.stat": V2_STAT}), lambda: 2.0)
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        assert reader.look({"c1": POD}, ()) == {}
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert reader.look({"c1": POD}, ())["c1"].usage_ns == 9_000_000
    reader.close()
