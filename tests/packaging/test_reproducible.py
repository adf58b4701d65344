"""The same sources give the same package, to the byte: whoever builds it can compare it with what is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.conftest import BOOKWORM_PYTHON, BUILDERS, build_command, started
from tests.packaging.kinds import Kind

pytestmark = pytest.mark.packages


def test_two_builders_make_the_same_files(kind: Kind, tmp_path: Path) -> None:
    building = [
        started(
            name,
            build_command(kind.name, BOOKWORM_PYTHON, "1", tmp_path / name / "dist"),
            tmp_path / name / "tmp",
        )
        for name in BUILDERS
    ]
    said = [builder.communicate()[0] for builder in building]
    assert [builder.returncode for builder in building] == [0, 0], said
    one, another = (
        {file.name: file.read_bytes() for file in (tmp_path / name / "dist").iterdir()} for name in BUILDERS
    )
    assert one.keys() == another.keys()
    assert [name for name in one if one[name] != another[name]] == []
