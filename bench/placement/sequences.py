"""Random sequences of creates and deletes, and the request with which kubelet asks for each create."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Union

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import Pod, cgroup_parent, container_config, create_request, pod_config

EXCLUSIVE, MIXED, BURSTABLE = "exclusive", "mixed", "burstable"
#: Those that own CPUs.
OWNERS = (EXCLUSIVE, MIXED)
#: A Guaranteed container of 2 CPUs or more with a fraction owns the whole part only if it asks for it.
UNSHARED = "prefer-shared-cpus.resource-policy.nri.io/container.app"
GIB = 1 << 30


@dataclass(frozen=True)
class Create:
    """A container of one kind: ``exclusive`` is Guaranteed with so many CPUs, ``mixed`` with half a CPU more.

    ``burstable`` has ``cpus`` as its limit and requests half of that.
    """

    number: int
    kind: str
    cpus: int
    namespace: str = "default"

    @property
    def milli_request(self) -> int:
        return self.cpus * 500 if self.kind == BURSTABLE else self.milli_limit

    @property
    def milli_limit(self) -> int:
        return self.cpus * 1000 + (500 if self.kind == MIXED else 0)


@dataclass(frozen=True)
class Delete:
    """The container of this number goes, if it is there."""

    number: int


Step = Union[Create, Delete]


@dataclass(frozen=True)
class Draw:
    """How sequences are drawn; ``deletes``: the part of the operations that are deletes."""

    count: int
    operations: int
    deletes: float
    largest: int
    kinds: tuple[str, ...]

    def sequences(self, seed: int) -> list[list[Step]]:
        """The same for the same seed."""
        random = Random(seed)
        return [self._sequence(random) for _ in range(self.count)]

    def _sequence(self, random: Random) -> list[Step]:
        steps: list[Step] = []
        live: list[int] = []
        created = 0
        for _ in range(self.operations):
            if live and random.random() < self.deletes:
                steps.append(Delete(live.pop(random.randrange(len(live)))))
            else:
                live.append(created)
                steps.append(self._create(created, random))
                created += 1
        return steps

    def _create(self, number: int, random: Random) -> Create:
        if len(self.kinds) == 1:
            return Create(number, self.kinds[0], random.randint(1, self.largest))
        # As many of 1 to 2 CPUs as of 32 to 64: sizes of containers differ by factors.
        return Create(number, random.choice(self.kinds), round(self.largest ** random.random()))


#: Containers that all own their CPUs.
OWNING = Draw(count=12, operations=24, deletes=0.35, largest=16, kinds=(EXCLUSIVE,))
#: Of the same sizes, and all of them share.
LIMITS = replace(OWNING, kinds=(BURSTABLE,))
#: All kinds, of 1 to 64 CPUs.
ALL_KINDS = Draw(count=12, operations=40, deletes=0.4, largest=64, kinds=(EXCLUSIVE, MIXED, BURSTABLE))


def scheduled(steps: Sequence[Step], milli: int) -> list[Step]:
    """The steps that reach a node with so many milli-CPUs: not the creates whose requests do not fit beside the others.

    kube-scheduler sends those elsewhere.
    """
    requested: dict[int, int] = {}
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Delete):
            if requested.pop(step.number, None) is None:
                continue
        elif sum(requested.values()) + step.milli_request > milli:
            continue
        else:
            requested[step.number] = step.milli_request
        kept.append(step)
    return kept


def request_of(create: Create) -> cri.CreateContainerRequest:
    """The request of a create, as kubelet makes it; the pod is ``s`` and the number."""
    number, uid = create.number, f"uid-{create.number}"
    qos = "burstable" if create.kind == BURSTABLE else "guaranteed"
    annotations = {UNSHARED: "false"} if create.kind == MIXED else {}
    config = pod_config(
        f"pod-{number}",
        namespace=create.namespace,
        uid=uid,
        cgroup_parent=cgroup_parent(qos, uid),
        annotations=annotations,
    )
    resources: dict[str, Any] = {
        "cpu_request": create.milli_request,
        "cpu_limit": create.milli_limit,
        "memory_limit": GIB // 4,
    }
    pod = Pod(f"s{number}", uid, f"pod-{number}", create.namespace, config)
    return create_request(pod, container_config("app", qos=qos, **resources))
