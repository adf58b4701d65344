"""What the cluster asks of this node, on the command line: to see it, to take it off, to ask it by hand."""

from __future__ import annotations

from typing import Any, Optional

import click

from cri_proxy.cli.answers import ask_daemon, json_option, show_document
from cri_proxy.cli.cluster_text import freeze_text, overrides_text, policy_text


@click.command("freeze")
@click.argument("state", required=False, type=click.Choice(["on", "off"]))
@json_option
def freeze(state: Optional[str], as_json: bool) -> None:
    """Move no container that runs, until `off`; over restarts. New ones are placed. Without STATE: how it is.

    The CPUs of a container still follow those that others own: its home stays.
    """
    arguments = {} if state is None else {"on": state == "on"}
    show_document(ask_daemon("freeze", arguments), as_json, freeze_text)


@click.command("overrides")
@click.argument("overrides", nargs=-1, metavar="[NAMESPACE/POD/CONTAINER=ZONE]...")
@click.option("--clear", is_flag=True, help="Take all of them off.")
@json_option
def overrides(overrides: tuple[str, ...], clear: bool, as_json: bool) -> None:
    """Pin containers to zones (node-3, l3-5, socket-0), in the place of all overrides so far; or show them.

    POD may end in *. A container that runs is moved, one that is created is placed there, if it fits.
    """
    if clear and overrides:
        raise click.UsageError("--clear goes with no override")
    asked = {"overrides": [_override(text) for text in overrides]} if clear or overrides else {}
    show_document(ask_daemon("overrides", asked), as_json, overrides_text)


def _override(text: str) -> dict[str, str]:
    path, equals, zone = text.partition("=")
    names = path.split("/")
    if not equals or len(names) != 3 or not all(names) or not zone:
        raise click.UsageError(f"{text!r} is no override, expected NAMESPACE/POD/CONTAINER=ZONE")
    return {"namespace": names[0], "pod": names[1], "container": names[2], "zone": zone}


@click.command("cluster-policy")
@click.option("--clear", is_flag=True, help="Take it off, and let no other in until --accept.")
@click.option(
    "--accept", is_flag=True, help="Let policies in again, and the one that was handed over meanwhile."
)
@json_option
def cluster_policy(clear: bool, accept: bool, as_json: bool) -> None:
    """Show the policy that the cluster has handed to this node; or take it off."""
    if clear and accept:
        raise click.UsageError("--clear goes without --accept")
    if clear or accept:
        ask_daemon("cluster-policy", {"name": None, "held_off": clear})
    document: dict[str, Any] = ask_daemon("cluster-policy")
    show_document(document, as_json, policy_text)
