"""``bench.demand_cost`` in a virtual machine: ``python -m bench.demand.virtual`` (root, QEMU; some minutes).

Where root has no CAP_SYS_RESOURCE, as in many containers and virtual machines of CI, triggers of 500 ms can be had there
only. Its CPUs are emulated: what takes a millisecond here takes some fifty there, so figures are to be compared with those
beside them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bench.cache.disk import with_package
from bench.demand.guest import PATIENCE_S, RUNS
from tests.e2e.images import make_images
from tests.e2e.traffic_images import build_talk
from tests.vm.image import BOOKWORM, Image, image, missing
from tests.vm.machine import SHAPES
from tests.vm.packages import package
from tests.vm.run import VirtualMachine

ROOT = Path(__file__).parents[2]
SHAPE, CHECK = "cores-8", "what_it_costs"
#: What the bench imports that is in no package.
_FILES = (
    "tests/__init__.py",
    "tests/agent.py",
    "tests/cri_client.py",
    "tests/machines.py",
    "tests/scenes.py",
)


def prepare(folder: Path) -> tuple[Image, Path]:
    """Into an empty folder: a disk with the package on it, and the job."""
    (folder / "deb").mkdir()
    (folder / "disk").mkdir()
    system = image(BOOKWORM, ROOT / ".cache" / "vm")
    disk = with_package(system, package("3.11", folder / "deb"), folder / "disk")
    job = folder / "job"
    unwanted = shutil.ignore_patterns("__pycache__", "test_*")
    shutil.copytree(ROOT / "tests" / "vm", job / "tests" / "vm", ignore=unwanted)
    shutil.copytree(ROOT / "bench", job / "bench", ignore=unwanted)
    for name in _FILES:
        shutil.copy(ROOT / name, job / name)
    make_images(job)
    build_talk(job)
    described = {"run": SHAPE, "table": "bench.demand.guest", "checks": [CHECK], "patience_s": PATIENCE_S}
    (job / "job.json").write_text(json.dumps(described))
    return disk, job


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("bench.demand.virtual needs root: it builds the disk of a virtual machine.")
    if sentence := missing():
        sys.exit(sentence)
    with tempfile.TemporaryDirectory(prefix="crdemand-") as folder:
        disk, job = prepare(Path(folder))
        with VirtualMachine(SHAPES[SHAPE], disk, job, RUNS[SHAPE].words) as machine:
            verdict = machine.verdict(CHECK)
            print(verdict.said)
            machine.finish()
    if not verdict.passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
