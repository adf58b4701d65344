"""Every command that README and docs/install.md show, typed on nodes that have nothing but the package: what it does there.

A command that a page shows and that is in neither table below fails the first test.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest

from tests.cri_client import CriClient
from tests.packaging import documented
from tests.packaging.base_system import base_system
from tests.packaging.kinds import DEB, RPM, Kind
from tests.packaging.node import WAIT_S, Node, booted
from tests.packaging.roots import PYTHONS, REPOSITORY
from tests.view.web.browser import CHROMIUM, DRIVER
from tests.vm.guest.kubelet import FILES as KUBELET_FILES
from tests.vm.guest.kubelet import PROGRAM as KUBELET_PROGRAM

pytestmark = pytest.mark.packages


@dataclass(frozen=True)
class Step:
    """``shown``: as a page has it, "" if none does. ``typed`` instead: with names for what a page leaves open.

    ``says``: a pattern of what it prints. ``does``: more than that one types a line. ``only``: a kind of packages.
    """

    shown: str
    says: str = ""
    typed: str = ""
    does: Optional[Callable[[Visit], None]] = None
    code: int = 0
    only: str = ""


@dataclass(frozen=True)
class Visit:
    """A node; ``first``, ``second``: the names of a release's package and of the next one's, in /root there."""

    node: Node
    kind: Kind
    first: str
    second: str
    picture: Path

    def take(self, step: Step) -> None:
        if step.only in ("", self.kind.name):
            if step.does is not None:
                step.does(self)
            else:
                line = (step.typed or step.shown).format(first=self.first, second=self.second)
                said = self.node.type(line, step.code)
                assert re.search(step.says, said, re.MULTILINE), f"{line}: {step.says!r} is not in\n{said}"


def check_shown_configurations(visit: Visit) -> None:
    for text in documented.configurations():
        visit.node.root.write("/srv/shown.yaml", text)
        visit.node.type("cri-resmgr config check /srv/shown.yaml")


def add_kubelet(visit: Visit) -> None:
    """As kubeadm sets it up."""
    for name, text in KUBELET_FILES.items():
        visit.node.root.write(name, text, 0o755 if name == KUBELET_PROGRAM else 0o644)
    visit.node.type("systemctl daemon-reload && systemctl start kubelet")


def run_pod(visit: Visit) -> None:
    """As kubelet does, which calls what it points at."""

    async def run() -> None:
        async with CriClient(str(visit.node.root.path / "run/cri-resmgr.sock")) as client:
            pod = await client.run_pod("web")
            await client.start(await client.create(pod, "app", cpu_limit=8000))

    asyncio.run(run())


def look_for_trouble(visit: Visit) -> None:
    # Where the machine has controllers of cgroup v1, v2 has none for a node of the tests.
    said = visit.node.type("cri-resmgr doctor || [ $? = 1 ]")
    troubles = re.findall(r"^  PROBLEM  (.*)$", said, re.MULTILINE)
    assert set(troubles) <= {"cgroup v2 has no cpuset controller here: no container can be pinned"}, said
    # It is silent, and after a while that is said.
    assert "points at us" in said, said


def look_at_top(visit: Visit) -> None:
    visit.node.type("tmux new-session -d -x 100 -y 30 'cri-resmgr top'")
    deadline = time.monotonic() + WAIT_S
    while "a web" not in (screen := visit.node.type("tmux capture-pane -p")):
        assert time.monotonic() < deadline, screen
    visit.node.type("tmux send-keys q; while tmux has-session 2>/dev/null; do :; done")


def open_the_page(visit: Visit) -> None:
    """The address that it prints, in a browser on the node's network."""
    serving = visit.node.start("bash", "-c", "echo $$; exec cri-resmgr web")
    assert serving.stdout is not None
    process = int(serving.stdout.readline())
    try:
        address = serving.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:8895/#token=\S+", address), address + serving.stdout.read()
        command = visit.node.beside(sys.executable, "-m", "tests.packaging.look", address, str(visit.picture))
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert shown == {"link": "live", "chips": ["web"], "log": []}
        assert visit.picture.read_bytes().startswith(b"\x89PNG")
    finally:
        # As ^C does; it may have ended by itself.
        visit.node.type(f"kill -INT {process} 2>/dev/null || :")
        serving.communicate(timeout=WAIT_S)


