"""How commands ask the running daemon and show what it answers. Exit code 1 and a sentence where that fails.

A shell that completes a command asks the same way, and offers nothing where the daemon does not answer at once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional

import click
from click.shell_completion import CompletionItem

from cri_api.control import ControlError
from cri_api.printable import printable, printable_document
from cri_proxy.cli.output import echo
from cri_proxy.config.io import files as settings
from cri_proxy.control import ANSWER_S, DaemonAbsent, ask

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
#: What to do about what went wrong, where neither the error nor its sentence says: by the kind of error.
NEXT_STEPS = {
    "ControlError": "see: cri-resmgr status; journalctl -u cri-resource-manager",
    "NotOne": "see: cri-resmgr placements",
    "NotSeen": "try again as root",
    "NoRuntime": "start the runtime, or name its socket: relay.runtime_endpoint",
    "NoMachine": "see: cri-resmgr doctor; topology.source names what is read",
    "BadConfig": "see: cri-resmgr config check FILE",
    "HistoryUnusable": "see: cri-resmgr doctor",
    "SysfsError": "see: cri-resmgr doctor; --sysfs reads another machine",
    "BadTopology": "expected what cri-resmgr topology --json prints",
    "ValueError": "expected what cri-resmgr topology --json prints",
    "BadScenario": "see: docs/policies.md has the steps",
    "BadKubeletFile": "correct that file; kubelet would not start with it either",
    "CannotWrite": "try again as root, where that file system can be written",
    "RpcError": "is it well? journalctl -u containerd, or that of another runtime",
}
#: A sentence that says by itself what to do.
_SAYS_IT = re.compile(
    r"cri-resmgr (?!is\b)[a-z]|expected|see: |try again|; (?:see|try|first|name|use|free|rename|close|start|stop|set|type)\b"
)
#: A person waits for it between two keys, seconds.
PATIENCE_S = 1.0


def fail(sentence: str, hint: str) -> NoReturn:
    """End with exit code 1. ``hint``: what to do about it; "" where the sentence says that."""
    echo(f"cri-resmgr: {printable(sentence)}" + (f"\n  {hint}" if hint else ""), err=True)
    sys.exit(1)


def next_step(error: Exception) -> str:
    """What to do about an error; "" where its own sentence says that."""
    hint: str = getattr(error, "hint", "")
    if hint or _SAYS_IT.search(str(error)):
        return hint
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return next((NEXT_STEPS[kind] for kind in kinds if kind in NEXT_STEPS), "see: cri-resmgr doctor")


def fail_by(error: Exception, sentence: str = "") -> NoReturn:
    """End with exit code 1, an error's sentence (or this one) and what to do about it."""
    fail(sentence or str(error), next_step(error))


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
    except (DaemonAbsent, ControlError) as error:
        fail_by(error)


def waiting_updates() -> Callable[[], str]:
    """For the line that tells of progress: tells how many cpusets the runtime has not taken yet, from any thread."""
    socket = control_socket()

    def told() -> str:
        try:
            count = ask(socket, "status", timeout_s=2.0)["updates_waiting"]
        except (DaemonAbsent, ControlError, KeyError):
            return ""
        return f"{count} updates wait for the runtime" if count else ""

    return told


def show_document(document: Any, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print an answer as text, or as one JSON document."""
    if as_json:
        print_json(document)
    else:
        echo(text(printable_document(document)))


def print_json(document: Any) -> None:
    echo(json.dumps(document, indent=2, sort_keys=False))


def containers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``namespace/pod/container``, and ids where the beginning of one is typed."""
    return [CompletionItem(name) for name in _offered(_rows(ctx), incomplete, with_pods=False)]


def pods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``namespace/pod``, besides."""
    return [CompletionItem(name) for name in _offered(_rows(ctx), incomplete, with_pods=True)]


def _rows(ctx: click.Context) -> Any:
    try:
        with ctx.scope():
            # Commands are not run while a shell asks: what the first of them would have noted is not there.
            socket = ctx.find_root().params.get("control_socket") or control_socket()
            return ask(socket, "placements", timeout_s=PATIENCE_S)
    except Exception:  # whatever it is: what is typed must go on
        return []


def _offered(rows: Iterable[dict[str, Any]], incomplete: str, with_pods: bool) -> list[str]:
    """Whole names where one fits; else what commands take as well: without what comes first, or an id."""
    whole: set[str] = set()
    short: set[str] = set()
    for row in rows:
        pod, name = row["pod"], row["container"]
        whole.add(f"{row['namespace']}/{pod}/{name}")
        short |= {f"{pod}/{name}", name, row["id"]}
        if with_pods:
            whole.add(f"{row['namespace']}/{pod}")
            short.add(pod)
    fitting = [name for name in whole if name.startswith(incomplete)]
    return sorted(fitting or [name for name in short if name.startswith(incomplete)])
