"""The command's first lines: what holds before anything of ours is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from cri_proxy import launcher, passthrough
from cri_proxy.cli.main import cli

#: A shell's question, without the command's own words. Nobody becomes the program that passes bytes in a test.
QUESTION = """
import os, sys
os.execv = lambda *command: sys.exit("it would pass bytes: %s" % (command,))
sys.modules.update(dict.fromkeys({broken}))
sys.argv[:] = ["cri-resmgr"]
from cri_proxy.launcher import main
try:
    main()
finally:
    print("imported the daemon" if "cri_proxy.daemon.daemon" in sys.modules else "no daemon")
"""


def _completed(*broken: str) -> subprocess.CompletedProcess[str]:
    asked = {"_CRI_RESMGR_COMPLETE": "bash_complete", "COMP_WORDS": "cri-resmgr pla", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", QUESTION.format(broken=list(broken))]
    return subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)


def test_a_shell_that_asks_for_words_gets_them_without_the_daemon() -> None:
    done = _completed()
    assert done.stdout.splitlines() == ["plain,placements", "no daemon"]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("broken", ["click", "yaml", "cri_proxy.cli.main"])
def test_a_shell_that_asks_a_broken_installation_hears_nothing(broken: str) -> None:
    done = _completed(broken)
    assert (done.returncode, done.stdout, done.stderr) == (1, "no daemon\n", "")


# ---------------------------------------------------------------------- which command lines serve


@pytest.mark.parametrize(("module", "lines"), [(launcher, 100), (passthrough, 220)])
def test_the_launcher_is_short_and_needs_the_standard_library_only(module: Any, lines: int) -> None:
    source = Path(module.__file__)
    assert len([line for line in source.read_text().splitlines() if line]) < lines
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {source.stem}; print(*sys.modules)"
    # -S -I: no site-packages, no environment. What is left to import by mistake are its own neighbours.
    command = [sys.executable, "-S", "-I", "-c", code, str(source.parent)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {path.stem for path in source.parent.iterdir()} & set(found) - {"__main__"} == {source.stem}


@pytest.mark.parametrize("name", sorted({*cli.list_commands(click.Context(cli)), "statsu"} - {"run"}))
def test_no_other_command_is_taken_over_by_the_launcher(name: str) -> None:
    assert not launcher.is_serving([name])


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        ("", True),
        ("run", True),
        ("run --config /etc/cri-resmgr/config.yaml", True),
        ("-relay-socket=/run/a.sock -metrics-interval 10s", True),
        ("--control-socket /run/c.sock run", True),
        ("--control-socket=/run/c.sock", True),
        ("--relay-socket /run/a.sock status", True),
        ("--control-socket /run/c.sock status", False),
        ("--control-socket /run/c.sock statsu", False),
        ("explain run", False),
        ("status --json", False),
        ("run --strict", False),
        ("-strict", False),
        ("--help", False),
        ("run -h", False),
        ("--reset-policy", False),
        ("-print-config", False),
        ("run --dry-run", False),
        ("-version", False),
        ("observer run", False),
    ],
)
def test_only_run_is_taken_over_by_the_launcher(words: str, serves: bool) -> None:
    assert launcher.is_serving(words.split()) is serves