def ask_for_all_help(visit: Visit) -> None:
    """Of each command and its subcommands: in one process, which imports what they do."""
    visit.node.root.write("/srv/help.py", _ALL_HELP)
    count = int(visit.node.type("/usr/lib/cri-resmgr/bin/python -I /srv/help.py").splitlines()[-1])
    assert count > 30


def import_every_module(visit: Visit) -> None:
    visit.node.root.write("/srv/modules.py", _ALL_MODULES)
    assert visit.node.type("/usr/lib/cri-resmgr/bin/python -I /srv/modules.py") == "[]\n"


_ALL_HELP = """
import click, click.testing
from cri_proxy.cli.main import cli

def of(command, context, words):
    asked = click.testing.CliRunner().invoke(cli, [*words, "--help"], prog_name="cri-resmgr")
    assert asked.exit_code == 0 and "Usage:" in asked.output, (words, asked.output)
    count = 1
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            count += of(command.get_command(context, name), context, [*words, name])
    return count

print(of(cli, click.Context(cli), []))
"""
#: Those that are programs run when they are imported; the build's hook needs setuptools.
_ALL_MODULES = """
import importlib, pkgutil
failed = []
for package in ("policies", "cri_api", "cri_proxy", "bpf", "cluster"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if found.name.endswith("__main__") or found.name == "cri_api.build_protos":
            continue
        try:
            importlib.import_module(found.name)
        except BaseException as error:
            failed.append(f"{found.name}: {error!r}")
print(failed)
"""
STANDALONE = "/etc/systemd/system/cri-resource-manager.service.d"
DROP_IN = "[Service]\nExecStart=\nExecStart=/usr/bin/cri-resmgr run --standalone\n"
#: What stands for kubelet says nothing, and the runtime drops that after a minute.
RESTART_KUBELET = "systemctl restart kubelet"
ACTIVE = "systemctl is-active cri-resource-manager.service"

