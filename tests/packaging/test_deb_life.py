"""The deb's life on a Debian 12 without systemd, or with one that only writes down what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.version import VERSION
from tests.packaging.installed import served, simulated
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages

UNITS = "cri-resource-manager.socket cri-resource-manager.service"
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
BY_HAND = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/cri-resmgr.sock"\n'
BEFORE = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --v=2"\n'


@pytest.fixture
def root(new_root: Callable[[str], Root]) -> Root:
    return new_root("bookworm")


@pytest.fixture
def install(root: Root, package: Callable[..., Path]) -> Callable[..., str]:
    """``install(release="1")``: what dpkg printed."""

    def run(release: str = "1") -> str:
        return root.run("dpkg", "--force-unsafe-io", "--install", root.give(package("deb", release=release)))

    return run


def with_kubelet(root: Root, flags: str) -> None:
    """Kubelet as kubeadm sets it up; it does not run."""
    root.write("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    drop_in = "[Service]\nEnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nExecStart=\n"
    drop_in += "ExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS\n"
    root.write("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", drop_in)
    root.write(FLAGS, flags)


def read(root: Root, name: str) -> str:
    return (root.path / name.lstrip("/")).read_text()


def test_installed_it_runs_with_its_own_modules_only(root: Root, install: Callable[..., str]) -> None:
    said = install()
    assert all(
        line.startswith(("Selecting", "(Reading", "Preparing", "Unpacking", "Setting up"))
        for line in said.splitlines()
    )
    assert root.run("cri-resmgr", "--version").split()[-1] == VERSION
    root.run("cri-resmgr", "config", "check", "/etc/cri-resmgr/config.yaml")
    assert simulated(root) == "0-3,64-67"
    program = "import sys, grpc, networkx, bpf.service, cri_proxy.daemon; print(sys.path, grpc.__file__)"
    said = root.run("/usr/lib/cri-resmgr/bin/python", "-I", "-c", program)
    assert "dist-packages" not in said
    assert "/usr/lib/cri-resmgr/lib/python3.11/site-packages/grpc" in said
    words = ("env", "COMP_WORDS=cri-resmgr s", "COMP_CWORD=1", "_CRI_RESMGR_COMPLETE=bash_complete")
    assert root.run(*words, "cri-resmgr").split() == ["plain,simulate", "plain,status"]


def test_a_first_install_starts_nothing(root: Root, install: Callable[..., str]) -> None:
    root.pretend_systemd()
    install()
    assert root.asked_of_systemd() == [f"--no-reload preset {UNITS}", "daemon-reload"]


def test_where_kubelet_points_at_us_already_it_is_started_for_it_waits(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    with_kubelet(root, BY_HAND)
    assert "kubelet points at its socket already" in install()
    assert root.asked_of_systemd()[-2:] == [f"enable {UNITS}", f"start {UNITS}"]


def test_upgrade_and_downgrade_restart_it_and_keep_state_and_configuration(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    install()
    root.write("/etc/cri-resmgr/config.yaml", "relay:\n  mode: observe\n")
    root.write("/etc/cri-resmgr/fallback.cfg", "policy:\n  Active: none\n")
    root.write("/var/lib/cri-resmgr/state.db", "state")
    for release in ("2", "1"):
        root.asked_of_systemd()
        install(release)
        assert root.asked_of_systemd() == [
            "daemon-reload",
            "try-restart cri-resource-manager.service",
            "try-restart cri-resmgr-observer.service",
            "try-restart cri-resmgr-nri.service",
        ]
        assert read(root, "/etc/cri-resmgr/config.yaml") == "relay:\n  mode: observe\n"
        assert read(root, "/var/lib/cri-resmgr/state.db") == "state"
    assert read(root, "/etc/cri-resmgr/fallback.cfg") == "policy:\n  Active: none\n"


@pytest.mark.parametrize("systemd", [False, True], ids=["no systemd", "systemd"])
def test_purge_leaves_nothing(root: Root, install: Callable[..., str], systemd: bool) -> None:
    if systemd:
        root.pretend_systemd()
    before = root.files()
    install()
    assert root.files() > before
    root.write("/var/lib/cri-resmgr/state.db", "state")
    root.write("/etc/cri-resmgr/fallback.cfg", "policy:\n  Active: none\n")
    root.write("/run/cri-resmgr/control.sock", "")
    install("2")
    root.run("dpkg", "--remove", "cri-resmgr")
    assert {name.partition("/")[0] for name in root.files() - before} == {"etc", "var"}
    root.run("dpkg", "--purge", "cri-resmgr")
    assert root.files() == before
    if systemd:
        asked = root.asked_of_systemd()
        assert f"stop {UNITS} cri-resmgr-observer.service cri-resmgr-nri.service" in asked
        assert f"--no-reload disable {UNITS} cri-resmgr-observer.service cri-resmgr-nri.service" in asked


def test_after_a_removal_it_can_be_installed_again(root: Root, install: Callable[..., str]) -> None:
    root.pretend_systemd()
    install()
    root.run("dpkg", "--remove", "cri-resmgr")
    root.asked_of_systemd()
    install()
    assert root.asked_of_systemd() == [f"--no-reload preset {UNITS}", "daemon-reload"]


def test_removal_points_kubelet_back_as_it_was(root: Root, install: Callable[..., str]) -> None:
    with_kubelet(root, BEFORE)
    install()
    root.run("cri-resmgr", "kubelet", "enable", "--force")
    assert "cri-resmgr.sock" in read(root, FLAGS)
    root.run("dpkg", "--remove", "cri-resmgr")
    assert read(root, FLAGS) == BEFORE


def test_removal_is_refused_while_kubelet_points_at_us_by_hand(
    root: Root, install: Callable[..., str]
) -> None:
    with_kubelet(root, BY_HAND)
    install()
    before = root.files()
    said = root.run("dpkg", "--remove", "cri-resmgr", fails=True)
    assert f"{FLAGS}:1" in said, said
    assert "not removed, nothing was changed" in said
    assert root.files() == before
    assert read(root, FLAGS) == BY_HAND
    root.run("cri-resmgr", "--version")


def test_a_program_that_cannot_run_can_be_removed(root: Root, install: Callable[..., str]) -> None:
    install()
    (root.path / "usr/lib/cri-resmgr/lib/python3.11/site-packages/click/__init__.py").unlink()
    root.run("dpkg", "--purge", "cri-resmgr")


async def test_its_daemon_places_containers_and_a_removal_gives_them_their_cpus_back(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    await asyncio.to_thread(install)
    async with served(root) as (client, runtime):
        assert (await client.call("Version", cri.VersionRequest())).runtime_name == "containerd"
        pod = await client.run_pod("web")
        container = await client.create(pod, "app", cpu_limit=8000)
        await client.start(container)
        assert runtime.cpuset(container) == "0-3,64-67"
        assert "enforce" in await asyncio.to_thread(root.run, "cri-resmgr", "status")
        await asyncio.to_thread(root.run, "dpkg", "--remove", "cri-resmgr")
        assert runtime.cpuset(container) == "0-127"
