"""What a test run opens of the machine's own fails it: nested runs, which take a folder for the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.agent import ROOT

UNIX = "socket.socket(socket.AF_UNIX)"
#: Tests of a nested run, which pass: what each does to the MACHINE, and what is said of it.
TOUCHES = {
    "opens": ("open(f'{MACHINE}/etc/cri-resmgr/config.yaml').close()", "open {}/etc/cri-resmgr/config.yaml"),
    "looks_in_vain": ("os.path.exists(f'{MACHINE}/etc/cri-resmgr/f')", "os.stat {}/etc/cri-resmgr/f"),
    "makes": ("os.mkdir(f'{MACHINE}/run/cri-resmgr-web')", "os.mkdir {}/run/cri-resmgr-web"),
    "serves": (
        f"with {UNIX} as one: one.bind(f'{{MACHINE}}/run/cri-resmgr/new.sock')",
        "socket.bind {}/run/cri-resmgr/new.sock",
    ),
    "connects": (
        f"with {UNIX} as one: one.connect(f'{{MACHINE}}/run/cri-resmgr/control.sock')",
        "socket.connect {}/run/cri-resmgr/control.sock",
    ),
    "follows_a_link": (
        "os.symlink(f'{MACHINE}/run', tmp_path / 'r'); os.listdir(tmp_path / 'r/cri-resmgr')",
        "os.listdir {}/run/cri-resmgr",
    ),
    "has_a_child": (
        "python('-I', '-c', f'open(\"{MACHINE}/etc/default/cri-resmgr-web\")')",
        "open {}/etc/default/cri-resmgr-web",
    ),
    "has_a_daemon": (
        "python('-c', 'import os; os.fork() or (os.setsid(), os.mkdir(\"{MACHINE}/var/lib/cri-resmgr/x\"))')",
        "os.mkdir {}/var/lib/cri-resmgr/x",
    ),
}
#: The same of other programs. The process itself is there until the guard has looked: one that has ended by then, as the
#: mkdir of a shell, may not be seen.
OF_PROGRAMS = {
    "reads": ("tail -f {MACHINE}/etc/cri-resmgr/read", "opened {}/etc/cri-resmgr/read"),
    "writes": ("exec 3>{MACHINE}/run/cri-resmgr/written; sleep 1000", "created {}/run/cri-resmgr/written"),
    "makes_a_folder": (
        "exec perl -e 'mkdir q({MACHINE}/run/cri-resmgr-new); <STDIN>'",
        "created {}/run/cri-resmgr-new",
    ),
    "removes": (
        "exec perl -e 'rmdir q({MACHINE}/var/lib/cri-resmgr-agent); <STDIN>'",
        "removed {}/var/lib/cri-resmgr-agent",
    ),
}
#: What is no harm: elsewhere, not ours, mounted over the machine's.
HARMLESS = {
    "elsewhere": "os.makedirs(tmp_path / 'etc/cri-resmgr'); os.listdir(tmp_path / 'etc/cri-resmgr')",
    "not_ours": "open(f'{MACHINE}/etc/hosts').close(); os.listdir(f'{MACHINE}/run')",
}
MOUNTED = "mount -t tmpfs t {MACHINE}/run/cri-resmgr && echo x >{MACHINE}/run/cri-resmgr/x"
BEGINNING = """\
import os, socket, subprocess, sys
from pathlib import Path

MACHINE = {machine!r}

def python(*words):
    subprocess.run([sys.executable, *words], check=True)

def program(text, said):
    with subprocess.Popen(["sh", "-c", text], stdin=subprocess.PIPE) as started:
        while said not in Path(os.environ["CRI_RESMGR_GUARD"].split(":")[0]).read_text():
            assert started.poll() is None
        started.kill()