STEPS = (
    Step("python3 --version", r"^Python 3\.\d+"),
    Step(
        "apt install ./dist/cri-resmgr_*+py$(py3versions -dv)_amd64.deb", "^Setting up cri-resmgr", only="deb"
    ),
    Step(
        "apt install ./cri-resmgr_*+py$(py3versions -dv)_amd64.deb",
        "newest version",
        typed="apt install ./{first}",
        only="deb",
    ),
    Step("dnf install ./dist/cri-resmgr-*.x86_64.rpm", "^Complete!", only="rpm"),
    Step(
        "dnf install ./cri-resmgr-0.1.0-1.py39.x86_64.rpm",
        "^Nothing to do",
        typed="dnf install ./{first}",
        only="rpm",
    ),
    Step("", does=import_every_module),
    Step("", does=ask_for_all_help),
    Step("", "usage: kubectl cri_resmgr", typed="kubectl-cri_resmgr --help"),
    Step("man cri-resmgr", r"^CRI-RESMGR\(8\)"),
    Step("cri-resmgr topology", r"\d+ sockets?, \d+ NUMA nodes?"),
    Step("", does=lambda visit: visit.node.describe_machine()),
    Step("", does=check_shown_configurations),
    Step("systemctl enable --now cri-resource-manager"),
    Step("systemctl enable --now cri-resource-manager.service"),
    Step("cri-resmgr status", r"mode enforce \(default\)\n.*containerd"),
    Step("ls -Z /run/cri-resmgr.sock", "cri-resmgr.sock"),
    Step("", does=add_kubelet),
    Step("cri-resmgr kubelet enable --dry-run", r"^\+.*unix:///var/run/cri-resmgr\.sock"),
    Step(
        "cri-resmgr kubelet enable --restart",
        r"connected to unix:///var/run/cri-resmgr\.sock",
        typed=f"{RESTART_KUBELET} && cri-resmgr kubelet enable --restart",
    ),
    Step("", does=run_pod),
    Step("cri-resmgr placements", r"^default/web/app +running +ccx +0-3,64-67 "),
    Step(
        "cri-resmgr explain NAMESPACE/POD/CONTAINER",
        "why: 8 CPUs wanted",
        typed="cri-resmgr explain default/web/app",
    ),
    Step(
        "cri-resmgr explain default/w<Tab>",
        "^default/web/app",
        typed=". /usr/share/bash-completion/completions/cri-resmgr; COMP_WORDS=(cri-resmgr explain default/w) COMP_CWORD=2;"
        " _cri_resmgr_completion cri-resmgr; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
    ),
    Step(
        'eval "$(_CRI_RESMGR_COMPLETE=bash_source cri-resmgr)"',
        "-F _cri_resmgr_completion",
        typed='eval "$(_CRI_RESMGR_COMPLETE=bash_source cri-resmgr)"; complete -p cri-resmgr',
    ),
    Step("cri-resmgr metrics | grep -E 'failed_open|in_doubt|connections_closed'", "_in_doubt 0"),
    Step("cri-resmgr doctor", does=look_for_trouble),
    Step("cri-resmgr top", does=look_at_top),
    Step("cri-resmgr web", does=open_the_page),
    # Compiles its eBPF programs, where the machine lets them be loaded.
    Step("systemctl enable --now cri-resmgr-observer"),
    Step("systemctl enable --now cri-resmgr-observer.service"),
    # The daemon looks for it every few seconds.
    Step(
        "",
        "^observer   (ebpf|sock_diag):",
        typed="until cri-resmgr affinity | grep ^observer.*:; do sleep 1; done",
    ),
    Step("cri-resmgr adopt --all", "^0 of [01] containers changed"),
    Step("systemctl reload cri-resource-manager"),
    Step("apt install ./cri-resmgr_....deb", "^Unpacking", typed="apt install ./{second}", only="deb"),
    Step("dnf upgrade ./cri-resmgr-....rpm", "^Upgraded", typed="dnf upgrade ./{second}", only="rpm"),
    Step("", "^active", typed=ACTIVE),
    Step(
        "apt install --allow-downgrades ./cri-resmgr_....deb",
        "^Unpacking",
        typed="apt install --allow-downgrades ./{first}",
        only="deb",
    ),
    Step("dnf downgrade ./cri-resmgr-....rpm", "^Downgraded", typed="dnf downgrade ./{first}", only="rpm"),
    Step("", "1 placed", typed="cri-resmgr status"),
    Step("cri-resmgr mode off", "^off"),
    Step("", "^enforce", typed="cri-resmgr mode enforce"),
    Step(
        "cri-resmgr kubelet disable --restart --no-release",
        r"connected to unix:///run/containerd/containerd\.sock",
    ),
    Step("systemctl mask --now cri-resource-manager.socket"),
    Step(f"mkdir -p {STANDALONE}"),
    Step(f"cat > {STANDALONE}/standalone.conf <<'END'\n{DROP_IN}END"),
    Step("systemctl daemon-reload"),
    Step("systemctl restart cri-resource-manager"),
    Step("", "standalone: containers are placed after they have started", typed="cri-resmgr status"),
    Step("", typed=f"rm -r {STANDALONE} && systemctl daemon-reload"),
    Step("systemctl unmask cri-resource-manager.socket"),
    Step("systemctl stop cri-resource-manager"),
    Step("systemctl start cri-resource-manager.socket cri-resource-manager.service"),
    Step(
        "",
        "^active\nactive",
        typed="systemctl is-active cri-resource-manager.socket cri-resource-manager.service",
    ),
    Step("", typed=f"{RESTART_KUBELET} && cri-resmgr kubelet enable --restart"),
    Step("cri-resmgr kubelet disable --restart", r"containerd\.sock\ndefault/web/app .*: 0-127"),
    Step("apt remove cri-resmgr", "^Removing cri-resmgr", only="deb"),
    Step(
        "apt purge", "^Purging configuration files for cri-resmgr", typed="apt purge cri-resmgr", only="deb"
    ),
    Step("dnf remove cri-resmgr", "^Removed", only="rpm"),
    Step("rm -rf /var/lib/cri-resmgr /etc/cri-resmgr", only="rpm"),
    Step("groupdel cri-resmgr-view", only="rpm"),
)
#: What cannot be typed there, by how it begins, and why; what is tried instead.
ELSEWHERE = {
    "make ": "of the sources, not of a node: deb and rpm are built for these tests, the image for tests/e2e/test_image.py;"
    " CI runs the others",
    ".venv/bin/cri-resmgr ": "of the sources: tests/test_documents.py replays the scenario",
    "python3 -m venv ": "needs PyPI: tests/packaging/test_whole.py has what a wheel has",
    "/opt/cri-resmgr/bin/pip ": "needs PyPI: tests/packaging/test_whole.py has what a wheel has",
    "skopeo ": "needs a registry: tests/e2e/test_image.py reads the layout",
    "helm ": "needs a cluster: tests/cluster/manifests holds the chart against Kustomize's output",
    "kind ": "needs docker; it was never run, as the page says",
    "kubectl ": "needs a cluster: tests/cluster/real",
    "dnf install python3-bcc ": "no mirror of an rpm distribution can be reached; Debian's python3-bpfcc is there",
    "getenforce; ": "needs a kernel with SELinux; it was tried by hand, as the page says",
    "ausearch ": "needs a kernel with SELinux; it was tried by hand, as the page says",
    "semanage ": "needs a kernel with SELinux; it was tried by hand, as the page says",
}


