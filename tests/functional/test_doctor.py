"""`cri-resmgr doctor` beside a running daemon, a runtime and a process that is kubelet; and without them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.control import ABSENT_HINT
from cri_proxy.kubelet.io.service import find_kubelet
from tests.agent import Agent
from tests.functional.conftest import ask
from tests.functional.support import cpusets, eventually, run_pod_with
from tests.kubelet_host import KubeletHost, flags_tree

SYSTEMCTL = """#!/bin/sh
for unit in cri-resource-manager.service cri-resource-manager.socket cri-resmgr-observer.service; do
  printf 'Id=%s\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\nUnitFileState=enabled\\nNRestarts=0\\n\\n' $unit
done
"""
OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"


@pytest_asyncio.fixture
async def host(folder: Path, agent: Agent) -> AsyncIterator[KubeletHost]:
    """A node with systemd whose kubelet runs and points at the daemon."""
    path = folder / "h"
    path.mkdir()
    host = KubeletHost(path, flags_tree(agent.socket))
    (host.root / "run/systemd/system").mkdir(parents=True)
    (host.folder / "units").write_text(SYSTEMCTL)
    (host.folder / "units").chmod(0o755)
    host.start()
    await eventually(lambda: find_kubelet(host.folder / "proc") is not None, "a kubelet")
    yield host
    host.close()


async def doctor(host: KubeletHost, agent: Agent, *words: str) -> tuple[int, str, str]:
    return await agent.cli(
        "doctor", "--root", str(host.root), "--proc", str(host.folder / "proc"),
        "--systemctl", str(host.folder / "units"), "--config", str(agent.config_file), *words,
    )  # fmt: skip


async def findings(host: KubeletHost, agent: Agent) -> tuple[int, dict[str, Any]]:
    """The exit code, and the findings by check."""
    code, out, err = await doctor(host, agent, "--json")
    assert err == ""
    return code, {found["check"]: found for found in json.loads(out)["findings"]}


async def test_a_node_that_works_has_no_problem(host, agent, client) -> None:
    await run_pod_with(client, "web", cpu_limit=4000)
    code, found = await findings(host, agent)
    wanted = ("config", "daemon", "socket", "runtime", "kubelet", "topology", "l3", "state", "containers")
    assert {check: found[check]["verdict"] for check in wanted} == dict.fromkeys(wanted, OK), found
    # The folder of the daemon has no cgroups: that is the one thing wrong.
    assert [check for check, f in found.items() if f["verdict"] == PROBLEM] == ["cgroups"]
    assert "1 placed" in found["containers"]["sentence"]
    assert code == 1


async def test_no_problem_is_exit_code_0_and_the_first_line_says_so(host, agent) -> None:
    write_cgroups(agent)
    code, out, err = await doctor(host, agent)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(("cri-resmgr doctor: no problem", "cri-resmgr doctor: all is well"))


async def test_the_time_since_the_last_call_is_told(host, agent, client) -> None:
    _, found = await findings(host, agent)
    assert ", no call since the start " in found["kubelet"]["sentence"]
    await client.call("Version", cri.VersionRequest())  # passes as bytes
    _, found = await findings(host, agent)
    assert ", last call " in found["kubelet"]["sentence"]


def write_cgroups(agent: Agent) -> None:
    (agent.folder / "cgroup/cgroup.controllers").write_text("cpuset cpu memory\n")


async def test_it_changes_nothing(host, agent, client, runtime) -> None:
    await run_pod_with(client, "web", cpu_limit=4000)
    files, placed, given = host.files(), await ask(agent, "placements"), cpusets(runtime)
    # The daemon makes its own files beside the calls.
    made = {f"{name}.db{suffix}" for name in ("history", "state") for suffix in ("", "-wal")}
    await eventually(lambda: made <= set(os.listdir(agent.state)), "the state and the history")
    state = sorted(os.listdir(agent.state))
    await findings(host, agent)
    assert (host.files(), await ask(agent, "placements"), cpusets(runtime)) == (files, placed, given)
    assert sorted(os.listdir(agent.state)) == state
    assert host.asked() == []


async def test_a_daemon_that_is_killed_is_the_first_problem(host, agent) -> None:
    write_cgroups(agent)
    await agent.kill()
    code, out, _ = await doctor(host, agent)
    assert code == 1
    lines = out.splitlines()
    assert "the daemon is not running" in lines[0]
    assert f"           -> {ABSENT_HINT}" in lines
    _, found = await findings(host, agent)
    assert found["state"]["verdict"] == OK  # what the killed one left is sound
    assert found["runtime"]["verdict"] == OK
    assert found["socket"]["verdict"] == PROBLEM or "listened" in found["socket"]["sentence"]


async def test_a_runtime_that_is_gone_is_found(host, agent, runtime) -> None:
    await runtime.stop()
    code, found = await findings(host, agent)
    assert (code, found["runtime"]["verdict"]) == (1, PROBLEM)
    assert runtime.socket in found["runtime"]["sentence"]


async def test_modes_other_than_enforce_are_found(host, agent) -> None:
    await ask(agent, "mode", mode="observe")
    _, found = await findings(host, agent)
    assert (found["daemon"]["verdict"], found["daemon"]["hint"]) == (WARNING, "cri-resmgr mode enforce")


async def test_a_kubelet_that_was_pointed_away_is_found_with_what_to_type(host, agent, runtime) -> None:
    for path, text in flags_tree(runtime.socket).items():
        host.write(path, text)
    host.start()
    await eventually(lambda: runtime.socket in host.argv(), "kubelet at the runtime")
    code, found = await findings(host, agent)
    assert (code, found["kubelet"]["verdict"]) == (1, PROBLEM)
    assert found["kubelet"]["hint"] == "cri-resmgr kubelet enable --restart"


async def test_files_that_were_changed_and_not_reloaded_are_found(host, agent) -> None:
    _, found = await findings(host, agent)
    assert "config-changed" not in found and "config-others" not in found
    agent.write_config({"nri": {"request_timeout": "9s"}})
    _, found = await findings(host, agent)
    assert found["config-changed"]["sentence"].endswith("nri.request_timeout")
    agent.write_config({"nri": {"request_timeout": "long"}})
    code, found = await findings(host, agent)
    assert (code, found["config"]["verdict"]) == (1, PROBLEM)
    assert "nri.request_timeout" in found["config"]["sentence"]


async def test_a_damaged_state_file_is_found(host, agent) -> None:
    await agent.kill()
    for path in agent.state.glob("state.db*"):
        path.write_bytes(b"garbage " * 512)
    code, found = await findings(host, agent)
    assert (code, found["state-file"]["verdict"]) == (1, PROBLEM)
    assert found["state-file"]["hint"] == "cri-resmgr reset-policy"


async def test_another_machine_than_the_hygon_is_judged_by_its_topology(folder, start_agent) -> None:
    agent = await start_agent("vm-no-cache-info")
    code, out, err = await agent.cli("doctor", "--config", str(agent.config_file), "--json")
    assert err == ""
    document = json.loads(out)
    topics = {f["check"]: f["topic"] for f in document["findings"] if f["check"] in ("l3", "cache")}
    # On a virtual test machine it is the hypervisor's fault, on a real one the kernel's.
    assert topics in ({"l3": "machine"}, {"cache": "virtual machine"})
    assert document["counts"][PROBLEM] == sum(f["verdict"] == PROBLEM for f in document["findings"])
    assert code == (1 if document["counts"][PROBLEM] else 0)
