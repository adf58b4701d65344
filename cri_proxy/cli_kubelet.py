"""``cri-resmgr kubelet``: points kubelet at us, points it back, says where it points."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

import click

from cri_api.control import ControlError
from cri_proxy.cli_answers import control_socket, fail, json_option, print_json
from cri_proxy.core.config import Config
from cri_proxy.core.kubelet_config import BadKubeletFile, survey
from cri_proxy.core.kubelet_record import Record, merged
from cri_proxy.core.kubelet_status import judge, socket_to_write, status_text, unfit
from cri_proxy.core.kubelet_switch import (
    CannotSwitch,
    Edit,
    after_edits,
    by_hand,
    diff_of,
    is_unit,
    plan_disable,
    plan_enable,
    points_at,
    remarks_on,
    still_ours,
)
from cri_proxy.shell import settings
from cri_proxy.shell.control import DaemonAbsent, ask
from cri_proxy.shell.kubelet_files import CannotWrite, KubeletFiles
from cri_proxy.shell.kubelet_service import (
    WAIT_S,
    CannotRestart,
    Found,
    kubelet_points_at,
    look,
    our_sockets,
    restart_kubelet,
    wait_for_kubelet,
)
from cri_proxy.shell.runtime import WELL_KNOWN, NoRuntime, discover

RELEASE = "cri-resmgr release --all"
DISABLE = "cri-resmgr kubelet disable --restart"


@dataclass(frozen=True)
class Host:
    """Where things are; everything but / is for tests and packages."""

    root: Path
    proc: Path
    systemctl: str
    wait_s: float
    config: Config
    config_file: Optional[Path]
    files: KubeletFiles

    def look(self) -> Found:
        return look(self.files, self.proc)


def _in_sentences(command: Callable[..., None]) -> Callable[..., None]:
    """What is expected to go wrong is said in one sentence."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (CannotSwitch, CannotRestart, DaemonAbsent) as error:
            fail(str(error), error.hint)
        except (BadKubeletFile, CannotWrite, ControlError, NoRuntime) as error:
            fail(str(error))

    return run


_path = click.Path(path_type=Path)
_restart = click.option("--restart", is_flag=True, help="Restart kubelet, and wait until it is back.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show the change.")


@click.group()
@click.option("--root", type=_path, default=Path("/"), hidden=True, help="Kubelet's files are under this.")
@click.option("--proc", type=_path, default=Path("/proc"), hidden=True, help="Where processes are.")
@click.option("--systemctl", default="systemctl", hidden=True, help="The command that restarts kubelet.")
@click.option("--wait", "wait_s", default=WAIT_S, hidden=True, help="Seconds for kubelet to come back.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Our configuration, if it is not in its place.",
)
@click.pass_context
def kubelet(
    ctx: click.Context, root: Path, proc: Path, systemctl: str, wait_s: float, config_file: Optional[Path]
) -> None:
    """Point kubelet at us, and back; say where it points."""
    config = settings.load_or_last(settings.Files(config=config_file)).config
    files = KubeletFiles(root, Path(config["state.directory"]))
    # `release`, which ends a disable, asks the same daemon.
    ctx.find_root().obj = ctx.find_root().obj or Path(config["control.socket"])
    ctx.meta["kubelet"] = Host(root, proc, systemctl, wait_s, config, config_file, files)


def _host() -> Host:
    host: Host = click.get_current_context().meta["kubelet"]
    return host


# ---------------------------------------------------------------------- status


@kubelet.command()
@json_option
@_in_sentences
def status(as_json: bool) -> None:
    """Where does kubelet's runtime endpoint come from, and is it us? Exit code 1: it is not."""
    host = _host()
    found = kubelet_points_at(
        our_sockets(host.config), Path(host.config["state.directory"]), host.root, host.proc
    )
    if as_json:
        print_json(asdict(found))
    else:
        front_end = "proxy" if found.points_at_us else _front_end()
        if front_end != "proxy":
            click.echo(status_text(replace(found, hint="")))
            click.echo(f"it need not: the daemon runs as {front_end} and serves kubelet no socket")
        else:
            click.echo(status_text(found))
    sys.exit(0 if found.points_at_us else 1)


