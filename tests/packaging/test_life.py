"""A package's life on a Debian 12 whose systemd only writes down what it is asked: the same for the deb and the rpm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.version import VERSION
from tests.packaging.expected import KUBELET_BY_HAND, SOCKET_AND_SERVICE
from tests.packaging.installed import served, simulated
from tests.packaging.kinds import Kind
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages


async def test_a_first_install_starts_nothing_and_a_removal_gives_containers_their_cpus_back(
    root: Root, kind: Kind, install: Callable[..., str]
) -> None:
    before = root.files()
    root.pretend_systemd()
    said = await asyncio.to_thread(install)
    assert not [line for line in said.splitlines() if not line.startswith(kind.says)]
    assert root.asked_of_systemd() == [f"--no-reload preset {SOCKET_AND_SERVICE}", "daemon-reload"]
    assert (await asyncio.to_thread(root.run, "cri-resmgr", "--version")).split()[-1] == VERSION
    assert await asyncio.to_thread(simulated, root) == "0-3,64-67"
    async with served(root) as (client, runtime):
        assert (await client.call("Version", cri.VersionRequest())).runtime_name == "containerd"
        pod = await client.run_pod("web")
        container = await client.create(pod, "app", cpu_limit=8000)
        await client.start(container)
        assert runtime.cpuset(container) == "0-3,64-67"
        assert "enforce" in await asyncio.to_thread(root.run, "cri-resmgr", "status")
        await asyncio.to_thread(root.run, *kind.remove, "cri-resmgr")
        assert runtime.cpuset(container) == "0-127"
    left = {name for name in root.files() - before if name.startswith(("usr", "run/cri"))}
    # The folder of licences is the distribution's, but not on Debian.
    assert left - {"usr/bin/systemctl"} <= {"usr/share/licenses"}


def test_upgrade_and_downgrade_restart_it_and_keep_state_and_configuration(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    install()
    kept = {
        "/etc/cri-resmgr/config.yaml": "relay:\n  mode: observe\n",
        "/etc/cri-resmgr/fallback.cfg": "policy:\n  Active: none\n",
        "/var/lib/cri-resmgr/state.db": "state",
    }
    for name, text in kept.items():
        root.write(name, text)
    for release in ("2", "1"):
        root.asked_of_systemd()
        install(release)
        assert root.asked_of_systemd() == [
            "daemon-reload",
            "try-restart cri-resource-manager.service",
            "try-restart cri-resmgr-observer.service",
            "try-restart cri-resmgr-nri.service",
        ]
        assert {name: root.read(name) for name in kept} == kept


def test_removal_is_refused_while_kubelet_points_at_us_by_hand(
    root: Root, kind: Kind, install: Callable[..., str]
) -> None:
    root.write(*KUBELET_BY_HAND)
    install()
    before = root.files()
    said = root.run(*kind.remove, "cri-resmgr", fails=True)
    file, text = KUBELET_BY_HAND
    assert f"{file}:2" in said, said
    assert "not removed, nothing was changed" in said
    assert root.files() == before
    assert root.read(file) == text
    root.run("cri-resmgr", "--version")
