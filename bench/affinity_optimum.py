"""The exact optimum of small cases, by mixed-integer programming (scipy's ``milp``, HiGHS)."""

from __future__ import annotations

from typing import Optional

import numpy
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from bench.affinity_graphs import STEP_NS, Case
from policies.affinity.planner.instance import NANOSECOND

#: The steps of distance that two containers save by sharing a socket, a node, a leaf (4, 2, 1, 0 apart).
_SAVED = (("socket", 2.0), ("node", 1.0), ("leaf", 1.0))


def optimum(case: Case) -> Optional[float]:
    """The least cost in CPU-seconds a second that keeps all capacities; None = there is no such placement.

    x[u, l]: container u is in leaf l; s[e, b]: both ends of edge e are in box b, which saves its level's steps.
    """
    tree, vertices, edges = case.problem.tree, case.problem.vertices, case.problem.edges
    boxes = _boxes(case)
    leaves, places = len(tree.leaves), len(vertices) * len(tree.leaves)
    count = places + len(edges) * len(boxes)
    saved = numpy.zeros(count)
    rows = len(vertices) + leaves + 2 * len(edges) * len(boxes)
    matrix, low, high = lil_matrix((rows, count)), numpy.full(rows, -numpy.inf), numpy.zeros(rows)
    # 1. Each container in one leaf; no leaf above its capacity.
    for u, vertex in enumerate(vertices):
        for leaf in range(leaves):
            matrix[u, u * leaves + leaf] = 1
            matrix[len(vertices) + leaf, u * leaves + leaf] = vertex.milli
        low[u] = high[u] = 1
    for index, leaf_ in enumerate(tree.leaves):
        high[len(vertices) + index] = leaf_.capacity_milli
    # 2. An edge is in a box only if both its ends are.
    row = len(vertices) + leaves
    for number, (a, b, weight) in enumerate(edges):
        for index, (steps, members) in enumerate(boxes):
            variable = places + number * len(boxes) + index
            saved[variable] = -weight * steps
            for u in (a, b):
                matrix[row, variable] = 1
                for leaf in members:
                    matrix[row, u * leaves + leaf] = -1
                row += 1
    whole = numpy.zeros(count)
    whole[:places] = 1
    best = _least(saved, LinearConstraint(matrix.tocsr(), low, high), whole)
    farthest = sum([weight for _, _, weight in edges]) * sum([steps for _, steps in _SAVED])
    return None if best is None else (farthest + best) * STEP_NS * NANOSECOND


def _least(costs: numpy.ndarray, constraint: LinearConstraint, whole: numpy.ndarray) -> Optional[float]:
    exact = {"mip_rel_gap": 0.0}
    result = milp(costs, constraints=constraint, integrality=whole, bounds=Bounds(0, 1), options=exact)
    return None if result.x is None else float(result.fun)


def _boxes(case: Case) -> list[tuple[float, list[int]]]:
    """(steps saved by being in it together, its leaves) of all sockets, nodes and leaves."""
    found: dict[tuple[str, int], list[int]] = {}
    for index, leaf in enumerate(case.problem.tree.leaves):
        for level, number in (("socket", leaf.socket), ("node", leaf.node), ("leaf", index)):
            found.setdefault((level, number), []).append(index)
    steps = dict(_SAVED)
    return [(steps[level], members) for (level, _), members in found.items()]