def _front_end() -> str:
    """What the daemon runs as; one that does not answer is taken for the proxy."""
    try:
        return str(ask(control_socket(), "status").get("front_end", "proxy"))
    except (DaemonAbsent, ControlError):
        return "proxy"


# ---------------------------------------------------------------------- enable


@kubelet.command()
@_restart
@_dry_run
@click.option("--force", is_flag=True, help="Also if the daemon is not healthy.")
@_in_sentences
def enable(restart: bool, dry_run: bool, force: bool) -> None:
    """Point kubelet at us: shows the change, keeps what was, makes it."""
    host = _host()
    sockets = our_sockets(host.config)
    found = host.look()
    endpoint = f"unix://{_socket_to_write(sockets, found.setup.endpoint, force or dry_run or bool(found.setup.manager))}"
    edits = plan_enable(found.setup, found.files, endpoint, sockets)
    _show(edits, remarks_on(found.setup, edits, endpoint))
    if dry_run:
        return
    if edits:
        _write(host, found, edits, endpoint)
    else:
        place = found.setup.winner.place if found.setup.winner else found.setup.endpoint
        click.echo(f"kubelet's files point at us already: {place}")
    try:
        _bring_back(host, found, edits, endpoint, restart)
    except CannotRestart as error:
        raise CannotRestart(str(error), f"{error.hint}; to go back: {DISABLE}") from None


def _socket_to_write(sockets: Sequence[str], current: str, may_be_ill: bool) -> str:
    """The socket kubelet is given, of a daemon that is healthy and has the runtime kubelet uses now."""
    try:
        daemon: Mapping[str, Any] = ask(control_socket(), "status")
    except (DaemonAbsent, ControlError):
        if may_be_ill:
            return sockets[0]
        raise
    socket = socket_to_write(daemon, sockets)
    reason = unfit(daemon, socket, current)
    if reason and not may_be_ill:
        raise CannotSwitch(reason, "cri-resmgr status tells more; --force switches kubelet all the same")
    return socket


def _show(edits: Sequence[Edit], remarks: Sequence[str]) -> None:
    if edits:
        click.echo(diff_of(edits))
    for remark in remarks:
        click.echo(remark, err=True)


def _write(host: Host, found: Found, edits: Sequence[Edit], endpoint: str) -> None:
    older = found.record
    # What kubelet had before the first of our switches, unless somebody has given it something else since.
    ours = points_at(found.setup.endpoint, our_sockets(host.config))
    previous = older.previous if older and ours else found.setup.endpoint
    record = Record(endpoint, previous, tuple(edit.change for edit in edits), time.time())
    host.files.save(merged(record, older, still_ours(older, found.files) if older else frozenset()), edits)
    try:
        host.files.write(edits)
    except CannotWrite:
        if older is None:
            host.files.forget()
        else:
            host.files.save(older, ())
        raise


def _bring_back(host: Host, found: Found, edits: Sequence[Edit], endpoint: str, restart: bool) -> bool:
    """Restart kubelet, or say how, if it does not use ``endpoint`` yet; whether none is left that does not."""
    now = host.look()
    process = (now.kubelet.pid, now.kubelet.started_at) if now.kubelet else None
    used = judge(now.setup, now.record, [endpoint], process).endpoint
    is_stale = bool(edits) or not points_at(used, [endpoint])
    units = any(is_unit(edit.path) for edit in edits)
    if found.kubelet is not None and not is_stale:
        return True
    if not restart:
        if found.kubelet is None and not units:
            click.echo("kubelet does not run; this counts when it is started")
            return True
        reload = "systemctl daemon-reload && " if units else ""
        click.echo(f"now type: {reload}systemctl restart {found.setup.manager or 'kubelet'}")
        return found.kubelet is None
    restart_kubelet(host.systemctl, units, only_if_active=found.kubelet is None)
    if found.kubelet is None:
        click.echo("kubelet did not run; it is not started", err=True)
    else:
        fresh = wait_for_kubelet(found.kubelet, endpoint, host.proc, host.wait_s)
        click.echo(f"kubelet is back (process {fresh.pid}) and connected to {endpoint}")
    return True


