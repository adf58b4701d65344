"""The graph on disk: nothing is lost over a restart, and nothing wrong is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.graph_file import GraphFile
from bpf.samples import Flow
from policies.affinity.graph import Graph, Identity

TWO = {"a": Identity("a", owner="shop/web/nginx"), "b": Identity("b", owner="shop/db/pg")}


def proc_of_boot(folder: Path, boot: str) -> str:
    path = folder / boot / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(boot)
    return str(folder / boot)


@pytest.fixture
def graph() -> Graph:
    graph = Graph()
    graph.observe(600, [Flow("a", "b", bytes_ab=10**9)], TWO)
    return graph


def test_a_restart_forgets_nothing(tmp_path: Path, graph: Graph) -> None:
    file, again = GraphFile(f"{tmp_path}/state/graph.json", proc_of_boot(tmp_path, "one")), Graph()
    file.save(graph, 100.0)
    assert file.restore(again, 130.0) == ""
    assert (again.edges, again.owner_edges) == (graph.edges, graph.owner_edges)
    assert again.observed_s == graph.observed_s


def test_what_would_have_expired_is_gone(tmp_path: Path, graph: Graph) -> None:
    file, again = GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "one")), Graph()
    file.save(graph, 100.0)
    file.restore(again, 5000.0)
    assert (again.edges, again.owner_edges) == ([], graph.owner_edges)


def test_after_a_reboot_there_are_only_owners(tmp_path: Path, graph: Graph) -> None:
    GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "one")).save(graph, 100.0)
    again = Graph()
    assert GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "two")).restore(again, 1.0) == ""
    assert (again.edges, again.owner_edges) == ([], graph.owner_edges)


def test_without_a_path_nothing_is_kept(graph: Graph) -> None:
    file = GraphFile("")
    file.save(graph, 100.0)
    assert file.restore(Graph(), 100.0) == ""


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "graph.json").mkdir()
    assert "cannot be read: Is a directory" in GraphFile(f"{tmp_path}/graph.json").restore(Graph(), 1.0)
