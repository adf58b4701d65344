"""The graph for other programs."""

from __future__ import annotations

import io
from typing import Any

import networkx

from cri_proxy.affinity.graphml import graphml


def _edge(a: str, b: str, weight: float) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "container": f"shop/{a}/app",
        "talks_to": f"shop/{b}/app",
        "weight": weight,
        "bytes_per_s": weight * 64,
        "messages_per_s": 3,
        "kinds": ["tcp", "unix"],
        "pod_level": False,
        "where": "same L3",
    }


def test_what_is_written_is_read_back_with_names_weights_and_groups() -> None:
    document = {
        "edges": [_edge("web", "db", 5e6), _edge("web", "cache", 10.0)],
        "groups": [{"members": ["shop/db/app", "shop/web/app"], "ids": ["db", "web"], "weight": 5e6}],
    }
    graph = networkx.read_graphml(io.BytesIO(graphml(document).encode()))
    assert {node: data["group"] for node, data in graph.nodes(data=True)} == {"web": 1, "db": 1, "cache": 0}
    assert graph.nodes["db"]["label"] == "shop/db/app"
    assert graph.edges["web", "db"] == {
        "weight": 5e6, "bytes_per_s": 3.2e8, "messages_per_s": 3.0, "kinds": "tcp,unix", "where": "same L3"
    }  # fmt: skip


def test_no_traffic_is_an_empty_graph() -> None:
    assert len(networkx.read_graphml(io.BytesIO(graphml({"edges": [], "groups": []}).encode()))) == 0