# ---------------------------------------------------------------------- disable


@kubelet.command()
@_restart
@_dry_run
@click.option("--force", is_flag=True, help="Also if the runtime does not answer.")
@click.option("--no-release", is_flag=True, help="Leave the containers where they are.")
@_in_sentences
def disable(restart: bool, dry_run: bool, force: bool, no_release: bool) -> None:
    """Point kubelet back at the runtime as it was, then give all containers the CPUs they would have without us."""
    host = _host()
    sockets = our_sockets(host.config)
    found = host.look()
    target, edits = _way_back(host, found, sockets)
    _show(edits, ())
    if dry_run:
        return
    is_ours = bool(edits) or _runs_with(found, sockets)
    if is_ours and not force:
        _require_runtime(target)
    host.files.write(edits)
    host.files.forget()
    is_away = True
    if is_ours:
        is_away = _bring_back(host, found, edits, target, restart)
    else:
        click.echo("kubelet does not point at us")
    if no_release:
        return
    if is_away:
        _release(host)
    else:
        click.echo(f"and then: {RELEASE}")


def _runs_with(found: Found, sockets: Sequence[str]) -> bool:
    """Whether the running kubelet uses us still, whatever its files say by now."""
    return found.setup.running is not None and points_at(found.setup.running, sockets)


def _way_back(host: Host, found: Found, sockets: Sequence[str]) -> tuple[str, tuple[Edit, ...]]:
    """The endpoint kubelet gets back, and the edits.

    :raises CannotSwitch: it would still point at us, through what we did not write.
    """
    edits: tuple[Edit, ...] = ()
    if found.record is not None:
        way = plan_disable(found.record, found.files, host.files.backups(found.record))
        edits = way.edits
        for remark in way.remarks:
            click.echo(remark, err=True)
    argv = found.kubelet.argv if found.kubelet else ()
    after = survey(after_edits(found.files, edits), argv)
    wrapped = after.is_wrapped and after.winner is None and _runs_with(found, sockets)
    if points_at(after.endpoint, sockets) or wrapped:
        place = after.winner.place if after.winner else "its command line"
        runtime = f"unix://{WELL_KNOWN[0]}"
        with contextlib.suppress(NoRuntime):  # it is down; that is not what keeps us from switching
            runtime = f"unix://{discover(host.config['relay.runtime_endpoint'])}"
        raise CannotSwitch(
            f"kubelet points at us through {place}, which `kubelet enable` did not write",
            by_hand(after, runtime),
        )
    return after.endpoint, edits


def _require_runtime(endpoint: str) -> None:
    """:raises CannotSwitch: nobody would answer kubelet there."""
    import grpc

    from cri_proxy.shell.runtime import Runtime

    async def identify() -> None:
        runtime = Runtime(discover(endpoint))
        try:
            await runtime.identify()
        finally:
            await runtime.close()

    try:
        asyncio.run(identify())
    except grpc.aio.AioRpcError as error:
        raise CannotSwitch(
            f"the runtime at {endpoint} does not answer, kubelet would have none: {error.details()}",
            "start it first; --force switches kubelet all the same",
        ) from None


def _release(host: Host) -> None:
    """What `cri-resmgr release --all` does."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    root.invoke(
        root.command.commands["release"],
        container=None,
        everything=True,
        config_file=host.config_file,
        as_json=False,
    )
