"""The one way from a command to the terminal (``tools/prints``): no program elsewhere has a word in how it behaves."""

from __future__ import annotations

from typing import Any

import click

from cri_api.printable import printable_lines


def echo(text: Any = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text with its line ends; what else a terminal would take as a command is written as an escape."""
    click.echo(printable_lines(text), err=err, nl=nl)
