"""``cri-resmgr doctor``: everything an operator would check, each with a verdict and what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

import click

from cri_proxy.cli.answers import json_option, print_json
from cri_proxy.cli.progress import progress
from cri_proxy.doctor.diagnose import diagnose
from cri_proxy.doctor.findings import EXAMINE_S, PROBLEM, findings_document, findings_text, worst
from cri_proxy.doctor.io.collect import examine

_path = click.Path(path_type=Path)


@click.command()
@json_option
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Our configuration, if it is not in its place.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=EXAMINE_S,
    show_default=True,
    metavar="SECONDS",
    help="What has not been found out by then hangs; more for a machine under load.",
)
@click.option("--root", type=_path, default=Path("/"), hidden=True, help="The host's files are under this.")
@click.option("--proc", type=_path, hidden=True, help="Where processes are.")
@click.option("--systemctl", default="systemctl", hidden=True, help="The command that tells of units.")
def doctor(
    as_json: bool,
    config_file: Optional[Path],
    timeout: float,
    root: Path,
    proc: Optional[Path],
    systemctl: str,
) -> None:
    """Check this node: us, the runtime, kubelet, the machine. Changes nothing. Exit code 1: there is a problem."""
    control: Optional[Path] = click.get_current_context().find_root().obj
    with progress(f"looking at the node, at most {timeout:.0f} s"):
        facts = examine(config_file, control, root, proc, systemctl, timeout)
    findings = diagnose(facts)
    if as_json:
        print_json(findings_document(findings))
    else:
        click.echo(findings_text(findings))
    sys.exit(1 if worst(findings) == PROBLEM else 0)
