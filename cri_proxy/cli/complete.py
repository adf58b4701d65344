"""What a shell offers behind a command: the containers there are. A daemon that does not answer at once offers none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from cri_proxy.cli.answers import control_socket
from cri_proxy.control import ask

#: A person waits for it between two keys, seconds.
PATIENCE_S = 1.0


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
