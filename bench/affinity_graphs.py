"""The machines and graphs of ``bench.affinity``: the calls of known microservice benchmarks, and made-up ones.

The three applications are written down from the benchmarks' own sources, as calls per request of a front end:
DeathStarBench (github.com/delimitrou/DeathStarBench at 6ecb097) socialNetwork, with the mix of its
mixed-workload.lua, and hotelReservation; TeaStore as in muBench's work model, with a database behind its
persistence. Calls of a data base behind a cache are taken as a tenth of those of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from policies.affinity.planner.problem import CandidateDomain, Leaf, Problem, Tree, Vertex

#: Nanoseconds beside those of one L3: 1, 2 and 4 steps, as the study's figures have it.
STEP_NS = 84.0
#: Lines a second of one call per request.
LINES = 20_000.0
#: How full the machine is, as a part of all its CPUs.
UTILISATION = 0.75

Calls = tuple[tuple[str, str, float], ...]

SOCIAL_NETWORK: Calls = (
    ("nginx", "home-timeline", 0.6),
    ("home-timeline", "home-timeline-redis", 0.7),
    ("home-timeline", "post-storage", 0.6),
    ("nginx", "user-timeline", 0.3),
    ("user-timeline", "user-timeline-redis", 0.4),
    ("user-timeline", "post-storage", 0.3),
    ("user-timeline", "user-timeline-mongo", 0.1),
    ("post-storage", "post-memcached", 0.9),
    ("post-storage", "post-mongo", 0.15),
    ("nginx", "compose", 0.1),
    ("compose", "unique-id", 0.1),
    ("compose", "media", 0.1),
    ("compose", "text", 0.1),
    ("compose", "user", 0.1),
    ("compose", "post-storage", 0.1),
    ("compose", "user-timeline", 0.1),
    ("compose", "home-timeline", 0.1),
    ("text", "url-shorten", 0.1),
    ("text", "user-mention", 0.1),
    ("url-shorten", "url-mongo", 0.1),
    ("user-mention", "user-memcached", 0.1),
    ("user-mention", "user-mongo", 0.02),
    ("home-timeline", "social-graph", 0.1),
    ("social-graph", "social-redis", 0.1),
    ("social-graph", "social-mongo", 0.02),
)
HOTEL_RESERVATION: Calls = (
    ("frontend", "search", 0.6),
    ("search", "geo", 0.6),
    ("search", "rate", 0.6),
    ("rate", "rate-memcached", 0.6),
    ("rate", "rate-mongo", 0.06),
    ("frontend", "reservation", 0.605),
    ("reservation", "reservation-memcached", 1.2),
    ("reservation", "reservation-mongo", 0.06),
    ("frontend", "profile", 0.99),
    ("profile", "profile-memcached", 0.99),
    ("profile", "profile-mongo", 0.1),
    ("frontend", "recommendation", 0.39),
    ("frontend", "user", 0.01),
)
TEA_STORE: Calls = (
    ("webui", "auth", 0.4),
    ("webui", "image", 0.55),
    ("webui", "persistence", 0.8),
    ("webui", "recommender", 0.1),
    ("webui", "registry", 0.03),
    ("auth", "persistence", 0.1),
    ("recommender", "persistence", 0.03),
    ("persistence", "db", 0.9),
)
APPLICATIONS = {"socialNetwork": SOCIAL_NETWORK, "hotelReservation": HOTEL_RESERVATION, "TeaStore": TEA_STORE}


@dataclass(frozen=True)
class Machine:
    """A regular one: sockets, nodes in each, L3s in each, CPUs in each."""

    name: str
    sockets: int
    nodes: int
    l3s: int
    cpus: int

    def tree(self) -> Tree:
        """Its leaves, and their sites only: all containers of the benchmarks fit in one."""
        leaves = tuple(
            Leaf(f"L3 {index}", self.cpus * 1000, index // self.l3s, index // (self.l3s * self.nodes))
            for index in range(self.sockets * self.nodes * self.l3s)
        )
        sites = tuple(CandidateDomain("ccx", leaf.name, (index,)) for index, leaf in enumerate(leaves))
        return Tree(leaves, sites, tuple(tuple(STEP_NS * _steps(a, b) for b in leaves) for a in leaves))


def _steps(a: Leaf, b: Leaf) -> int:
    """0 in a leaf, 1 in a node, 2 in a socket, 4 across."""
    if a is b or a.name == b.name:
        return 0
    return 1 if a.node == b.node else 2 if a.socket == b.socket else 4


HYGON = Machine("Hygon 2S·4N·2C·8", 2, 4, 2, 8)
EPYC = Machine("EPYC 2S·4N·3C·16", 2, 4, 3, 16)
KUNPENG = Machine("Kunpeng 2S·2N·8C·4", 2, 2, 8, 4)
MACHINES = (HYGON, EPYC, KUNPENG)


@dataclass(frozen=True)
class Case:
    """One graph on one machine; the containers are nowhere. ``app``: by vertex, which application it is of."""

    name: str
    problem: Problem
    app: tuple[int, ...]

    def at(self, places: list[int]) -> Problem:
        """The problem with its containers at these sites."""
        vertices = [replace(vertex, at=site) for vertex, site in zip(self.problem.vertices, places)]
        return replace(self.problem, vertices=tuple(vertices))


def _case(
    machine: Machine, name: str, sizes: list[int], edges: dict[tuple[int, int], float], app: list[int]
) -> Case:
    tree = machine.tree()
    everywhere = tuple(range(len(tree.sites)))
    vertices = tuple(Vertex(f"c{u}", milli, -1, everywhere) for u, milli in enumerate(sizes))
    listed = tuple((a, b, weight) for (a, b), weight in sorted(edges.items()) if weight)
    return Case(f"{machine.name}: {name}", Problem(tree, vertices, listed), tuple(app))


def applications(machine: Machine, replicas: int, seed: int, filled: float = UTILISATION) -> Case:
    """Copies of the three applications until the machine is as full as it may be. Each service has ``replicas``, and
    calls go to all of them alike (as kube-proxy sends them); applications are of different popularity."""
    random = Random(f"{machine.name} {replicas} {seed}")
    capacity = machine.sockets * machine.nodes * machine.l3s * machine.cpus * 1000
    sizes: list[int] = []
    edges: dict[tuple[int, int], float] = {}
    app: list[int] = []
    copy = 0
    while True:
        calls = list(APPLICATIONS.values())[copy % len(APPLICATIONS)]
        popular = random.lognormvariate(0, 0.8) * LINES
        services = {name: None for a, b, _ in calls for name in (a, b)}
        wanted = {name: [random.choice((200, 300, 500, 1000)) for _ in range(replicas)] for name in services}
        if sum(sizes) + sum(map(sum, wanted.values())) > filled * capacity:
            return _case(machine, f"apps, {replicas} replica(s)", sizes, edges, app)
        number: dict[str, list[int]] = {}
        for name, millis in wanted.items():
            number[name] = list(range(len(sizes), len(sizes) + replicas))
            sizes += millis
            app += [copy] * replicas
        for a, b, rate in calls:
            for u in number[a]:
                for v in number[b]:
                    edges[u, v] = popular * rate / replicas
        copy += 1


def heavy_tailed(machine: Machine, count: int, per_vertex: int, seed: int, hubs: float = 0.01) -> Case:
    """Applications of heavy-tailed sizes, trees with a few more edges and lognormal weights; and hubs (1 % of all)
    with tiny edges to half of all, as name servers and collectors have."""
    random = Random(f"{machine.name} {count} {seed}")
    capacity = machine.sockets * machine.nodes * machine.l3s * machine.cpus * 1000
    mean = UTILISATION * capacity / count
    sizes = [
        max(10, min(int(mean * random.lognormvariate(-0.18, 0.6)), machine.cpus * 400)) for _ in range(count)
    ]
    scale = UTILISATION * capacity / sum(sizes)
    sizes = [max(10, int(size * min(1.0, scale))) for size in sizes]
    edges: dict[tuple[int, int], float] = {}
    app: list[int] = []
    many = max(1, int(count * hubs))
    while len(app) < count - many:
        first = len(app)
        members = min(count - many - first, 2 + int(random.paretovariate(1.2) * 2))
        app += [first] * members
        for u in range(first + 1, first + members):
            edges[random.randrange(first, u), u] = LINES * random.lognormvariate(0, 1.5)
        for _ in range(members * (per_vertex - 1) if members > 2 else 0):
            a, b = sorted(random.sample(range(first, first + members), 2))
            edges.setdefault((a, b), LINES * random.lognormvariate(0, 1.5))
    for hub in range(count - many, count):
        app.append(hub)
        for u in random.sample(range(count - many), (count - many) // 2):
            edges[u, hub] = LINES * 0.01
    return _case(machine, f"heavy-tailed, {count}, {many} hub(s)", sizes, edges, app)


def planted(machine: Machine, seed: int) -> tuple[Case, list[int]]:
    """A partition that fills each leaf to 75 to 80 %, much traffic inside and little between; and the partition."""
    random = Random(f"{machine.name} planted {seed}")
    leaves = machine.sockets * machine.nodes * machine.l3s
    each = 8
    order = list(range(leaves * each))
    random.shuffle(order)
    leaf_of = {u: index // each for index, u in enumerate(order)}
    sizes = [int(machine.cpus * 1000 * random.uniform(0.75, 0.8) / each) for _ in order]
    edges: dict[tuple[int, int], float] = {}
    for u in range(len(order)):
        for v in range(u + 1, len(order)):
            if leaf_of[u] == leaf_of[v]:
                if random.random() < 0.6:
                    edges[u, v] = LINES * random.uniform(0.5, 1.5)
            elif random.random() < 0.02:
                edges[u, v] = LINES * 0.1
    app = [leaf_of[u] for u in range(len(order))]
    return _case(machine, f"planted, {len(order)}", sizes, edges, app), app


def small(seed: int) -> Case:
    """10 to 16 containers on four leaves, for the exact optimum."""
    random = Random(f"small {seed}")
    machine = Machine("small 2S·1N·2C·4", 2, 1, 2, 4)
    count = random.randrange(10, 17)
    while True:
        sizes = [random.choice((300, 500, 1000, 1500, 2000)) for _ in range(count)]
        if sum(sizes) <= random.uniform(0.6, 0.85) * 16_000:
            break
    edges = {(random.randrange(u), u): LINES * random.lognormvariate(0, 1) for u in range(1, count)}
    for _ in range(count):
        a, b = sorted(random.sample(range(count), 2))
        edges[a, b] = LINES * random.lognormvariate(0, 1)
    return _case(machine, f"{count} containers, seed {seed}", sizes, edges, list(range(count)))


def full_node(seed: int, filled: float) -> tuple[Case, list[int]]:
    """9 to 15 containers, as large as half an L3, that fill four L3s to a part of them; and a placement in which each
    has room and that knows nothing of the traffic, which goes through three groups and a little between them."""
    random = Random(f"full {seed} {filled}")
    machine = Machine("small 2S·1N·2C·8", 2, 1, 2, 8)
    leaves, capacity = 4, machine.cpus * 1000
    while True:
        sizes: list[int] = []
        places: list[int] = []
        for leaf in range(leaves):
            left = int(filled * capacity)
            while left > 0:
                part = min(left, random.randrange(capacity // 8, capacity // 2 + 1))
                # What is left over is no container of its own if it is tiny.
                part = left if left - part < capacity // 16 and left <= capacity // 2 else part
                sizes.append(part)
                places.append(leaf)
                left -= part
        if 9 <= len(sizes) <= 15:
            break
    count = len(sizes)
    group = [random.randrange(3) for _ in range(count)]
    edges: dict[tuple[int, int], float] = {}
    for u in range(count):
        for v in range(u + 1, count):
            if random.random() < (0.6 if group[u] == group[v] else 0.05):
                edges[u, v] = LINES * random.lognormvariate(0, 1)
    edges.setdefault((0, 1), LINES)
    return _case(machine, f"{count} containers, {filled:.0%} full, seed {seed}", sizes, edges, group), places


def thousand(seed: int = 0) -> Case:
    """1,000 containers with about 6,000 edges on the largest machine."""
    random = Random(f"thousand {seed}")
    case = heavy_tailed(EPYC, 1000, 4, seed, hubs=0.0)
    edges = {(a, b): weight for a, b, weight in case.problem.edges}
    while len(edges) < 6000:
        a, b = sorted(random.sample(range(1000), 2))
        edges.setdefault((a, b), LINES * 0.02)
    listed = tuple((a, b, weight) for (a, b), weight in sorted(edges.items()))
    name = f"{EPYC.name}: 1000 containers, {len(listed)} edges"
    return Case(name, replace(case.problem, edges=listed), case.app)
