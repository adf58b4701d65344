"""The graph on disk: nothing is lost over a restart, and nothing wrong is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpf.service.service import GraphFile
from bpf.sources.samples import Flow, RemoteFlow
from policies.affinity.graph.graph import EndpointIdentity, Graph
from policies.affinity.graph.remote import RemoteRates

TWO = {"a": EndpointIdentity("a", owner="shop/web/nginx"), "b": EndpointIdentity("b", owner="shop/db/pg")}


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
    file.save(graph, RemoteRates(), 100.0)
    assert file.restore(again, RemoteRates(), 130.0) == ""
    assert (again.edges, again.owner_edges) == (graph.edges, graph.owner_edges)
    assert again.observed_s == graph.observed_s


@pytest.mark.parametrize(("boot", "kept"), [("one", 1), ("two", 0)])
def test_traffic_with_other_nodes_is_kept_until_the_next_boot(
    tmp_path: Path, graph: Graph, boot: str, kept: int
) -> None:
    remote, again = RemoteRates(), RemoteRates()
    remote.observe(600, [RemoteFlow("a", "10.244.7.3", 10**9)], 66.0)
    GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "one")).save(graph, remote, 100.0)
    file = GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, boot))
    assert file.restore(Graph(), again, 130.0) == ""
    assert again.told == remote.told[:kept]


def test_a_file_of_the_version_before_has_no_traffic_with_other_nodes(tmp_path: Path, graph: Graph) -> None:
    file, again = GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "one")), Graph()
    file.save(graph, RemoteRates(), 100.0)
    document = json.loads((tmp_path / "graph.json").read_text())
    del document["remote"]
    (tmp_path / "graph.json").write_text(json.dumps(document))
    assert file.restore(again, RemoteRates(), 130.0) == ""
    assert again.edges == graph.edges


def test_what_would_have_expired_is_gone(tmp_path: Path, graph: Graph) -> None:
    file, again = GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "one")), Graph()
    file.save(graph, RemoteRates(), 100.0)
    file.restore(again, RemoteRates(), 7000.0)
    assert (again.edges, again.owner_edges) == ([], graph.owner_edges)


def test_after_a_reboot_there_are_only_owners(tmp_path: Path, graph: Graph) -> None:
    GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "one")).save(graph, RemoteRates(), 100.0)
    again = Graph()
    assert (
        GraphFile(f"{tmp_path}/graph.json", proc_of_boot(tmp_path, "two")).restore(again, RemoteRates(), 1.0)
        == ""
    )
    assert (again.edges, again.owner_edges) == ([], graph.owner_edges)


def test_without_a_path_nothing_is_kept(graph: Graph) -> None:
    file = GraphFile("")
    file.save(graph, RemoteRates(), 100.0)
    assert file.restore(Graph(), RemoteRates(), 100.0) == ""


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "graph.json").mkdir()
    assert "cannot be read: Is a directory" in GraphFile(f"{tmp_path}/graph.json").restore(
        Graph(), RemoteRates(), 1.0
    )
