"""What the affinity demo is played with: three applications, their traffic, and the picture of where each is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology

#: Calls for each page that is asked for. Social network: DeathStarBench's sources (60 % home, 30 % user timelines, 10 %
#: posts); tea store: TeaStore's emulation in muBench; the rates below them are made up.
CALLS: Mapping[str, tuple[tuple[str, str, float], ...]] = {
    "social": (
        ("nginx", "home-timeline", 0.6),
        ("home-timeline", "home-redis", 0.7),
        ("home-timeline", "post-storage", 0.6),
        ("nginx", "user-timeline", 0.3),
        ("user-timeline", "user-redis", 0.4),
        ("user-timeline", "post-storage", 0.3),
        ("post-storage", "post-memcached", 0.9),
        ("post-storage", "post-mongo", 0.15),
        ("nginx", "compose-post", 0.1),
        ("compose-post", "text", 0.1),
        ("compose-post", "media", 0.1),
        ("compose-post", "unique-id", 0.1),
        ("home-timeline", "social-graph", 0.1),
    ),
    "tea": (
        ("webui", "persistence", 0.8),
        ("webui", "image", 0.55),
        ("webui", "auth", 0.4),
        ("webui", "recommender", 0.1),
        ("auth", "persistence", 0.1),
        ("persistence", "db", 0.9),
    ),
}
QUIET = ("batch-1", "batch-2", "batch-3", "batch-4")
#: All ask it for names, a little.
HUB = "coredns"
PAGES_PER_S, BYTES_PER_CALL, MESSAGES_PER_CALL = 8000, 12_000, 4
HUB_BYTES_PER_S = 4000

_COLOURS = {"social": "36", "tea": "33", "batch": "90", "kube-system": "35"}
_CELL = 41


@dataclass(frozen=True)
class Service:
    """One pod with one container."""

    namespace: str
    name: str
    replica: int = 0

    @property
    def pod(self) -> str:
        """As a Deployment would name it."""
        return f"{self.name}-{self.hash}-{'x7k2m' if not self.replica else 'q9w4z'}"

    @property
    def hash(self) -> str:
        return "7d4b9c6f5"

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.pod}/app"

    @property
    def label(self) -> str:
        return self.name + (f" #{self.replica + 1}" if self.replica else "")


def services() -> list[Service]:
    """All of them, in the order in which they come: mixed, as on a node on which several teams deploy."""
    names = {
        app: list(dict.fromkeys(end for a, b, _ in calls for end in (a, b))) for app, calls in CALLS.items()
    }
    found = [Service("kube-system", HUB)]
    while any(names.values()):
        found += [Service(app, left.pop(0)) for app, left in names.items() if left]
    return [*found, *(Service("batch", name) for name in QUIET)]


def flows() -> list[dict[str, Any]]:
    """How much each sends to each other, a second."""
    found = []
    for app, calls in CALLS.items():
        for a, b, share in calls:
            sent = share * PAGES_PER_S * BYTES_PER_CALL
            ends = {"a": Service(app, a).path, "b": Service(app, b).path}
            messages = share * PAGES_PER_S * MESSAGES_PER_CALL
            found.append({**ends, "bytes_ab": sent * 0.2, "bytes_ba": sent * 0.8, "messages": messages})
    hub = Service("kube-system", HUB)
    for service in services():
        if service != hub:
            found.append({"a": hub.path, "b": service.path, "kind": "udp",
                          "bytes_ab": HUB_BYTES_PER_S, "bytes_ba": HUB_BYTES_PER_S, "messages": 20})  # fmt: skip
    return found


# ---------------------------------------------------------------------- the picture


def picture(topology: Topology, moments: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Which CCX holds what, at several moments side by side; a square is a CPU that is asked for."""
    cells = {title: _cells(topology, rows) for title, rows in moments.items()}
    lines = ["  ".join([" " * 15, *(f"{title:<{_CELL}}" for title in cells)]).rstrip()]
    seen: set[str] = set()
    for index, leaf in enumerate(topology.leaves):
        columns = [cell[index] for cell in cells.values()]
        node = f"NUMA {topology.node_of(min(leaf.cpus))}"
        socket = f"socket {leaf.socket}"
        if socket not in seen:
            lines.append(f"{socket} {'─' * (16 + (_CELL + 2) * len(cells) - len(socket) - 1)}")
        for row in range(max(map(len, columns))):
            head = (
                f"  {'' if node in seen else node:<6} {leaf.name.replace('L3', 'CCX') if not row else '':<6}"
            )
            texts = [column[row] if row < len(column) else "" for column in columns]
            lines.append("  ".join([head, *(f"{text:<{_CELL}}" for text in texts)]).rstrip())
            seen.add(node)
        seen.add(socket)
    return coloured("\n".join(lines))


def _cells(topology: Topology, rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """For every leaf its lines of text: how full it is, and what is there."""
    listed = list(rows)
    cells = []
    for leaf in topology.leaves:
        here = [row for row in listed if parse_cpus(row["cpus"]) <= leaf.cpus]
        asked = round(sum(row["cpu_request_milli"] for row in here) / 1000)
        bar = "■" * asked + "·" * (len(leaf.cpus) - asked)
        cells.append(_wrapped(bar, sorted(str(row["pod"]) for row in here)))
    return cells


def _wrapped(bar: str, labels: list[str]) -> list[str]:
    lines = [bar]
    for number, label in enumerate(labels):
        piece = label + ("," if number < len(labels) - 1 else "")
        if len(lines[-1]) + 1 + len(piece) > _CELL:
            lines.append(" " * len(bar))
        lines[-1] += " " + piece
    return lines


def coloured(text: str) -> str:
    """Every service in the colour of its application, on a terminal; plain text else."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    colours = {service.name: _COLOURS[service.namespace] for service in services()}
    names = "|".join(sorted(map(re.escape, colours), key=len, reverse=True))
    return re.sub(
        rf"(?<![\w/-])({names})( #2)?(?![\w-])", lambda m: f"\033[{colours[m[1]]}m{m[0]}\033[0m", text
    )


def heading(text: str) -> str:
    """A line that begins a part of the story."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text
