"""The same sources give the same package, to the byte: whoever builds it can compare it with what is published."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import BOOKWORM_PYTHON, build_command
from tests.packaging.kinds import Kind

pytestmark = pytest.mark.packages

#: Builders that differ in what leaves traces: the host's name, the umask, the time zone, the temporary folder.
BUILDERS = {
    "one": "umask 022; export TZ=UTC",
    "another": 'umask 077; export TZ=Asia/Shanghai TMPDIR="$0"; hostname elsewhere',
}


def test_two_builders_make_the_same_files(kind: Kind, tmp_path: Path) -> None:
    building = []
    for name, manner in BUILDERS.items():
        folder = tmp_path / name
        (folder / "tmp").mkdir(parents=True)
        command = ["unshare", "--uts", "sh", "-euc", f'{manner}; exec "$@"', str(folder / "tmp")]
        command += build_command(kind.name, BOOKWORM_PYTHON, "1", folder / "dist")
        building.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    said = [builder.communicate()[0] for builder in building]
    assert [builder.returncode for builder in building] == [0, 0], said
    one, another = (
        {file.name: file.read_bytes() for file in (tmp_path / name / "dist").iterdir()} for name in BUILDERS
    )
    assert one.keys() == another.keys()
    assert [name for name in one if one[name] != another[name]] == []
