"""``cri-resmgr nri``: run as a plugin of the runtime's own NRI. Reads arguments, decides nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import click

from cri_proxy.cli.answers import ask_daemon, fail, json_option, show_document
from cri_proxy.cli.arguments import Commands, configured, with_first_mode
from cri_proxy.config.io import files as settings
from cri_proxy.nri.io.plugin.launched import INDEX_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE, told_config
from cri_proxy.text.terminal import table

_TITLES = ("PLUGIN", "STATE", "ORIGIN", "PID", "CALLS", "FAILED", "MEAN", "MOST", "EVENTS")
#: What a plugin that asks for everything gets.
_ALL_EVENTS = 14


@click.group(cls=Commands)
def nri() -> None:
    """NRI, the runtime's interface for plugins: be one, or see those we host."""


@nri.command()
@configured
@click.option("--socket", help="The runtime's NRI socket; nri.plugin.socket.")
@click.option("--name", hidden=True)  # an option once: it is ignored with a warning, as its key is
@click.option("--index", help="Its place among others, two digits; nri.plugin.index.")
@click.option("--runtime-socket", help="The runtime's CRI socket; relay.runtime_endpoint.")
@click.option("--control-socket", help="Socket for the command line; control.socket.")
@click.option("--state-dir", help="Where state is kept; state.directory.")
@click.option("--strict", is_flag=True, help="Exit where containers cannot be placed.")
@with_first_mode
def run(
    config_file: Optional[Path],
    fallback_config: Optional[Path],
    force_config: Optional[Path],
    strict: bool,
    first_mode: Optional[str],
    **flags: Optional[str],
) -> None:
    """Place containers as a plugin of the runtime's NRI, in the foreground; kubelet is not touched.

    It waits for the runtime where that is not there, and connects again after each of its restarts. A runtime that
    launches it as /opt/nri/plugins/10-cri-resmgr tells it its name, its place and its connection.
    """
    from cri_proxy.daemon.daemon import RunOptions, main
    from cri_proxy.nri.io.plugin.plugin import NriPlugin, PluginOptions, ToldConfig
    from cri_proxy.services.journal import log_to_journal

    log_to_journal("cri-resmgr")
    told = ToldConfig("the runtime's configuration of this plugin", told_config())
    overrides = _overrides(flags, os.environ)
    files = settings.Files(fallback_config, config_file, force_config, overrides, told.sources)
    options = PluginOptions(told, _descriptor(os.environ), os.environ.get(NAME_VARIABLE, ""))
    sys.exit(main(RunOptions(files, strict, first_mode or "", lambda parts: NriPlugin(parts, options))))


@nri.command()
@json_option
def status(as_json: bool) -> None:
    """The plugins that are hosted: order, events, time, failures; or the connection of the plugin that this is.

    MEAN and MOST are the times of answers. FAILED counts errors and silence; what was last is below.
    """
    document = ask_daemon("status").get("nri")
    if document is None:
        fail("NRI has no part in this mode of the daemon", "it has as a proxy, and with cri-resmgr nri run")
    show_document(document, as_json, nri_text)


def _overrides(flags: Mapping[str, Optional[str]], environment: Mapping[str, str]) -> dict[str, Any]:
    """What the command line sets, and before it the runtime that launches us."""
    keys = {
        "socket": "nri.plugin.socket",
        "name": "nri.plugin.name",
        "index": "nri.plugin.index",
        "runtime_socket": "relay.runtime_endpoint",
        "control_socket": "control.socket",
        "state_dir": "state.directory",
    }
    told = {"index": environment.get(INDEX_VARIABLE)}
    overrides: dict[str, Any] = {}
    for name, key in keys.items():
        value = flags.get(name) or told.get(name)
        if value:
            overrides[key] = value
    root = click.get_current_context().find_root().obj
    if root is not None:
        overrides.setdefault("control.socket", str(root))
    return overrides


def _descriptor(environment: Mapping[str, str]) -> Optional[int]:
    """The connection that the runtime has launched us with, if it has."""
    text = environment.get(SOCKET_VARIABLE, "")
    if not text:
        return None
    if not text.isdecimal():
        fail(f"{SOCKET_VARIABLE}={text} is not the number of a descriptor", "unset it to connect to a socket")
    return int(text)


def nri_text(document: Mapping[str, Any]) -> str:
    """The part ``nri`` of the daemon's status."""
    if "plugins" not in document:
        return "\n".join(f"{key}: {_plain(value)}" for key, value in document.items())
    lines = [f"host: {document['host']}" + (f" ({document['why']})" if document.get("why") else "")]
    if document.get("socket"):
        lines.append(f"socket: {document['socket']}")
    plugins = document["plugins"]
    lines += table(_TITLES, [_row(plugin) for plugin in plugins]) if plugins else ["no plugins"]
    for plugin in plugins:
        if plugin.get("last_error"):
            lines.append(f"{_title(plugin)}: last error: {plugin['last_error']}")
        if plugin.get("by_state_change"):
            lines.append(f"{_title(plugin)}: takes as StateChange: {', '.join(plugin['by_state_change'])}")
    lines += document.get("problems", [])
    return "\n".join(lines)


def _row(plugin: Mapping[str, Any]) -> tuple[str, ...]:
    if "calls" not in plugin:
        return (_title(plugin), plugin["state"], plugin["origin"], *[""] * (len(_TITLES) - 3))
    events = plugin["events"]
    return (
        _title(plugin),
        plugin["state"],
        plugin["origin"],
        str(plugin["pid"]),
        str(plugin["calls"]),
        str(sum(plugin["failures"].values())),
        f"{plugin['mean_ms']:.1f} ms",
        f"{plugin['most_ms']:.1f} ms",
        "all" if len(events) >= _ALL_EVENTS else ",".join(events),
    )


def _title(plugin: Mapping[str, Any]) -> str:
    return f"{plugin['index']}-{plugin['name']}" if plugin["index"] else str(plugin["name"])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
