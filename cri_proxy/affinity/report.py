"""Traffic as people read it: the graph as a table, groups, plans, and the line in the status; and as GraphML. Pure.

A *row* is plain data for JSON; a text is made of rows. Names of containers are ``namespace/pod/container``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cri_proxy.affinity.effect.comparison import effect_lines
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.moves import APART, NAMED, WHERE, bytes_text, where_both
from cri_proxy.text.ages import TRAFFIC, old_texts, since_text
from cri_proxy.text.terminal import duration_text, table
from policies.affinity.graph.traffic import LEAST_TRUST, Edge, Traffic

if TYPE_CHECKING:
    import networkx

#: As many edges are shown unless all are asked for.
SHOWN = 20
#: From here on it is told how full the observer's table of pairs is.
TOLD_FILL = 0.25
#: Where two containers can be, nearest first.
NEARNESS = (*(words for _, words in WHERE), APART)
#: One of them has no place that we know: it is gone, or not a container of this node.
NOT_KNOWN = "not known"
#: What most machines have not, or most graphs: left out where no edge is.
SELDOM = (NOT_KNOWN, "same cluster")

_NUMBERS = ("weight", "bytes_per_s", "messages_per_s")
_EDGE_TITLES = ("CONTAINER", "TALKS TO", "TRAFFIC", "MESSAGES/S", "SEEN ON", "WHERE")
_MOVE_TITLES = ("CONTAINER", "FROM", "TO", "GAIN", "WHY")


# ---------------------------------------------------------------------- rows


def edge_rows(engine: Engine, edges: Iterable[Edge]) -> list[dict[str, Any]]:
    """Some edges of the graph, heaviest first, with where both ends are."""
    ordered = sorted(edges, key=lambda edge: (-abs(edge.weight), edge.a, edge.b))
    return [_edge_row(engine, edge) for edge in ordered]


def _edge_row(engine: Engine, edge: Edge) -> dict[str, Any]:
    sets = [_cpus(engine, end) for end in (edge.a, edge.b)]
    return {
        "a": edge.a,
        "b": edge.b,
        "container": endpoint_name(engine, edge.a),
        "talks_to": endpoint_name(engine, edge.b),
        "weight": round(edge.weight, 1),
        "bytes_per_s": round(edge.bytes_per_s, 1),
        "messages_per_s": round(edge.messages_per_s, 1),
        "kinds": list(edge.kinds),
        "pod_level": edge.is_pod_level,
        "where": where_both(engine.host.topology, *sets) if all(sets) else NOT_KNOWN,
    }


def _cpus(engine: Engine, endpoint: str) -> frozenset[int]:
    """The CPUs of an endpoint; of a pod those of all its containers."""
    grant = engine.grants.get(endpoint)
    if grant is not None:
        return grant.cpus
    uid = endpoint.partition("pod:")[2]
    keys = engine.node.of_pod(uid) if uid else ()
    return frozenset().union(*(engine.node.residents[key].cpus for key in keys))


def endpoint_name(engine: Engine, endpoint: str) -> str:
    """``namespace/pod/container``; ``namespace/pod`` where only the pod is known; else the id's beginning."""
    grant = engine.grants.get(endpoint)
    if grant is not None:
        return grant.container.path
    uid = endpoint.partition("pod:")[2]
    for pod in engine.pods.values() if uid else ():
        if pod.uid == uid:
            return f"{pod.namespace}/{pod.name}"
    return endpoint[: 4 + 13] if uid else endpoint[:13]


def owner_rows(traffic: Traffic) -> list[dict[str, Any]]:
    """The traffic remembered between workloads, heaviest first: each pair once."""
    found = [
        {"a": a, "b": b, "weight": round(weight, 1)}
        for a, peers in traffic.owners.items()
        for b, weight in peers.items()
        if a <= b
    ]
    return sorted(found, key=lambda row: (-float(str(row["weight"])), str(row["a"]), str(row["b"])))


