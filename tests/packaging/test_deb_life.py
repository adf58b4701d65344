"""What is the deb's alone: it can be purged, and removed without that. On a Debian 12, as in test_life.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from cri_proxy.version import VERSION
from tests.packaging.expected import FRESH, SOCKET_AND_SERVICE
from tests.packaging.installed import simulated
from tests.packaging.kinds import DEB, Kind
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages

DROP_IN = """[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS
"""
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
BEFORE = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --v=2"\n'


@pytest.fixture
def kind() -> Kind:
    return DEB


def test_installed_it_runs_with_its_own_modules_only(root: Root, install: Callable[..., str]) -> None:
    install()
    assert root.run("cri-resmgr", "--version").split()[-1] == VERSION
    root.run("cri-resmgr", "config", "check", "/etc/cri-resmgr/config.yaml")
    assert simulated(root) == "0-3,64-67"
    modules = "sys, google.protobuf, networkx, bpf.service.service, cri_proxy.daemon.daemon"
    program = f"import {modules}; print(sys.path, google.protobuf.__file__)"
    said = root.run("/usr/lib/cri-resmgr/bin/python", "-I", "-c", program)
    assert "dist-packages" not in said
    assert "/usr/lib/cri-resmgr/lib/python3.11/site-packages/google" in said
    words = ("env", "COMP_WORDS=cri-resmgr s", "COMP_CWORD=1", "_CRI_RESMGR_COMPLETE=bash_complete")
    assert root.run(*words, "cri-resmgr").split() == ["plain,simulate", "plain,status"]


@pytest.mark.parametrize("systemd", [False, True], ids=["no systemd", "systemd"])
def test_purge_leaves_nothing(root: Root, install: Callable[..., str], systemd: bool) -> None:
    if systemd:
        root.pretend_systemd()
    # What there is before it is changed is kept beside it.
    root.run("sh", "-c", "groupadd --system of-a-test && groupdel of-a-test")
    before, groups = root.files(), [root.read(name) for name in ("/etc/group", "/etc/gshadow")]
    install()
    assert root.files() > before
    # As systemd-sysusers does, where it is.
    root.run("groupadd", "--system", "cri-resmgr-view")
    root.write("/var/lib/cri-resmgr/state.db", "state")
    root.write("/etc/cri-resmgr/fallback.cfg", "policy:\n  Active: none\n")
    root.write("/run/cri-resmgr/control.sock", "")
    # Of a Job that had installed the package.
    root.write("/var/lib/cri-resmgr-installer/record.json", "{}")
    # As docs/install.md has a standalone node.
    root.write("/etc/systemd/system/cri-resource-manager.service.d/standalone.conf", "[Service]\n")
    (root.path / "etc/systemd/system/cri-resource-manager.socket").symlink_to("/dev/null")
    install("2")
    root.run("dpkg", "--remove", "cri-resmgr")
    assert {name.partition("/")[0] for name in root.files() - before} == {"etc", "var"}
    root.run("dpkg", "--purge", "cri-resmgr")
    assert root.files() == before
    assert [root.read(name) for name in ("/etc/group", "/etc/gshadow")] == groups
    if systemd:
        asked = root.asked_of_systemd()
        assert (
            f"stop {SOCKET_AND_SERVICE} cri-resmgr-observer.service cri-resmgr-agent.service cri-resmgr-nri.service"
            " cri-resmgr-web.service" in asked
        )
        assert (
            f"--no-reload disable {SOCKET_AND_SERVICE} cri-resmgr-observer.service cri-resmgr-agent.service"
            " cri-resmgr-nri.service cri-resmgr-web.service" in asked
        )


def test_after_a_removal_it_can_be_installed_again(root: Root, install: Callable[..., str]) -> None:
    root.pretend_systemd()
    install()
    root.run("dpkg", "--remove", "cri-resmgr")
    root.asked_of_systemd()
    install()
    assert root.asked_of_systemd() == FRESH


def test_removal_points_kubelet_back_as_it_was(root: Root, install: Callable[..., str]) -> None:
    # Kubelet as kubeadm sets it up; it does not run.
    root.write("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    root.write("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", DROP_IN)
    root.write(FLAGS, BEFORE)
    install()
    root.run("cri-resmgr", "kubelet", "enable", "--force")
    assert "cri-resmgr.sock" in root.read(FLAGS)
    root.run("dpkg", "--remove", "cri-resmgr")
    assert root.read(FLAGS) == BEFORE


def test_a_program_that_cannot_run_can_be_removed(root: Root, install: Callable[..., str]) -> None:
    install()
    (root.path / "usr/lib/cri-resmgr/lib/python3.11/site-packages/click/__init__.py").unlink()
    root.run("dpkg", "--purge", "cri-resmgr")


def test_without_its_state_directory_it_can_be_removed(root: Root, install: Callable[..., str]) -> None:
    install()
    shutil.rmtree(root.path / "var/lib/cri-resmgr")
    root.run("dpkg", "--remove", "cri-resmgr")
