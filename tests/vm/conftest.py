"""One boot for all checks of a run: the machine goes on while the verdicts of what it has done are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest

from bench.cache.disk import with_package
from tests.peers.programs import CONTAINERD_17, Unavailable, find
from tests.vm.guest.table import RUNS
from tests.vm.image import BOOKWORM, SYSTEMS, image, missing
from tests.vm.job import make_job
from tests.vm.machine import SHAPES
from tests.vm.packages import grpc_client, package
from tests.vm.qemu.build import missing as qemu_missing
from tests.vm.run import VirtualMachine

CACHE = Path(__file__).parents[2] / ".cache" / "vm"


@pytest.fixture(scope="session")
def machine_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], VirtualMachine]]:
    """The virtual machine of a run, booted when it is first asked for; one at a time, for they need all CPUs."""
    running: dict[str, VirtualMachine] = {}

    def boot(name: str) -> VirtualMachine:
        if name not in running:
            _end(running)
            planned = RUNS[name]
            system = SYSTEMS[planned.system]
            shape = SHAPES[planned.shape]
            if sentence := missing(system.architecture) or (qemu_missing() if shape.has_resctrl else ""):
                pytest.skip(sentence)
            made = image(system, CACHE)
            deb = package(planned.python, tmp_path_factory.mktemp("deb"), system.architecture)
            disk = with_package(made, deb, tmp_path_factory.mktemp("disk")) if planned.is_installed else made
            job = make_job(
                tmp_path_factory.mktemp("job"),
                deb,
                name,
                _selected(request.session, name),
                made.busybox,
                system.architecture,
                grpc_client(planned.python, system.architecture, CACHE),
                _containerd_17() if system is BOOKWORM else None,
                is_installed=planned.is_installed,
            )
            guest = VirtualMachine(shape, disk, job, planned.words)
            running[name] = guest.__enter__()
        return running[name]

    try:
        yield boot
    finally:
        _end(running)


def _containerd_17() -> Optional[Path]:
    try:
        return find(*CONTAINERD_17)[CONTAINERD_17[0]]
    except Unavailable:
        return None


def _end(running: dict[str, VirtualMachine]) -> None:
    for guest in running.values():
        guest.__exit__()
    running.clear()


def _selected(session: pytest.Session, run: str) -> set[str]:
    """The checks of a run that this session is for, e.g. by -k: others are not made in the guest."""
    found = set()
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if parameters.get("run") == run:
            found.add(str(parameters["check"]))
    return found
