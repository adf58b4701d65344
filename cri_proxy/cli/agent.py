"""``cri-resmgr agent``: starts the node's agent, a process of its own that stays small. Nothing of it is loaded here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Optional

import click

from cri_proxy.cli.answers import fail
from cri_proxy.cli.arguments import Commands, configured
from cri_proxy.cli.output import echo
from cri_proxy.config.config import BadConfig, view_socket
from cri_proxy.config.io import files as settings


@click.group(cls=Commands)
def agent() -> None:
    """Tell the cluster what is placed where, and carry out what it asks of this node."""


@agent.command(context_settings={"ignore_unknown_options": True})
@configured
@click.option("--report-only", is_flag=True, help="Carry out nothing: the control socket is not used.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(
    config_file: Optional[Path],
    fallback_config: Optional[Path],
    force_config: Optional[Path],
    report_only: bool,
    options: tuple[str, ...],
) -> None:
    """Run the agent in the foreground. OPTIONS are its own, such as --kubeconfig FILE."""
    try:
        loaded = settings.load(settings.Files(fallback_config, config_file, force_config, {}))
    except BadConfig as error:
        for sentence in error.errors:
            echo(f"cri-resmgr agent: {sentence}", err=True)
        sys.exit(1)
    view = view_socket(loaded.config)
    if view is None:
        fail(
            "control.view_socket is empty, so there is nothing to report from",
            "set it, and restart the daemon",
        )
    sockets = [f"--view-socket={view}", f"--kubelet-dir={loaded.config['kubelet.directory']}"]
    if not report_only:
        sockets.append(f"--control-socket={loaded.config['control.socket']}")
    os.execv(sys.executable, [sys.executable, "-m", "cluster.agent", *sockets, *options])
