"""What the doctor reads of claims: which program serves the driver's sockets at kubelet, what containerd says of CDI."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.doctor.facts import ClaimFacts
from cri_proxy.doctor.io import parts
from cri_proxy.doctor.io.claims import read_claim_facts
from tests.fake_runtime import FakeRuntime

#: A program that listens on the sockets it is given, and says so.
SERVE = """
import socket, sys
held = []
for path in sys.argv[2:]:
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind(path)
    held[-1].listen()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cre-"))
    for folder in ("plugins/dra.cpu", "plugins_registry"):
        (path / "var/lib/kubelet" / folder).mkdir(parents=True)
    yield path
    shutil.rmtree(path)


def places(root: Path, text: str = "dra: {enabled: true, driver_name: dra.cpu}") -> parts.Places:
    config = read_config([SettingsSource("c.yaml", text)]).config
    return parts.Places(root, Path("/proc"), config, root / "c.sock")


def serving(root: Path, word: str, *names: str) -> subprocess.Popen[str]:
    """A process that listens there. ``word``: of its command line."""
    paths = [str(root / "var/lib/kubelet" / name) for name in names]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, word, *paths], stdin=pipe, stdout=pipe, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")


def test_where_claims_are_off_nothing_is_looked_at(root: Path) -> None:
    assert read_claim_facts(places(root, "")) == ClaimFacts()


def test_without_sockets_there_is_no_other_driver(root: Path) -> None:
    assert read_claim_facts(places(root)) == ClaimFacts(True, "dra.cpu")
    assert read_claim_facts(places(root / "nowhere")) == ClaimFacts(True, "dra.cpu")


@pytest.mark.parametrize("name", ["plugins/dra.cpu/dra.sock", "plugins_registry/dra.cpu-3f2a-reg.sock"])
def test_another_program_that_serves_a_socket_of_the_driver_is_named(root: Path, name: str) -> None:
    process = serving(root, "dracpu", name)
    try:
        facts = read_claim_facts(places(root))
    finally:
        end(process)
    assert facts.others == (f"{Path(sys.executable).name} (process {process.pid})",)


@pytest.mark.parametrize("word", ["cluster.agent", "/usr/bin/cri-resmgr"])
def test_our_own_agent_is_no_other_driver(root: Path, word: str) -> None:
    process = serving(root, word, "plugins/dra.cpu/dra.sock", "plugins_registry/dra.cpu-reg.sock")
    try:
        assert read_claim_facts(places(root)).others == ()
    finally:
        end(process)


def test_sockets_that_nothing_serves_and_those_of_other_drivers_do_not_count(root: Path) -> None:
    stale = root / "var/lib/kubelet/plugins/dra.cpu/dra.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    process = serving(root, "other", "plugins_registry/dra.cpus.example-reg.sock")
    try:
        assert read_claim_facts(places(root)).others == ()
    finally:
        end(process)


@pytest.mark.parametrize(
    ("cri_config", "gives_cdi"),
    [({"enableCDI": True}, True), ({"enableCDI": False}, False), ({}, None), ({"enableCDI": "yes"}, None)],
)
async def test_containerds_own_words_say_whether_there_are_cdi_devices(
    root: Path, cri_config: dict[str, object], gives_cdi: Optional[bool]
) -> None:
    runtime = FakeRuntime(root / "r.sock")
    runtime.runtime.cri_config |= cri_config
    await runtime.start()
    try:
        facts = await asyncio.to_thread(parts.read_runtime_facts, places(root), str(runtime.socket))
        off = await asyncio.to_thread(parts.read_runtime_facts, places(root, ""), str(runtime.socket))
    finally:
        await runtime.stop()
    assert (facts.gives_cdi, off.gives_cdi) == (gives_cdi, None)
    assert facts.problem == ""
