"""The host's commands as processes, what it can take, and the names of packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.installer.io.host import InstallationHost, StepFailed, packages_in
from cluster.installer.plan import Platform


def test_a_commands_words_and_code_come_back(tmp_path: Path) -> None:
    answer = InstallationHost(tmp_path, ("env",)).run(("sh", "-c", "echo out; echo why >&2; exit 3"), 60.0)
    assert (answer.code, answer.out, answer.said) == (3, "out\n", "why out")


def test_of_a_long_answer_the_end_is_kept(tmp_path: Path) -> None:
    answer = InstallationHost(tmp_path, ("env",)).run(("sh", "-c", "seq 10000; echo last"), 60.0)
    assert answer.said.endswith("10000 last") and len(answer.said) == 1500


def test_a_command_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"^tail -f /dev/null: not done after 0 s$"):
        InstallationHost(tmp_path, ("env",)).run(("tail", "-f", "/dev/null"), 0.1)


def test_a_host_that_cannot_be_entered_is_said(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"^no-such-program: No such file or directory$"):
        InstallationHost(tmp_path, ("no-such-program",)).run(("true",), 60.0)


def test_a_command_sees_nothing_of_the_pods_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "KUBERNETES" not in InstallationHost(tmp_path, ("env",)).run(("env",), 60.0).out


@pytest.mark.parametrize(
    ("programs", "pythons", "default", "platform"),
    [
        (("dpkg",), ("3.9", "3.11"), "python3.9", Platform("deb", ("3.9", "3.11"))),
        (("rpm",), ("3.9", "3.11"), "", Platform("rpm", ("3.11", "3.9"))),
        (("dpkg", "rpm"), (), "", Platform("deb", ())),
        ((), ("3.11",), "python3.11", Platform("", ("3.11",))),
    ],
)
def test_a_hosts_files_say_what_it_can_take(
    tmp_path: Path, programs: tuple[str, ...], pythons: tuple[str, ...], default: str, platform: Platform
) -> None:
    for name in (*programs, *(f"python{version}" for version in pythons), "python3.11-config"):
        (tmp_path / "usr/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr/bin" / name).touch()
    if default:
        (tmp_path / "usr/bin/python3").symlink_to(default)
    if "dpkg" in programs:
        (tmp_path / "var/lib/dpkg").mkdir(parents=True)
        (tmp_path / "var/lib/dpkg/status").touch()
    assert InstallationHost(tmp_path, ("false",)).platform() == platform


def test_a_packages_name_says_for_what_it_is(tmp_path: Path) -> None:
    for name in (
        "cri-resmgr_0.1.0-1+py3.11_amd64.deb",
        "cri-resmgr-0.1.0-1.py39.x86_64.rpm",
        "cri-resmgr-0.1.0-1.py39.src.rpm",
        "other.deb",
    ):
        (tmp_path / name).write_text(name)
    found = [(package.kind, package.python, package.version) for package in packages_in(tmp_path)]
    assert found == [("rpm", "3.9", "0.1.0-1.py39"), ("deb", "3.11", "0.1.0-1+py3.11")]
