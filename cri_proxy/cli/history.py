"""``cri-resmgr history``: what was decided and moved, from the daemon or from the file that it has left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import click

from cri_api.control import ControlError
from cri_proxy.cli.answers import control_socket, fail, fail_by
from cri_proxy.cli.complete import pods
from cri_proxy.cli.offline import daemons_config
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.history.entries import MOST, BadQuery, read_query
from cri_proxy.history.io.file import FILE, HistoryUnusable, read_file
from cri_proxy.history.text import BadTime, entry_lines, read_since
from cri_proxy.history.trace import write_trace

#: As many entries are shown on a terminal where nothing says how many.
SHOWN = 50

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@click.command()
@click.argument("name", required=False, metavar="[POD]", shell_complete=pods)
@click.option("--since", metavar="TIME", help="Only what came after: 30m, 2h or 3d ago, or a date and time.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Only the last N; as text {SHOWN}, unless --since is given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document a line.")
@click.option(
    "--perfetto",
    "trace_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a trace to FILE, for ui.perfetto.dev: a track a container.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration to use while the daemon is down.",
)
def history(
    name: Optional[str],
    since: Optional[str],
    last: Optional[int],
    as_json: bool,
    trace_file: Optional[Path],
    config_file: Optional[Path],
) -> None:
    """What was decided and moved, when and why, the oldest first; works with the daemon down, too.

    POD: a pod, namespace/pod, a container of one, or the beginning of a container's id. Kept over restarts:
    history.entries and history.days say how much.
    """
    try:
        since_s = None if since is None else read_since(since, time.time())
        read_query({"name": name})
    except (BadTime, BadQuery) as error:
        raise click.UsageError(str(error)) from None
    if as_json and trace_file is not None:
        raise click.UsageError("say --json or --perfetto")
    if last is None and since is None and not as_json and trace_file is None:
        last = SHOWN
    try:
        rows = list(_entries(_way_to_ask(config_file), {"name": name, "since_s": since_s}, last))
    except (ControlError, HistoryUnusable) as error:
        fail_by(error)
    rows.reverse()
    rows.sort(key=lambda row: row["time_s"])
    if trace_file is not None:
        _write_trace(trace_file, rows)
        return
    for row in rows:
        if as_json:
            click.echo(json.dumps(row, separators=(",", ":")))
        else:
            for line in entry_lines(row):
                click.echo(line)
    if not rows and not as_json:
        click.echo(
            "no decisions or moves" + (f" of {name}" if name else "") + (" since then" if since else "")
        )


def _write_trace(file: Path, rows: list[dict[str, Any]]) -> None:
    try:
        file.write_bytes(write_trace(rows))
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}", "name a file in a folder that is there")
    click.echo(f"{file}: {len(rows)} entries; open it in ui.perfetto.dev, or with trace_processor")


def _way_to_ask(config_file: Optional[Path]) -> Ask:
    """The daemon, where it runs; else the file."""
    socket = control_socket()
    try:
        ask(socket, "history", {"most": 1})
    except DaemonAbsent:
        path = Path(daemons_config(config_file)["state.directory"]) / FILE
        click.echo(f"the daemon is not running: reading {path}", err=True)
        return lambda arguments: read_file(path, read_query(arguments))
    return lambda arguments: dict(ask(socket, "history", arguments))


def _entries(way: Ask, arguments: dict[str, Any], last: Optional[int]) -> Iterator[dict[str, Any]]:
    """The latest first."""
    before: Optional[int] = None
    while last is None or last > 0:
        most = MOST if last is None else min(last, MOST)
        page = way({**arguments, "most": most, "before": before})
        yield from page["entries"]
        before = page["before"]
        if before is None:
            return
        last = None if last is None else last - len(page["entries"])
