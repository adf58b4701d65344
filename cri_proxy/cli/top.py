"""``cri-resmgr top``: the node, live, in the terminal. What is drawn and what keys do is in ``cri_proxy/top``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from cri_proxy.cli.answers import control_socket, fail
from cri_proxy.cli.placement_text import explain_text
from cri_proxy.config.config import view_socket
from cri_proxy.config.io import files as settings


@click.command()
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw without box characters.")
@click.option("--no-colors", is_flag=True, help="Without colours; NO_COLOR in the environment says the same.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def top(ascii_only: bool, no_colors: bool, interval: float) -> None:
    """The node, live: sockets, NUMA nodes and L3s with load, requests and containers; traffic; the last moves.

    Changes nothing: it asks the daemon's view socket (control.view_socket). Keys: ? in it lists them, q ends it.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("top needs a terminal", "for programs: cri-resmgr placements --json; cri-resmgr status --json")
    try:
        import curses
    except ImportError as error:
        fail(f"this Python has no curses: {error}", "install the whole python3, not python3-minimal")
    from cri_proxy.top.io.terminal import Options, show

    colours = not (no_colors or os.environ.get("NO_COLOR"))
    try:
        show(Options(_view_socket(), interval, ascii_only, colours), explain_text)
    except curses.error as error:
        name = os.environ.get("TERM") or "not set"
        fail(f"this terminal cannot be used (TERM is {name}): {error}", "try: TERM=vt100 cri-resmgr top")


def _view_socket() -> Path:
    given = click.get_current_context().find_root().obj
    if given is not None:  # as the daemon has it unless it is told another place
        return Path(given).parent / "view" / "view.sock"
    found = view_socket(settings.load_or_last(settings.Files()).config)
    # The control socket answers the same questions.
    return control_socket() if found is None else found
