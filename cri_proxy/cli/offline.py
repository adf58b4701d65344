"""What commands do by themselves while the daemon is down: give containers back, set the state aside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import click

from cri_proxy.cli.answers import fail, fail_by
from cri_proxy.cli.output import echo
from cri_proxy.cli.progress import progress
from cri_proxy.config.config import Config
from cri_proxy.config.io import files as settings
from cri_proxy.engine.report import NotOne
from cri_proxy.node.lock import NodeLock
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import NoRuntime
from cri_proxy.state.store import Store


def daemons_config(config_file: Optional[Path]) -> Config:
    """The configuration of the daemon that is down; ``config_file``: if it is not in its place."""
    given: Optional[Path] = click.get_current_context().find_root().obj
    overrides = {} if given is None else {"control.socket": str(given)}
    return settings.load_or_last(settings.Files(config=config_file, overrides=overrides)).config


def set_state_aside(config: Config, command: str) -> str:
    """Rename the state file; a phrase that says where to. ``command``: whose work that is. Ends where it fails."""
    with _owning(config, command):
        try:
            store = Store(Path(config["state.directory"]))
            phrase = store.set_aside()
        except OSError as error:
            sentence = f"the state in {config['state.directory']} cannot be set aside: {error.strerror}"
            fail(sentence, "try again as root, where that disk can be written")
        if store.directory.exists():
            store.load()  # an empty one in its place: the next daemon would take none for lost
            store.close()
        return phrase


def release_offline(container: Optional[str], config_file: Optional[Path]) -> Any:
    """Release one container, or (None) all, straight at the runtime. Ends where it fails."""
    from cri_proxy.daemon.release import release
    from cri_proxy.node.machine import NoMachine
    from cri_proxy.services import logs

    echo("the daemon is not running: asking the runtime directly", err=True)
    config = daemons_config(config_file)
    try:
        with _owning(config, "cri-resmgr release"), progress("giving containers back at the runtime"):
            return asyncio.run(release(config, container, logs.set_up("warning", "console")))
    except (NotOne, NoRuntime, NoMachine) as error:
        fail_by(error)
    except RpcError as error:
        fail_by(error, f"the runtime does not answer: {error.details}")


@contextlib.contextmanager
def _owning(config: Config, command: str) -> Iterator[None]:
    """A daemon that is started meanwhile passes bytes until this is over. Ends where a daemon places already."""
    ownership = NodeLock(config, command)
    owner = ownership.take()
    if owner:
        fail(owner, "stop that one first, or let it do this")
    if ownership.problem:
        echo(f"warning: {ownership.problem}", err=True)
    try:
        yield
    finally:
        ownership.give_up()
