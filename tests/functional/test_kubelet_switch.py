"""`cri-resmgr kubelet` on a host with the real daemon, a process that is kubelet to /proc, and a systemctl."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Callable

import pytest
import pytest_asyncio

from cri_proxy.kubelet.io.service import find_kubelet, is_connected
from tests.agent import Agent
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask
from tests.functional.support import eventually, run_pod_with
from tests.kubelet_host import KubeletHost, config_tree, flags_tree
from tests.kubelet_trees import CONFIG, INSTANCE, RANCHER

FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
RESTART = "systemctl daemon-reload && systemctl restart kubelet"
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


async def connected(host: KubeletHost, path: str) -> None:
    await eventually(lambda: host.pid and is_connected(host.pid, path), f"kubelet at {path}")


def kept(host: KubeletHost, agent: Agent) -> list[str]:
    """What is kept of a switch."""
    folder = host.root / str(agent.state).lstrip("/") / "kubelet"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def stance(agent: Agent, container_id: str) -> str:
    rows = {row["id"]: row for row in await ask(agent, "placements")}
    return str(rows[container_id]["stance"])


# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize("tree", TREES)
async def test_there_and_back_is_byte_identical_and_releases_all(
    make_host, agent, client, runtime, tree
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
    assert host.asked() == ["daemon-reload", "restart kubelet"] * 2


async def test_enabling_again_says_what_stays_where_it_is_and_places_it_if_asked(
    host, agent, client, runtime
) -> None:
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    cpuset = runtime.cpuset(container)
    _, out, _ = await host.cli(agent, "enable", "--restart", "--adopt")
    assert "stay where they are" not in out  # there is nothing to say
    await host.cli(agent, "disable", "--restart")
    assert runtime.cpuset(container) != cpuset

    _, out, _ = await host.cli(agent, "enable", "--adopt")
    left, hint = out.splitlines()[-2:]
    assert left == "1 containers that run already stay where they are: 1 released"
    assert hint == "to place them then: cri-resmgr adopt --all"
    _, out, _ = await host.cli(agent, "enable", "--restart")
    assert out.splitlines()[-2:] == [left, "to place them now: cri-resmgr adopt --all"]
    assert await stance(agent, container) == "released"
    code, out, _ = await host.cli(agent, "enable", "--adopt")
    assert (code, out.splitlines()[-1]) == (0, "1 of 1 containers changed")
    assert (await stance(agent, container), runtime.cpuset(container)) == ("placed", cpuset)


async def test_without_restart_it_is_said_what_to_type_and_nothing_is_released(host, agent, client) -> None:
    before, pid = host.files(), host.pid
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    code, out, _ = await host.cli(agent, "enable")
    assert (code, host.pid, host.asked()) == (0, pid, [])
    assert f"now type: {RESTART}" in out
    status = host.status(agent)
    assert (status.points_at_us, status.restart_pending) == (False, True)
    assert status.hint == RESTART
    await restarted(host)
    assert host.status(agent).points_at_us

    code, out, _ = await host.cli(agent, "disable")
    assert (code, host.files()) == (0, before)
    assert "and then: cri-resmgr release --all" in out
    assert await stance(agent, container) == "placed"


async def test_a_kubelet_that_has_not_read_its_configuration_yet_does_not_point_at_us(
    make_host, agent, runtime
) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    await host.cli(agent, "enable")
    status = host.status(agent)
    assert (status.points_at_us, status.restart_pending) == (False, True)
    assert status.endpoint == f"unix://{runtime.socket}"


async def test_enabling_twice_changes_nothing_and_restarts_nothing(host, agent) -> None:
    await host.cli(agent, "enable", "--restart")
    files, pid = host.files(), host.pid
    code, out, _ = await host.cli(agent, "enable", "--restart")
    assert (code, host.files(), host.pid) == (0, files, pid)
    assert "point at us already" in out


async def test_disabling_what_is_not_enabled_changes_nothing(host, agent) -> None:
    before, pid = host.files(), host.pid
    code, out, _ = await host.cli(agent, "disable", "--restart")
    assert (code, host.files(), host.pid) == (0, before, pid)
    assert "does not point at us" in out


async def test_the_way_back_works_with_the_daemon_down(host, agent, client, runtime) -> None:
    before = host.files()
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    await host.cli(agent, "enable", "--restart")
    placed = runtime.cpuset(container)
    await agent.kill()
    code, out, err = await host.cli(agent, "disable", "--restart")
    assert code == 0, err
    assert host.files() == before
    assert runtime.cpuset(container) != placed


async def test_no_release_leaves_the_containers_where_they_are(host, agent, client) -> None:
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    await host.cli(agent, "enable", "--restart")
    assert (await host.cli(agent, "disable", "--restart", "--no-release"))[0] == 0
    assert await stance(agent, container) == "placed"


async def test_a_changed_unit_is_read_again(make_host, agent, runtime) -> None:
    path = "/etc/systemd/system/kubelet.service.d/20-cri.conf"
    line = f"ExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix://{runtime.socket}\n"
    host = make_host({path: f"[Service]\n{line}"})
    code, _, err = await host.cli(agent, "enable", "--restart")
    assert (code, host.asked()) == (0, ["daemon-reload", "try-restart kubelet"])
    assert "it is not started" in err


@pytest.mark.parametrize("state", ["failed", "activating"])
async def test_a_kubelet_that_failed_with_our_endpoint_comes_back_with_its_own(
    state, make_host, agent, runtime
) -> None:
    host = make_host(flags_tree(runtime.socket))
    await restarted(host)
    before = host.files()
    (host.folder / "break").touch()
    code, _, err = await host.cli(agent, "enable", "--restart", wait_s=0.5)
    assert (code, host.pid is None or "no kubelet runs" in err) == (1, True)
    (host.folder / "break").unlink()
    host.say_active(state)
    code, out, err = await host.cli(agent, "disable", "--restart")
    assert (code, host.files()) == (0, before), err
    assert f"connected to unix://{runtime.socket}" in out
    assert host.pid is not None
    assert "reset-failed kubelet" in host.asked()


async def test_a_separate_image_service_is_written_for_kubelet_and_taken_back(
    make_host, start_agent, runtime
) -> None:
    agent = await start_agent(relay={"image_endpoint": "/run/images.sock"})
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    before = host.files()
    assert (await host.cli(agent, "enable", "--restart"))[0] == 0
    written = host.files()[CONFIG].decode()
    assert 'imageServiceEndpoint: "unix:///run/images.sock"' in written and agent.socket in written
    assert (await host.cli(agent, "disable", "--restart", "--no-release"))[0] == 0
    assert host.files() == before


async def test_a_dry_run_shows_the_change_and_makes_none(host, agent) -> None:
    before = host.files()
    code, out, _ = await host.cli(agent, "enable", "--restart", "--dry-run")
    assert (code, host.files(), host.asked()) == (0, before, [])
    assert f"+++ {FLAGS}" in out
    assert not (host.root / str(agent.state).lstrip("/")).exists()


async def test_a_dry_run_says_that_nothing_is_to_be_done(host, agent) -> None:
    said = "kubelet's files do not point at us; to be done: nothing\n"
    assert await host.cli(agent, "disable", "--dry-run") == (0, said, "")
    assert (await host.cli(agent, "enable", "--restart"))[0] == 0
    code, out, _ = await host.cli(agent, "enable", "--dry-run")
    assert (code, "point at us already" in out, "nothing is to be changed" in out) == (0, True, True)
    assert (await host.cli(agent, "disable", "--no-release"))[0] == 0
    code, out, _ = await host.cli(agent, "disable", "--dry-run")
    assert (code, "to be done: systemctl daemon-reload && systemctl restart kubelet" in out) == (0, True)


# ---------------------------------------------------------------------- a kubelet that uses us still


async def test_a_kubelet_that_was_not_restarted_is_ours_until_it_is(
    make_host, agent, client, runtime
) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    before = host.files()
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    await host.cli(agent, "enable", "--restart")
    assert (await host.cli(agent, "disable"))[0] == 0
    status = host.status(agent)
    assert (status.points_at_us, status.restart_pending, status.dropped) == (True, True, False)
    assert host.files() == before
    code, out, err = await host.cli(agent, "disable", "--restart", "--no-release")
    assert (code, err) == (0, "")
    assert f"connected to unix://{runtime.socket}" in out
    assert not host.status(agent).points_at_us
    assert await stance(agent, container) == "placed"
    assert kept(host, agent) == []


async def test_a_restart_that_fails_is_made_up_for_by_the_next_one(make_host, agent, client, runtime) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    _, container = await run_pod_with(client, "app", cpu_limit=4000)
    await host.cli(agent, "enable", "--restart")
    ours = host.pid
    (host.folder / "refuse").touch()
    # Nobody serves kubelet any more: its connection tells nothing.
    await agent.kill()
    for _ in range(2):
        code, out, err = await host.cli(agent, "disable", "--restart")
        assert (code, host.pid) == (1, ours)
        assert "kubelet's files are as they were, but it has not come back with them" in err
        assert "containers changed" not in out
    (host.folder / "refuse").unlink()
    assert (await host.cli(agent, "disable", "--restart"))[0] == 0
    assert host.pid != ours
    assert runtime.cpuset(container) != ""
    assert kept(host, agent) == []


async def test_a_kubelet_restarted_by_hand_is_not_restarted_again(make_host, agent, runtime) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    await host.cli(agent, "enable", "--restart")
    await host.cli(agent, "disable")
    await restarted(host)
    await connected(host, runtime.socket)
    pid = host.pid
    code, out, _ = await host.cli(agent, "disable", "--restart", "--no-release")
    assert (code, host.pid) == (0, pid)
    assert "does not point at us" in out
    assert kept(host, agent) == []


async def test_a_second_switch_without_a_restart_raises_no_alarm(make_host, agent, runtime) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    await host.cli(agent, "enable", "--restart")
    host.write(INSTANCE, f"containerRuntimeEndpoint: unix://{runtime.socket}\n")
    assert (await host.cli(agent, "enable"))[0] == 0
    status = host.status(agent)
    assert (status.points_at_us, status.restart_pending) == (True, False)


async def test_a_socket_of_ours_that_has_another_name_by_now_is_no_obstacle(
    make_host, agent, runtime
) -> None:
    host = make_host(config_tree(runtime.socket))
    await restarted(host)
    before = host.files()
    await host.cli(agent, "enable", "--restart")
    await agent.kill()
    agent.socket += "2"
    agent.write_config({"relay": {"socket": agent.socket}})
    await agent.start()
    code, _, err = await host.cli(agent, "enable", "--restart")
    assert code == 0, err
    await connected(host, agent.socket)
    code, _, err = await host.cli(agent, "disable", "--restart", "--no-release")
    assert (code, host.files()) == (0, before), err


async def test_units_are_read_again_with_every_restart(host, agent) -> None:
    await host.cli(agent, "enable")
    code, out, err = await host.cli(agent, "enable", "--restart")
    assert (code, host.asked()) == (0, ["daemon-reload", "restart kubelet"]), err


async def test_a_daemon_that_is_off_after_a_boot_is_said(host, agent) -> None:
    host.say_enabled("enabled", "disabled")
    assert "after a boot" not in (await host.cli(agent, "enable"))[2]
    host.say_enabled("disabled", "disabled")
    code, _, err = await host.cli(agent, "enable")
    assert code == 0
    assert "systemctl enable cri-resource-manager.service" in err


# ---------------------------------------------------------------------- when it is refused


async def test_a_daemon_that_is_off_gets_no_kubelet_unless_forced(host, agent) -> None:
    before = host.files()
    await ask(agent, "mode", mode="off")
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert "mode is off" in err
    assert (await host.cli(agent, "enable", "--force"))[0] == 0
    assert host.files() != before


async def test_a_degraded_daemon_gets_no_kubelet(make_host, runtime, start_agent) -> None:
    agent = await start_agent(placement={"ladder": "rope"})
    host = make_host(flags_tree(runtime.socket))
    before = host.files()
    degraded = (await ask(agent, "status"))["degraded"]
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert f"degraded: {next(iter(degraded.values()))}" in err


async def test_a_daemon_of_another_runtime_gets_no_kubelet(make_host, agent) -> None:
    host = make_host(flags_tree("/run/other/containerd.sock"))
    before = host.files()
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert "kubelet's runtime is unix:///run/other/containerd.sock, and the daemon's" in err


async def test_no_daemon_gets_no_kubelet(host, agent) -> None:
    before = host.files()
    await agent.kill()
    code, _, err = await host.cli(agent, "enable")
    assert (code, host.files()) == (1, before)
    assert err.startswith("cri-resmgr: ")


async def test_no_runtime_to_go_back_to_is_refused_unless_forced(host, agent, runtime) -> None:
    before = host.files()
    await host.cli(agent, "enable", "--restart")
    ours = host.files()
    await runtime.stop()
    code, _, err = await host.cli(agent, "disable")
    assert (code, host.files()) == (1, ours)
    assert f"the runtime at unix://{runtime.socket} does not answer" in err
    assert (await host.cli(agent, "disable", "--force"))[0] == 0
    assert host.files() == before


async def test_a_setting_made_by_hand_is_not_ours_to_undo(make_host, agent, runtime) -> None:
    host = make_host(flags_tree(agent.socket))
    before = host.files()
    status = host.status(agent)
    assert (status.points_at_us, status.written_by_us) == (True, False)
    code, _, err = await host.cli(agent, "disable", "--restart")
    assert (code, host.files(), host.asked()) == (1, before, [])
    assert f"through {FLAGS}:1, which `kubelet enable` did not write" in err
    typed, restart = err.splitlines()[1].split(" && ", 1)
    assert restart == RESTART
    subprocess.run(typed.replace(FLAGS, f"{host.root}{FLAGS}"), shell=True, check=True)
    assert host.files() == {path: text.encode() for path, text in flags_tree(runtime.socket).items()}


async def test_a_kubelet_that_is_connected_elsewhere_gets_no_other_files_unless_forced(
    make_host, agent, runtime, folder
) -> None:
    docker = socket.socket(socket.AF_UNIX)
    docker.bind(str(folder / "docker.sock"))
    docker.listen()
    docker.setblocking(False)
    # What it runs with is told by its connection only: its files name the daemon's runtime by now.
    host = make_host(config_tree(str(folder / "docker.sock")))
    await restarted(host)
    accepted, _ = await asyncio.get_running_loop().sock_accept(docker)
    await connected(host, str(folder / "docker.sock"))
    for path, text in config_tree(runtime.socket).items():
        host.write(path, text)
    before = host.files()
    code, _, err = await host.cli(agent, "enable", wait_s=0.0)
    assert (code, host.files()) == (1, before)
    assert f"connected neither to the daemon's runtime at {runtime.socket} nor to us" in err
    assert (await host.cli(agent, "enable", "--force"))[0] == 0
    accepted.close()
    docker.close()


async def test_images_that_come_through_us_by_hand_are_not_cut_off(make_host, agent, runtime) -> None:
    files = config_tree(runtime.socket)
    files[CONFIG] += f"imageServiceEndpoint: unix://{agent.socket}\n"
    host = make_host(files)
    await restarted(host)
    assert "pulls images through us" in host.status(agent).warnings[0]
    before = host.files()
    code, _, err = await host.cli(agent, "disable", "--restart", "--no-release")
    assert (code, host.files()) == (1, before)
    assert f"kubelet pulls images through us through {CONFIG}:5" in err
    typed = err.splitlines()[1].split(" && ", 1)[0]
    subprocess.run(typed.replace(CONFIG, f"{host.root}{CONFIG}"), shell=True, check=True)
    assert f"imageServiceEndpoint: unix://{runtime.socket}" in host.files()[CONFIG].decode()
    assert (await host.cli(agent, "disable", "--restart", "--no-release"))[0] == 0


async def test_an_endpoint_with_one_slash_is_gone_back_to(make_host, agent, runtime) -> None:
    files = config_tree(runtime.socket)
    files[CONFIG] = files[CONFIG].replace("unix://", "unix:")
    host = make_host(files)
    before = host.files()
    assert (await host.cli(agent, "enable"))[0] == 0
    code, _, err = await host.cli(agent, "disable", "--no-release")
    assert (code, host.files()) == (0, before), err


async def test_files_that_cannot_be_read_do_not_keep_a_package_that_was_never_switched_to(
    host, agent
) -> None:
    host.write(CONFIG, "a: [\n")
    code, _, err = await host.cli(agent, "disable", "--restart", "--no-release")
    assert (code, host.asked()) == (0, [])
    assert err.startswith(f"{CONFIG}:2: ") and "kubelet does not point at us" in err
    host.write(CONFIG, f"a: [\n# unix://{agent.socket}\n")
    assert (await host.cli(agent, "disable", "--restart", "--no-release"))[0] == 1


async def test_files_that_cannot_be_read_keep_a_package_that_was_switched_to(host, agent) -> None:
    await host.cli(agent, "enable", "--restart")
    host.write(CONFIG, "a: [\n")
    assert (await host.cli(agent, "disable", "--restart", "--no-release"))[0] == 1


async def test_what_a_kubeadm_upgrade_drops_is_seen(host, agent, runtime) -> None:
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


async def test_k3s_is_told_what_to_type(make_host, agent) -> None:
    host = make_host(RANCHER["k3s"].files)
    before = host.files()
    code, _, err = await host.cli(agent, "enable", "--restart")
    assert (code, host.files()) == (1, before)
    assert "kubelet-arg" in err
    assert host.status(agent).manager == "k3s"
    assert "kubelet-arg" in host.status(agent).hint


async def test_a_k3s_that_points_at_us_is_not_cut_off(make_host, agent) -> None:
    name = "k3s, on its command line"
    files = {p: text.replace("/run/x.sock", agent.socket) for p, text in RANCHER[name].files.items()}
    host = make_host(files)
    code, _, err = await host.cli(agent, "disable", "--restart", "--no-release")
    assert (code, host.asked()) == (1, [])
    assert f"kubelet points at us through {RANCHER[name].place}" in err
    assert err.rstrip().endswith("systemctl daemon-reload && systemctl restart k3s")


@pytest.mark.parametrize(
    ("fault", "phrase"), [("fail", "Job for kubelet.service failed"), ("break", "no kubelet runs")]
)
async def test_a_kubelet_that_does_not_come_back_is_said(host, agent, fault, phrase) -> None:
    (host.folder / fault).touch()
    code, _, err = await host.cli(agent, "enable", "--restart", wait_s=0.0)
    assert code == 1
    assert phrase in err
    assert "journalctl -u kubelet" in err


@pytest.mark.parametrize("command", ["enable", "status"])
async def test_a_broken_file_is_one_sentence(host, agent, command) -> None:
    host.write("/var/lib/kubelet/config.yaml", "a: [\n")
    code, _, err = await host.cli(agent, command)
    assert code == 1
    assert err.startswith("cri-resmgr: /var/lib/kubelet/config.yaml:2: ")
    assert err.count("\n") == 1


# ---------------------------------------------------------------------- the process


def test_kubelet_is_found_by_its_name_and_its_flags_are_its_own(host) -> None:
    found = find_kubelet(host.folder / "proc")
    assert found is not None
    assert found.pid == host.pid
    assert found.argv[0].endswith("/kubelet")
    assert found.argv[1] == "--config=/var/lib/kubelet/config.yaml"
