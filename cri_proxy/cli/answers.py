"""How commands ask the running daemon and show what it answers. Exit code 1 and a sentence where that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional

import click

from cri_api.control import ControlError
from cri_proxy.config.io import files as settings
from cri_proxy.control import ANSWER_S, DaemonAbsent, ask

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def fail(sentence: str, hint: str = "") -> NoReturn:
    """End with exit code 1."""
    click.echo(f"cri-resmgr: {sentence}" + (f"\n  {hint}" if hint else ""), err=True)
    sys.exit(1)


def control_socket() -> Path:
    """The daemon's control socket: as given on the command line, else as configured."""
    given: Optional[Path] = click.get_current_context().find_root().obj
    if given is not None:
        return given
    return Path(settings.load_or_last(settings.Files()).config["control.socket"])


def ask_daemon(command: str, arguments: Optional[dict[str, Any]] = None, timeout_s: float = ANSWER_S) -> Any:
    """The daemon's answer to a command; ends where there is none."""
    try:
        return ask(control_socket(), command, arguments, timeout_s)
    except DaemonAbsent as error:
        fail(str(error), error.hint)
    except ControlError as error:
        fail(str(error))


def show_document(document: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print an answer as text, or as one JSON document."""
    if as_json:
        print_json(document)
    else:
        click.echo(text(document))


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, sort_keys=False))
