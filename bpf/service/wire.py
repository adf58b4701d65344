"""The graph as messages of affinity.proto."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cri_api import affinity_pb2 as pb
from policies.affinity.graph.graph import EndpointIdentity, Graph, GraphEdge, OwnerEdge
from policies.affinity.graph.groups import groups_of
from policies.affinity.graph.remote import RemoteRates
from policies.affinity.graph.traffic import Key


def write_graph(graph: Graph, remote: RemoteRates, status: pb.Status, least_weight: float) -> pb.Graph:
    """The whole graph, without edges lighter than ``least_weight``."""
    edges = graph.edges
    return pb.Graph(
        version=graph.version,
        status=status,
        endpoints=_endpoints(graph, edges),
        edges=[_edge(edge) for edge in edges if edge.weight >= least_weight],
        owner_edges=[_owner_edge(edge) for edge in graph.owner_edges if edge.weight >= least_weight],
        **_remote(remote),
    )


def write_whole(graph: Graph, remote: RemoteRates, status: pb.Status) -> pb.GraphDelta:
    """Everything, for a reader that has nothing."""
    edges = graph.edges
    return pb.GraphDelta(
        version=graph.version,
        is_whole=True,
        status=status,
        endpoints=_endpoints(graph, edges),
        edges=map(_edge, edges),
        owner_edges=map(_owner_edge, graph.owner_edges),
        **_remote(remote),
    )


def write_changes(graph: Graph, remote: RemoteRates, status: pb.Status, version: int) -> pb.GraphDelta:
    """The changes since ``version``; everything, if that is too old."""
    changes = graph.changes_since(version)
    if changes is None:
        return write_whole(graph, remote, status)
    return pb.GraphDelta(
        version=graph.version,
        status=status,
        endpoints=map(_endpoint, changes.endpoints.changed),
        gone_endpoints=changes.endpoints.gone,
        edges=map(_edge, changes.edges.changed),
        gone_edges=map(_key, changes.edges.gone),
        owner_edges=map(_owner_edge, changes.owners.changed),
        gone_owner_edges=map(_key, changes.owners.gone),
        **_remote(remote),
    )


def write_groups(graph: Graph, least_weight: float) -> pb.Groups:
    """The groups of the edges of at least ``least_weight``."""
    groups = groups_of(edge for edge in graph.edges if edge.weight >= least_weight)
    return pb.Groups(
        version=graph.version,
        groups=[
            pb.Group(members=[_endpoint(graph.identity(end)) for end in group.members], weight=group.weight)
            for group in groups
        ],
    )


def _endpoints(graph: Graph, edges: Iterable[GraphEdge]) -> list[pb.Endpoint]:
    """All that are known, and those of edges that are not."""
    ends = {end for edge in edges for end in (edge.a, edge.b)} | graph.endpoints.keys()
    return [_endpoint(graph.identity(end)) for end in sorted(ends)]


def _endpoint(identity: EndpointIdentity) -> pb.Endpoint:
    return pb.Endpoint(
        id=identity.id,
        pod_uid=identity.pod_uid,
        namespace=identity.namespace,
        pod=identity.pod,
        container=identity.container,
        owner=identity.owner,
    )


def _edge(edge: GraphEdge) -> pb.Edge:
    return pb.Edge(
        a=edge.a,
        b=edge.b,
        weight=edge.weight,
        bytes_ab_per_s=edge.bytes_ab_per_s,
        bytes_ba_per_s=edge.bytes_ba_per_s,
        messages_per_s=edge.messages_per_s,
        kinds=edge.kinds,
        is_pod_level=edge.is_pod_level,
        steady_weight=edge.steady_weight,
    )


def _owner_edge(edge: OwnerEdge) -> pb.OwnerEdge:
    return pb.OwnerEdge(a=edge.a, b=edge.b, weight=edge.weight)


def _remote(remote: RemoteRates) -> dict[str, Any]:
    peers = [pb.RemotePeer(id=end, address=address, bytes_per_s=rate) for end, address, rate in remote.told]
    return {"remote_peers": peers, "remote_left_out": remote.left_out}


def _key(key: Key) -> pb.EdgeKey:
    return pb.EdgeKey(a=key[0], b=key[1])
