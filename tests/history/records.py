"""Records for tests about the history: named as they are read, with a place that none of them is about."""

from __future__ import annotations

from cri_proxy.engine.model import DecisionRecord, MoveEffect, PlacementChange
from policies.machine.cpus import parse_cpus
from policies.model import Placement

NODE_0 = frozenset({0})
PLACE = Placement(parse_cpus("0-7"), NODE_0, level="ccx", home=parse_cpus("0-7"))


def record(number: int, path: str = "default/web/app", at_s: float = 0.0, **more: object) -> DecisionRecord:
    """A create of a container whose id follows from its path."""
    fields = {"operation": "create", "why": f"reason {number}", "stance": "placed", **more}
    key = fields.pop("id", id_of(path))
    return DecisionRecord(
        number, at_s or float(number), fields["operation"], path, f"uid-{path}", key,
        fields["stance"], PLACE, fields["why"], fields.get("outcome", ""), fields.get("changes", ()),
        fields.get("move"),
    )  # fmt: skip


def shrunk(*paths: str) -> PlacementChange:
    """Containers that lost CPUs."""
    return PlacementChange(
        "shrunk", "placed", parse_cpus("1-7"), NODE_0, "ccx", keys=tuple(map(id_of, paths))
    )


def moved_near(path: str, peer: str) -> MoveEffect:
    return MoveEffect(0.5, nearer=(id_of(peer),))


def id_of(path: str) -> str:
    return f"id-{path.replace('/', '-')}"
