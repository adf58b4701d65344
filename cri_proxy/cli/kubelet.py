"""``cri-resmgr kubelet``: points kubelet at us, points it back, says where it points."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

import click

from cri_api.control import ControlError
from cri_api.printable import printable
from cri_proxy.cli.answers import control_socket, fail_by, json_option, print_json
from cri_proxy.cli.arguments import ANY_PATH, Commands, config_option
from cri_proxy.cli.output import echo
from cri_proxy.cli.progress import progress
from cri_proxy.config.config import Config
from cri_proxy.config.io import files as settings
from cri_proxy.control import DaemonAbsent, ask
from cri_proxy.kubelet.io.files import CannotWrite, KubeletFiles
from cri_proxy.kubelet.io.service import (
    CONNECT_S,
    OUR_UNITS,
    WAIT_S,
    CannotRestart,
    KubeletHost,
    find_kubelet,
    fit_socket,
    front_end,
    is_connected,
    is_failing,
    is_off_after_boot,
    likely_socket,
    look,
    our_sockets,
    require_runtime,
    restart_kubelet,
    separate_images,
    wait_for_kubelet,
)
from cri_proxy.kubelet.record import SwitchRecord, merged
from cri_proxy.kubelet.settings import BadKubeletFile, socket_of, survey
from cri_proxy.kubelet.status import ENABLE, status_text
from cri_proxy.kubelet.switch import (
    CannotSwitch,
    Edit,
    after_edits,
    by_hand,
    diff_of,
    left_over,
    plan_disable,
    plan_enable,
    plan_images,
    points_at,
    remarks_on,
    restart_line,
    still_ours,
)
from cri_proxy.machine_root import machine_root
from cri_proxy.processes import NotSeen
from cri_proxy.runtime import WELL_KNOWN, NoRuntime, discover

RELEASE = "cri-resmgr release --all"
ADOPT = "cri-resmgr adopt --all"
#: The stances of containers that stay where they are until they are adopted.
LEFT_ALONE = ("released", "adopted", "observed")
DISABLE = "cri-resmgr kubelet disable --restart"


@dataclass(frozen=True)
class HostPaths:
    """Where things are; everything but / is for tests and packages."""

    root: Path
    proc: Path
    systemctl: str
    wait_s: float
    config: Config
    config_file: Optional[Path]
    files: KubeletFiles

    def look(self, to_switch: bool = False) -> KubeletHost:
        """:raises NotSeen: it is to be switched, and whether it runs may not be looked at."""
        found = look(self.files, self.proc)
        if to_switch and found.unseen:
            raise NotSeen(found.unseen)
        return found


def _in_sentences(command: Callable[..., None]) -> Callable[..., None]:
    """What is expected to go wrong is said in one sentence."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (
            CannotSwitch,
            CannotRestart,
            DaemonAbsent,
            BadKubeletFile,
            CannotWrite,
            ControlError,
            NoRuntime,
            NotSeen,
        ) as error:
            fail_by(error)

    return run


_restart = click.option("--restart", is_flag=True, help="Restart kubelet, and wait until it is back.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show the change.")


@click.group(cls=Commands)
@click.option(
    "--root", type=ANY_PATH, default=machine_root, hidden=True, help="Kubelet's files are under this."
)
@click.option("--proc", type=ANY_PATH, default=Path("/proc"), hidden=True, help="Where processes are.")
@click.option("--systemctl", default="systemctl", hidden=True, help="The command that restarts kubelet.")
@click.option("--wait", "wait_s", default=WAIT_S, hidden=True, help="Seconds for kubelet to come back.")
@config_option
@click.pass_context
def kubelet(
    ctx: click.Context, root: Path, proc: Path, systemctl: str, wait_s: float, config_file: Optional[Path]
) -> None:
    """Point kubelet at us, and back; say where it points."""
    config = settings.load_or_last(settings.Files(config=config_file)).config
    files = KubeletFiles(root, Path(config["state.directory"]))
    # `release`, which ends a disable, asks the same daemon.
    ctx.find_root().obj = ctx.find_root().obj or Path(config["control.socket"])
    ctx.meta["kubelet"] = HostPaths(root, proc, systemctl, wait_s, config, config_file, files)


def _host() -> HostPaths:
    host: HostPaths = click.get_current_context().meta["kubelet"]
    return host


# ---------------------------------------------------------------------- status


