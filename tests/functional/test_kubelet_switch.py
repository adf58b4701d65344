"""`cri-resmgr kubelet` on a host with the real daemon, a process that is kubelet to /proc, and a systemctl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Callable

import pytest
import pytest_asyncio

from cri_proxy.shell.kubelet_service import find_kubelet
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import StartAgent, ask
from tests.functional.support import eventually, run_pod_with
from tests.kubelet_host import KubeletHost, config_tree, flags_tree
from tests.kubelet_trees import RANCHER

FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
TREES = {"flags": flags_tree, "config file": config_tree}

MakeHost = Callable[[dict[str, str]], KubeletHost]


@pytest.fixture
def make_host(folder: Path) -> Iterator[MakeHost]:
    made: list[KubeletHost] = []

    def make(files: dict[str, str]) -> KubeletHost:
        path = folder / f"h{len(made)}"
        path.mkdir()
        made.append(KubeletHost(path, files))
        return made[-1]

    yield make
    for host in made:
        host.close()


@pytest_asyncio.fixture
async def host(make_host: MakeHost, runtime: FakeRuntime) -> KubeletHost:
    """A kubeadm node whose kubelet runs and talks to the runtime."""
    host = make_host(flags_tree(runtime.socket))
    await restarted(host)
    return host


async def restarted(host: KubeletHost) -> None:
    """Restart kubelet as a person would, and wait until it is one."""
    host.start()
    await eventually(lambda: find_kubelet(host.folder / "proc") is not None, "a kubelet")


async def stance(agent: Agent, container_id: str) -> str:
    rows = {row["id"]: row for row in await ask(agent, "placements")}
    return str(rows[container_id]["stance"])


# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize("tree", TREES)
async def test_there_and_back_is_byte_identical_and_releases_all(
    make_host: MakeHost, agent: Agent, client: CriClient, runtime: FakeRuntime, tree: str
) -> None:
    host = make_host(TREES[tree](runtime.socket))
    await restarted(host)
    before = host.files()
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    assert not host.status(agent).points_at_us

    code, out, err = await host.cli(agent, "enable", "--restart")
    assert code == 0, err
    assert f"unix://{agent.socket}" in out
    assert "connected to" in out
    status = host.status(agent)
    assert (status.points_at_us, status.written_by_us, status.restart_pending) == (True, True, False)
    assert status.pid == host.pid

    code, out, err = await host.cli(agent, "disable", "--restart")
    assert code == 0, err
    assert host.files() == before
    assert "1 of 1 containers changed" in out
    assert await stance(agent, container) == "released"
    status = host.status(agent)
    assert (status.endpoint, status.written_by_us) == (f"unix://{runtime.socket}", False)
    assert host.asked() == ["restart kubelet", "restart kubelet"]


async def test_without_restart_it_is_said_what_to_type_and_nothing_is_released(
    host: KubeletHost, agent: Agent, client: CriClient
) -> None:
    before, pid = host.files(), host.pid
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    code, out, _ = await host.cli(agent, "enable")
    assert (code, host.pid, host.asked()) == (0, pid, [])
    assert "now type: systemctl restart kubelet" in out
    status = host.status(agent)
    assert (status.points_at_us, status.restart_pending) == (False, True)
    assert status.hint == "systemctl restart kubelet"
    await restarted(host)
    assert host.status(agent).points_at_us

    code, out, _ = await host.cli(agent, "disable")
    assert (code, host.files()) == (0, before)
    assert "and then: cri-resmgr release --all" in out
    assert await stance(agent, container) == "placed"


async def test_a_kubelet_that_has_not_read_its_configuration_yet_does_not_point_at_us(
    make_host: MakeHost, agent: Agent, runtime: FakeRuntime
) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    await host.cli(agent, "enable")
    status = host.status(agent)
    assert (status.points_at_us, status.restart_pending) == (False, True)
    assert status.endpoint == f"unix://{runtime.socket}"


async def test_enabling_twice_changes_nothing_and_restarts_nothing(host: KubeletHost, agent: Agent) -> None:
    await host.cli(agent, "enable", "--restart")
    files, pid = host.files(), host.pid
    code, out, _ = await host.cli(agent, "enable", "--restart")
    assert (code, host.files(), host.pid) == (0, files, pid)
    assert "point at us already" in out


async def test_disabling_what_is_not_enabled_changes_nothing(host: KubeletHost, agent: Agent) -> None:
    before, pid = host.files(), host.pid
    code, out, _ = await host.cli(agent, "disable", "--restart")
    assert (code, host.files(), host.pid) == (0, before, pid)
    assert "does not point at us" in out


async def test_the_way_back_works_with_the_daemon_down(
    host: KubeletHost, agent: Agent, client: CriClient, runtime: FakeRuntime
) -> None:
    before = host.files()
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    await host.cli(agent, "enable", "--restart")
    placed = runtime.cpuset(container)
    await agent.kill()
    code, out, err = await host.cli(agent, "disable", "--restart")
    assert code == 0, err
    assert host.files() == before
    assert runtime.cpuset(container) != placed


async def test_no_release_leaves_the_containers_where_they_are(
    host: KubeletHost, agent: Agent, client: CriClient
) -> None:
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    await host.cli(agent, "enable", "--restart")
    assert (await host.cli(agent, "disable", "--restart", "--no-release"))[0] == 0
    assert await stance(agent, container) == "placed"


async def test_a_changed_unit_is_read_again(make_host: MakeHost, agent: Agent, runtime: FakeRuntime) -> None:
    path = "/etc/systemd/system/kubelet.service.d/20-cri.conf"
    line = f"ExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix://{runtime.socket}\n"
    host = make_host({path: f"[Service]\n{line}"})
    code, _, err = await host.cli(agent, "enable", "--restart")
    assert (code, host.asked()) == (0, ["daemon-reload", "try-restart kubelet"])
    assert "it is not started" in err


async def test_a_dry_run_shows_the_change_and_makes_none(host: KubeletHost, agent: Agent) -> None:
    before = host.files()
    code, out, _ = await host.cli(agent, "enable", "--restart", "--dry-run")
    assert (code, host.files(), host.asked()) == (0, before, [])
    assert f"+++ {FLAGS}" in out
    assert not (host.root / str(agent.state).lstrip("/")).exists()


# ---------------------------------------------------------------------- when it is refused


async def test_a_daemon_that_is_off_gets_no_kubelet_unless_forced(host: KubeletHost, agent: Agent) -> None:
    before = host.files()
    await ask(agent, "mode", mode="off")
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert "mode is off" in err
    assert (await host.cli(agent, "enable", "--force"))[0] == 0
    assert host.files() != before


async def test_a_degraded_daemon_gets_no_kubelet(
    make_host: MakeHost, runtime: FakeRuntime, start_agent: StartAgent
) -> None:
    agent = await start_agent(placement={"ladder": "rope"})
    host = make_host(flags_tree(runtime.socket))
    before = host.files()
    degraded = (await ask(agent, "status"))["degraded"]
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert f"degraded: {next(iter(degraded.values()))}" in err


async def test_a_daemon_of_another_runtime_gets_no_kubelet(make_host: MakeHost, agent: Agent) -> None:
    host = make_host(flags_tree("/run/other/containerd.sock"))
    before = host.files()
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert "kubelet's runtime is unix:///run/other/containerd.sock, and the daemon's" in err


async def test_no_daemon_gets_no_kubelet(host: KubeletHost, agent: Agent) -> None:
    before = host.files()
    await agent.kill()
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert err.startswith("cri-resmgr: ")


async def test_no_runtime_to_go_back_to_is_refused_unless_forced(
    host: KubeletHost, agent: Agent, runtime: FakeRuntime
) -> None:
    before = host.files()
    await host.cli(agent, "enable", "--restart")
    ours = host.files()
    await runtime.stop()
    code, _, err = await host.cli(agent, "disable")
    assert (code, host.files()) == (1, ours)
    assert f"the runtime at unix://{runtime.socket} does not answer" in err
    assert (await host.cli(agent, "disable", "--force"))[0] == 0
    assert host.files() == before


async def test_a_setting_made_by_hand_is_not_ours_to_undo(
    make_host: MakeHost, agent: Agent, runtime: FakeRuntime
) -> None:
    host = make_host(flags_tree(agent.socket))
    before = host.files()
    status = host.status(agent)
    assert (status.points_at_us, status.written_by_us) == (True, False)
    code, _, err = await host.cli(agent, "disable", "--restart")
    assert (code, host.files(), host.asked()) == (1, before, [])
    assert f"through {FLAGS}:1, which `kubelet enable` did not write" in err
    [typed, restart] = err.splitlines()[1].split(" && ")
    assert restart == "systemctl restart kubelet"
    subprocess.run(typed.replace(FLAGS, f"{host.root}{FLAGS}"), shell=True, check=True)
    assert host.files() == {path: text.encode() for path, text in flags_tree(runtime.socket).items()}


async def test_what_a_kubeadm_upgrade_drops_is_seen(
    host: KubeletHost, agent: Agent, runtime: FakeRuntime
) -> None:
    await host.cli(agent, "enable", "--restart")
    host.write(FLAGS, flags_tree(runtime.socket)[FLAGS])
    await restarted(host)
    code, out, _ = await host.cli(agent, "status")
    assert (code, host.status(agent).dropped) == (1, True)
    assert "a kubeadm upgrade does that" in out
    assert out.splitlines()[-1] == "type: cri-resmgr kubelet enable --restart"
    assert (await host.cli(agent, "enable", "--restart"))[0] == 0
    code, out, _ = await host.cli(agent, "status", "--json")
    assert (code, json.loads(out)) == (0, {**asdict(host.status(agent)), "warnings": []})


async def test_k3s_is_told_what_to_type(make_host: MakeHost, agent: Agent) -> None:
    host = make_host(RANCHER["k3s"].files)
    before = host.files()
    code, _, err = await host.cli(agent, "enable", "--restart")
    assert (code, host.files()) == (1, before)
    assert "kubelet-arg" in err
    assert host.status(agent).manager == "k3s"
    assert "kubelet-arg" in host.status(agent).hint


@pytest.mark.parametrize(
    ("fault", "phrase"), [("fail", "Job for kubelet.service failed"), ("break", "no kubelet runs")]
)
async def test_a_kubelet_that_does_not_come_back_is_said(
    host: KubeletHost, agent: Agent, fault: str, phrase: str
) -> None:
    (host.folder / fault).touch()
    code, _, err = await host.cli(agent, "enable", "--restart", wait_s=0.0)
    assert code == 1
    assert phrase in err
    assert "journalctl -u kubelet" in err


@pytest.mark.parametrize("command", ["enable", "disable", "status"])
async def test_a_broken_file_is_one_sentence(host: KubeletHost, agent: Agent, command: str) -> None:
    host.write("/var/lib/kubelet/config.yaml", "a: [\n")
    code, _, err = await host.cli(agent, command)
    assert code == 1
    assert err.startswith("cri-resmgr: /var/lib/kubelet/config.yaml:2: ")
    assert err.count("\n") == 1


# ---------------------------------------------------------------------- the process


def test_kubelet_is_found_by_its_name_and_its_flags_are_its_own(host: KubeletHost) -> None:
    found = find_kubelet(host.folder / "proc")
    assert found is not None
    assert found.pid == host.pid
    assert found.argv[0].endswith("/kubelet")
    assert found.argv[1] == "--config=/var/lib/kubelet/config.yaml"
