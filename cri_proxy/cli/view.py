"""``cri-resmgr top`` and ``web``: the node, live, in the terminal and as a page. Drawn in ``cri_proxy/view``.

The page's server is a process of its own that stays small.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Optional

import click

from cri_api.socket_paths import is_served
from cri_proxy.cli.answers import control_socket, fail
from cri_proxy.cli.arguments import ANY_PATH
from cri_proxy.cli.output import echo
from cri_proxy.cli.placement_text import explain_text
from cri_proxy.config.config import BadConfig, view_socket
from cri_proxy.config.io import files as settings
from cri_proxy.view.web.requests import read_listen

#: Where the unit has the address with its token.
URL_FILE = Path("/run/cri-resmgr-web/url")


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
    from cri_proxy.view.top.io.terminal import TerminalOptions, show

    colours = not (no_colors or os.environ.get("NO_COLOR"))
    try:
        show(TerminalOptions(_tops_socket(), interval, ascii_only, colours), explain_text)
    except curses.error as error:
        name = os.environ.get("TERM") or "not set"
        fail(f"this terminal cannot be used (TERM is {name}): {error}", "try: TERM=vt100 cri-resmgr top")


def _tops_socket() -> Path:
    beside = _beside_control()
    # The control socket answers the same questions.
    return beside or view_socket(settings.load_or_last(settings.Files()).config) or control_socket()


def _beside_control() -> Optional[Path]:
    """By the control socket on the command line: as the daemon has it unless it is told another place."""
    given = click.get_current_context().find_root().obj
    return None if given is None else Path(given).parent / "view" / "view.sock"


def _check_listen(ctx: click.Context, param: click.Parameter, text: str) -> str:
    try:
        read_listen(text)
    except ValueError as error:
        raise click.BadParameter(str(error).partition("--listen is ")[2], ctx, param) from None
    return text


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:8895",
    show_default=True,
    callback=_check_listen,
    help="Where: a loopback address and port (0: any), or unix:/PATH.",
)
@click.option(
    "--interval", type=click.FloatRange(min=0.2, max=3600), default=1.0, show_default=True,
    help="Seconds between two looks at the daemon, while a page is open.",
)  # fmt: skip
@click.option("--view-socket", type=ANY_PATH, help="The daemon's; control.view_socket.")
@click.option(
    "--url-file", type=ANY_PATH,
    help="Keep the address with its token in this file instead of printing it.",
)  # fmt: skip
@click.option(
    "--url", "prints_url", is_flag=True, help="Print the address of cri-resmgr-web.service, and exit."
)
def web(
    listen: str,
    interval: float,
    view_socket: Optional[Path],
    url_file: Optional[Path],
    prints_url: bool,
) -> None:
    """The node as a page for a browser: the machine with its load, containers, traffic, decisions. Changes nothing.

    It prints the address to open, which has a token in it; from elsewhere: ssh -L 8895:127.0.0.1:8895 NODE. As a
    service, without rights: systemctl start cri-resmgr-web; then cri-resmgr web --url prints the address.
    """
    if prints_url:
        _print_url(url_file or URL_FILE)
        return
    asked = view_socket or _webs_socket()
    _warn_unless_served(asked)
    words = [
        "--view-socket",
        str(asked),
        "--listen",
        listen,
        "--interval",
        str(interval),
    ]
    if url_file is not None:
        words += ["--url-file", str(url_file)]
    sys.stdout.flush()
    # A packaged program sees its own modules only, and so does this one.
    isolated = ["-I"] if sys.flags.isolated else []
    os.execv(sys.executable, [sys.executable, *isolated, "-m", "cri_proxy.view.web.io", *words])


def _warn_unless_served(path: Path) -> None:
    """A page is served all the same: it shows the daemon once that answers."""
    try:
        problem = "" if is_served(path) else f"nothing serves {path}; systemctl start cri-resource-manager"
    except OSError as error:
        problem = (
            f"{path}: {error.strerror or error}; try again as root, or as a member of control.view_group"
        )
    if problem:
        echo(f"warning: the page is empty as long as the daemon does not answer: {problem}", err=True)


def _print_url(url_file: Path) -> None:
    try:
        echo(url_file.read_text().strip())
    except FileNotFoundError:
        fail(f"no page is served: there is no {url_file}", "start it with: systemctl start cri-resmgr-web")
    except PermissionError:
        fail(f"no permission for {url_file}", "try again as root")


def _webs_socket() -> Path:
    if (beside := _beside_control()) is not None:
        return beside
    try:
        config = settings.load_or_last(settings.Files()).config
    except (BadConfig, OSError) as error:
        fail(f"where the view socket is cannot be read: {error}", "say it: --view-socket PATH")
    found = view_socket(config)
    if found is None:
        fail("control.view_socket is empty, so there is nothing to show", "set it, and restart the daemon")
    return found