def elsewhere(command: str) -> list[str]:
    return [
        begin for begin in ELSEWHERE if command == begin or (begin[-1] == " " and command.startswith(begin))
    ]


def test_each_command_that_is_shown_is_typed_or_it_is_said_why_not() -> None:
    shown, typed = documented.commands(), {step.shown for step in STEPS} - {""}
    assert typed <= shown
    assert {command for command in shown - typed if not elsewhere(command)} == set()
    assert {begin for command in shown - typed for begin in elsewhere(command)} == set(ELSEWHERE)
    named = re.findall(r"tests/[\w/.]+(?<!\.)", " ".join(ELSEWHERE.values()))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.fixture(
    params=[
        ("trixie", DEB),
        ("bookworm", RPM),
        pytest.param(("bookworm", DEB), marks=pytest.mark.long),
        pytest.param(("trixie", RPM), marks=pytest.mark.long),
    ],
    ids=lambda pair: f"{pair[1].name} on {pair[0]}",
)
def visit(request: pytest.FixtureRequest, package: Callable[..., Path], tmp_path: Path) -> Iterator[Visit]:
    """A node with a runtime, and both releases' packages in /root, the first in /root/dist, too, beside other Debians'."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromium-driver (Debian packages)")
    pytest.importorskip("selenium")
    suite, kind = request.param
    files = [package(kind.name, python=PYTHONS[suite], release=release) for release in ("1", "2")]
    try:
        with booted(suite) as node:
            home = node.root.path / "root"
            (home / "dist").mkdir()
            for file, folder in ((files[0], home), (files[1], home), (files[0], home / "dist")):
                shutil.copyfile(file, folder / file.name)
            for python in set(PYTHONS.values()) if kind is DEB else ():
                shutil.copyfile(built := package("deb", python=python), home / "dist" / built.name)
            if kind is RPM:
                shutil.copyfile(base_system(files, tmp_path), home / "base.rpm")
                node.type("rpm --install base.rpm")
            yield Visit(node, kind, files[0].name, files[1].name, tmp_path / "page.png")
    except LookupError as error:
        pytest.skip(str(error))


def test_each_does_on_a_node_what_its_page_says_and_nothing_is_left_behind(visit: Visit) -> None:
    before = visit.node.of_ours()
    for step in STEPS:
        visit.take(step)
    assert visit.node.of_ours() == before
