"""Problems for the planner in a few words, and random ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Optional, Union

from policies.affinity.planner.instance import Instance
from policies.affinity.planner.problem import (
    CandidateDomain,
    Leaf,
    PlanSettings,
    Problem,
    Proposal,
    Tree,
    Vertex,
)

#: Moves cost nothing, and any gain is enough.
FREE = PlanSettings(hysteresis=0.0, kappa=0.0, least_gain=0.0, horizon_s=1e12, work=4_000)
#: As shipped, with less work: these problems are small.
SHIPPED = PlanSettings(work=4_000)
GIB = 1 << 30


def machine(sockets: int = 2, nodes: int = 2, l3s: int = 2, cpus: int = 8) -> Tree:
    """Sites: the L3s first (site i = L3 i), then the NUMA nodes, then the sockets."""
    leaves = tuple(
        Leaf(f"L3 {i}", cpus * 1000, i // l3s, i // (l3s * nodes)) for i in range(sockets * nodes * l3s)
    )
    sites = [CandidateDomain("ccx", leaf.name, (i,)) for i, leaf in enumerate(leaves)]
    for node in range(sockets * nodes if l3s > 1 else 0):
        sites.append(CandidateDomain("numa", f"NUMA node {node}", tuple(range(node * l3s, (node + 1) * l3s))))
    for socket in range(sockets if nodes > 1 else 0):
        each = l3s * nodes
        sites.append(
            CandidateDomain("socket", f"socket {socket}", tuple(range(socket * each, (socket + 1) * each)))
        )

    def distance(a: int, b: int) -> float:
        if a == b:
            return 0.0
        if leaves[a].node == leaves[b].node:
            return 84.0
        return 125.0 if leaves[a].socket == leaves[b].socket else 174.0

    count = range(len(leaves))
    return Tree(leaves, tuple(sites), tuple(tuple(distance(a, b) for b in count) for a in count))


def sites_of(tree: Tree, level: str) -> tuple[int, ...]:
    return tuple(index for index, site in enumerate(tree.sites) if site.level == level)


def vertex(
    tree: Tree,
    key: str,
    at: int,
    cpus: float = 1,
    *,
    fixed: bool = False,
    memory_gib: float = 0,
    fills: float = 0,
) -> Vertex:
    """A container that may be at any site of the level of its present one (nowhere: of L3s). ``fills``: million lines a
    second."""
    level = tree.sites[at].level if at >= 0 else "ccx"
    sites = (at,) if fixed else sites_of(tree, level)
    return Vertex(key, round(cpus * 1000), at, sites, int(memory_gib * GIB), fills=round(fills * 1e6))


def problem(
    tree: Tree,
    vertices: Iterable[Vertex],
    edges: Mapping[tuple[str, str], float],
    settings: PlanSettings = SHIPPED,
) -> Problem:
    """``edges`` by names, in million lines a second."""
    listed = tuple(vertices)
    number = {each.key: index for index, each in enumerate(listed)}
    return Problem(
        tree,
        listed,
        tuple((number[a], number[b], weight * 1e6) for (a, b), weight in edges.items()),
        settings,
    )


def after(asked: Problem, answer: Proposal, count: Optional[int] = None) -> dict[str, int]:
    """Where everybody is after the first ``count`` moves (None: all); each must begin where the container is."""
    at = {each.key: each.at for each in asked.vertices}
    for move in answer.moves[:count]:
        assert at[move.key] == move.source, f"{move} begins where the container is not: {at[move.key]}"
        at[move.key] = move.target
    return at


def loads(asked: Problem, at: Mapping[str, int]) -> list[int]:
    """Micro-CPUs by leaf."""
    instance = Instance(asked)
    result = [0] * len(asked.tree.leaves)
    for index, each in enumerate(asked.vertices):
        if at[each.key] >= 0:
            for leaf, part in instance.parts(instance.sizes[index], at[each.key]):
                result[leaf] += part
    return result


def cost(asked: Problem, at: Mapping[str, int]) -> float:
    return Instance(asked).cost([at[each.key] for each in asked.vertices])


def random_problem(seed: int, settings: PlanSettings = SHIPPED, full: float = 0.8) -> Problem:
    """Some containers of all levels, some fixed, some with memory; edges of both signs. No leaf is overfull."""
    random = Random(seed)
    tree = machine(random.choice((1, 2)), random.choice((1, 2)), random.choice((1, 2, 3)), 8)
    number = random.randrange(2, 30)
    load: list[Union[int, float]] = [0] * len(tree.leaves)
    vertices = []
    for index in range(number):
        at = random.choice(sites_of(tree, random.choice(("ccx", "ccx", "ccx", "numa"))) or (0,))
        cpus = random.choice((0, 0.1, 0.5, 1, 2, 3)) * (2 if len(tree.sites[at].leaves) > 1 else 1)
        each = cpus * 1000 / len(tree.sites[at].leaves)
        if any(load[leaf] + each > full * 8000 for leaf in tree.sites[at].leaves):
            continue
        for leaf in tree.sites[at].leaves:
            load[leaf] += each
        fixed, memory = random.random() < 0.1, random.choice((0, 0, 1, 20))
        vertices.append(vertex(tree, f"c{index}", at, cpus, fixed=fixed, memory_gib=memory))
    pairs = [(a.key, b.key) for i, a in enumerate(vertices) for b in vertices[:i]]
    chosen = random.sample(pairs, min(len(pairs), 2 * len(vertices)))
    weights = {pair: random.lognormvariate(0, 1.5) * random.choice((1, 1, 1, 1, -1)) for pair in chosen}
    return problem(tree, vertices, weights, settings)


def crowded(asked: Problem, seed: int, repel_ns: float = 84.0) -> Problem:
    """The same problem with containers that fetch past their L3s, many of them more than half of what saturates one."""
    random = Random(seed)
    vertices = [
        replace(each, fills=random.choice((0, 0, 5_000_001, 40_000_000, 70_000_000, 130_000_003)))
        for each in asked.vertices
    ]
    return replace(asked, vertices=tuple(vertices), settings=replace(asked.settings, repel_ns=repel_ns))


def with_memory(asked: Problem, seed: int) -> Problem:
    """The same problem with containers of up to 8 GiB, and little of it free in some NUMA nodes."""
    random = Random(f"memory {seed}")
    vertices = [replace(each, memory_bytes=random.choice((0, 1, 4, 8)) * GIB) for each in asked.vertices]
    free = {leaf.node: random.choice((0, 1, 5, 8, 16)) * GIB for leaf in asked.tree.leaves}
    return replace(asked, vertices=tuple(vertices), tree=replace(asked.tree, free_bytes=free))


def memory_left(asked: Problem, at: Mapping[str, int]) -> dict[int, int]:
    """Free bytes by NUMA node when memory has followed its containers, each of which is in one node."""
    tree, left = asked.tree, dict(asked.tree.free_bytes)
    for each in asked.vertices:
        for site, sign in ((each.at, 1), (at[each.key], -1)) if left else ():
            [node] = {tree.leaves[leaf].node for leaf in tree.sites[site].leaves}
            left[node] += sign * each.memory_bytes
    return left