"""


@pytest.fixture
def machine(folder: Path) -> Iterator[Path]:
    """A machine that the package is installed on, whose daemon listens."""
    root = folder / "m"
    for name in (
        "etc/cri-resmgr",
        "etc/default",
        "run/cri-resmgr",
        "var/lib/cri-resmgr",
        "var/lib/cri-resmgr-agent",
    ):
        (root / name).mkdir(parents=True)
    for name in (
        "etc/cri-resmgr/config.yaml",
        "etc/cri-resmgr/read",
        "etc/default/cri-resmgr-web",
        "etc/hosts",
    ):
        (root / name).write_text("")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(root / "run/cri-resmgr/control.sock"))
        daemon.listen()
        yield root


def run(machine: Path, touches: Mapping[str, str], tmp_path: Path, *options: str) -> tuple[int, str]:
    """A nested run with a test for each touch: exit code and output."""
    tests = [f"def test_{name}(tmp_path):\n    {touch}\n" for name, touch in touches.items()]
    file = tmp_path / "test_nested.py"
    file.write_text("\n".join([BEGINNING.format(machine=str(machine)), *tests]))
    command = [sys.executable, "-m", "pytest", "-c", "setup.cfg", "-p", "tests.conftest", "-q", str(file)]
    words = ["-p", "no:cacheprovider", f"--machine-root={machine}", f"--basetemp={tmp_path / 'nested'}"]
    done = subprocess.run([*command, *words, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check(machine: Path, code: int, said: str, expected: Mapping[str, str]) -> None:
    assert code == 1, said
    assert f"{len(expected)} passed" in said
    _, _, found = said.partition("the run has opened what is the machine's own")
    for sentence in expected.values():
        assert sentence.format(machine) in found


def test_what_a_python_of_the_run_touches_fails_it(machine: Path, tmp_path: Path) -> None:
    touches = {name: touch.replace('"{MACHINE}', f'"{machine}') for name, (touch, _) in TOUCHES.items()}
    code, said = run(machine, touches, tmp_path, "-n2")
    check(machine, code, said, {name: sentence for name, (_, sentence) in TOUCHES.items()})
    assert "::test_has_a_child (call)" in said, said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: the kernel tells nobody else")
def test_what_another_program_does_there_fails_it(machine: Path, tmp_path: Path) -> None:
    expected = {name: sentence for name, (_, sentence) in OF_PROGRAMS.items()}
    touches = {
        name: f"program(f{text!r}, {sentence.format(machine)!r})"
        for name, (text, sentence) in OF_PROGRAMS.items()
    }
    code, said = run(machine, touches, tmp_path, "-n0")
    check(machine, code, said, expected)


def test_what_is_not_the_machines_or_done_by_its_own_daemon_is_no_harm(machine: Path, tmp_path: Path) -> None:
    """The daemon is not of the nested run: this process has started it."""
    asks, done = tmp_path / "asks", tmp_path / "done"
    os.mkfifo(asks)
    os.mkfifo(done)
    touches = {
        **HARMLESS,
        "its_own": f"Path({str(asks)!r}).write_text('x\\n'); Path({str(done)!r}).read_text()",
    }
    if os.getuid() == 0:
        touches["mounted"] = f"subprocess.run(['unshare', '--mount', 'sh', '-c', f{MOUNTED!r}], check=True)"
    works = f"read x <{asks}; echo x >{machine}/run/cri-resmgr/state; echo x >{done}; read x <{asks}"
    with subprocess.Popen(["sh", "-c", works]) as daemon:
        code, said = run(machine, touches, tmp_path, "-n0")
        daemon.kill()
    assert code == 0, said
    assert (machine / "run/cri-resmgr/state").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, for a mount namespace")
def test_a_daemon_that_runs_as_installed_notices_nothing_of_tests() -> None:
    """Two files of those that had opened what is such a daemon's; the others are run so by hand."""
    command = [sys.executable, "-m", "tests.guard.installed", "-q", "-p", "no:cacheprovider"]
    files = ["tests/config/io/test_files.py", "tests/functional/test_asyncio.py"]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the daemon has noticed nothing\n")
