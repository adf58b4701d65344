"""Random scenarios of ``cri-resmgr simulate``: a machine, a configuration, those it is switched to, and the steps.

A number and a seed give one scenario, whatever others there are. Within a scenario some things come often and others never
(its habits): what is rare needs several of one kind. The generator knows what it has asked for, and not what came of it: a
step about a container whose create the policy refused names one that is not there, and is left out when it is played.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Callable, Optional

from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology, TopologyData
from policies.registry import POLICIES
from tests.machines import (
    CPULESS_MEMORY_NODE,
    EPYC_NPS1_1S,
    GIB,
    HYGON_7285_2S,
    KUNPENG_48_2S,
    MEMORYLESS_NODE,
    NODE_INTERLEAVED,
    OFFLINE_CPUS,
    ONE_CPU,
    SNC_2S,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
    machine,
)

#: Small ones first: there everything is in everything's way. The largest has 128 CPUs; see ``--machine`` for others.
MACHINES = (
    VM_NO_CACHE_INFO,
    UNEVEN_CCX,
    SNC_2S,
    NODE_INTERLEAVED,
    OFFLINE_CPUS,
    MEMORYLESS_NODE,
    CPULESS_MEMORY_NODE,
    EPYC_NPS1_1S,
    KUNPENG_48_2S,
    HYGON_7285_2S,
    ONE_CPU,
)
#: The policy balloons with types in its configuration.
TYPED = "balloons-typed"
VARIANTS = (*POLICIES, TYPED)

#: How often there is a choice that leaves little to differ.
RARE = {ONE_CPU: 0.2, "none": 0.3}

LEAST_STEPS, MOST_STEPS = 8, 50
#: Containers that run at a time, at most.
CROWD = 24

Step = dict[str, Any]
Document = dict[str, Any]

NAMESPACES = ("default", "default", "default", "other", "kube-system", "left-alone", "strict")
NAMES = ("app", "init", "sidecar", "db")
TYPE_NAMES = ("own", "idle", "pool")


@dataclass(frozen=True)
class Scenario:
    """``config``: the text of the first configuration; ``files``: those of the ``config`` steps, by name.

    ``policies``: the variant that each configuration has in force, by file name ("": the first); "" where it is refused.
    """

    number: int
    machine: str
    config: str
    files: dict[str, str]
    policies: dict[str, str]
    steps: list[Step]


def scenario_of(
    seed: int, number: int, variants: Sequence[str] = VARIANTS, machines: Sequence[str] = MACHINES
) -> Scenario:
    """One scenario, always the same one of the same arguments."""
    random = Random(f"{seed} {number}")
    name = _one_of(random, machines)
    return Draft(random, machine(name), *_sizes(name), variants).scenario(number, name)


# ---------------------------------------------------------------------- what may be drawn


@cache
def _sizes(name: str) -> tuple[tuple[int, ...], int]:
    """Numbers of CPUs at which something changes on a machine, those of its domains; and how many smallest ones it has."""
    tree = Topology(machine(name))
    found = {len(domain.cpus) for level in ("l3", "numa", "socket") for domain in tree.at(level)}
    return tuple(sorted({*found, len(tree.online)})), len(tree.leaves)


def _one_of(random: Random, names: Sequence[str]) -> str:
    return random.choices(names, [RARE.get(name, 1.0) for name in names])[0]


def _chance(random: Random, part: float) -> bool:
    return random.random() < part


#: What annotations ask, most often nothing. Some cannot be had on some machines, and one is misspelt: creates are refused.
WISHES: tuple[dict[str, str], ...] = (
    {"cri-resmgr.io/cpus": "exclusive"},
    {"cri-resmgr.io/cpus": "exclusive", "cri-resmgr.io/smt": "full-core"},
    {"cri-resmgr.io/cpus": "exclusive", "cri-resmgr.io/smt": "hide"},
    {"cri-resmgr.io/cpus": "exclusive", "cri-resmgr.io/smt": "spread"},
    {"cri-resmgr.io/cpus": "exclusive", "cri-resmgr.io/l3": "spread"},
    {"cri-resmgr.io/cpus": "exclusive", "cri-resmgr.io/cfs-quota": "lift"},
    {"cri-resmgr.io/cpus": "exclusive", "cri-resmgr.io/isolated": "require"},
    {"cri-resmgr.io/cpus": "shared"},
    {"cri-resmgr.io/l3": "exclusive"},
    {"cri-resmgr.io/l3": "require"},
    {"cri-resmgr.io/l3": "spread"},
    {"cri-resmgr.io/numa": "require"},
    {"cri-resmgr.io/isolated": "prefer"},
    {"cri-resmgr.io/smt": "spread"},
    {"cri-resmgr.io/smt": "hide"},
    {"cri-resmgr.io/size": "demand"},
    {"cri-resmgr.io/reserved": "true"},
    {"cri-resmgr.io/manage": "false"},
    {"cri-resmgr.io/hints": "none"},
    {"cri-resmgr.io/memory-type": "dram"},
    {"cri-resmgr.io/numa": "requird"},
    {"cri-resmgr.io/affinity": "app: [db]\ndb: [app]"},
    {"cri-resmgr.io/affinity": json.dumps({n: [{"scope": {"key": "pod/namespace", "operator": "AlwaysTrue"},
                                                "match": {"key": "name", "operator": "Equals", "values": ["db"]},
                                                "weight": 5}] for n in NAMES})},
    {"cri-resmgr.io/anti-affinity": json.dumps({n: [{"scope": {"key": "pod/namespace", "operator": "AlwaysTrue"},
                                                     "match": {"key": "name", "operator": "Equals", "values": [n]}}]
                                                for n in NAMES})},
    *({"cri-resmgr.io/balloon": name} for name in TYPE_NAMES),
)  # fmt: skip

#: Values of options other than their defaults; policy, types of balloons, mode and sets of CPUs come besides.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "policy.balloons.AllocatorTopologyBalancing": (True,),
    "policy.balloons.PreferSpreadOnPhysicalCores": (True,),
    "placement.cpus": ("shared", "exclusive"),
    "placement.ladder": ("fine",),
    "placement.size": ("demand",),
    "placement.unlimited": ("ccx", "socket", "machine"),
    "placement.besteffort": ("ccx", "socket", "machine"),
    "placement.l3": ("require", "exclusive", "spread"),
    "placement.smt": ("full-core", "hide", "spread"),
    "placement.cfs_quota": ("lift",),
    "placement.prefer_isolated": (False,),
    "placement.prefer_shared": (True,),
    "placement.hints": ([], ["devices"]),
    "placement.colocate_pods": (True,),
    "placement.colocate_namespaces": (True,),
    "placement.max_moves": (0, 1, 20),
    "placement.move_exclusive": (True,),
    "placement.memory": ("pin", "off"),
    "placement.memory_only_nodes": ("2",),
    "affinity.enabled": (False,),
    "affinity.within": ("namespace", "owner"),
    "affinity.hysteresis": (0, 0.5),
    "affinity.cooldown": (1,),
}
#: How often one of these is set; those that a whole scenario may fail by are rarer.
SET, SET_DEMANDING = 0.1, 0.02
DEMANDING = frozenset(["placement.l3", "placement.smt"])

TYPE_OPTIONS: dict[str, tuple[Any, ...]] = {
    "MinBalloons": (1, 2),
    "MaxBalloons": (1, 2, 3),
    "AllocatorPriority": ("normal", "low", "none"),
    "PreferNewBalloons": (True,),
    "PreferSpreadingPods": (True,),
    "PreferPerNamespaceBalloon": (True,),
    "PreferSpreadOnPhysicalCores": (True,),
    "AllocatorTopologyBalancing": (True,),
    "HideHyperthreads": (True,),
    "PreferIsolCpus": (True,),
    "ShareIdleCPUsInSame": ("core", "l3cache", "numa", "die", "package", "system"),
    "PinMemory": (True, False),
    "GroupBy": ("${pod/labels/app}",),
}

WAITS_S = (1, 1, 10, 31, 61, 130, 301, 601)


@dataclass
class Asked:
    """A container that was asked for. ``fields``: of its create; ``own``: CPUs that kubelet gave it alone."""

    id: str
    pod: str
    name: str
    fields: Step
    attempt: int = 0
    own: frozenset[int] = frozenset()


@dataclass
class Habits:
    """What the steps of one scenario have in common.

    ``sizes``: in milli-CPUs, None = any. ``wish``, ``constraint``, ``fail``: the parts of containers that are annotated, are
    given a cpuset by their caller, whose requests do not go well. ``pods``: how many there are at most.
    """

    kinds: tuple[str, ...]
    classes: tuple[str, ...]
    sizes: Optional[tuple[int, ...]]
    wishes: tuple[dict[str, str], ...]
    wish: float
    constraint: float
    fail: float
    pods: int


@dataclass
class Draft:
    """A scenario that is being written: what was asked for so far, and what may be asked for next."""

    random: Random
    data: TopologyData
    sizes: tuple[int, ...]
    leaves: int
    variants: Sequence[str]
    steps: list[Step] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    pods: dict[str, str] = field(default_factory=dict)
    alive: dict[str, Asked] = field(default_factory=dict)
    ended: dict[str, Asked] = field(default_factory=dict)
    lost: list[Asked] = field(default_factory=list)
    attempts: dict[tuple[str, str], int] = field(default_factory=dict)
    offline: frozenset[int] = frozenset()
    made: int = 0

    def __post_init__(self) -> None:
        self.cpus = sorted(c.cpu for c in self.data.cpus)
        self.habits = self._habits()
        self.variant = _one_of(self.random, self.variants)
        self.document = self._document(self.variant)
        mode = self.random.random()
        if mode < 0.08:
            self.document["relay.mode"] = "observe" if mode < 0.05 else "off"

    def scenario(self, number: int, name: str) -> Scenario:
        """Write all of it."""
        random, first = self.random, json.dumps(self.document)
        self.policies[""] = self.variant
        often = [OPS[kind][0] for kind in self.habits.kinds]
        most = random.randint(LEAST_STEPS, MOST_STEPS)
        while len(self.steps) < most:
            kind = random.choices(self.habits.kinds, often)[0]
            OPS[kind][1](self)
        return Scenario(number, name, first, self.files, self.policies, self.steps)

    # ------------------------------------------------------------------ habits and configurations

    def _habits(self) -> Habits:
        random = self.random
        classes = ["guaranteed", "guaranteed", "guaranteed", "burstable", "burstable", "besteffort"]
        return Habits(
            kinds=("create", *[kind for kind in OPS if kind != "create" and _chance(random, 0.6)]),
            classes=tuple(random.sample(classes, 2) if _chance(random, 0.6) else classes),
            sizes=tuple(self._milli() for _ in range(3)) if _chance(random, 0.6) else None,
            wishes=tuple(random.sample(WISHES, 3)) if _chance(random, 0.5) else WISHES,
            wish=random.choice([0, 0.1, 0.3, 0.8]),
            constraint=random.choice([0, 0, 0.15, 0.5]),
            fail=random.choice([0, 0.15, 0.4]),
            pods=random.choice([1, 3, 8, 30]),
        )

    def _document(self, variant: str) -> Document:
        random = self.random
        document: Document = {"policy.Active": "balloons" if variant == TYPED else variant}
        if variant == TYPED:
            document["policy.balloons.BalloonTypes"] = self._types()
        for key, values in OPTIONS.items():
            if _chance(random, SET_DEMANDING if key in DEMANDING else SET):
                document[key] = random.choice(values)
        if _chance(random, 0.25):
            reserved = random.choice(["750m", "2", self._list(self._run(1, 3))])
            document["policy.ReservedResources.CPU"] = reserved
        if _chance(random, 0.15):
            left_out = self._list(self._run(1, max(1, len(self.cpus) // 4)))
            few = max(2, len(self.cpus) // 2)
            available = random.choice([f"exclude-cpuset:{left_out}", str(few)])
            document["policy.AvailableResources.CPU"] = available
        if _chance(random, 0.3):
            document["placement.unmanaged_namespaces"] = ["left-alone"]
        if _chance(random, 0.3):
            document["placement.fail_closed_namespaces"] = ["strict"]
        return document

    def _types(self) -> list[dict[str, Any]]:
        random, types = self.random, []
        for name in random.sample(TYPE_NAMES, random.randint(1, len(TYPE_NAMES))):
            kind: dict[str, Any] = {"Name": name}
            if _chance(random, 0.6):
                globs = ["default", "other", "kube-system", "*"]
                kind["Namespaces"] = random.sample(globs, random.randint(1, 2))
            elif _chance(random, 0.6):
                condition = {"Key": "name", "Operator": "In", "Values": random.sample(NAMES, 2)}
                kind["MatchExpressions"] = [condition]
            least = random.choice([0, 0, 1, 2, 3])
            if least:
                kind["MinCPUs"] = least
            if _chance(random, 0.4):
                kind["MaxCPUs"] = least + random.choice([1, 2, 4, self.sizes[0]])
            elif _chance(random, 0.04):
                kind = {"Name": name, "Namespaces": ["other"], "MaxCPUs": -1}
            for key, values in TYPE_OPTIONS.items():
                if _chance(random, 0.15):
                    kind[key] = random.choice(values)
            if {"MinBalloons", "MaxBalloons"} <= kind.keys():
                kind["MaxBalloons"] = max(kind["MaxBalloons"], kind["MinBalloons"])
            types.append(kind)
        return types

    # ------------------------------------------------------------------ values

    def _milli(self) -> int:
        """A number of milli-CPUs, often about that of a domain of the machine."""
        random = self.random
        whole = random.choice([1, 1, 2, 2, 3, 4, 6, 8, 12, *self.sizes, *self.sizes])
        how = random.random()
        if how < 0.12:
            return random.choice([50, 100, 250, 500, 750])
        if how < 0.2:
            return whole * 1000 + random.choice([250, 500])
        if how < 0.35:
            return max(1, whole + random.choice([-1, 1])) * 1000
        return min(whole, random.choice([len(self.cpus), 8, 16])) * 1000

    def _size(self) -> int:
        return self._milli() if self.habits.sizes is None else self.random.choice(self.habits.sizes)

    def _memory(self) -> str:
        random, node = self.random, max(self.data.memory.values())
        part = random.choice([0.02, 0.02, 0.1, 0.5, 0.8, 1.3])
        return f"{max(1, round(node * part / GIB))}Gi"

    def _resources(self, qos: str) -> Step:
        random = self.random
        if qos == "besteffort":
            return {}
        size = self._size()
        if qos == "guaranteed":
            text = _quantity(size)
            return {"cpu_request": text, "cpu_limit": text, "memory_limit": self._memory()}
        found: Step = {"cpu_request": _quantity(round(size * random.choice([0.1, 0.5, 1])))}
        if _chance(random, 0.7):
            found["cpu_limit"] = _quantity(size)
        if _chance(random, 0.4):
            found["memory_limit"] = self._memory()
        return found

    def _run(self, least: int, most: int) -> list[int]:
        """CPUs that follow each other, round about."""
        start, count = self.random.randrange(len(self.cpus)), self.random.randint(least, most)
        return (self.cpus[start:] + self.cpus[:start])[:count]

    def _set_of_cpus(self) -> list[int]:
        random = self.random
        kind = random.random()
        if kind < 0.3:
            tree = self.data.cpus
            at = random.choice(tree)
            return [c.cpu for c in tree if (c.socket, c.numa, c.l3) == (at.socket, at.numa, at.l3)]
        if kind < 0.5:
            return self._run(len(self.cpus) // 2, len(self.cpus) // 2 + 1) or self.cpus
        return self._run(1, min(4, len(self.cpus)))

    @staticmethod
    def _list(cpus: Iterable[int]) -> str:
        return format_cpus(frozenset(cpus))

    def _pick(self, among: dict[str, Asked]) -> Optional[Asked]:
        return self.random.choice(list(among.values())) if among else None

    # ------------------------------------------------------------------ pods and containers

    def _new_pod(self) -> str:
        self.made += 1
        name = f"p{self.made}"
        self.pods[name] = self.random.choice(NAMESPACES)
        return name

    def pod(self) -> None:
        """A pod that is told of before its containers, often with resources of its own."""
        random, name = self.random, self._new_pod()
        step: Step = {"op": "pod", "id": name, "namespace": self.pods[name]}
        qos = random.choice(["guaranteed", "guaranteed", "burstable", ""])
        if qos:
            step.update(self._resources(qos))
        if _chance(random, self.habits.wish):
            step["annotations"] = random.choice(self.habits.wishes)
        if _chance(random, 0.4):
            step["labels"] = {"app": random.choice("ab")}
        if _chance(random, 0.05):
            step["runtime_handler"] = "kata-qemu"
        if _chance(random, 0.1):
            step["cgroup_parent"] = f"/kubepods/{random.choice(['burstable/', 'besteffort/', ''])}pod{name}"
        self.steps.append(step)
        for _ in range(random.randint(0, 3)):
            self._create_in(name, qos)

    def create(self) -> None:
        """A new container, in a pod that is there or in another one."""
        if len(self.alive) >= CROWD:
            self.remove()
            return
        pods = list(self.pods)[-self.habits.pods :]
        fresh = not pods or (len(self.pods) < self.habits.pods and _chance(self.random, 0.6))
        self._create_in(self._new_pod() if fresh else self.random.choice(pods))

    def _create_in(self, pod: str, pods_qos: str = "") -> None:
        """``pods_qos``: the class of a pod that has resources of its own; some of its containers ask for none then."""
        random = self.random
        taken = {asked.name for asked in self.alive.values() if asked.pod == pod}
        free = [name for name in NAMES if name not in taken]
        name = random.choice(free) if free else f"more-{self.made}"
        qos = random.choice(self.habits.classes)
        fields: Step = {"namespace": self.pods[pod], "name": name}
        if pods_qos and _chance(random, 0.5):
            fields["qos"], qos = pods_qos, "besteffort"
        fields.update(self._resources(qos))
        if _chance(random, 0.1):
            fields["qos"] = random.choice(["guaranteed", "burstable", "besteffort"])
        if _chance(random, self.habits.wish):
            fields["annotations"] = random.choice(self.habits.wishes)
        if _chance(random, 0.1):
            fields["kind"] = random.choice(["init", "sidecar"])
        if self.data.devices and _chance(random, 0.15):
            fields["devices"] = random.sample(sorted(self.data.devices), random.randint(1, 2))
        if _chance(random, 0.05):
            fields["hugepages"] = ["2Mi"]
        own: frozenset[int] = frozenset()
        if _chance(random, self.habits.constraint):
            fields.update(self._fence())
            own = self._kubelets(fields) if qos == "guaranteed" else own
        self._ask(Asked("", pod, name, fields, own=own))

    def _fence(self) -> Step:
        """A cpuset and memory nodes that the caller asks for."""
        random, kind = self.random, self.random.random()
        if kind < 0.1:
            return {"cpuset": "4000-4006"}
        if kind < 0.3:
            return {"mems": str(random.choice(sorted(self.data.memory)))}
        cpus = self._set_of_cpus()
        return {"cpuset": self._list(cpus)}

    def _kubelets(self, fields: Step) -> frozenset[int]:
        """CPUs that kubelet gives a Guaranteed container alone; it never gives one twice."""
        taken = self._kubelets_now() | self.offline
        free = [cpu for cpu in self._run(len(self.cpus), len(self.cpus)) if cpu not in taken]
        count = fields["cpu_limit"]
        if not count.isdigit() or not 0 < int(count) < len(free) or _chance(self.random, 0.5):
            return frozenset()
        own = frozenset(free[: int(count)])
        fields.update({"cpuset": self._list(own), "qos": "guaranteed", "kubelets": True})
        return own

    def _kubelets_now(self) -> frozenset[int]:
        return frozenset().union(*[asked.own for asked in (*self.alive.values(), *self.lost)])

    def _ask(self, asked: Asked) -> None:
        """The create of a container, and how it goes."""
        random = self.random
        if asked.own & self._kubelets_now():
            asked.fields, asked.own = {**asked.fields, "cpuset": "", "kubelets": False}, frozenset()
        self.made += 1
        asked.id = f"c{self.made}"
        key = asked.pod, asked.name
        asked.attempt = self.attempts[key] = self.attempts.get(key, -1) + 1
        step: Step = {"op": "create", "id": asked.id, "pod": asked.pod, **asked.fields}
        if asked.attempt:
            step["attempt"] = asked.attempt
        if _chance(random, self.habits.fail):
            step["result"] = random.choice(["refused", "refused", "doubt", "doubt", "start-fails"])
        self.steps.append(step)
        result = step.get("result", "ok")
        if result == "start-fails":
            self.ended[asked.id] = asked
        elif result == "doubt" and _chance(random, 0.4):
            # It never came to the runtime: what stands for that is that it is not in the list.
            self.steps.append({"op": "remove", "id": asked.id})
            self.lost.append(asked)
        elif result != "refused":
            self.alive[asked.id] = asked
        # Kubelet tries again.
        if result != "ok" and _chance(random, 0.5):
            self._ask(Asked("", asked.pod, asked.name, asked.fields, own=asked.own))

    def again(self) -> None:
        """A container ends and is started anew, as the next attempt; kubelet removes the one before sooner or later."""
        random = self.random
        old = self._pick(self.ended) if _chance(random, 0.5) else None
        if old is None:
            old = self._pick(self.alive)
            if old is None:
                return
            self._end(old)
        if _chance(random, 0.2):
            self.steps.append({"op": "wait", "seconds": random.choice(WAITS_S)})
        if old.pod in self.pods:
            self._ask(Asked("", old.pod, old.name, old.fields, own=old.own))
        if _chance(random, 0.4) and self.ended.pop(old.id, None) is not None:
            self.steps.append({"op": "remove", "id": old.id})

    def _end(self, asked: Asked) -> None:
        self.steps.append({"op": "exit", "id": asked.id, "code": self.random.choice([0, 0, 1, 137])})
        self.ended[asked.id] = self.alive.pop(asked.id)

    def exit(self) -> None:
        """A container ends."""
        asked = self._pick(self.alive)
        if asked is not None:
            self._end(asked)

    def remove(self) -> None:
        """A container is removed, also one that runs."""
        among = self.ended if self.ended and _chance(self.random, 0.5) else self.alive
        asked = self._pick(among)
        if asked is not None:
            del among[asked.id]
            self.steps.append({"op": "remove", "id": asked.id})

    def remove_pod(self) -> None:
        """A pod goes, with its containers."""
        if not self.pods:
            return
        pod = self.random.choice(list(self.pods))
        del self.pods[pod]
        for among in (self.alive, self.ended):
            for key in [key for key, asked in among.items() if asked.pod == pod]:
                del among[key]
        # A pod that no create came for may never have been made: the step is left out then.
        self.steps.append({"op": "remove-pod", "id": pod})

    def resize(self) -> None:
        """A container gets other resources, in its class."""
        random, asked = self.random, self._pick(self.alive)
        if asked is None:
            return
        told = asked.fields
        guaranteed = "memory_limit" in told and told.get("cpu_request") == told.get("cpu_limit")
        fields = self._resources("guaranteed" if guaranteed and _chance(random, 0.9) else "burstable")
        if _chance(random, 0.6):
            fields.pop("memory_limit", None)
        if not guaranteed and _chance(random, 0.1):
            fields["cpu_limit"] = "0"
        step = {"op": "resize", "id": asked.id, **fields}
        if _chance(random, self.habits.fail):
            step["result"] = random.choice(["refused", "doubt", "lost"])
        self.steps.append(step)

    def resize_pod(self) -> None:
        """A pod gets other resources."""
        if not self.pods:
            return
        pod = self.random.choice(list(self.pods))
        self.steps.append({"op": "resize-pod", "id": pod, **self._resources("burstable")})

    def update(self) -> None:
        """The caller sets a cpuset, or asks for none."""
        asked = self._pick(self.alive)
        if asked is not None and not asked.own:
            cpus = "" if _chance(self.random, 0.2) else self._list(self._set_of_cpus())
            self.steps.append({"op": "update", "id": asked.id, "cpuset": cpus})

    # ------------------------------------------------------------------ the node

    def wait(self) -> None:
        """Time passes, and a comparison with the runtime is made."""
        self.steps.append({"op": "wait", "seconds": self.random.choice(WAITS_S)})

    def restart(self) -> None:
        """The daemon starts again, with its state or without."""
        state = self.random.choice(["kept", "kept", "kept", "lost", "corrupt"])
        self.steps.append({"op": "restart", "state": state})

    def config(self) -> None:
        """Another configuration: another policy or mode, other options, or one that cannot be read."""
        random, kind = self.random, self.random.random()
        name = f"{len(self.files) + 1}.yaml"
        if kind < 0.05:
            self.files[name], self.policies[name] = json.dumps({"policy.Active": "none-of-these"}), ""
        else:
            if self.document.get("relay.mode", "enforce") != "enforce":
                self.document["relay.mode"] = "enforce"
            elif kind < 0.25:
                self.document["relay.mode"] = random.choice(["observe", "off"])
            elif kind < 0.7:
                self.variant = _one_of(random, self.variants)
                self.document = self._document(self.variant)
            else:
                self.document = self._document(self.variant)
            self.files[name], self.policies[name] = json.dumps(self.document), self.variant
        self.steps.append({"op": "config", "file": name})

    def cpus_change(self) -> None:
        """CPUs go offline, or come back."""
        step: Step = {"op": "cpus"}
        if self.offline and _chance(self.random, 0.5):
            step["online"] = self._list(self.offline)
            self.offline = frozenset()
        else:
            gone = frozenset(self._set_of_cpus())
            step["offline"] = self._list(gone)
            self.offline |= gone
        self.steps.append(step)
        if "offline" in step and _chance(self.random, 0.4):
            self.random.choice([self.create, self.exit, self.wait])()
            self.steps.append({"op": "cpus", "online": self._list(self.offline)})
            self.offline = frozenset()

    def drift(self) -> None:
        """Another program changes a cpuset, once or again and again."""
        asked = self._pick(self.alive)
        if asked is None:
            return
        for _ in range(self.random.choice([1, 1, 1, 5])):
            self.steps.append({"op": "drift", "id": asked.id, "cpus": self._list(self._set_of_cpus())})

    def traffic(self) -> None:
        """Containers talk for a while, and a plan is made."""
        random, ids = self.random, list(self.alive)
        if len(ids) < 2:
            return
        talking = random.sample(ids, min(len(ids), random.choice([2, 4, 6, 8])))
        edges = [
            {
                "a": a,
                "b": b,
                "bytes_per_s": random.choice([1e7, 1e8, 1e9]),
                "msgs_per_s": random.choice([1e3, 1e5]),
            }
            for a, b in zip(talking[::2], talking[1::2])
        ]
        self.steps.append({"op": "traffic", "edges": edges})
        # Containers that are younger than a minute are not moved.
        if _chance(random, 0.8):
            self.steps.append({"op": "wait", "seconds": 61})
            self.steps.append({"op": "traffic", "edges": edges})
        if _chance(random, 0.8):
            self.rebalance()

    def party(self) -> None:
        """Small containers that come one by one, so that each is placed where most is free, and talk then."""
        size = max(1, self.sizes[0] // self.random.choice([1, 2, 4]))
        for _ in range(self.random.randint(2, 6)):
            pod = self._new_pod()
            fields = {"namespace": self.pods[pod], "name": "app", "cpu_limit": f"{size}"}
            self._ask(Asked("", pod, "app", fields))
        self.traffic()

    def fill(self) -> None:
        """Every L3 gets a container that leaves too little for the next ones, unless others make room for them."""
        random, leaf = self.random, self.sizes[0]
        for _ in range(min(self.leaves, CROWD) * random.choice([1, 1, 2])):
            pod, small = self._new_pod(), max(1, leaf * random.choice([2, 3, 3, 4]) // 8)
            fields = {"namespace": self.pods[pod], "name": "app", "cpu_limit": f"{small}"}
            self._ask(Asked("", pod, "app", fields))
        for _ in range(random.randint(1, 3)):
            pod, large = self._new_pod(), max(1, leaf * random.choice([5, 6, 8]) // 8)
            fields = {"namespace": self.pods[pod], "name": "db", "cpu_limit": f"{large}"}
            if _chance(random, 0.5):
                fields["memory_limit"] = self._memory()
            self._ask(Asked("", pod, "db", fields))
            if _chance(random, 0.3):
                self.exit()

    def rebalance(self) -> None:
        """A plan is made and carried out."""
        self.steps.append({"op": "rebalance"})


def _quantity(milli: int) -> str:
    return f"{milli // 1000}" if milli % 1000 == 0 else f"{milli}m"


#: How often each kind comes, in about the proportions of the engine's random state machine.
OPS: dict[str, tuple[int, Callable[[Draft], None]]] = {
    "create": (30, Draft.create),
    "pod": (5, Draft.pod),
    "again": (6, Draft.again),
    "resize": (12, Draft.resize),
    "resize-pod": (3, Draft.resize_pod),
    "update": (2, Draft.update),
    "exit": (5, Draft.exit),
    "remove": (4, Draft.remove),
    "remove-pod": (2, Draft.remove_pod),
    "wait": (3, Draft.wait),
    "restart": (4, Draft.restart),
    "config": (5, Draft.config),
    "cpus": (5, Draft.cpus_change),
    "drift": (3, Draft.drift),
    "traffic": (4, Draft.traffic),
    "party": (2, Draft.party),
    "fill": (2, Draft.fill),
    "rebalance": (1, Draft.rebalance),
}
