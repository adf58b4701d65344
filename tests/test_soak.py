"""What the soak's verdicts rest on: the gate's account of the runtime, a plugin's of what it was told, and the sums."""

from __future__ import annotations

import json
from pathlib import Path

import grpc.aio
import pytest

from bench.figures import process
from bench.soak_figures import Call, Flooded, memory_line, own_shares, slow_calls, slow_lines
from bench.soak_gate import TAG
from bench.soak_plugin import Account
from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient
from tests.e2e.node import until
from tests.fake_runtime import FakeRuntime

ID = "0123456789abcdef" * 4
POD, CONTAINER = nri.PodSandbox(id="p1"), nri.Container(id="c1", pod_sandbox_id="p1")


async def test_the_gate_passes_calls_and_notes_them_by_tag_or_pod(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with FakeRuntime(f"{tmp_path}/r.sock") as runtime:
        with process("bench.soak_gate", f"{tmp_path}/g.sock", runtime.socket, str(notes)):
            async with CriClient(f"{tmp_path}/g.sock") as client:
                pod = await client.run_pod("ours-7")
                metadata = ((TAG, "call-1"),)
                assert (await client.call("Version", cri.VersionRequest(), metadata=metadata)).runtime_name
                with pytest.raises(grpc.aio.AioRpcError):
                    await client.call("StartContainer", cri.StartContainerRequest(container_id=ID))
                assert pod.id in runtime.pods

    async def noted() -> list[tuple[str, str]]:
        return [(method, tag) for method, tag, *_ in map(json.loads, notes.read_text().splitlines())]

    await until(
        noted,
        lambda found: found == [("RunPodSandbox", "ours-7"), ("Version", "call-1"), ("StartContainer", ID)],
    )
    for _, _, begun_s, ended_s in map(json.loads, notes.read_text().splitlines()):
        assert 0 < begun_s <= ended_s


def test_a_call_is_slow_beyond_ten_times_the_direct_ones_and_the_runtimes_if_its_own_answer_was() -> None:
    direct = {"Version": [0.001] * 100}
    ours = [
        Call("Version", tag, 10.0, 10.0 + took_s) for tag, took_s in (("a", 0.009), ("b", 0.02), ("c", 0.02))
    ]
    runtime = {("Version", "a"): 0.001, ("Version", "b"): 0.001, ("Version", "c"): 0.011}
    slow = slow_calls(ours, direct, runtime, [Flooded("PING", 10.01, 11.0)])
    assert [(found.call.tag, found.is_runtimes, found.flood) for found in slow] == [
        ("b", False, "PING"),
        ("c", True, "PING"),
    ]
    assert slow_lines(slow)[0].startswith("slower than 10 x direct's p99 of the method: 1 (and 1 ")
    assert own_shares(ours, runtime)["Version"] == pytest.approx([0.008, 0.019, 0.009])


@pytest.mark.parametrize(("last_mb", "verdict"), [(64.0, "(flat)"), (66.0, "(NOT FLAT within 5 MB)")])
def test_memory_is_held_against_the_first_tenth(last_mb: float, verdict: str) -> None:
    samples = [(float(second), 60.0) for second in range(19)] + [(19.0, 90.0), (20.0, last_mb)]
    samples += [(float(second), last_mb) for second in range(21, 24)]
    assert verdict in memory_line("daemon", samples)
    assert "least 60.0, most 90.0" in memory_line("daemon", samples)


def test_a_plugins_account_knows_ghosts_and_what_is_left() -> None:
    account = Account()
    account.note("Synchronize", nri.SynchronizeRequest(pods=[nri.PodSandbox(id="p0")]))
    account.note("RemovePodSandbox", nri.RemovePodSandboxRequest(pod=nri.PodSandbox(id="p0")))
    account.note("RunPodSandbox", nri.RunPodSandboxRequest(pod=POD))
    account.note("CreateContainer", nri.CreateContainerRequest(pod=POD, container=CONTAINER))
    assert account.told() == {"calls": 4, "ghosts": [], "pods": ["p1"], "containers": ["c1"]}
    account.note("RemoveContainer", nri.RemoveContainerRequest(pod=POD, container=CONTAINER))
    account.note("StopContainer", nri.StopContainerRequest(pod=POD, container=CONTAINER))
    account.note("StopPodSandbox", nri.StopPodSandboxRequest(pod=nri.PodSandbox(id="p0")))
    assert account.told()["ghosts"] == [
        {"pod": "p1", "what": "StopContainer of Container c1"},
        {"pod": "p0", "what": "StopPodSandbox of PodSandbox p0"},
    ]
