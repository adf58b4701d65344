"""The graph of traffic between containers as GraphML, for programs that draw and analyse graphs (Gephi, yEd, networkx).

Imported by the command that writes it only: networkx takes 20 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx

_NUMBERS = ("weight", "bytes_per_s", "messages_per_s")


def graph_of(document: Mapping[str, Any]) -> networkx.Graph[str]:
    """The document of ``affinity --json`` as an undirected graph: nodes by id, with ``label`` and ``group``.

    ``group``: the number of the group a container belongs to, from 1, heaviest first; 0 = none. Edges have
    ``weight`` (cache lines a second), ``bytes_per_s``, ``messages_per_s``, ``kinds`` and ``where``.
    """
    graph: networkx.Graph[str] = networkx.Graph()
    group_of = {
        member: number for number, group in enumerate(document["groups"], 1) for member in group["ids"]
    }
    for row in document["edges"]:
        for end, name in ((row["a"], row["container"]), (row["b"], row["talks_to"])):
            graph.add_node(end, label=name, group=group_of.get(end, 0))
        numbers = {key: float(row[key]) for key in _NUMBERS}
        graph.add_edge(row["a"], row["b"], **numbers, kinds=",".join(row["kinds"]), where=row["where"])
    return graph


def graphml(document: Mapping[str, Any]) -> str:
    """The same as GraphML text."""
    return "\n".join(networkx.generate_graphml(graph_of(document)))
