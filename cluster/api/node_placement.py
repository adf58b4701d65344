"""The schema of NodePlacement: what a node has, which container is where, and what people ask of the node. Pure.

Lists of the status and ``machine`` are atomic: its one writer writes each as a whole, and managedFields stays small.
Amounts of CPU are milli-CPUs, memory is bytes, sets of CPUs and of memory nodes are in the kernel's list format.
"""

from __future__ import annotations

from typing import Any

from cluster.api.fit import (
    MOST_GROUPS,
    MOST_MEMBERS,
    MOST_PROBLEMS,
    MOST_REMOTE,
    MOST_SHARED,
    MOST_SUBJECTS,
    MOST_TEXTS,
)
from cluster.api.schema import KEEPS_UNKNOWN, LINES, flag, keyed, number, record, rows, rule, text, word

#: More of them than a node has containers.
MAX_OVERRIDES = 512
MODES = ("enforce", "observe", "off")
FRONT_ENDS = ("cri", "nri", "standalone")
ABORT_ON = ("Degraded", "NotReady", "DoctorErrors", "ConfigRefused")
#: A zone's name: ``socket-0``, ``numa-3`` or ``node-3``, ``l3-12``.
ZONE = r"^(socket|numa|node|l3)-(0|[1-9][0-9]{0,4})$"
#: Names as Kubernetes has them for namespaces and containers, and for pods.
LABEL = {"minLength": 1, "maxLength": 63, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
SUBDOMAIN = {"minLength": 1, "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}

CPU_SET = "in the kernel's list format"
#: Packages, NUMA nodes and L3s of the largest machines; a status of all bytes that it may have has fewer containers.
MAX_SOCKETS, MAX_NODES, MAX_L3S, MAX_ZONES, MAX_PLACEMENTS = 64, 1024, 4096, 8192, 8192
#: Keys of options that need a restart, and conditions of all writers.
MAX_KEYS, MAX_CONDITIONS = 256, 32


def cpus(description: str) -> dict[str, Any]:
    """CPUs or memory nodes; a long list ends in three dots."""
    return text(f"{description}, {CPU_SET}.", pattern=r"^[0-9,.-]*$")


_MEMBER = {
    "namespace": text("The pod's namespace."),
    "pod": text("The pod's name."),
    "container": text("The container's name in its pod."),
}


def _policy_asked() -> dict[str, Any]:
    return record(
        "What the operator wants this node to be configured to, out of the PlacementPolicies that select it.",
        {
            "name": text("The PlacementPolicy it comes from.", maxLength=253),
            "generation": number("That object's generation.", minimum=0),
            "hash": text(
                "What tells one configuration from another; the agent gives it back as it is.", maxLength=128
            ),
            "config": {
                "type": "object",
                "description": "The configuration: options of the allow-list, checked by agent and daemon.",
                KEEPS_UNKNOWN: True,
                "maxProperties": 64,
            },
            "abortOn": rows(
                "On which of these the agent takes the configuration back by itself while the API server is away.",
                word("One cause.", *ABORT_ON),
                maxItems=len(ABORT_ON),
            ),
        },
        rules=[
            rule("!has(self.config) || (has(self.name) && has(self.hash))", "config needs name and hash"),
        ],
    )


def _spec() -> dict[str, Any]:
    override = record(
        "One container that is to run in one zone.",
        {
            "namespace": text("The pod's namespace.", **LABEL),
            "pod": text("The pod's name.", **SUBDOMAIN),
            "container": text("The container's name in its pod.", **LABEL),
            "zone": text(
                "The zone it is to run in, by its name in status.zones, such as numa-1 or l3-4; node-1 is numa-1, too.",
                maxLength=16,
                pattern=ZONE,
                expected="the name of a zone such as socket-0, numa-1 or l3-4",
            ),
        },
        ("namespace", "pod", "container", "zone"),
    )
    return record(
        "What is asked of the node. The node's agent carries it out and changes nothing in it.",
        {
            "mode": word(
                'What the daemon does: enforce, observe (decide and explain, change nothing) or "off" (in quotes).'
                " Without it the daemon's own configuration counts.",
                *MODES,
            ),
            "freeze": flag("Whether containers that run stay where they are; new ones are placed."),
            "overrides": keyed(
                "Containers that are to run in a certain zone, by hand.",
                override,
                "namespace",
                "pod",
                "container",
                maxItems=MAX_OVERRIDES,
            ),
            "policy": _policy_asked(),
        },
    )


def _machine() -> dict[str, Any]:
    return record(
        "What the machine is made of, whatever runs on it. Absent while the daemon does not know it.",
        {
            "sockets": rows(
                "The packages.",
                record("One package.", {"id": number("Its number."), "cpus": cpus("Its CPUs")}, ("id",)),
                maxItems=MAX_SOCKETS,
            ),
            "numaNodes": rows(
                "The NUMA nodes, those without CPUs included.",
                record(
                    "One NUMA node.",
                    {
                        "id": number("Its number."),
                        "socket": number("The package it is in; -1 where it has no CPUs."),
                        "cpus": cpus("Its CPUs"),
                        "memoryBytes": number("Its memory; 0 where that is not known."),
                        "distances": {
                            "type": "object",
                            "description": "The distance to each NUMA node, by its number, as firmware gives it.",
                            "additionalProperties": number("A distance; 10 is that to itself."),
                            "maxProperties": MAX_NODES,
                        },
                    },
                    ("id",),
                ),
                maxItems=MAX_NODES,
            ),
            "l3s": rows(
                "The L3 caches.",
                record(
                    "One L3 cache.",
                    {
                        "id": number("Its number."),
                        "numaNode": number("The NUMA node it is in."),
                        "cpus": cpus("The CPUs that share it"),
                        "sizeBytes": number("Its size; 0 where that is not known."),
                    },
                    ("id",),
                ),
                maxItems=MAX_L3S,
            ),
        },
        is_atomic=True,
    )


def _zones() -> dict[str, Any]:
    zone = record(
        "One place that containers are placed in.",
        {
            "name": text("Its name: socket-ID, numa-ID or l3-ID."),
            "type": text("Its kind: Socket, Node (a NUMA node) or L3."),
            "parent": text("The next larger zone that holds all of it."),
            "cpus": cpus("Its CPUs"),
            "capacityMilliCpus": number("Milli-CPUs of its CPUs that are online."),
            "allocatableMilliCpus": number(
                "Milli-CPUs of those that containers may have: without reserved ones."
            ),
            "chargedMilliCpus": number(
                "What is allocated: requests on its shared CPUs, and all of its exclusive CPUs."
            ),
            "freeMilliCpus": number("What is left of the allocatable; 0 where requests exceed it."),
            "exclusiveCpus": cpus("Exclusive CPUs: each is one container's"),
            "sharedCpus": cpus("CPUs that containers share"),
            "memoryBytes": number("Its memory."),
            "memoryAllocatableBytes": number("Memory that may be allocated to containers, by their limits."),
            "memoryChargedBytes": number("Memory that is allocated on it, by limits."),
            "memoryFreeBytes": number("What may still be allocated; absent where that is not known."),
        },
        ("name", "type"),
    )
    return rows("The zones, largest kind first, with what they have.", zone, maxItems=MAX_ZONES)


def _placements() -> dict[str, Any]:
    placement = record(
        "One container that the runtime has. Keys whose value would be empty or false may be absent.",
        {
            **_MEMBER,
            "podUid": text("The pod's UID."),
            "containerId": text("The first 13 digits of the runtime's name for it, as crictl shows them."),
            "qos": text("The pod's QoS class."),
            "milliCpus": number("Its CPU request."),
            "cpus": cpus("The CPUs it runs on"),
            "mems": cpus("The memory nodes it is bound to, none where it is not"),
            "level": text("The domain level it is on, from one L3 to the whole machine."),
            "state": text(
                "managed, adopted, observed, opted-out, kubelet, unplaced, released or foreign (modified externally)."
            ),
            "why": text("One line: why it is there."),
            "exclusive": flag("Whether it has exclusive CPUs."),
            "zone": text("The smallest zone that holds its CPUs; empty where they span packages."),
            "demand": text("l3 or numa where it is refused without that; else empty."),
            "isolation": text(
                "protected, standard or batch: what it is to others; empty where isolation is off."
            ),
        },
        ("state",),
    )
    return rows(
        "The containers. What did not fit is counted in counts.placementsLeftOut.",
        placement,
        maxItems=MAX_PLACEMENTS,
    )


def _affinity_groups() -> dict[str, Any]:
    group = record(
        "Containers that belong together by what they send to each other.",
        {
            "members": rows(
                "Its containers.", record("One container.", _MEMBER, tuple(_MEMBER)), maxItems=MOST_MEMBERS
            ),
            "bytesPerSecond": number("What they send to each other, rounded."),
            "together": flag("Whether all of them are in one NUMA node."),
            "zone": text("The smallest zone that holds all of them."),
            "whyNot": text("One line: why they are not together; empty where they are."),
        },
        ("members", "bytesPerSecond"),
    )
    return rows("Groups of containers, heaviest first.", group, maxItems=MOST_GROUPS)


def _remote_traffic() -> dict[str, Any]:
    row = record(
        "What a container exchanges with one address.",
        {
            **_MEMBER,
            "address": text(
                "An address that is not known to be on this node: a pod's of another node, or any other."
            ),
            "bytesPerSecond": number(
                "Both directions of connections it accepted, and datagrams it sent; rounded."
            ),
        },
        ("address", "bytesPerSecond"),
    )
    return rows("What containers exchange with other nodes, heaviest first.", row, maxItems=MOST_REMOTE)


def _overrides_done() -> dict[str, Any]:
    override = record(
        "One of spec.overrides.",
        {
            **_MEMBER,
            "zone": text("The zone that is asked for."),
            "state": word(
                "What has become of it; Waiting: there is no such container yet.",
                "Applied",
                "Waiting",
                "Refused",
            ),
            "message": text("One sentence: why it is not applied.", pattern=LINES),
        },
        (*_MEMBER, "zone", "state"),
    )
    # Those of the spec, and those that the daemon has from before.
    return rows("What has become of spec.overrides.", override, maxItems=2 * MAX_OVERRIDES)


def _policy_done() -> dict[str, Any]:
    return record(
        "What has become of spec.policy.",
        {
            "name": text("The PlacementPolicy that is meant."),
            "generation": number("Its generation."),
            "hash": text("The hash from spec.policy that this is about."),
            "state": word(
                "None: there is none; Pending: not handed to the daemon yet; Applied; Refused: nothing has changed on"
                " the node; TakenBack: it was applied, and the agent has taken it back.",
                "None",
                "Pending",
                "Applied",
                "Refused",
                "TakenBack",
            ),
            # Agents of the version before give the daemon's sentences as they are, one a line.
            "message": text(
                "One sentence that names the key where it is refused, the cause where it was taken back.",
                pattern=LINES,
            ),
            "needsRestart": rows(
                "Keys that count after a restart of the daemon.", text("One key."), maxItems=MAX_KEYS
            ),
        },
        ("state",),
    )


def _claims() -> dict[str, Any]:
    return record(
        "Claims of CPUs by Dynamic Resource Allocation; absent where none is prepared.",
        {
            "count": number("How many claims are prepared."),
            "cpus": cpus("CPUs that they own: no other container runs there"),
        },
        ("count",),
    )


def _isolation() -> dict[str, Any]:
    shared = record(
        "One L3 that protected and batch containers may both run in.",
        {
            "zone": text("Its name in zones, such as l3-4."),
            "protected": number("How many protected containers may run there."),
            "batch": number("How many batch containers may run there."),
            "batchHas": text("What batch has of its cache and bandwidth; empty where it has all."),
        },
        ("zone",),
    )
    subject = record(
        "One subject whose values are files of the kernel's, or its records of threads.",
        {
            "name": text("The last word of its option, such as cpu of isolation.cpu."),
            "mode": text("Its mode in force: enforce or observe."),
            "values": number("How many values there are."),
        },
        ("name", "mode"),
    )
    return record(
        "What keeps noisy neighbours apart; absent where that is off.",
        {
            "caches": text("The mode of isolation.caches in force: enforce, observe or off."),
            "bandwidth": text("The mode of isolation.bandwidth in force."),
            "protection": text("The mode of isolation.protection in force."),
            "missing": text("One sentence: why the kernel cannot do it; empty where it can."),
            "groups": number("Groups of resctrl that the daemon has made."),
            "otherGroups": number("Groups of resctrl that others have made."),
            "refusals": number("Values that the kernel has refused."),
            "subjects": rows(
                "Those that are not off, beside caches and bandwidth.", subject, maxItems=MOST_SUBJECTS
            ),
            "sharedL3Count": number("How many L3s protected and batch containers share."),
            "sharedL3s": rows("The first of them.", shared, maxItems=MOST_SHARED),
        },
    )


def _doctor() -> dict[str, Any]:
    problem = record(
        "One problem.",
        {
            "severity": text("How bad it is: error or warning."),
            "check": text("The check that found it."),
            "message": text("One sentence."),
            "hint": text("What to do about it."),
        },
        ("severity", "check", "message"),
    )
    return record(
        "What `cri-resmgr doctor` says on the node.",
        {
            "errors": number("How many errors there are."),
            "warnings": number("How many warnings there are."),
            "problems": rows("The problems, errors first.", problem, maxItems=MOST_PROBLEMS),
        },
        ("errors",),
    )


#: Counts by name, with their meaning.
COUNTS = {
    "placements": "Containers that the runtime has.",
    "placementsLeftOut": "Containers that are not in placements, as the object would be too large.",
    "managed": "Containers that are placed by the daemon.",
    "unplaced": "Containers that have no place.",
    "zones": "Zones of the machine.",
    "zonesLeftOut": "Zones that are not in zones.",
    "affinityGroups": "Groups of containers.",
    "affinityGroupsLeftOut": "Groups that are not in affinityGroups.",
    "membersLeftOut": "Members that are not in the groups that are listed.",
    "remoteTraffic": "Pairs of a container and an address of another node.",
    "remoteTrafficLeftOut": "Such pairs that are not in remoteTraffic.",
    "overridesLeftOut": "Overrides that are not in overrides.",
    "problemsLeftOut": "Problems that are not in doctor.problems.",
    "warningsLeftOut": "Warnings that are not in warnings.",
    "textsShortened": "Texts that end in three dots, as they were too long.",
}


def conditions(description: str) -> dict[str, Any]:
    """A list of conditions as Kubernetes has them everywhere."""
    return keyed(
        description,
        record(
            "One condition.",
            {
                "type": text("Its name.", maxLength=316),
                "status": word("Whether it holds.", "True", "False", "Unknown"),
                "reason": text("One word for why.", maxLength=1024),
                "message": text("A sentence for people.", maxLength=32768),
                "lastTransitionTime": text("When its status changed last.", format="date-time"),
                "observedGeneration": number("The generation of the object that it is about."),
            },
            ("type", "status"),
        ),
        "type",
        maxItems=MAX_CONDITIONS,
    )


def _status() -> dict[str, Any]:
    # Words of the daemon are texts without an enum: a word that an old schema did not know would cost the whole write.
    return record(
        "What the node is and does. The node's agent writes it and nothing else does.",
        {
            "observedGeneration": number("The generation of this object that the agent has carried out."),
            "version": text("The daemon's version."),
            "instance": text("One life of the daemon: another value after each of its starts."),
            "mode": text("What the daemon does now: enforce, observe or off."),
            "modeWanted": text("What it was told to do; another where it is degraded."),
            "modeFrom": text(
                "What has set that: a file and line, a cluster policy, the default of the install, NodePlacement, command."
            ),
            "frontEnd": text("How containers become known: cri, nri or standalone."),
            "activePolicy": text("The daemon's placement policy, such as hygon."),
            "judgedPolicy": text(
                "Hash of the cluster's policy that was in force when Ready, Degraded and doctor were seen; empty: none."
            ),
            "frozen": flag("Whether containers that run are kept from being moved."),
            "warnings": rows(
                "What the daemon warns of, a sentence each.", text("One sentence."), maxItems=MOST_TEXTS
            ),
            "machine": _machine(),
            "zones": _zones(),
            "placements": _placements(),
            "affinityGroups": _affinity_groups(),
            "remoteTraffic": _remote_traffic(),
            "overrides": _overrides_done(),
            "policy": _policy_done(),
            "doctor": _doctor(),
            "isolation": _isolation(),
            "claims": _claims(),
            "counts": record(
                "How many there are, and what is left out here.", {k: number(v) for k, v in COUNTS.items()}
            ),
            "conditions": conditions(
                "Ready: the daemon answers and does what it is told; Degraded: with every reason; ConfigApplied: the"
                " configuration of spec.policy is in force; Current, where it is False: figures that are not of now, since"
                " when, and why."
            ),
        },
    )


def schema() -> dict[str, Any]:
    """The whole object."""
    return record(
        "A node's resources and the containers that have them; its name is the node's.",
        {"spec": _spec(), "status": _status()},
    )


#: What `kubectl get nodeplacement` shows: name, type, path, and 1 where only -o wide shows it.
COLUMNS = (
    ("Mode", "string", ".status.mode", 0),
    ("Mode-From", "string", ".status.modeFrom", 1),
    ("Front-End", "string", ".status.frontEnd", 1),
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
    ("Degraded", "string", ".status.conditions[?(@.type=='Degraded')].status", 0),
    ("Policy", "string", ".status.policy.name", 0),
    ("Applied", "string", ".status.policy.state", 0),
    ("Containers", "integer", ".status.counts.placements", 0),
    ("Unplaced", "integer", ".status.counts.unplaced", 0),
    ("Version", "string", ".status.version", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
