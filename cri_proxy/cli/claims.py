"""The command about claims of CPUs: ``claims``. Decides nothing."""

from __future__ import annotations

import click

from cri_proxy.claims.report import claims_text
from cri_proxy.cli.answers import ask_daemon, json_option, show_document


@click.command()
@json_option
def claims(as_json: bool) -> None:
    """Claims of CPUs (Dynamic Resource Allocation): which are prepared here, their CPUs, and the containers that have them.

    A claim whose CPUs are others than at first has moved: they were needed offline, or gave way inside their device. One
    that has not all it was given is unhealthy. `explain` shows the claims of a container.
    """
    show_document(ask_daemon("claims"), as_json, claims_text)
