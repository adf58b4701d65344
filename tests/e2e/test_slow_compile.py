"""A node on which bcc takes long: the observer starts without waiting, and sees by eBPF once it can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpf.service.options import SYSTEM_PYTHON
from tests.bpf.talkers import needs_bcc
from tests.e2e.node import until
from tests.e2e.observer import Observer


@pytest.fixture
def cgroups(tmp_path: Path) -> str:
    """A tree of cgroups without containers: those of other tests of this machine may have none of v2."""
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").touch()
    return str(tmp_path / "cgroup")


def new_observer(gate: Path, cgroups: str) -> Observer:
    python = str(gate.with_name("python"))
    return Observer(Path("/nonexistent"), python=python, compile_patience_s=0, cgroup_root=cgroups)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe that lets bcc begin once something is in it; ``python`` beside it runs it."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    os.mkfifo(gate)
    python.write_text(f'#!/bin/sh\n[ -e {gate}.open ] || read _ < {gate}\nexec {SYSTEM_PYTHON} "$@"\n')
    python.chmod(0o755)
    return gate


@needs_bcc
async def test_the_observer_starts_while_bcc_is_at_work_and_the_next_one_needs_it_no_more(
    gate: Path, cgroups: str
) -> None:
    observer = new_observer(gate, cgroups)
    held = os.open(gate, os.O_RDWR)
    try:
        await observer.start()
        status = (await observer.graph()).status
        assert status.provider != "ebpf"
        assert "ebpf: bcc is still compiling the program" in status.refused[0]
        # The observer has given up its rights by now.
        Path(f"{gate}.open").touch()
        os.write(held, b"go\n")
        graph = await until(observer.graph, lambda graph: graph.status.provider == "ebpf")
        assert list(graph.status.refused) == []
        await observer.terminate()
        observer.options["python"] = "/nonexistent/python3"
        await observer.start()
        assert (await observer.graph()).status.provider == "ebpf"
    finally:
        os.close(held)
        await observer.close()


@needs_bcc
async def test_an_observer_that_ends_while_bcc_is_at_work_ends_it(gate: Path, cgroups: str) -> None:
    observer = new_observer(gate, cgroups)
    held = os.open(gate, os.O_RDWR)
    try:
        await observer.start()
        assert observer.process is not None
        children = Path(f"/proc/{observer.process.pid}/task/{observer.process.pid}/children")
        [child] = children.read_text().split()
        assert await observer.terminate() == 0
        assert not Path("/proc", child).exists()
    finally:
        os.close(held)
        await observer.close()
