"""tools/debian-packages on a machine with Docker's packages: it gets what tests need, and takes and starts nothing."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.packaging.roots import REPOSITORY, Root

pytestmark = pytest.mark.packages

TOOL = "/work/tools/debian-packages"
BESIDE = "/work/.cache/beside"
LOG = "/work/.cache/apt.log"
FETCHED = "fetched; dpkg unpacks and configures them"
POLICY = "/usr/sbin/policy-rc.d"
UNIT = "[Service]\nExecStart=/usr/bin/true\n[Install]\nWantedBy=multi-user.target\n"
WANTED = "etc/systemd/system/multi-user.target.wants"
#: What debhelper has packages with a service do.
STARTS = """#!/bin/sh
deb-systemd-helper unmask {0}.service >/dev/null || true
if deb-systemd-helper --quiet was-enabled {0}.service; then deb-systemd-helper enable {0}.service >/dev/null; fi
if [ -d /run/systemd/system ]; then deb-systemd-invoke start {0}.service >/dev/null || true; fi
"""
#: Every service that is asked about is enabled, new ones are, and what is asked is written down.
SYSTEMCTL = """#!/bin/sh
wanted=/etc/systemd/system/multi-user.target.wants
for unit in "$@"; do :; done
mkdir -p $wanted
case "$*" in
*is-enabled*) echo enabled ;;
*preset*) ln -sf "/lib/systemd/system/$unit" $wanted ;;
*disable*) rm -f "$wanted/$unit" ;;
esac
echo "$*" >>/tmp/systemctl.log
"""
#: As Docker's own repository has them.
DOCKERS = {
    "containerd.io": {"Provides": "containerd, runc", "Conflicts": "containerd, runc", "Replaces": "containerd, runc"},
    "docker-ce": {"Depends": "containerd.io (>= 1.6.4)"},
}  # fmt: skip
#: As Debian has them: relations, and whether they have a service.
DEBIANS = {
    "containerd": ({"Depends": "runc (>= 1.0.0~rc2~)"}, True),
    "runc": ({}, False),
    "nginx": ({"Depends": "nginx-common"}, False),
    "nginx-common": ({}, True),
    "wrk": ({"Depends": "libwrk (= 2)"}, False),
    "libwrk": ({}, False),
    "tmux": ({}, False),
}


def make_deb(folder: Path, name: str, version: str, fields: Mapping[str, str], has_service: bool) -> Path:
    """A package with a program of its name that says the version."""
    tree = folder / name
    files = {f"usr/bin/{name}": (f"#!/bin/sh\necho {name} {version}\n", 0o755)}
    control = {
        "Package": name,
        "Version": version,
        "Architecture": "all",
        "Maintainer": "a test <a@b>",
        **fields,
    }
    lines = [f"{key}: {value}\n" for key, value in control.items()]
    files["DEBIAN/control"] = ("".join([*lines, "Description: of a test\n"]), 0o644)
    if has_service:
        files[f"lib/systemd/system/{name}.service"] = (UNIT, 0o644)
        files["DEBIAN/postinst"] = (STARTS.format(name), 0o755)
    for path, (text, mode) in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
        (tree / path).chmod(mode)
    deb = folder / f"{name}_{version}_all.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(deb)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return deb


def entry(deb: Path) -> str:
    """What a mirror's index says of a package."""
    fields = subprocess.run(
        ["dpkg-deb", "--field", str(deb)], check=True, capture_output=True, text=True
    ).stdout
    data = deb.read_bytes()
    return (
        f"{fields}Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    )


@pytest.fixture
def machine(root: Root, tmp_path: Path) -> Root:
    """A system under systemd that runs Docker, with a mirror of Debian's packages."""
    debs = []
    for name, (fields, has_service) in DEBIANS.items():
        debs.append(make_deb(tmp_path, name, "2", fields, has_service))
    for deb in debs:
        root.write(f"/mirror/{deb.name}", "")
        (root.path / "mirror" / deb.name).write_bytes(deb.read_bytes())
    root.write("/mirror/Packages", "".join(map(entry, debs)))
    (root.path / "etc/apt/sources.list").unlink(missing_ok=True)
    root.write("/etc/apt/sources.list.d/mirror.list", "deb [trusted=yes] file:/mirror ./\n")
    installed = [make_deb(tmp_path / "docker", name, "26", fields, False) for name, fields in DOCKERS.items()]
    installed.append(make_deb(tmp_path / "old", "libwrk", "1", {}, False))
    root.run("dpkg", "--install", *map(root.give, installed))
    root.write(TOOL, (REPOSITORY / "tools/debian-packages").read_text(), 0o755)
    root.pretend_systemd()
    root.write("/usr/bin/systemctl", SYSTEMCTL, 0o755)
    return root


def announced(names: str, count: int) -> str:
    """What is said before something is installed."""
    much = f"packages: {count}, to fetch: 1 MB; at worst some minutes"
    return f"installing {names} ({much}); apt's own output: {LOG}"


def state(machine: Root) -> set[str]:
    """Every installed package with its version."""
    shown = machine.run("dpkg-query", "-W", "-f", "${Status} ${Package} ${Version}\n").splitlines()
    return {line.removeprefix("install ok installed ") for line in shown}


def starts(machine: Root) -> list[str]:
    """What systemd was asked to start, or to restart."""
    return [line for line in machine.asked_of_systemd() if "start" in line.split()]


def test_without_it_docker_is_removed_and_nginx_started(machine: Root) -> None:
    """What the tests below would not notice if the packages here were made wrong."""
    machine.run("apt-get", "update")
    machine.run("apt-get", "install", "--yes", "containerd", "nginx")
    assert not {one for one in state(machine) if one.startswith(("docker-ce", "containerd.io"))}
    assert len(starts(machine)) == 2
    assert (machine.path / WANTED / "nginx-common.service").is_symlink()


def test_docker_stays_and_debians_containerd_is_unpacked_beside_it(machine: Root) -> None:
    before = state(machine)
    said = machine.run(TOOL, "containerd", "runc", "tmux")
    assert said.splitlines() == [
        announced("tmux", 1),
        FETCHED,
        "installed tmux and what they need; no service was started",
        f"unpacked into {BESIDE}, as to install them removes others: containerd runc",
    ]
    assert state(machine) == before | {"tmux 2"}
    assert machine.run("containerd.io") == "containerd.io 26\n"
    assert machine.run(f"{BESIDE}/usr/bin/containerd") == "containerd 2\n"
    assert machine.run(f"{BESIDE}/usr/bin/runc") == "runc 2\n"
    assert starts(machine) == []
    assert machine.run(TOOL, "containerd", "runc", "tmux") == ""


@pytest.mark.parametrize(
    "policy",
    [None, "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 101\n"],
    ids=["no policy", "a policy that allows all", "a policy that forbids all"],
)
def test_no_service_is_started_now_or_at_boot_and_the_policy_stays_as_it_was(
    machine: Root, policy: str
) -> None:
    if policy is not None:
        machine.write(POLICY, policy, 0o755)
    said = machine.run(TOOL, "nginx")
    assert said.splitlines() == [
        announced("nginx", 2),
        FETCHED,
        "installed nginx and what they need; no service was started",
    ]
    assert starts(machine) == []
    assert not (machine.path / WANTED / "nginx-common.service").is_symlink()
    found = machine.path / POLICY.lstrip("/")
    assert (found.read_text() if found.exists() else None) == policy


def test_the_policy_of_a_run_that_was_killed_goes(machine: Root) -> None:
    own = next(line for line in machine.read(TOOL).splitlines() if line.startswith("own='")).split("'")[1]
    machine.write(POLICY, f"#!/bin/sh\n{own}\n", 0o755)
    machine.run(TOOL, "tmux")
    assert not (machine.path / POLICY.lstrip("/")).exists()


def test_what_must_become_newer_is_named(machine: Root) -> None:
    said = machine.run(TOOL, "wrk")
    installed = "installed wrk and what they need (of a newer version now: libwrk); no service was started"
    assert said.splitlines() == [announced("wrk", 1), FETCHED, installed]


def test_the_tests_that_are_skipped_are_named_where_a_package_cannot_be_had(machine: Root) -> None:
    said = machine.run(TOOL, "chromium", "tmux").splitlines()
    assert said[2:] == [
        "installed tmux and what they need; no service was started",
        "neither installed nor unpacked, as apt-get does not have it or what it needs: "
        "without chromium the tests in a browser are skipped",
    ]


def test_where_apt_fails_its_sentence_and_its_log_are_named(machine: Root) -> None:
    (machine.path / "mirror/tmux_2_all.deb").unlink()
    said = machine.run(TOOL, "tmux").splitlines()
    assert said[0] == announced("tmux", 1)
    assert said[1].startswith("apt-get failed (E: "), said
    assert said[1].endswith(f"; all of it: {LOG}): without tmux the tests in a terminal are skipped"), said
    assert "tmux_2_all.deb" in machine.read(LOG)
    machine.write("/etc/apt/sources.list.d/mirror.list", "deb [trusted=yes] file:/nowhere ./\n")
    said = machine.run(TOOL, "tmux").splitlines()
    assert said == [
        f"Debian's mirror does not answer (see {LOG}): without tmux the tests in a terminal are skipped"
    ]


def test_other_users_are_told_which_tests_are_skipped(machine: Root) -> None:
    before = state(machine)
    said = machine.run("setpriv", "--reuid=65534", "--clear-groups", TOOL, "nginx", "tmux", "containerd")
    skipped = "the tests in a terminal, of real traffic, on a real containerd are skipped"
    assert said == f"not root: without nginx tmux containerd {skipped}\n"
    assert state(machine) == before
