"""One owner a node: a lock that the kernel gives back, and a sentence that names the process that holds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_proxy.config.config import Config, SettingsSource, read_config
from cri_proxy.node.lock import NodeLock
from tests.agent import ROOT


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = f"control: {{socket: {tmp_path}/run/control.sock}}"
    return read_config([SettingsSource("c.yaml", text)]).config


@pytest.fixture
def owner(config: Config) -> Iterator[NodeLock]:
    """The lock of the process that owns the node."""
    owner = NodeLock(config, "nri-plugin")
    assert owner.take() == ""
    yield owner
    owner.give_up()


def test_the_second_is_told_who_is_first(owner, config) -> None:
    second = NodeLock(config, "proxy")
    assert second.take() == (
        f"process {os.getpid()} (cri-resmgr nri run) places containers on this node already "
        f"({owner.path} is locked); stop it first"
    )
    assert (owner.is_held, second.is_held) == (True, False)


def test_who_owns_it_may_ask_again(owner) -> None:
    assert owner.take() == ""


def test_after_the_first_the_second_has_it(owner, config) -> None:
    second = NodeLock(config, "standalone")
    assert second.take() != ""
    owner.give_up()
    assert second.take() == ""
    assert json.loads(owner.path.read_text()) == {"pid": os.getpid(), "front_end": "standalone"}
    second.give_up()


#: Takes the lock twice where no file may grow; prints what it was told, and what is left of the file.
NO_ROOM = """
import resource, signal, sys
from cri_proxy.node.lock import NodeLock

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
config = {"control.socket": sys.argv[1] + "/control.sock"}
owner = NodeLock(config, "proxy")
print([owner.take(), owner.take()], owner.is_held, repr(owner.problem), owner.path.stat().st_size)
print(NodeLock(config, "proxy").take())
"""


def test_on_a_full_disk_the_lock_is_had_all_the_same(tmp_path) -> None:
    command = [sys.executable, "-c", NO_ROOM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == "['', ''] True '' 0"
    assert second.startswith("another process places containers on this node already")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"pid": "x"}', "\xff"], ids=["not yet", "a list", "a word", "bytes"]
)
def test_a_file_that_does_not_say_who_it_is_names_another_process(text, owner, config) -> None:
    owner.path.write_bytes(text.encode("latin-1"))
    assert (
        NodeLock(config, "proxy").take().startswith("another process places containers on this node already")
    )


def test_only_root_may_read_it(owner) -> None:
    assert owner.path.stat().st_mode & 0o777 == 0o600


def test_a_lock_that_cannot_be_had_is_a_warning_and_no_reason_to_stop(config, tmp_path) -> None:
    (tmp_path / "run").write_text("a file")
    owner = NodeLock(config, "proxy")
    assert owner.take() == ""
    assert not owner.is_held
    assert owner.problem == (
        f"{tmp_path}/run/owner.lock cannot be locked (File exists): a second owner would not be noticed"
    )
