"""The command about what keeps neighbours apart: ``isolation``. Decides nothing."""

from __future__ import annotations

import click

from cri_proxy.cli.answers import ask_daemon, json_option, show_document
from cri_proxy.isolation.report import isolation_text


@click.command()
@json_option
def isolation(as_json: bool) -> None:
    """What keeps noisy neighbours apart: what is treated, where, why, and whether it helps.

    A container is protected, standard or batch (`explain` says which, and why). Where a protected and a batch container
    may run in one L3, batch gets a part of its cache and bandwidth. Each other subject that is on has a table: what is
    alike is one line (--json has each value). With mode observe this says what would be written.
    """
    show_document(ask_daemon("isolation"), as_json, isolation_text)
