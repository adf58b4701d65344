"""AffinityAdvice: which owners of pods (Deployments, StatefulSets) would gain from sharing nodes. Pure.

A node's agent knows the traffic between containers of that node (``status.affinityGroups``), and the traffic of its
containers with addresses of other nodes (``status.remoteTraffic``), each connection once. The API server tells the pod of
an address (``Between``). So an advice says: these owners exchange that much from node to node, and that much where they
share one, and so many pods of one are on nodes where the other is not.

An owner is guessed from a pod's name (no right on pods is needed) and counts only once the API server has shown its
scale, which has the selector of its pods as well (``selectors``). Pods with one random part only (DaemonSet, Job, a bare
ReplicaSet) have no owner here: a DaemonSet is on every node already.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Optional

from cluster.api.names import AFFINITY_ADVICE, API_VERSION, GROUP
from cluster.api.reader import Fields, Unreadable
from cluster.operator.objects import read_time, write_time

#: Less than this a second between owners is no reason to move any pod; an advice stays until the rate is half of it.
LEAST_BYTES_PER_S = 1_000_000
#: A published rate is kept while the measured one is within this factor of it.
SAME_RATE = 1.5
#: Advices, those with the most traffic; and nodes that one of them names.
MOST_ADVICES, MOST_NODES = 100, 16
#: Of these the ones that new pods follow: the API server evaluates its policy once for each, half a millisecond or more.
MOST_FOLLOWED = 32
#: The label of those, by which the policy's binding selects them (packaging/cluster/follow-advice).
FOLLOW_LABEL = f"{GROUP}/follow"
#: Advices that one owner follows.
MOST_TERMS = 4
#: Seconds that an advice stays without traffic enough for it: a rollout, a restart of the operator and a quiet hour are
#: no news.
FADING_S = 3600
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"

#: What the API server makes random parts and hashes of: no vowels, no digits that look like letters.
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
_DEPLOYMENT = re.compile(rf"(?P<name>.+)-{_SAFE}{{6,10}}-{_SAFE}{{5}}")
_STATEFUL_SET = re.compile(r"(?P<name>.+)-(?:0|[1-9]\d{0,8})")


class Owner(NamedTuple):
    """``kind``: Deployment or StatefulSet."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class NodeTraffic:
    """Traffic of owners in one NodePlacement: pods here, and bytes a second within each group of two owners or more.

    ``remote``: owner, address of another node, bytes a second; as many as the agent tells.
    """

    node: str
    pods: Mapping[Owner, int] = field(default_factory=dict)
    groups: tuple[tuple[frozenset[Owner], int], ...] = ()
    remote: tuple[tuple[Owner, str, int], ...] = ()


class Rates(NamedTuple):
    """Bytes a second that owners exchange: where they share a node, and from node to node."""

    local: int = 0
    remote: int = 0


class Published(NamedTuple):
    """An advice as it was written last. ``keys``: the topology key of each follower. ``fading_since``: "" = it is not."""

    rates: Rates = Rates()
    owners: frozenset[Owner] = frozenset()
    target: Optional[Owner] = None
    keys: Mapping[Owner, str] = {}
    fading_since: str = ""


class Evidence(NamedTuple):
    """Traffic that an advice stands on; ``fading_since``: since when there is too little, "" = there is enough."""

    rates: Rates
    fading_since: str = ""


@lru_cache(maxsize=1 << 16)
def _known(kind: str, namespace: str, name: str) -> Owner:
    """One object for all pods of an owner: thousands of nodes name the same ones."""
    return Owner(kind, namespace, name)


def owner_of(namespace: str, pod: str) -> Optional[Owner]:
    """The Deployment (NAME-HASH-RANDOM) or StatefulSet (NAME-ORDINAL) that a pod's name speaks of; None = neither."""
    for kind, pattern in (("Deployment", _DEPLOYMENT), ("StatefulSet", _STATEFUL_SET)):
        found = pattern.fullmatch(pod)
        if found:
            return _known(kind, namespace, found["name"])
    return None


