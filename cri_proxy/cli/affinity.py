"""The commands about traffic between containers: ``affinity`` and ``rebalance``. Decide nothing."""

from __future__ import annotations

import sys
from typing import Any, Optional

import click

from cri_proxy.affinity.report import affinity_text, graphml_text, rebalance_text
from cri_proxy.cli.answers import ask_daemon, json_option, show_document, waiting_updates
from cri_proxy.cli.output import echo
from cri_proxy.cli.progress import progress

#: A plan may take 30 s, and the runtime's updates as long again.
REBALANCE_ANSWER_S = 90.0


@click.command()
@click.option("--groups", is_flag=True, help="Show the groups of containers that belong together instead.")
@click.option("--all", "everything", is_flag=True, help="All edges, and what is remembered of workloads.")
@click.option("--graphml", is_flag=True, help="Print the graph as GraphML, for Gephi and others.")
@json_option
def affinity(groups: bool, everything: bool, graphml: bool, as_json: bool) -> None:
    """Which containers talk to each other, how much, and how near they are.

    First what sees the traffic (and why not something better), and how much of it stays inside one L3, one NUMA
    node, one socket. Then the heaviest edges: what bytes and messages weigh together, `explain --verbose` has.
    """
    document = ask_daemon("affinity")
    if graphml:
        echo(graphml_text(document))
        return
    show_document(document, as_json, lambda d: affinity_text(d, everything, groups))


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the plan, move nothing.")
@click.option("--freeze/--unfreeze", "frozen", default=None,
              help="As `freeze on` and `freeze off`.")  # fmt: skip
@json_option
def rebalance(dry_run: bool, frozen: Optional[bool], as_json: bool) -> None:
    """Plan now which containers should run nearer to each other, and move them.

    All moves of the plan are made at once: affinity.moves_per_minute limits only what happens by itself. A plan
    that saves too little (affinity.hysteresis), or less than its moves cost, is not made here either; young and
    exclusive containers stay. Waits until the runtime has taken every move; what it refuses is taken back.
    """
    if frozen is not None:
        if dry_run:
            raise click.UsageError("--dry-run goes with no other action")
        show_document(ask_daemon("freeze", {"on": frozen}), as_json, lambda d: str(d["rebalance"]))
        return
    with progress("making a plan" if dry_run else "making a plan and its moves", waiting_updates()):
        document: dict[str, Any] = ask_daemon("rebalance", {"dry_run": dry_run}, REBALANCE_ANSWER_S)
    show_document(document, as_json, rebalance_text)
    if document["failed"]:
        sys.exit(1)
