"""``cri-resmgr doctor``: everything an operator would check, each with a verdict and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

import click

from cri_proxy.cli.answers import json_option, print_json
from cri_proxy.cli.arguments import ANY_PATH, config_option
from cri_proxy.cli.output import echo
from cri_proxy.cli.progress import progress
from cri_proxy.doctor.checks.claims import check_claims
from cri_proxy.doctor.checks.daemon import (
    check_config,
    check_containers,
    check_daemon,
    check_state,
    check_traffic,
)
from cri_proxy.doctor.checks.isolation import check_isolation
from cri_proxy.doctor.checks.kubelet import check_kubelet
from cri_proxy.doctor.checks.machine import check_kernel, check_machine, check_virtual
from cri_proxy.doctor.checks.node import (
    check_cgroups,
    check_launch,
    check_others,
    check_runtime,
    check_units,
)
from cri_proxy.doctor.facts import Facts
from cri_proxy.doctor.findings import (
    EXAMINE_S,
    PROBLEM,
    WARNING,
    Finding,
    findings_document,
    findings_text,
    worst,
)
from cri_proxy.doctor.io.collect import examine
from cri_proxy.machine_root import machine_root

Check = Callable[[Facts], Iterable[Finding]]

#: The checks by their topics, in the order they are shown.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("configuration", check_config),
    ("daemon", check_daemon),
    ("runtime", check_runtime),
    ("kubelet", check_kubelet),
    ("machine", check_machine),
    ("machine", check_kernel),
    ("virtual machine", check_virtual),
    ("cgroups", check_cgroups),
    ("state", check_state),
    ("containers", check_containers),
    ("traffic", check_traffic),
    ("isolation", check_isolation),
    ("claims", check_claims),
    ("others", check_others),
    ("others", check_launch),
    ("units", check_units),
)
_REPORT = "report this with the output of: cri-resmgr doctor --json"


def diagnose(facts: Facts, checks: Iterable[tuple[str, Check]] = CHECKS) -> list[Finding]:
    """All findings, by topic; what could not be found out is one, too."""
    found: list[Finding] = []
    topics = []
    for topic, check in checks:
        topics.append(topic)
        try:
            found.extend(replace(one, topic=topic) for one in check(facts))
        except Exception as error:
            sentence = f"this could not be judged: {type(error).__name__}: {error}"
            found.append(Finding(topic, "doctor", WARNING, sentence, _REPORT))
    for topic, sentence in facts.failures.items():
        topics.append(topic)
        found.append(Finding(topic, "doctor", WARNING, sentence))
    return sorted(found, key=lambda finding: topics.index(finding.topic))


@click.command()
@json_option
@config_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=EXAMINE_S,
    show_default=True,
    metavar="SECONDS",
    help="What has not been found out by then hangs; more for a machine under load.",
)
@click.option(
    "--root", type=ANY_PATH, default=machine_root, hidden=True, help="The host's files are under this."
)
@click.option("--proc", type=ANY_PATH, hidden=True, help="Where processes are.")
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
        echo(findings_text(findings))
    sys.exit(1 if worst(findings) == PROBLEM else 0)