def observed(node_placement: Mapping[str, Any]) -> NodeTraffic:
    """The little that is needed of a NodePlacement, so that the whole need not be kept.

    :raises Unreadable: it is none.
    """
    whole = Fields(node_placement)
    status = whole.fields("status")
    pods: dict[Owner, int] = {}
    for namespace, pod in {_pod(row) for row in status.rows("placements")}:
        owner = owner_of(namespace, pod)
        if owner is not None:
            pods[owner] = pods.get(owner, 0) + 1
    groups = []
    for group in status.rows("affinityGroups"):
        owners = {owner_of(*_pod(member)) for member in group.rows("members")}
        named = frozenset(owner for owner in owners if owner is not None)
        rate = group.number("bytesPerSecond")
        if len(named) > 1 and rate > 0:
            groups.append((named, rate))
    return NodeTraffic(whole.fields("metadata").text("name"), pods, tuple(groups), _remote(status))


def _pod(row: Fields) -> tuple[str, str]:
    """Namespace and name; a container outside Kubernetes has neither."""
    return row.text("namespace", ""), row.text("pod", "")


def _remote(status: Fields) -> tuple[tuple[Owner, str, int], ...]:
    """Traffic of owners with addresses of other nodes, all pods of an owner together."""
    sums: dict[tuple[Owner, str], int] = {}
    for row in status.rows("remoteTraffic"):
        owner, address, rate = owner_of(*_pod(row)), row.text("address"), row.number("bytesPerSecond")
        if owner is not None:
            sums[owner, address] = sums.get((owner, address), 0) + rate
    return tuple((owner, address, rate) for (owner, address), rate in sums.items())


def owners_wanted(
    traffic: Iterable[NodeTraffic],
    remote: Mapping[frozenset[Owner], int],
    published: Mapping[str, Published],
    now: float,
) -> set[Owner]:
    """The owners whose scale ``advise`` needs: they exchange enough with others."""
    return {owner for owners in _evidence(traffic, remote, published, now) for owner in owners}


def advise(
    traffic: Collection[NodeTraffic],
    remote: Mapping[frozenset[Owner], int],
    selectors: Mapping[Owner, str],
    published: Mapping[str, Published],
    zones: Mapping[str, str],
    now: float,
) -> dict[str, dict[str, Any]]:
    """All AffinityAdvice objects there should be, by name; one of another name is to be deleted.

    ``remote``: bytes a second from node to node, by pairs of owners (``between``). ``selectors``: ``status.selector`` of
    the scale of each owner that exists. ``published``: each advice as it was last written, so that one which wavers is
    written once, and one that was followed stays. ``zones``: of nodes that have one. ``now``: seconds since 1970.
    """
    evidence = _evidence(traffic, remote, published, now)
    where = _nodes_of(traffic, {owner for owners in evidence for owner in owners})
    found: dict[str, dict[str, Any]] = {}
    # 1. Those with the most traffic; one that is there gives way to one that has clearly more.
    for owners, (rate, fading_since) in sorted(
        evidence.items(),
        key=lambda item: (
            -sum(item[1].rates) * (SAME_RATE if name_of(item[0]) in published else 1),
            sorted(item[0]),
        ),
    ):
        before = published.get(name_of(owners))
        advice = _advice(owners, rate, where, selectors, before)
        if advice is not None and len(found) < MOST_ADVICES:
            if fading_since:
                advice["status"]["fadingSince"] = fading_since
            found[advice["metadata"]["name"]] = advice
    # 2. What pods follow.
    _let_follow(found, where, selectors, published, zones)
    return found


