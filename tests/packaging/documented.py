"""The commands that README and docs/install.md show: in blocks, behind "or:", and as code in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.packaging.roots import REPOSITORY

PAGES = ("README.md", "docs/install.md")
#: A span of code in a sentence is a command if it begins with one of these and has an argument.
PROGRAMS = (
    "apt", "apt-get", "dnf", "dpkg", "rpm", "cri-resmgr", "crictl", "kubectl", "systemctl", "journalctl", "man", "make",
    "eval", "rm", "mkdir", "groupdel", "python3", "pip", "semanage", "semodule", "ausearch", ".venv/bin/python",
)  # fmt: skip


def commands() -> set[str]:
    """Each as it is shown, without the comment behind it."""
    return {command for page in PAGES for command in _of_page((REPOSITORY / page).read_text())}


def configurations() -> list[str]:
    """Blocks that are a configuration file of ours."""
    blocks = (block for page in PAGES for block in _blocks((REPOSITORY / page).read_text()))
    return [block for block in blocks if _is_configuration(block)]


def _of_page(text: str) -> Iterator[str]:
    for block in _blocks(text):
        if not _is_configuration(block) and "►" not in block:  # a drawing
            yield from _of_block(block)
    # What stands between fences is what a screen shows.
    prose = re.sub(r"^```.*?^```$|^ {4}[^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", prose):
        words = span.replace("\\|", "|").split()
        if len(words) > 1 and words[0] in PROGRAMS:
            yield " ".join(words)


def _blocks(text: str) -> list[str]:
    """What is indented by four and more behind an empty line, with the indentation that all of it has taken away."""
    found = re.findall(r"(?<=\n\n)((?:(?: {4}.*)?\n)+)", text)
    return [
        "\n".join(line[_margin(block) :] for line in block.strip("\n").split("\n"))
        for block in found
        if block.strip()
    ]


def _margin(block: str) -> int:
    return min(len(line) - len(line.lstrip()) for line in block.split("\n") if line.strip())


def _is_configuration(block: str) -> bool:
    return block.split("\n")[0].endswith(":")


def _of_block(block: str) -> Iterator[str]:
    lines = iter(block.split("\n"))
    for line in lines:
        command, _, comment = re.split(r"(?:^|\s+)(#)(?=\s)", f"{line} # ", maxsplit=1)
        if found := re.search(r"<<'(\w+)'$", command):
            for more in lines:
                command += f"\n{more}"
                if more == found[1]:
                    break
        if alternative := re.match(r" or: ([^;#]+)", comment):
            yield alternative[1].strip()
        # A line may have two, in columns.
        yield from (found.strip() for found in re.split(r" {4,}(?=\S)", command) if found.strip())
