"""Makes the protobuf modules of this folder: ``make proto``, and as a step of every build (setup.cfg, cmdclass); and of a
wheel's build the allow-list of the cluster's policies, which the source tree has in a CRD.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools.command.build_py import build_py

FOLDER = Path(__file__).resolve().parent


def generate(folder: Path = FOLDER) -> None:
    """Write ``NAME_pb2.py`` (and its ``.pyi``) beside each ``NAME.proto`` of ``folder``.

    :raises RuntimeError: protoc refused a file; it has printed why on stderr.
    """
    from grpc_tools import protoc

    for proto in sorted(folder.glob("*.proto")):
        # The package's own path in the descriptor pool, so that no other installed .proto collides with it.
        command = [
            "protoc",
            f"-I{folder.parent}",
            f"--python_out={folder.parent}",
            f"--pyi_out={folder.parent}",
            str(proto),
        ]
        if protoc.main(command) != 0:
            raise RuntimeError(f"protoc could not compile {proto}")


class BuildPy(build_py):
    """``build_py`` that first makes the protobuf modules, in the sources it is about to copy."""

    def run(self) -> None:
        generate()
        super().run()
        if not self.editable_mode:
            made = Path(self.build_lib).resolve() / "cluster/api/allowed_options.py"
            command = [sys.executable, "-m", "cluster.api.io.source_tree", str(made)]
            subprocess.run(command, cwd=FOLDER.parent, check=True)


if __name__ == "__main__":
    sys.exit(generate())  # type: ignore[func-returns-value]