def _evidence(
    traffic: Iterable[NodeTraffic],
    remote: Mapping[frozenset[Owner], int],
    published: Mapping[str, Published],
    now: float,
) -> dict[frozenset[Owner], Evidence]:
    """Bytes a second by the owners that exchange them, all nodes together, where they are worth an advice.

    Owners that follow an advice share a node, perhaps with others that talk to them: all that counts for the advice.
    """
    sums: dict[frozenset[Owner], int] = {}
    for node in traffic:
        for owners, bytes_per_s in node.groups:
            sums[owners] = sums.get(owners, 0) + bytes_per_s
    found = {}
    there = {each.owners: each for each in published.values() if each.owners}
    for owners in sums.keys() | remote.keys() | there.keys():
        before = there.get(owners)
        if before is None:
            rate = Rates(sums.get(owners, 0), remote.get(owners, 0))
            if sum(rate) >= LEAST_BYTES_PER_S:
                found[owners] = Evidence(Rates(steady(rate.local, 0), steady(rate.remote, 0)))
            continue
        local = sum(bytes_per_s for group, bytes_per_s in sums.items() if owners <= group)
        rate, told = Rates(local, remote.get(owners, 0)), before.rates
        if sum(rate) >= LEAST_BYTES_PER_S // 2:
            found[owners] = Evidence(Rates(steady(rate.local, told.local), steady(rate.remote, told.remote)))
        elif not before.fading_since or read_time(before.fading_since) > now - FADING_S:
            found[owners] = Evidence(told, before.fading_since or write_time(now))
    return found


