"""What ``nri status`` prints: the plugins we host, or the connection of the plugin we are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cri_proxy.text.terminal import table

_TITLES = ("PLUGIN", "STATE", "ORIGIN", "PID", "CALLS", "FAILED", "MEAN", "MOST", "EVENTS")
#: What a plugin that asks for everything gets.
_ALL_EVENTS = 14


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