def nearness_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How much of the traffic crosses what: bytes a second and weight by where both ends are, nearest first."""
    listed = list(rows)
    total = sum(row["weight"] for row in listed) or 1.0
    found = []
    for where in (*NEARNESS, NOT_KNOWN):
        there = [row for row in listed if row["where"] == where]
        if there or where not in SELDOM:
            weight = sum(row["weight"] for row in there)
            bytes_per_s = sum(row["bytes_per_s"] for row in there)
            found.append(
                {"where": where, "bytes_per_s": bytes_per_s, "weight": weight, "share": weight / total}
            )
    return found


# ---------------------------------------------------------------------- the graph as text


def affinity_text(document: Mapping[str, Any], show_all: bool = False, groups: bool = False) -> str:
    """``cri-resmgr affinity``: the observer, then the graph or its groups."""
    lines = observer_lines(document["observer"])
    edges = document["edges"]
    remembered = f"{len(document['owner_edges'])} between workloads remembered"
    lines.append(f"graph      {_count(len(edges), 'edge')} between containers, {remembered}")
    lines += [f"           old: {text}" for text in old_texts(document)]
    lines += [f"           {_nearness_text(row)}" for row in document["nearness"] if row["weight"]]
    if effect := document.get("effect"):
        told = [effect["how"], *effect_lines(effect["last"])]
        lines += [f"{'effect' if line is told[0] else '':<11}{line}" for line in told]
    old = (document.get("old") or {}).get(TRAFFIC)
    lines += ["", *([f"{since_text(old)}:"] if old else [])]
    if groups:
        return "\n".join([*lines, *_group_lines(document["groups"])])
    shown = edges if show_all else edges[:SHOWN]
    lines += _edge_table(shown) if shown else ["no traffic between containers is known"]
    if len(edges) > len(shown):
        lines.append(f"... and {len(edges) - len(shown)} lighter ones (--all)")
    if show_all and document["owner_edges"]:
        lines += ["", "remembered between workloads (cache lines a second, all replicas together):"]
        lines += [f"  {row['weight']:>12,.0f}  {row['a']} - {row['b']}" for row in document["owner_edges"]]
    return "\n".join(lines)


def observer_lines(observer: Mapping[str, Any]) -> list[str]:
    """The source of the traffic, how well it sees, and why not better."""
    if observer.get("problem"):
        return [f"observer   {observer['problem']}"]
    lines = [f"observer   {_provider_text(observer)}"]
    lines += [f"           not used: {sentence}" for sentence in _refused(observer)]
    counters = {name: value for name, value in sorted(observer.get("counters", {}).items()) if value}
    if counters:
        lines.append(f"           {', '.join(f'{name} {value:,}' for name, value in counters.items())}")
    if unattributed := observer.get("counters", {}).get("udp_unattributed_bytes"):
        told = f"{unattributed / 1e6:,.1f} MB of UDP, to other machines or to receivers that were not found"
        lines.append(f"           not attributed: {told}")
    if unattributed := observer.get("counters", {}).get("unix_unattributed_messages"):
        told = f"{unattributed:,} messages over unix sockets, to receivers that were not found"
        lines.append(f"           not attributed: {told}")
    if trust := observer.get("trust"):
        told = ", ".join(f"{end[:12]} {part:.0%}" for end, part in sorted(trust.items()))
        lines.append(
            f"           partly seen, as tables were full: {told}; below {LEAST_TRUST:.0%} containers are not moved"
        )
    return lines


def _provider_text(observer: Mapping[str, Any]) -> str:
    text = observer.get("provider") or "not known yet"
    if observer.get("detail"):
        text += f": {observer['detail']}"
    if observer.get("age_s") is not None:
        text += f"; last sample {observer['age_s']:.0f} s ago"
    if observer.get("pairs_fill", 0.0) >= TOLD_FILL:
        text += f"; its table of pairs {observer['pairs_fill']:.0%} full, a sample every {observer['next_sample_s']:g} s"
    if lost := observer.get("counters", {}).get("dropped"):
        text += f"; {lost:,} times there was no room to count"
    if observer.get("resident_bytes"):
        text += f"; {observer['resident_bytes'] / 1e6:.1f} MB resident"
    return text


def _refused(observer: Mapping[str, Any]) -> list[str]:
    """Why providers that see more are not used, eBPF first: ``NAME: REASON``."""
    refused = [str(sentence) for sentence in observer.get("refused", ())]
    if not refused and observer.get("provider") in ("sock_diag", "declared"):
        return [f"ebpf: affinity.provider is {observer['provider']}"]
    return refused


def _nearness_text(row: Mapping[str, Any]) -> str:
    return (
        f"{row['where']:<{max(map(len, NEARNESS))}}  {row['share']:>4.0%}  {bytes_text(row['bytes_per_s'])}"
    )


def _edge_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = [
        (
            row["container"],
            row["talks_to"],
            bytes_text(row["bytes_per_s"]),
            f"{row['messages_per_s']:,.0f}",
            "+".join(row["kinds"]) + (" (pod)" if row["pod_level"] else "") or "-",
            row["where"],
        )
        for row in rows
    ]
    return table(_EDGE_TITLES, lines, right=(2, 3))


def _group_lines(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    if not groups:
        return ["no group of containers is known: no edge matters to both of its ends"]
    lines = []
    for number, group in enumerate(groups, 1):
        lines.append(f"group {number}: {_count(len(group['members']), 'container')}")
        lines += [f"  {name}" for name in group["members"]]
    return lines


# ---------------------------------------------------------------------- plans


def rebalance_text(document: Mapping[str, Any]) -> str:
    """``cri-resmgr rebalance``: the decision and why, the moves, and their outcome."""
    moves = document["moves"]
    lines = [document["why"] or "no moves"]
    lines += [f"note: {sentence}" for sentence in document.get("notes", ())]
    if moves:
        lines += ["", *_move_table(moves), ""]
    if document.get("dry_run"):
        lines.append("nothing was moved (--dry-run)" if moves else "nothing to move")
        return "\n".join(lines)
    lines.append(f"{document['moved']} of {_count(len({m['id'] for m in moves}), 'container')} moved")
    for row in document.get("failed", ()):
        lines.append(f"NOT DONE: {row['container']}: {row['error']}")
    return "\n".join(lines)


def _move_table(moves: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = [(m["container"], m["from"], m["to"], gain_text(m["gain"]), m["why"]) for m in moves]
    return table(_MOVE_TITLES, lines, right=(3,))


def move_text(row: Mapping[str, Any]) -> str:
    """A move that was made, for ``explain`` of the container that moved or of a peer."""
    when = f"{duration_text(row['age_s'])} ago (#{row['number']})"
    if row["is_own"]:
        sides = (
            ("nearer to", row["nearer"]),
            ("farther from", row["farther"]),
            ("in exchange with", row["exchanged"]),
        )
        told = ", ".join(f"{words} {_names(names)}" for words, names in sides if names)
        text = f"moved {when} {told}"
    else:
        text = f"{row['moved']} {'came nearer' if row['nearer'] else 'went farther away'} {when}"
    gain = f", to save {gain_text(row['gain'])}" if row["gain"] else ""
    outcome = f" -> {row['outcome']}" if row["outcome"] else ""
    return f"{text}{gain}; plan: {row['plan']}{outcome}"


def would_move_text(row: Mapping[str, Any]) -> str:
    """A move that is not made, and the reason."""
    gains = row["gain"] > 0
    beside = f" beside {_names(row['beside'])}" if row["beside"] else ", nearer to its peers" if gains else ""
    left = "" if row["left_s"] is None else f" ({duration_text(row['left_s'])} left)"
    saving = f", which saves {gain_text(row['gain'])}" if gains else ""
    return f"would move to {row['to']}{beside}{saving}; waits {row['waits']}{left}"


def _names(names: Sequence[str]) -> str:
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def gain_text(cpu_seconds_per_s: float) -> str:
    """CPU time saved, as a part of one CPU."""
    return f"{cpu_seconds_per_s * 1000:.1f} mCPU"


# ---------------------------------------------------------------------- the status


def status_lines(affinity: Mapping[str, Any]) -> list[str]:
    """The affinity lines of ``cri-resmgr status``."""
    if not affinity:
        return []
    if not affinity["enabled"]:
        return ["  affinity   off (affinity.enabled)"]
    observer = affinity["observer"]
    problem = observer.get("problem")
    head = problem or f"seen by {_provider_text(observer)}"
    moving = "nothing moves by itself" if problem else affinity["rebalance"]
    lines = [
        f"  affinity   {head}",
        *(f"             not used: {sentence}" for sentence in _refused(observer)[:1] if not problem),
        f"             {_count(affinity['edges'], 'edge')}, {moving}",
    ]
    if affinity["guard"]:
        lines.append(f"             {affinity['guard']}")
    if affinity["guard"] and (effect := affinity.get("effect")):
        lines.append(f"             {effect['how']}")
    last = affinity["last_plan"]
    if last is not None:
        lines.append(f"             {_last_plan_text(last)}")
    lines += [f"             waits {sentence}" for sentence in affinity["waits_for"]]
    return lines


def _last_plan_text(last: Mapping[str, Any]) -> str:
    parts = [
        f"last plan {last['age_s']:.0f} s ago: {last['moved']} of {_count(last['moves'], 'container')} moved"
    ]
    if last["taken_back"]:
        parts.append(f"{last['taken_back']} taken back")
    return "; ".join([*parts, last["why"]])


# ---------------------------------------------------------------------- tables


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------- GraphML, for programs that draw and analyse graphs


def graph_of(document: Mapping[str, Any]) -> networkx.Graph[str]:
    """The document of ``affinity --json`` as an undirected graph: nodes by id, with ``label`` and ``group``.

    ``group``: the number of the group a container belongs to, from 1, heaviest first; 0 = none. Edges have
    ``weight`` (cache lines a second), ``bytes_per_s``, ``messages_per_s``, ``kinds`` and ``where``.
    """
    import networkx  # by the command that writes it only: it takes 20 MB

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


def graphml_text(document: Mapping[str, Any]) -> str:
    """The same as GraphML text."""
    import networkx

    return "\n".join(networkx.generate_graphml(graph_of(document)))