@kubelet.command()
@json_option
@_in_sentences
def status(as_json: bool) -> None:
    """Where does kubelet's runtime endpoint come from, and is it us? Exit code 1: it is not."""
    host = _host()
    found = host.look().status(our_sockets(host.config))
    if as_json:
        print_json(asdict(found))
    else:
        runs_as = "proxy" if found.points_at_us else front_end(control_socket())
        if runs_as != "proxy":
            echo(status_text(replace(found, hint="")))
            echo(f"it need not: the daemon runs as {printable(runs_as)} and serves kubelet no socket")
        else:
            echo(status_text(found))
    sys.exit(0 if found.points_at_us else 1)


# ---------------------------------------------------------------------- enable


@kubelet.command()
@_restart
@_dry_run
@click.option("--force", is_flag=True, help="Also if the daemon is not healthy.")
@click.option("--adopt", is_flag=True, help=f"Then place what runs already: {ADOPT}.")
@_in_sentences
def enable(restart: bool, dry_run: bool, force: bool, adopt: bool) -> None:
    """Point kubelet at us: shows the change, keeps what was, makes it. What runs stays where it is until it is adopted."""
    host = _host()
    sockets = our_sockets(host.config)
    found = host.look(to_switch=not dry_run)
    if not found.is_there:
        raise CannotSwitch(
            "no kubelet runs here, and none of its files is here, such as /var/lib/kubelet/config.yaml",
            f"start kubelet, then: {ENABLE}; a node without one places by: cri-resmgr run --standalone",
        )
    if force or dry_run or found.setup.manager:
        socket = likely_socket(control_socket(), sockets)
    else:
        with progress("asking the daemon and the runtime"):
            socket = fit_socket(control_socket(), sockets, found, min(host.wait_s, CONNECT_S))
    endpoint = f"unix://{socket}"
    edits = plan_enable(found.setup, found.files, endpoint, sockets)
    # An image service that kubelet has already is the operator's choice, unless it is us.
    is_open = not found.setup.images or points_at(found.setup.images, found.names(sockets))
    images = separate_images(control_socket()) if is_open else ""
    if images:
        edits = plan_images(found.setup, found.files, edits, images)
    _show(edits, remarks_on(found.setup, edits, endpoint, images))
    if dry_run:
        if not edits:
            echo(f"kubelet's files point at us already: {found.setup.endpoint}; nothing is to be changed")
        return
    if edits:
        _write(host, found, edits, endpoint)
    else:
        place = found.setup.winner.place if found.setup.winner else found.setup.endpoint
        echo(f"kubelet's files point at us already: {place}")
        endpoint = found.setup.endpoint
    if is_off_after_boot(host.systemctl):
        echo(
            "warning: after a boot nothing would serve kubelet, our units are disabled; "
            f"type: systemctl enable {OUR_UNITS[0]}",
            err=True,
        )
    is_ours = not edits and found.kubelet is not None and found.status(sockets).points_at_us
    try:
        is_ours = is_ours or _bring_back(host, found, endpoint, restart)
    except CannotRestart as error:
        raise CannotRestart(str(error), f"{error.hint}; to go back: {DISABLE}") from None
    _adopt(adopt, is_ours)


def _adopt(is_wanted: bool, is_ours: bool) -> None:
    """Say which containers stay where they are, and what places them; do that if it is wanted and kubelet is ours."""
    try:
        counts = ask(control_socket(), "status").get("containers", {})
    except (DaemonAbsent, ControlError):  # with --force
        counts = {}
    left = {stance: counts[stance] for stance in LEFT_ALONE if counts.get(stance)}
    if left:
        listed = ", ".join(f"{count} {stance}" for stance, count in left.items())
        echo(f"{sum(left.values())} containers that run already stay where they are: {listed}")
    if is_wanted and is_ours:  # also what the daemon has not seen yet
        _invoke("adopt", container=None, everything=True, as_json=False)
    elif left:
        echo(f"to place them {'now' if is_ours else 'then'}: {ADOPT}")


def _show(edits: Sequence[Edit], remarks: Sequence[str]) -> None:
    if edits:
        echo(diff_of(edits))
    for remark in remarks:
        echo(remark, err=True)


def _write(host: HostPaths, found: KubeletHost, edits: Sequence[Edit], endpoint: str) -> None:
    older = found.record
    # What kubelet had before the first of our switches, unless it was given something else since.
    ours = points_at(found.setup.endpoint, found.names(our_sockets(host.config)))
    previous = older.previous if older and ours else found.setup.endpoint
    record = SwitchRecord(endpoint, previous, tuple(edit.change for edit in edits), time.time())
    kept = still_ours(older, found.files) if older else frozenset()
    host.files.switch(merged(record, older, kept), edits, older)


