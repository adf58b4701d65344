"""``cri-resmgr history``: what was decided and moved, from the daemon or from the file that it has left."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any, Callable, Optional

import click

from cri_api.control import ControlError
from cri_api.printable import printable_document
from cri_proxy.cli.answers import control_socket, fail, fail_by, pods
from cri_proxy.cli.arguments import config_option
from cri_proxy.cli.offline import daemons_config
from cri_proxy.cli.output import echo
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.engine.state import CAUSES
from cri_proxy.history.entries import MOST, BadQuery, read_query
from cri_proxy.history.io.file import FILE, HistoryUnusable, read_file
from cri_proxy.history.trace import write_trace

#: As many entries are shown on a terminal where nothing says how many.
SHOWN = 50

Ask = Callable[[dict[str, Any]], dict[str, Any]]
#: As many containers that one entry has changed alike are named.
NAMED = 3
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d|w)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


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
@config_option
def history(
    name: Optional[str],
    since: Optional[str],
    last: Optional[int],
    as_json: bool,
    trace_file: Optional[Path],
    config_file: Optional[Path],
) -> None:
    """What was decided and moved, when and why, the oldest first; works with the daemon down, too.

    POD: a pod, namespace/pod, a container of one, or the beginning of a container's id; where there is none such, the
    workload of its pods (default/web for default/web-...). Kept over restarts, for seven days; history.entries says how
    many.
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
            echo(json.dumps(row, separators=(",", ":")))
        else:
            for line in entry_lines(printable_document(row)):
                echo(line)
    if not rows and not as_json:
        echo("no decisions or moves" + (f" of {name}" if name else "") + (" since then" if since else ""))


def _write_trace(file: Path, rows: list[dict[str, Any]]) -> None:
    try:
        file.write_bytes(write_trace(rows))
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}", "name a file in a folder that is there")
    echo(f"{file}: {len(rows)} entries; open it in ui.perfetto.dev, or with trace_processor")


def _way_to_ask(config_file: Optional[Path]) -> Ask:
    """The daemon, where it runs; else the file."""
    socket = control_socket()
    try:
        ask(socket, "history", {"most": 1})
    except DaemonAbsent:
        path = Path(daemons_config(config_file)["state.directory"]) / FILE
        echo(f"the daemon is not running: reading {path}", err=True)
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


class BadTime(ValueError):
    """A text that is no time. The message says what is expected."""


def read_since(text: str, now_s: float) -> float:
    """When ``--since`` is, in seconds since 1970: so long ago (``90s``, ``2h``, ``3d``), or a date and time (ISO 8601; where
    no zone is said that of this machine).

    :raises BadTime: it is neither.
    """
    length = _LENGTH.fullmatch(text.strip())
    if length is not None:
        return now_s - float(length[1]) * _UNITS[length[2]]
    try:
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
        return found.timestamp()
    except (ValueError, OverflowError, OSError):
        expected = "a length of time such as 30m, 2h or 3d, or a time such as 2026-01-31 or 2026-01-31T14:00"
        raise BadTime(f"{text!r:.40} is no time, expected {expected}") from None


def entry_lines(row: Mapping[str, Any], zone: Optional[tzinfo] = None) -> Iterator[str]:
    """An entry: what was decided, then what it has changed. ``zone``: None = that of this machine."""
    operation = CAUSES.get(row["operation"], row["operation"])
    about = f" {row['container'] or row['id'][:13]}" if row["container"] or row["id"] else ""
    line = f"{time_text(row['time_s'], zone)}  {operation}{about}"
    # A cause that is no decision about its container has left its place as it is, or ended it.
    where = f"{row['cpus'] or 'untouched'} ({row['level']})" if row["stance"] else ""
    said = ", ".join(filter(None, (where, row["why"])))
    yield f"{line}{': ' if said else ''}{said}{' -> ' if row['outcome'] else ''}{row['outcome']}"
    for change in row["changes"]:
        names = [one["container"] or one["id"][:13] for one in change["containers"]]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        why = f", {change['why']}" if change["why"] else ""
        place = f"{change['cpus'] or 'untouched'} ({change['level']})"
        yield f"    {change['operation']} {', '.join(names[:NAMED])}{more}: {place}{why}"
    move = row["move"]
    if move is not None:
        for side in ("nearer", "farther", "exchanged"):
            names = [one["container"] or one["id"][:13] for one in move[side]]
            if names:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                words = {"nearer": "nearer to", "farther": "farther from", "exchanged": "changed places with"}
                yield f"    {words[side]} {', '.join(names[:NAMED])}{more}"


def time_text(time_s: float, zone: Optional[tzinfo] = None) -> str:
    """A time as a person reads it, to the second."""
    return datetime.fromtimestamp(time_s, timezone.utc).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")
