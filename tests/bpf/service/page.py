"""The examples of docs/affinity.md, for tests that run them as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def examples(heading: str) -> list[str]:
    """The indented blocks below a heading, without their indentation."""
    page = (REPOSITORY / "docs/affinity.md").read_text()
    _, found, section = page.partition(f"\n### {heading}\n")
    assert found, heading
    section = re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^    .*\n(?:(?:    .*)?\n)*", section, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in blocks]