def _bring_back(host: HostPaths, found: KubeletHost, endpoint: str, restart: bool) -> bool:
    """Restart the kubelet that was found, or say how; whether none is left that does not use ``endpoint``."""
    if not restart:
        if found.kubelet is None:
            echo("kubelet does not run; this counts when it is started, after: systemctl daemon-reload")
            return True
        echo(f"now type: {restart_line(found.setup)}")
        return False
    # One that cannot start with what it was given is none that was stopped: it is to come back.
    is_stopped = found.kubelet is None and not is_failing(host.systemctl, found.setup.unit)
    with progress(f"restarting {found.setup.unit or 'kubelet'}"):
        restart_kubelet(host.systemctl, found.setup.unit, only_if_active=is_stopped)
    if is_stopped:
        echo("kubelet did not run; it is not started", err=True)
    else:
        with progress(f"waiting for kubelet to connect to {endpoint}, at most {host.wait_s:.0f} s"):
            fresh = wait_for_kubelet(found.kubelet, endpoint, host.proc, host.wait_s)
        echo(f"kubelet is back (process {fresh.pid}) and connected to {endpoint}")
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
    found = _look_unless_it_never_was_ours(host, to_switch=not dry_run)
    is_away = True
    if found is not None:
        target, edits = _way_back(host, found)
        _show(edits, ())
        is_ours = bool(edits) or found.status(found.names(our_sockets(host.config))).points_at_us
        if dry_run:
            if not edits:
                left = restart_line(found.setup) if is_ours else "nothing"
                echo(f"kubelet's files do not point at us; to be done: {left}")
            return
        if is_ours:
            if not force:
                require_runtime(target)
            host.files.give_back(found.record, edits, time.time())
            try:
                is_away = _bring_back(host, found, target, restart)
            except CannotRestart as error:
                sentence = f"kubelet's files are as they were, but it has not come back with them: {error}"
                raise CannotRestart(sentence, f"{error.hint}; then: {DISABLE}") from None
        else:
            echo("kubelet does not point at us")
        if is_away:
            host.files.forget()
    if no_release or dry_run:
        return
    if is_away:
        _release(host)
    else:
        echo(f"and then: {RELEASE}")


def _look_unless_it_never_was_ours(host: HostPaths, to_switch: bool) -> Optional[KubeletHost]:
    """None: kubelet's files cannot be understood, and neither they nor the kubelet that runs have to do with us.

    :raises BadKubeletFile: they cannot be understood, and may have.
    :raises NotSeen: whether it runs may not be looked at.
    """
    try:
        return host.look(to_switch)
    except BadKubeletFile as error:
        sockets = our_sockets(host.config)
        kubelet = find_kubelet(host.proc)
        if host.files.load() is not None:
            raise
        texts = [
            *host.files.read(kubelet.argv if kubelet else ()).values(),
            *(kubelet.argv if kubelet else ()),
        ]
        if any(socket_of(path) in text for text in texts if text for path in sockets):
            raise
        if kubelet is not None and any(is_connected(kubelet.pid, path) is not False for path in sockets):
            raise
        echo(f"{error}; kubelet does not point at us", err=True)
        return None


def _way_back(host: HostPaths, found: KubeletHost) -> tuple[str, tuple[Edit, ...]]:
    """The endpoint kubelet gets back, and the edits.

    :raises CannotSwitch: it would still use us, through what we did not write.
    """
    sockets = found.names(our_sockets(host.config))
    edits: tuple[Edit, ...] = ()
    if found.record is not None:
        way = plan_disable(found.record, found.files, host.files.backups(found.record))
        edits = way.edits
        for remark in way.remarks if found.record.undone_at is None else ():
            echo(remark, err=True)
    after = survey(after_edits(found.files, edits), found.kubelet.argv if found.kubelet else ())
    obstacle = left_over(after, sockets, found.status(sockets).points_at_us)
    if obstacle is not None:
        runtime = f"unix://{WELL_KNOWN[0]}"
        with contextlib.suppress(NoRuntime):  # it is down; that is not what keeps us from switching
            runtime = f"unix://{socket_of(discover(host.config['relay.runtime_endpoint']))}"
        raise CannotSwitch(
            f"kubelet {obstacle.what} us through {obstacle.place}, which `kubelet enable` did not write",
            by_hand(after, runtime, obstacle.value),
        )
    return after.endpoint, edits


def _release(host: HostPaths) -> None:
    """What `cri-resmgr release --all` does."""
    _invoke("release", container=None, everything=True, config_file=host.config_file, as_json=False)


def _invoke(command: str, **arguments: Any) -> None:
    """Do what another command does."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    root.invoke(root.command.commands[command], **arguments)
