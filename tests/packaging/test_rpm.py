"""The rpm: what is in it and asks for, and its life in a root: its scriptlets run by rpm, without and with systemd."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.version import VERSION
from tests.packaging.expected import FOLDERS, PROGRAMS, STATE, UNITS
from tests.packaging.installed import served, simulated
from tests.packaging.roots import REPOSITORY, Root

pytestmark = pytest.mark.packages

SOCKET_AND_SERVICE = "cri-resource-manager.socket cri-resource-manager.service"
#: The root's Python is no rpm.
BLIND = ("--nodeps",)


def ask(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def rpm(package: Callable[..., Path]) -> Path:
    return package("rpm")


@pytest.fixture
def root(new_root: Callable[[str], Root]) -> Root:
    return new_root("bookworm")


@pytest.fixture
def install(root: Root, package: Callable[..., Path]) -> Callable[..., str]:
    """``install(release="1")``: what rpm printed; an older one is a downgrade."""

    def run(release: str = "1") -> str:
        file = root.give(package("rpm", release=release))
        return root.run("rpm", "--upgrade", "--oldpackage", *BLIND, file)

    return run


def test_it_has_the_program_units_manual_completions_and_samples(rpm: Path) -> None:
    files = ask("rpm", "-qlp", str(rpm)).splitlines()
    wanted = {*PROGRAMS, *UNITS, STATE, "/usr/share/zsh/site-functions/_cri-resmgr"}
    assert wanted <= set(files)
    assert not [
        name
        for name in files
        if not any((name + "/").startswith(folder) or folder.startswith(name + "/") for folder in FOLDERS)
    ]
    assert "/usr/share/licenses/cri-resmgr/VENDORED.md" in files


def test_it_asks_for_its_python_and_takes_the_place_of_intels(rpm: Path) -> None:
    assert {"python(abi) = 3.11", "/usr/bin/python3.11"} <= set(
        ask("rpm", "-qp", "--requires", str(rpm)).splitlines()
    )
    assert ask("rpm", "-qp", "--obsoletes", str(rpm)) == "cri-resource-manager < 1.0\n"
    assert "cri-resource-manager = 1.0" in ask("rpm", "-qp", "--provides", str(rpm)).splitlines()
    assert "python3-bcc" in ask("rpm", "-qp", "--recommends", str(rpm)).splitlines()
    assert not [line for line in ask("rpm", "-qp", "--provides", str(rpm)).splitlines() if ".so" in line]


def test_what_is_edited_is_configuration(rpm: Path) -> None:
    files = ask("rpm", "-qp", "--configfiles", str(rpm)).split()
    assert files == ["/etc/cri-resmgr/config.yaml", "/etc/cri-resmgr/fallback.cfg.sample"]


def test_rpmlint_finds_nothing(rpm: Path) -> None:
    if shutil.which("rpmlint") is None:
        pytest.skip("no rpmlint")
    settings = str(REPOSITORY / "packaging" / "rpm" / "rpmlint.toml")
    done = subprocess.run(["rpmlint", "-c", settings, str(rpm)], capture_output=True, text=True, check=False)
    assert "0 errors, 0 warnings" in done.stdout, done.stdout


async def test_installed_into_a_root_its_daemon_places_containers_and_a_removal_gives_their_cpus_back(
    root: Root, install: Callable[..., str]
) -> None:
    before = root.files()
    root.pretend_systemd()
    said = await asyncio.to_thread(install)
    # Debian's rpm says that it is not Debian's package manager.
    assert not [line for line in said.splitlines() if not line.startswith("rpm: ")]
    assert (await asyncio.to_thread(root.run, "cri-resmgr", "--version")).split()[-1] == VERSION
    assert await asyncio.to_thread(simulated, root) == "0-3,64-67"
    assert root.asked_of_systemd() == [f"--no-reload preset {SOCKET_AND_SERVICE}", "daemon-reload"]
    async with served(root) as (client, runtime):
        pod = await client.run_pod("web")
        container = await client.create(pod, "app", cpu_limit=8000)
        assert (await client.call("Version", cri.VersionRequest())).runtime_name == "containerd"
        assert runtime.cpuset(container) == "0-3,64-67"
        await asyncio.to_thread(root.run, "rpm", "--erase", "cri-resmgr")
        assert runtime.cpuset(container) == "0-127"
    left = {name for name in root.files() - before if name.startswith(("usr", "run/cri"))} - {
        "usr/bin/systemctl"
    }
    assert left <= {"usr/share/licenses"}  # which is the distribution's, but not on Debian


def test_upgrade_and_downgrade_restart_it_and_keep_state_and_configuration(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    install()
    root.write("/etc/cri-resmgr/config.yaml", "relay:\n  mode: observe\n")
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
        assert (root.path / "etc/cri-resmgr/config.yaml").read_text() == "relay:\n  mode: observe\n"
        assert (root.path / "var/lib/cri-resmgr/state.db").read_text() == "state"


def test_removal_is_refused_while_kubelet_points_at_us_by_hand(
    root: Root, install: Callable[..., str]
) -> None:
    install()
    unit = (
        "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix:///var/run/cri-resmgr.sock\n"
    )
    root.write("/usr/lib/systemd/system/kubelet.service", unit)
    before = root.files()
    said = root.run("rpm", "--erase", "cri-resmgr", fails=True)
    assert "/usr/lib/systemd/system/kubelet.service:2" in said
    assert "not removed, nothing was changed" in said
    assert root.files() == before
