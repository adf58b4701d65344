"""The installer on a host that is a folder: what it does, what it takes back, and where it stops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from cluster.installer.io.host import CommandResult, InstallationHost
from cluster.installer.io.installer import ExitCode, Installer
from tests.cluster.installer import host_program

V1, V2 = "0.1.0-1+py3.11", "0.2.0-1+py3.11"
PROGRAM = "/usr/bin/cri-resmgr"
UNITS = "cri-resource-manager.socket cri-resource-manager.service"
INSTALL = "dpkg --force-confdef --force-confold --install"


class FakeHost:
    """A Debian host with Python 3.11 and a kubelet at its runtime; ``images``: what the installer's image carries."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.images = folder, folder / "root", folder / "images"
        for name in ("usr/bin", "var/lib/dpkg", "run", "etc"):
            (self.root / name).mkdir(parents=True)
        (self.root / "usr/bin/python3.11").touch()
        (self.root / "usr/bin/python3").symlink_to("python3.11")
        (self.root / "usr/bin/dpkg").touch()
        (self.root / "var/lib/dpkg/status").touch()
        self.set(packages={}, enabled=[], running=[], kubelet=False, doctor=[""], bytes="")
        self.images.mkdir()
        self.carry(V1)
        self.said: list[str] = []
        self.is_ending: Callable[[], bool] = lambda: False

    def carry(self, version: str, content: str = "") -> None:
        """From now on the image has this deb only."""
        for old in self.images.iterdir():
            old.unlink()
        (self.images / f"cri-resmgr_{version}_amd64.deb").write_text(content or version)

    def set(self, **state: Any) -> None:
        path = self.folder / "host.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **state}))

    def fail(self, *beginnings: str, half: bool = False) -> None:
        (self.folder / ("half" if half else "fail")).write_text("\n".join(beginnings))

    def mend(self) -> None:
        for name in ("fail", "half"):
            (self.folder / name).unlink(missing_ok=True)

    def changes(self) -> list[str]:
        """The host's commands since this was called last, without the digests of files."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        folder = "/var/lib/cri-resmgr-installer/"
        return [
            line.partition(folder)[0] + line.partition("-installer/")[2][13:] if folder in line else line
            for line in lines
        ]

    def look(self) -> dict[str, Any]:
        """What an installer may change, and every file."""
        state: dict[str, Any] = json.loads((self.folder / "host.json").read_text())
        state.pop("bytes"), state.pop("doctor")
        return {**state, "files": sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))}

    def run(self, action: str) -> tuple[ExitCode, str]:
        host = FolderHost(self)
        installer = Installer(host, self.said.append, self.images, lambda: self.is_ending())
        return installer.install() if action == "install" else installer.uninstall()


class FolderHost(InstallationHost):
    """Its files are a folder; its programs are ``host_program``, without a process for each."""

    def __init__(self, fake: FakeHost) -> None:
        super().__init__(fake.root)
        self._fake = fake
        self.pause = lambda seconds: None

    def run(self, command: Sequence[str], timeout_s: float) -> CommandResult:
        return host_program.run(self._fake.folder, list(command))


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


ALL = [
    f"{INSTALL} cri-resmgr_{V1}_amd64.deb",
    f"systemctl enable {UNITS}",
    f"systemctl start {UNITS}",
    f"{PROGRAM} kubelet enable --restart",
]


def test_a_host_gets_package_units_and_kubelet_in_this_order(host: FakeHost) -> None:
    assert host.run("install") == (ExitCode.DONE, f"cri-resmgr {V1} is installed")
    assert host.changes() == ALL
    assert host.look()["kubelet"] is True


def test_the_same_bytes_again_change_and_restart_nothing(host: FakeHost) -> None:
    host.run("install")
    host.changes()
    before = host.look()
    outcome, sentence = host.run("install")
    assert (outcome, host.changes()) == (ExitCode.DONE, [])
    assert "nothing was changed" in sentence
    assert host.look() == before


def test_other_bytes_of_the_same_version_are_installed(host: FakeHost) -> None:
    host.run("install")
    host.changes()
    host.carry(V1, "built anew")
    assert host.run("install")[0] is ExitCode.DONE
    assert host.changes() == ALL[:1]
    assert json.loads((host.folder / "host.json").read_text())["bytes"] == "built anew"


def test_an_upgrade_leaves_units_and_kubelet_as_they_are(host: FakeHost) -> None:
    host.run("install")
    host.changes()
    host.carry(V2)
    assert host.run("install")[0] is ExitCode.DONE
    assert host.changes() == [f"{INSTALL} cri-resmgr_{V2}_amd64.deb"]


@pytest.mark.parametrize("half", [False, True], ids=["does not happen", "happens and fails"])
@pytest.mark.parametrize("step", range(len(ALL)))
def test_a_first_installation_that_fails_anywhere_leaves_the_host_as_it_was(
    host: FakeHost, step: int, half: bool
) -> None:
    before = host.look()
    host.fail(ALL[step].partition(" cri-res")[0], half=half)
    outcome, sentence = host.run("install")
    assert outcome is ExitCode.TAKEN_BACK, sentence
    assert "failed" in sentence and sentence.endswith("the node is as it was")
    assert host.look() == before


def test_a_doctor_who_finds_a_problem_for_a_minute_has_everything_taken_back(host: FakeHost) -> None:
    before = host.look()
    host.set(doctor=["1 problem: the runtime does not answer"])
    outcome, sentence = host.run("install")
    assert (outcome, host.look()) == (ExitCode.TAKEN_BACK, before)
    assert "the runtime does not answer" in sentence


def test_an_upgrade_that_the_doctor_refuses_goes_back_to_the_old_bytes(host: FakeHost) -> None:
    host.run("install")
    before = host.look()
    host.changes()
    host.carry(V2)
    host.set(doctor=["1 problem: degraded"])
    outcome, _ = host.run("install")
    assert (outcome, host.look()) == (ExitCode.TAKEN_BACK, before)
    assert host.changes() == [f"{INSTALL} cri-resmgr_{V2}_amd64.deb", f"{INSTALL} cri-resmgr_{V1}_amd64.deb"]


def test_an_upgrade_of_the_same_version_goes_back_to_the_old_bytes_too(host: FakeHost) -> None:
    host.run("install")
    host.carry(V1, "built anew")
    host.set(doctor=["1 problem: degraded"])
    assert host.run("install")[0] is ExitCode.TAKEN_BACK
    assert json.loads((host.folder / "host.json").read_text())["bytes"] == V1


@pytest.mark.parametrize("steps", range(len(ALL) + 1))
def test_a_pod_that_is_told_to_end_takes_back_what_it_began(host: FakeHost, steps: int) -> None:
    before = host.look()
    asked = iter(range(100))
    host.is_ending = lambda: next(asked) >= steps
    outcome, sentence = host.run("install")
    assert (outcome, host.look()) == (ExitCode.TAKEN_BACK, before)
    assert "told to end" in sentence


class Killed(BaseException):
    """The end of the process at this point."""


@pytest.mark.parametrize("then", ["install", "uninstall"])
@pytest.mark.parametrize("steps", range(len(ALL) + 1))
def test_an_installer_that_is_killed_anywhere_is_followed_by_one_that_knows(
    host: FakeHost, steps: int, then: str
) -> None:
    before = host.look()
    asked = iter(range(100))

    def kill() -> bool:
        if next(asked) >= steps:
            raise Killed
        return False

    host.is_ending = kill
    with pytest.raises(Killed):
        host.run("install")
    host.is_ending = lambda: False
    assert host.run(then)[0] is ExitCode.DONE
    if then == "install":
        assert host.look()["kubelet"] is True
        assert host.run("uninstall")[0] is ExitCode.DONE
    assert host.look() == before


def test_uninstall_takes_back_exactly_what_install_did(host: FakeHost) -> None:
    before = host.look()
    host.run("install")
    host.changes()
    assert host.run("uninstall")[0] is ExitCode.DONE
    assert host.look() == before
    assert host.changes() == [
        f"{PROGRAM} kubelet disable --restart",
        f"systemctl stop {UNITS}",
        f"systemctl disable {UNITS}",
        "dpkg --force-remove-reinstreq --purge cri-resmgr",
    ]


def test_configuration_that_was_there_before_outlives_the_package(host: FakeHost) -> None:
    (host.root / "etc/cri-resmgr").mkdir()
    (host.root / "etc/cri-resmgr/config.yaml").write_text("mine")
    before = host.look()
    host.run("install")
    assert host.run("uninstall")[0] is ExitCode.DONE
    assert host.look() == before
    assert "dpkg --force-remove-reinstreq --remove cri-resmgr" in host.changes()


def test_uninstall_where_nothing_was_installed_does_nothing(host: FakeHost) -> None:
    assert host.run("uninstall") == (ExitCode.DONE, "nothing on this node is from the installer")
    assert host.changes() == []


def test_where_kubelet_does_not_go_back_the_package_stays_and_the_next_try_goes_on(host: FakeHost) -> None:
    before = host.look()
    host.run("install")
    host.fail(f"{PROGRAM} kubelet disable")
    outcome, sentence = host.run("uninstall")
    assert outcome is ExitCode.STUCK
    assert "kubelet disable --restart failed" in sentence
    assert host.look()["packages"] == {"cri-resmgr": V1}
    host.mend()
    assert host.run("uninstall")[0] is ExitCode.DONE
    assert host.look() == before


def test_a_failure_whose_taking_back_fails_is_told_and_taken_back_by_the_next(host: FakeHost) -> None:
    before = host.look()
    host.fail(f"{PROGRAM} kubelet enable", "dpkg --force-remove-reinstreq --purge")
    outcome, sentence = host.run("install")
    assert outcome is ExitCode.STUCK
    assert "kubelet enable" in sentence and "--purge" in sentence
    host.mend()
    assert host.run("uninstall")[0] is ExitCode.DONE
    assert host.look() == before


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"packages": {"cri-resmgr": V2}}, f"cri-resmgr {V2} is on this node, and not from this installer"),
        (
            {"packages": {"cri-resource-manager": "0.9"}},
            "Intel's cri-resource-manager is installed on this node",
        ),
    ],
    ids=["by a person", "Intel's"],
)
def test_what_another_put_there_is_not_touched(host: FakeHost, state: dict[str, Any], sentence: str) -> None:
    host.set(**state)
    before = host.look()
    outcome, said = host.run("install")
    assert outcome is ExitCode.TAKEN_BACK
    assert said.startswith(sentence) and said.endswith("nothing was changed")
    assert (host.look(), host.changes()) == (before, [])


def test_a_version_that_a_person_has_upgraded_to_is_not_taken_down(host: FakeHost) -> None:
    host.run("install")
    host.changes()
    host.set(packages={"cri-resmgr": V2})
    outcome, said = host.run("install")
    assert (outcome, host.changes()) == (ExitCode.TAKEN_BACK, [])
    assert f"cri-resmgr {V2} is on this node, where the installer had put {V1}" in said


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("python3.8", "Python on this node: 3.8; the deb packages of this image are for: 3.11"),
        (None, "Python on this node: none; the deb packages of this image are for: 3.11"),
    ],
)
def test_a_host_without_a_fitting_python_is_told_so(
    host: FakeHost, python: Optional[str], sentence: str
) -> None:
    for name in ("python3", "python3.11"):
        (host.root / "usr/bin" / name).unlink()
    if python:
        (host.root / "usr/bin" / python).touch()
    assert host.run("install") == (ExitCode.TAKEN_BACK, f"{sentence}; nothing was changed")


def test_a_record_that_cannot_be_read_stops_both_ways(host: FakeHost) -> None:
    record = host.root / "var/lib/cri-resmgr-installer/record.json"
    record.parent.mkdir()
    record.write_text('{"format": 7}')
    for action in ("install", "uninstall"):
        outcome, sentence = host.run(action)
        assert outcome is ExitCode.TAKEN_BACK
        assert "record.json: format 7" in sentence
    assert host.changes() == []


def test_two_installers_do_not_work_on_one_host(host: FakeHost) -> None:
    with InstallationHost(host.root).alone() as is_alone:
        assert is_alone
        assert host.run("install")[1].startswith("another installer is at work")
    assert host.run("install")[0] is ExitCode.DONE


def test_what_was_written_down_is_for_root_only(host: FakeHost) -> None:
    host.run("install")
    folder = host.root / "var/lib/cri-resmgr-installer"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.suffix for path in sorted(folder.iterdir())] == [".deb", ".json"]
