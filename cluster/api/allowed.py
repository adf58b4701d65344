"""The options that a policy of the cluster may set: an allow-list, made of the daemon's own table of options. Pure.

Options that are gone are in it, and take any value: a policy of an earlier version stays good. The daemon ignores them.

Paths, sockets, endpoints, plugin folders, TLS, log and metrics are not in it: each of them would be root on every node
at once. The server keeps unknown keys (or a writer would never learn of them), so operator and agent ask here,
and the daemon asks its own table again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.api.schema import KEEPS_UNKNOWN, faults, nearest, shown, shown_key

try:
    # Made when a package is built.
    from cluster.api.allowed_options import OPTIONS as _OPTIONS  # type: ignore[import-not-found]
except ModuleNotFoundError:
    from cluster.api.io.source_tree import read_options

    _OPTIONS = read_options()
OPTIONS: Mapping[str, Mapping[str, Any]] = _OPTIONS

#: Sections that come first in a schema, each with its contents in words.
_SECTIONS = {
    "relay": "What the daemon does with the containers that it is told of.",
    "policy": "The placement policy, and the CPUs it has.",
    "policy.ReservedResources": "CPUs kept for the system.",
    "policy.AvailableResources": "CPUs that containers may be placed on.",
    "policy.balloons": "Options of the policy balloons.",
    "placement": "How containers are placed.",
    "demand": "How cpusets are sized by what containers use (placement.size).",
    "control": "Classes of caches and bandwidth.",
    "isolation": "What keeps batch containers from disturbing protected ones in an L3.",
    "affinity": "How much traffic between containers counts, and what may be moved for it.",
}
#: More sentences than a reader needs at once.
MAX_SENTENCES = 20


class NotAllowed(Exception):
    """A configuration that no policy of the cluster may have. The message is one sentence that names the key."""


def check(config: Any) -> None:
    """Let a policy's configuration pass, nested as in the daemon's YAML file.

    :raises NotAllowed: a key is not in the allow-list, or a value is not what its option takes; the first of them.
    """
    first = next(_refusals(config), None)
    if first is not None:
        raise NotAllowed(first)


def refused(config: Any) -> list[str]:
    """A sentence for each key that would be refused, the first ``MAX_SENTENCES`` of them; [] = the policy may be."""
    return [sentence for sentence, _ in zip(_refusals(config), range(MAX_SENTENCES))]


def _refusals(config: Any) -> Iterator[str]:
    if not isinstance(config, dict):
        yield f"config is {shown(config)}, expected a mapping of sections such as placement"
        return
    yield from _refusals_in(config, "")


def _refusals_in(section: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, value in section.items():
        key = f"{prefix}{name}"
        option = OPTIONS.get(key) if "." not in str(name) else None
        if option is not None:
            yield from faults(value, option, key)
        elif key in _SECTIONS and "." not in str(name):
            if isinstance(value, dict):
                yield from _refusals_in(value, f"{key}.")
            else:
                yield f"{key} is {shown(value)}, expected a mapping of options"
        else:
            yield _not_in_the_list(prefix, name, value)


def _not_in_the_list(prefix: str, name: Any, value: Any) -> str:
    """The sentence for a key that is no section and no option; of an unknown section its first option is named."""
    key = f"{prefix}{shown_key(name)}"
    if not prefix and isinstance(value, dict) and value:
        key = f"{key}.{shown_key(next(iter(value)))}"
    return f"{key} is not among the options that a policy of the cluster may set{nearest(key, OPTIONS)}"


def schema(options: Mapping[str, Mapping[str, Any]] = OPTIONS) -> dict[str, Any]:
    """The allow-list as the schema of ``PlacementPolicy.spec.config``.

    Objects keep unknown keys, so that the condition that refuses a key can name it.
    """
    root = _section(
        "What nodes are configured to do: options of docs/configuration.md, nested as in the daemon's file."
    )
    for key, option in options.items():
        where, path = root, ""
        *sections, name = key.split(".")
        for section in sections:
            path = f"{path}.{section}" if path else section
            where = where["properties"].setdefault(section, _section(_SECTIONS[path]))
        where["properties"][name] = dict(option)
    return root


def _section(description: str) -> dict[str, Any]:
    return {"type": "object", "description": description, KEEPS_UNKNOWN: True, "properties": {}}