def steady(bytes_per_s: int, before: int) -> int:
    """A rate to two digits, or the one that was published before while it is still about that."""
    if before and before / SAME_RATE <= bytes_per_s <= before * SAME_RATE:
        return before
    step = int(10 ** max(0, len(str(bytes_per_s)) - 2))
    return (bytes_per_s + step // 2) // step * step


def _nodes_of(traffic: Iterable[NodeTraffic], owners: Collection[Owner]) -> dict[Owner, dict[str, int]]:
    """The pods of each owner by node."""
    found: dict[Owner, dict[str, int]] = {owner: {} for owner in owners}
    for node in traffic:
        for owner, count in node.pods.items():
            if owner in found:
                found[owner][node.node] = count
    return found


def _advice(
    owners: frozenset[Owner],
    rate: Rates,
    where: Mapping[Owner, Mapping[str, int]],
    selectors: Mapping[Owner, str],
    before: Optional[Published],
) -> Optional[dict[str, Any]]:
    """None where there is nothing to gain, or an owner does not exist. ``before``: the advice that is there."""
    if not owners <= selectors.keys():
        return None
    # 1. The one that others are to come to: the same as before, wherever pods have come since; a StatefulSet stays with
    # its volumes; else the one on the fewest nodes.
    target = before.target if before and before.target in owners else None
    target = target or min(
        owners, key=lambda o: (o.kind != "StatefulSet", len(where[o]), sum(where[o].values()), o)
    )
    # 2. Those with pods where it is not.
    apart = {
        owner: sum(count for node, count in where[owner].items() if node not in where[target])
        for owner in sorted(owners - {target})
    }
    coming = {owner: count for owner, count in apart.items() if count}
    selector = label_selector(selectors[target])
    # An advice that is followed has nothing to gain any more, and stays: without it the next rollout would undo that.
    if selector is None or not (coming or before):
        return None
    together = sorted(set.intersection(*(set(where[owner]) for owner in owners)))
    namespaces = [] if {o.namespace for o in owners} == {target.namespace} else [target.namespace]
    return {
        "apiVersion": API_VERSION,
        "kind": AFFINITY_ADVICE,
        "metadata": {"name": name_of(owners)},
        "status": {
            "owners": [
                {**owner._asdict(), "pods": sum(where[owner].values()), "nodes": len(where[owner])}
                for owner in sorted(owners)
            ],
            "bytesPerSecond": rate.local,
            "remoteBytesPerSecond": rate.remote,
            "nodes": together[:MOST_NODES],
            "target": target._asdict(),
            "targetLabels": selector.get("matchLabels", {}),
            "podAffinity": pod_affinity(selector, namespaces),
            "reason": _reason(target, coming, where, rate),
        },
    }


def _let_follow(
    advices: Mapping[str, dict[str, Any]],
    where: Mapping[Owner, Mapping[str, int]],
    selectors: Mapping[Owner, str],
    published: Mapping[str, Published],
    zones: Mapping[str, str],
) -> None:
    """Put into each advice, strongest first, the terms of the owners that follow it."""
    # 1. The advices of each owner, one for each target: the weakest go.
    chosen: dict[Owner, dict[Owner, str]] = {}
    followed = 0
    for name, advice in advices.items():
        status = advice["status"]
        target = Owner(**status["target"])
        status["followers"] = []
        coming = [owner for owner in (_owner(row) for row in status["owners"]) if owner != target]
        news = [
            owner
            for owner in coming
            if len(chosen.get(owner, {})) < MOST_TERMS and target not in chosen.get(owner, {})
        ]
        if followed < MOST_FOLLOWED and news:
            followed += 1
            advice["metadata"]["labels"] = {FOLLOW_LABEL: "true"}
            for owner in news:
                chosen.setdefault(owner, {})[target] = name
    # 2. Their terms.
    for owner, by_target in chosen.items():
        selector = label_selector(selectors[owner])
        if selector is None:
            continue
        key = HOSTNAME
        spread = len({zones[node] for node in where[owner] if node in zones}) > 1
        if zones and (
            spread or any(published[n].keys.get(owner) == ZONE for n in by_target.values() if n in published)
        ):
            key = ZONE
        traffic = {target: sum(_rates_of(advices[name])) for target, name in by_target.items()}
        weights, apart, skew = shares(
            traffic, {target: most_in_one(where[target], zones if key == ZONE else None) for target in traffic},
            sum(where[owner].values()),
        )  # fmt: skip
        for target, name in by_target.items():
            advices[name]["status"]["followers"].append(
                {
                    **owner._asdict(),
                    "term": _term(
                        key, weights[target], label_selector(selectors[target]) or {}, owner, target
                    ),
                    "apart": {"weight": apart, "podAffinityTerm": _own(key, owner, selector)},
                    "spread": {
                        **_own(key, owner, selector),
                        "maxSkew": skew,
                        "whenUnsatisfiable": "ScheduleAnyway",
                    },
                }
            )


def shares(
    traffic: Mapping[Owner, int], pods: Mapping[Owner, int], replicas: int
) -> tuple[dict[Owner, int], int, int]:
    """Weights of an owner's terms by traffic, the weight of keeping its replicas apart, and by how many replicas one node
    may have more than another.

    The scheduler adds up ``weight`` for each pod of a target on a node, and subtracts ``apart`` twice for each replica, as
    both have the term: a node draws no more once it has half of the replicas more than the emptiest.
    ``pods``: of a target, the most on one node.
    """
    skew = max(1, (replicas + 1) // 2)
    most = max(traffic.values())
    weights = {target: max(1, round(100 * rate / max(1, most))) for target, rate in traffic.items()}
    pull = sum(weight * max(1, pods[target]) for target, weight in weights.items())
    apart = -(-pull // (2 * skew))
    if apart > 100:
        weights = {target: max(1, weight * 100 // apart) for target, weight in weights.items()}
        apart = 100
    return weights, apart, skew


def most_in_one(pods: Mapping[str, int], zones: Optional[Mapping[str, str]]) -> int:
    """The most pods on one node; ``zones``: in one zone of these."""
    sums: dict[str, int] = {}
    for node, count in pods.items():
        domain = node if zones is None else zones.get(node, "")
        sums[domain] = sums.get(domain, 0) + count
    return max(sums.values(), default=0)


def _rates_of(advice: Mapping[str, Any]) -> Rates:
    return Rates(advice["status"]["bytesPerSecond"], advice["status"]["remoteBytesPerSecond"])


def _owner(row: Mapping[str, Any]) -> Owner:
    return Owner(row["kind"], row["namespace"], row["name"])


def _term(key: str, weight: int, selector: Mapping[str, Any], owner: Owner, target: Owner) -> dict[str, Any]:
    namespaces = {} if owner.namespace == target.namespace else {"namespaces": [target.namespace]}
    affinity = {"topologyKey": key, **namespaces, "labelSelector": dict(selector)}
    return {"weight": weight, "podAffinityTerm": affinity}


def _own(key: str, owner: Owner, selector: Mapping[str, Any]) -> dict[str, Any]:
    """The pods of an owner; of a Deployment those of the same rollout."""
    same = {"matchLabelKeys": ["pod-template-hash"]} if owner.kind == "Deployment" else {}
    return {"topologyKey": key, "labelSelector": dict(selector), **same}


def _reason(
    target: Owner, coming: Mapping[Owner, int], where: Mapping[Owner, Mapping[str, int]], rate: Rates
) -> str:
    rates = [
        f"{rate_text(bytes_per_s)} {where_}"
        for bytes_per_s, where_ in (
            (rate.remote, "from node to node"),
            (rate.local, "where they share a node"),
        )
        if bytes_per_s
    ]
    exchange = f"exchange {' and '.join(rates)}; "
    if not coming:
        return f"{target} and the others {exchange}all have a pod of {target} on their nodes, as advised"
    names = " and ".join(str(owner) for owner in coming)
    parts = [
        f"{count} of the {sum(where[owner].values())} pods of {owner}" for owner, count in coming.items()
    ]
    return (
        f"{names} and {target} {exchange}"
        f"{' and '.join(parts)} are on nodes without a pod of {target}: "
        f"add podAffinity to the pod template of {names}"
    )


def rate_text(bytes_per_s: int) -> str:
    """A rate for people, in megabytes (10^6) a second."""
    return f"{bytes_per_s / 1_000_000:g} MB/s"


def name_of(owners: Iterable[Owner]) -> str:
    """The name of the advice on some owners: their names, and a hash of all that they are."""
    ordered = sorted(owners)
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:10]
    return f"{'-'.join(owner.name for owner in ordered)[:200].rstrip('-.')}-{digest}"


def label_selector(text: str) -> Optional[dict[str, Any]]:
    """The LabelSelector that a selector's text means (as ``status.selector`` of a scale); None = it selects nothing known.

    Parts: ``key=value``, ``key in (a,b)``, ``key notin (a,b)``, ``key``, ``!key``.
    """
    labels: dict[str, str] = {}
    expressions: list[dict[str, Any]] = []
    for part in re.split(r",(?![^(]*\))", text):
        found = _PART.fullmatch(part.strip())
        if found is None:
            return None
        key, operator, values = found["key"], found["operator"], found["values"]
        if found["equals"] is not None:
            labels[key] = found["equals"]
        elif operator:
            named = {"in": "In", "notin": "NotIn"}[operator]
            listed = [value.strip() for value in values.split(",")]
            expressions.append({"key": key, "operator": named, "values": listed})
        else:
            expressions.append({"key": key, "operator": "DoesNotExist" if found["not"] else "Exists"})
    return {
        **({"matchLabels": labels} if labels else {}),
        **({"matchExpressions": expressions} if expressions else {}),
    }


_PART = re.compile(
    r"(?P<not>!)?(?P<key>[A-Za-z0-9][A-Za-z0-9_./-]*)"
    r"(?:==?(?P<equals>[A-Za-z0-9_.-]*)| (?P<operator>in|notin) \((?P<values>[^()]*)\))?"
)


def pod_affinity(selector: Mapping[str, Any], namespaces: Collection[str]) -> str:
    """The part of ``spec.template.spec`` of an owner that is to be near the pods selected: YAML text.

    Preferred, not required: a pod still starts where that node is full. ``namespaces``: none = the pod's own.
    """
    lines = [
        "affinity:",
        "  podAffinity:",
        "    preferredDuringSchedulingIgnoredDuringExecution:",
        "      - weight: 100",
        "        podAffinityTerm:",
        "          topologyKey: kubernetes.io/hostname",
    ]
    if namespaces:
        lines.append(f"          namespaces: {json.dumps(sorted(namespaces))}")
    lines.append("          labelSelector:")
    if "matchLabels" in selector:
        lines.append("            matchLabels:")
        lines += [
            f"              {json.dumps(key)}: {json.dumps(value)}"
            for key, value in selector["matchLabels"].items()
        ]
    if "matchExpressions" in selector:
        # Flow style is YAML as well, and JSON.
        lines.append(f"            matchExpressions: {json.dumps(selector['matchExpressions'])}")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------- between nodes

# An address counts where exactly one pod has it and runs on another node than the reporting one. Left out, and counted:
# addresses of no pod (services, machines, the world), of several pods and of pods in a node's own network, and pods of
# no Deployment or StatefulSet.

_ENDED = ("Succeeded", "Failed")


class PodFacts(NamedTuple):
    """The facts needed of one pod."""

    namespace: str
    name: str
    node: str
    #: It runs, and has its address for itself.
    alone: bool
    ended: bool


class Holder(NamedTuple):
    """The owner of an address, and its node."""

    owner: Owner
    node: str


class Between(NamedTuple):
    """``rates``: bytes a second by pair of owners. ``left_out``: addresses that are no owner's; ``unknown``: not asked for
    yet."""

    rates: dict[frozenset[Owner], int]
    left_out: int
    unknown: int


def read_pod(pod: Mapping[str, Any]) -> PodFacts:
    """The little that is kept of a pod, as it is read.

    :raises Unreadable: it is none.
    """
    whole = Fields(pod)
    metadata, spec = whole.fields("metadata"), whole.fields("spec")
    return PodFacts(
        metadata.text("namespace", ""),
        metadata.text("name"),
        spec.text("nodeName", ""),
        not spec.flag("hostNetwork", False),
        whole.fields("status").text("phase", "") in _ENDED,
    )


def read_published(advice: Mapping[str, Any]) -> Published:
    """What an AffinityAdvice says; one that cannot be read is written again."""
    try:
        status = Fields(advice).fields("status")
        target = status.fields("target")
        keys = {
            read_owner(row): row.fields("term").fields("podAffinityTerm").text("topologyKey", "")
            for row in status.rows("followers")
        }
        return Published(
            Rates(status.number("bytesPerSecond", 0), status.number("remoteBytesPerSecond", 0)),
            frozenset(read_owner(row) for row in status.rows("owners")),
            read_owner(target) if target.text("name", "") else None,
            keys,
            status.text("fadingSince", ""),
        )
    except Unreadable:
        return Published()


def read_owner(row: Fields) -> Owner:
    """:raises Unreadable: it is none."""
    return Owner(row.text("kind"), row.text("namespace"), row.text("name"))


def scale_selector(scale: Mapping[str, Any]) -> str:
    """``status.selector`` of an owner's scale; "" = it has none that can be read."""
    try:
        return Fields(scale).fields("status").text("selector", "")
    except Unreadable:
        return ""


def holder_of(pods: Iterable[PodFacts]) -> Optional[Holder]:
    """The owner of the one pod that has an address; None = it is left out."""
    living = [pod for pod in pods if not pod.ended]
    if len(living) != 1 or not living[0].alone:
        return None
    owner = owner_of(living[0].namespace, living[0].name)
    return None if owner is None else Holder(owner, living[0].node)


def addresses_wanted(traffic: Iterable[NodeTraffic]) -> list[str]:
    """The addresses that nodes tell of, those with the most bytes first."""
    sums: dict[str, int] = {}
    for node in traffic:
        for _, address, rate in node.remote:
            sums[address] = sums.get(address, 0) + rate
    return sorted(sums, key=lambda address: (-sums[address], address))


def between(traffic: Collection[NodeTraffic], holders: Mapping[str, Optional[Holder]]) -> Between:
    """Traffic of owners from node to node. ``holders``: the addresses that were asked for.

    A connection is told of by one node only, and of a datagram one direction, so that all there is may be added up.
    """
    rates: dict[frozenset[Owner], int] = {}
    left_out, unknown = set(), set()
    for node in traffic:
        for owner, address, rate in node.remote:
            if address not in holders:
                unknown.add(address)
                continue
            holder = holders[address]
            if holder is None:
                left_out.add(address)
            elif holder.node != node.node and holder.owner != owner:
                pair = frozenset((owner, holder.owner))
                rates[pair] = rates.get(pair, 0) + rate
    return Between(rates, len(left_out), len(unknown))
