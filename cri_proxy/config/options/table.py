"""The options: one table, an entry an option, from which all else of an option is made.

Files are read by it; docs/configuration.md, the sample file, the allow-list of the cluster's policies and the schema of
PlacementPolicy are written from it (``make docs``). Sections come in the order of the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cri_proxy.config.balloons import balloon_types
from cri_proxy.config.checks import (
    Check,
    CpuConstraint,
    cpus,
    decimal,
    duration,
    empty_or_path,
    endpoint,
    flag,
    http_url,
    listen,
    matching,
    names,
    networks,
    nodes,
    one_of,
    path,
    socket_path,
    socket_paths,
    subset,
    whole,
)
from cri_proxy.config.options.nri_capabilities import REACTIONS
from policies.machine.cpus import NO_CPUS
from policies.registry import POLICIES


@dataclass(frozen=True)
class Option:
    """One setting. ``default`` is the typed value; ``live``: a reload applies it, else a restart does.

    ``cluster``: a policy of the cluster may set it. Never an option that names a path, a socket or a program of the
    node, or that keeps pods from starting: a policy reaches every node at once.
    ``observer``: only the observer reads it, and what of the observer's applies it: "reload" or "restart".
    """

    key: str
    check: Check
    default: Any
    help: str
    live: bool = True
    cluster: bool = False
    observer: str = ""


_DOMAINS = one_of("ccx", "numa", "socket", "machine")


def _validator(name: str, what: str) -> Option:
    return Option(f"nri.validator.{name}", flag(), False, f"Whether {what} fails the create.")


OPTIONS: tuple[Option, ...] = (
    Option("policy.Active", one_of(*POLICIES), "hygon",
           "The placement policy. hygon: the ladder of the Hygon manual, CPUs shared; topology-aware: CPUs of "
           "their own for Guaranteed containers; balloons: pools of CPUs by policy.balloons.BalloonTypes; none: "
           "nothing is placed.", cluster=True),
    Option("policy.ReservedResources.CPU", cpus("none", may_be_zero=True), CpuConstraint(),
           "CPUs kept for the system and for placement.reserved_namespaces. A quantity is rounded up to whole "
           "cores and taken from one L3.", cluster=True),
    Option("policy.AvailableResources.CPU", cpus("all that are online", may_be_zero=False), CpuConstraint(),
           "The only CPUs that containers may be placed on, besides reserved ones. A quantity takes as many, L3 by "
           "L3.", cluster=True),
    Option("policy.balloons.BalloonTypes", balloon_types(), (),
           "The types of balloons, for the policy balloons: a list of mappings, whose keys are in the table of "
           "configuration.md. A container is of the first type that matches it, or of the type its annotation "
           "names.", cluster=True),
    Option("policy.balloons.AllocatorTopologyBalancing", flag(), False,
           "Balloons are made where most CPUs are free, rather than packed; for types that do not say.",
           cluster=True),
    Option("policy.balloons.PreferSpreadOnPhysicalCores", flag(), False,
           "Balloons take one thread of many cores, rather than whole cores; for types that do not say.",
           cluster=True),
    Option("placement.cpus", one_of("preset", "shared", "exclusive"), "preset",
           "What runs on a container's CPUs. shared: others of its domain, too; exclusive: whole CPUs of its own "
           "for Guaranteed containers that ask for 1 or more; preset: exclusive with policy.Active topology-aware, "
           "else shared. Balloons are shared by those in them, whatever this says.", cluster=True),
    Option("placement.ladder", one_of("manual", "fine"), "manual",
           "The rule by which containers climb from one CCX to the machine: that of the Hygon manual, or fine, "
           "which tries a cluster of cores (Kunpeng 920: four with L3 tags of their own) before an L3, and the fewest CCXs "
           "of one NUMA node before a whole NUMA node.", cluster=True),
    Option("placement.size", one_of("limit", "demand"), "limit",
           "What the set of a container that shares CPUs is sized by. limit: its CPU limit, by the ladder; demand: what it "
           "uses, in the smallest place that holds that, never more than by its limit (the options of demand).",
           cluster=True),
    Option("placement.unlimited", _DOMAINS, "numa",
           "Where a container without a CPU limit may run; never less than its request needs.", cluster=True),
    Option("placement.besteffort", _DOMAINS, "numa", "Where a BestEffort container may run.", cluster=True),
    Option("placement.l3", one_of("prefer", "require", "exclusive", "spread"), "prefer",
           "CPUs of a container's own and L3s. prefer: as few L3s as can be; require: one L3; exclusive: no other "
           "container in those L3s; spread: one thread a core over many L3s. Where that cannot be had the "
           "container shares CPUs; only its own annotation makes a demand of it, and fails the create.",
           cluster=True),
    Option("placement.smt", one_of("any", "full-core", "hide", "spread"), "any",
           "CPUs of a container's own and hyperthreads. any: whole cores first; full-core: nothing but whole "
           "cores; hide: whole cores, of which one thread each runs; spread: one thread a core, the others stay "
           "free.", cluster=True),
    Option("placement.cfs_quota", one_of("keep", "lift"), "keep",
           "The CPU quota of containers with CPUs of their own. keep: as kubelet set it; lift: taken away, from "
           "the pod too where all its limited containers have CPUs of their own.", cluster=True),
    Option("placement.prefer_isolated", flag(), True,
           "Guaranteed containers of 1 up to 2 CPUs get isolated CPUs (isolcpus=) first, where CPUs are exclusive.",
           cluster=True),
    Option("placement.prefer_shared", flag(), False,
           "Where CPUs are exclusive: Guaranteed containers of more than 1 and less than 2 CPUs get shared ones "
           "all the same, unless annotated.", cluster=True),
    Option("placement.hints", subset("devices", "mounts"), frozenset(("devices", "mounts")),
           "What draws a container to a NUMA node: its devices, the disks behind its mounts.", cluster=True),
    Option("placement.colocate_pods", flag(), False,
           "Containers of a pod are placed near each other, as if affinity annotations said so.", cluster=True),
    Option("placement.colocate_namespaces", flag(), False,
           "Containers of a namespace are placed near each other, as if affinity annotations said so.",
           cluster=True),
    Option("placement.max_moves", whole(0, 1000, "containers"), 4,
           "How many containers may be moved so that another fits the domain it needs; 0 moves none.",
           cluster=True),
    Option("placement.move_exclusive", flag(), False,
           "Whether those may be containers with CPUs of their own.", cluster=True),
    Option("placement.memory", one_of("prefer", "pin", "off"), "prefer",
           "Memory nodes of a container with a memory limit. prefer: those of its CPUs, with the nearest others as "
           "long as limits would exceed 90 % of their memory; pin: those of its CPUs, unless its limit alone "
           "exceeds them; off: never set.", cluster=True),
    Option("placement.memory_only_nodes", nodes(), NO_CPUS,
           "NUMA nodes with memory but without CPUs (CXL, HBM, PMEM) that placement.memory may use; others are "
           "left alone.", cluster=True),
    Option("placement.reserved_namespaces", names(), ("kube-system",),
           "Namespaces whose containers run on the reserved CPUs, if there are any.", cluster=True),
    Option("placement.unmanaged_namespaces", names(), (),
           "Namespaces whose containers are left alone, and charged where they run.", cluster=True),
    Option("placement.unmanaged_handlers", names(), ("kata*", "*firecracker*", "*cloud-hypervisor*", "*qemu*"),
           "Runtime handlers (of a RuntimeClass) that start virtual machines; their containers are left alone."),
    Option("placement.fail_closed_namespaces", names(), (),
           "Namespaces whose containers are refused when no placement can be decided; elsewhere the request then "
           "passes unchanged."),
    Option("placement.restart_hold", duration(), 300.0,
           "How long the CPUs of a container that ended are held for its next attempt. Kubelet's longest back-off "
           "is 5m.", cluster=True),
    Option("placement.shrink_wait", duration(), 2.0,
           "How long a create waits for others to leave the CPUs it gets."),
    Option("placement.cpuset_file", one_of("off", "annotated", "all"), "off",
           "Which containers find their CPUs and memory nodes in a file, /run/cri-resmgr.io/cpuset, which follows moves: "
           "none, those with the annotation cri-resmgr.io/cpuset-file, or all but those with its \"false\". It counts for "
           "containers that are created from then on."),
    Option("relay.mode", one_of("enforce", "observe", "off"), "enforce",
           "enforce: place containers; observe: decide, log and explain, change nothing; off: pass bytes only."),
    Option("relay.socket", socket_path(), "/var/run/cri-resmgr.sock",
           "The socket kubelet connects to.", live=False),
    Option("relay.extra_sockets", socket_paths(), ("/var/run/cri-resmgr/cri-resmgr.sock",),
           "Further sockets that serve the same; the default is that of Intel's cri-resource-manager.", live=False),
    Option("relay.runtime_endpoint", endpoint("the first found"), "",
           'The container runtime\'s socket. "" looks for containerd, CRI-O and iSulad in their usual places.',
           live=False),
    Option("relay.image_endpoint", endpoint("the runtime's"), "",
           "The socket of a separate image service. With one, calls are relayed by grpc (relay.transport).",
           live=False),
    Option("relay.transport", one_of("frames", "grpc"), "frames",
           "frames: HTTP/2 frames pass as they are; grpc: each call is received and made anew, several times "
           "slower, should a client or runtime not get along with the other.", live=False),
    Option("relay.memory", whole(64, 16_384, "MiB"), 128,
           "How much of messages, calls and what clients have not read may be in memory for all connections "
           "together. Past that, connections are closed: of those with at least half an equal share first the idle "
           "(no call answered for a minute), then the others, the newest first.", live=False),
    Option("relay.drain", duration(), 5.0,
           "How long requests under way may take to finish when the service stops."),
    Option("relay.drain_stops", duration(), 60.0,
           "How long a stop of the service waits at most for StopContainer requests, each of which has its own "
           "timeout and relay.drain. Everything is served meanwhile."),
    Option("relay.idle_connections", whole(64, 65_536), 1_024,
           "How many connections without a call may stay open. With more, the oldest is closed: first of those "
           "whose client has not finished its preface, then of those that had no call yet, then of the others.",
           live=False),
    Option("state.directory", path(), "/var/lib/cri-resmgr",
           "Where the state and the last configuration that loaded are kept.", live=False),
    Option("state.wait", duration(), 1.0,
           "How long a call waits for its record to be written. Past that it goes on, the record is kept in "
           "memory, and `status` says so until it is written; no call waits meanwhile."),
    Option("history.entries", whole(0, 1_000_000), 10_000,
           "How many decisions and moves are kept for `cri-resmgr history`, in history.db of state.directory, over "
           "restarts too. They have 64 MiB at most, whatever their number. 0 keeps none."),
    Option("history.days", whole(1, 3_650, "days"), 7, "How long they are kept."),
    Option("control.socket", socket_path(), "/var/run/cri-resmgr/control.sock",
           "The socket the command line talks to.", live=False),
    Option("control.view_socket", endpoint("none"), "/var/run/cri-resmgr/view/view.sock",
           "A second socket, which answers questions and changes nothing: for what reports on this node. It has a "
           "folder of its own, so that a container may see that and not the other. As long as only control.socket "
           "is set it is view/view.sock in that folder.", live=False),
    Option("control.view_group", matching('the name of a group, or ""', r"[a-z_][a-z0-9_-]{0,31}|"), "cri-resmgr-view",
           "A group that may connect to control.view_socket besides root, such as that of cri-resmgr-web.service. Where "
           "there is no such group, or it is empty, root alone may.", live=False),
    Option("topology.source", path(), "/sys",
           "What the machine looks like: a sysfs root directory, or a JSON file as printed by `cri-resmgr topology "
           "--json`."),
    Option("topology.cgroup_root", path(), "/sys/fs/cgroup", "Where cgroups are mounted.", live=False),
    Option("topology.interval", duration(), 10.0, "How often CPUs and NUMA nodes are looked at for changes."),
    Option("kubelet.directory", path(), "/var/lib/kubelet",
           "Where kubelet keeps cpu_manager_state and config.yaml."),
    Option("affinity.enabled", flag(), True,
           "Whether traffic that the observer sees draws containers to each other."),
    Option("affinity.socket", socket_path(), "/var/run/cri-resmgr/affinity.sock",
           "The socket of the observer's affinity service.", live=False),
    Option("affinity.listen", listen(), "",
           'Where the affinity service is also served over TCP with mutual TLS; "" does not serve it.',
           observer="restart"),
    Option("affinity.tls_certificate", empty_or_path(), "",
           "PEM file of its certificate.", observer="restart"),
    Option("affinity.tls_key", empty_or_path(), "", "PEM file of its private key.", observer="restart"),
    Option("affinity.tls_client_ca", empty_or_path(), "",
           "PEM file of the authority whose clients may ask.", observer="restart"),
    Option("affinity.provider", one_of("auto", "ebpf", "sock_diag", "declared", "replay"), "auto",
           "How the observer sees traffic. auto: the first of ebpf, sock_diag and declared (only what annotations "
           "say) that works here.", observer="restart"),
    Option("affinity.replay", empty_or_path(), "",
           "The file of samples that provider replay plays.", observer="restart"),
    Option("affinity.interval", duration(), 10.0, "How often the observer takes a sample.", observer="reload"),
    Option("affinity.half_life", duration(), 66.0,
           "After this time traffic that has stopped counts half.", cluster=True, observer="reload"),
    Option("affinity.message_lines", decimal(0, 10_000, "cache lines"), 30.0,
           "Cache lines that one message costs besides its bytes.", cluster=True, observer="reload"),
    Option("affinity.least_weight", decimal(0, 1e12, "cache lines a second"), 1000.0,
           "Edges that are lighter do not count.", cluster=True, observer="reload"),
    Option("affinity.least_share", decimal(0, 1), 0.01,
           "Edges that are a smaller part of all traffic of either end do not count: they are what glues all "
           "containers to name servers and metrics collectors.", cluster=True, observer="reload"),
    Option("affinity.most_weight", decimal(1, 1e15, "cache lines a second"), 10_000_000.0,
           "An edge counts as this much at most, whatever a container does to attract another.",
           cluster=True, observer="reload"),
    Option("affinity.within", one_of("node", "namespace", "owner"), "node",
           "Which traffic counts: all of it, only inside a namespace, or only among replicas and containers of one "
           "workload.", cluster=True, observer="reload"),
    Option("affinity.remote_networks", networks(),
           ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
           "The networks that pods of other nodes have addresses in: what containers exchange with these is told "
           "to the cluster (AffinityAdvice). Best the cluster's pod networks; [] sees nothing beyond the node.",
           observer="restart"),
    Option("affinity.openers", whole(0, 16_777_216, "connections"), 0,
           "TCP connections open at a time whose openers the observer knows, rounded up to a power of two; 32 bytes of "
           "kernel memory each. 0: one for each 64 KiB of the machine's memory, 32,768 to 524,288.",
           observer="restart"),
    Option("affinity.declared_weight", decimal(0, 1e12, "cache lines a second"), 10_000.0,
           "What a weight of 1 in an affinity annotation counts beside traffic that was seen.", cluster=True),
    Option("affinity.rebalance", one_of("auto", "manual"), "auto",
           "auto: running containers are moved when a plan pays; manual: only by `cri-resmgr rebalance`.",
           cluster=True),
    Option("affinity.rebalance_interval", duration(), 60.0, "How often a plan is made.", cluster=True),
    Option("affinity.hysteresis", decimal(0, 1), 0.1,
           "The part of all communication cost that a plan must save.", cluster=True),
    Option("affinity.least_gain", decimal(0, 1000, "CPUs"), 0.001,
           "What each moved container must save at least, beside `affinity.hysteresis`.", cluster=True),
    Option("affinity.cooldown", duration(), 600.0,
           "A container that a plan has moved stays for so long.", cluster=True),
    Option("affinity.exchange_overcommit", decimal(0, 1), 0.5,
           "How far above its CPUs, as a part of them, an L3 may be for the milliseconds in which containers that share "
           "CPUs change places; 0: they never do.", cluster=True),
    Option("affinity.moves_per_minute", whole(0, 1000), 10,
           "Containers moved in a minute at most; 0 freezes all.", cluster=True),
    Option("affinity.minimum_age", duration(), 60.0, "Younger containers are not moved.", cluster=True),
    Option("affinity.move_exclusive", flag(), False,
           "Whether containers with CPUs of their own may be moved as well.", cluster=True),
    Option("affinity.most_memory_moved", whole(0, 1_000_000, "GiB"), 8,
           "Containers with more memory in use do not change their NUMA node.", cluster=True),
    Option("affinity.pressure_guard", flag(), True,
           "Whether a move is taken back when containers then wait for CPUs that did not before.", cluster=True),
    Option("affinity.measure_effect", flag(), True,
           "Whether the hardware's counters are read before and after each plan, where it has those that tell where cache "
           "lines come from; a plan begins ten seconds later then.", cluster=True),
    Option("affinity.measure_descriptors", whole(0, 32_768, "descriptors"), 512,
           "How many counters are open at a time for that: three for each container and CPU of it. Containers with "
           "least traffic are left out.", cluster=True),
    Option("affinity.take_back_measured", flag(), False,
           "Whether a plan is taken back when its containers then fetch more lines from other L3s or nodes for the same "
           "work, beyond the noise of before.", cluster=True),
    Option("affinity.repel", decimal(0, 1000), 0.0,
           "Containers of an L3 that together fetch more from memory than `affinity.l3_saturation` push each other apart: "
           "what each line beyond it costs, in parts of `affinity.l3_distance`; 0: they do not. Needs the hardware's "
           "counters; a plan begins up to ten seconds later then.", cluster=True),
    Option("affinity.l3_saturation", whole(1, 100_000, "million lines a second"), 100,
           "What the containers of an L3 fetch from memory when it is saturated; a line has 64 bytes.", cluster=True),
    Option("affinity.l3_distance", decimal(0, 10_000, "nanoseconds"), 84.0,
           "What a cache line costs more between two L3s of one NUMA node than inside an L3.", cluster=True),
    Option("affinity.cluster_distance", decimal(0, 10_000, "nanoseconds"), 28.0,
           "What it costs more between two clusters of cores of one L3 than inside a cluster, where clusters are "
           "places (placement.ladder fine).", cluster=True),
    Option("affinity.slit_distance", decimal(0, 1000, "nanoseconds"), 4.1,
           "What it costs more for each point of the SLIT distance above 10.", cluster=True),
    Option("demand.interval", duration(), 5.0,
           "How often the CPU time of containers sized by demand (placement.size) is looked at; in shrunk sets of which the "
           "kernel does not tell at once that their tasks wait, twice a second.", cluster=True),
    Option("demand.window", duration(), 600.0,
           "Demand is taken from the peaks of so long; only after as long without a change does a set become smaller.",
           cluster=True),
    Option("demand.percentile", decimal(0, 1), 0.95,
           "The part of the peaks, of five seconds each, that demand is not below.", cluster=True),
    Option("demand.half_life", duration(), 600.0, "After this time a peak counts half.", cluster=True),
    Option("demand.headroom", decimal(0, 10), 0.25,
           "The part of demand that a set has on top of it.", cluster=True),
    Option("demand.waiting", decimal(0.01, 1), 0.5,
           "A set is too small where tasks wait for a CPU, and are not throttled, for this part of the time.",
           cluster=True),
    Option("demand.usage", decimal(0.1, 1), 0.9,
           "Where the kernel does not tell waiting: a set is too small of which this part is used.", cluster=True),
    Option("demand.shrinks_per_minute", whole(0, 1000, "containers"), 6,
           "Sets that become smaller in a minute at most; 0: none does.", cluster=True),
    Option("demand.growths_per_hour", whole(0, 1000), 6,
           "A container whose set was too small more often within an hour has that of its limit until the hour is over.",
           cluster=True),
    Option("nri.host", one_of("auto", "on", "off"), "auto",
           "Whether NRI plugins are hosted here. auto: where the runtime has no NRI of its own.", live=False),
    Option("nri.socket", endpoint("no external plugins"), "/var/run/cri-resmgr/nri/nri.sock",
           "The socket external plugins connect to; /var/run/nri/nri.sock is where most look for it.", live=False),
    Option("nri.plugin_path", empty_or_path(), "/opt/nri/plugins",
           "Plugins in this directory, named like 10-NAME, are launched.", live=False),
    Option("nri.plugin_config_path", empty_or_path(), "/etc/nri/conf.d",
           "Their configurations: 10-NAME.conf, else NAME.conf.", live=False),
    Option("nri.launcher", one_of("auto", "unit", "child"), "auto",
           "How they are launched: as a systemd unit cri-resmgr-nri@10-NAME.service each, or as children of the "
           "daemon. auto: as units where the daemon is one.", live=False),
    Option("nri.registration_timeout", duration(), 5.0,
           "How long a plugin may take to register once it is connected."),
    Option("nri.request_timeout", duration(), 2.0, "How long a plugin may take for one answer."),
    Option("nri.sync_timeout", duration(), 20.0,
           "How long it may take to learn of all pods and containers; pods that start meanwhile wait for it."),
    Option("nri.required_plugins", names(), (),
           "Plugins (NAME or 10-NAME) without which no pod and no container is created."),
    Option("nri.tolerate_missing_plugins_annotation", matching('the key of an annotation, or ""', r"[A-Za-z0-9_./-]*"), "",
           "Pods with this annotation, true, do without them: those in which the plugins themselves run."),
    Option("nri.fail_closed_plugins", names(), (),
           "Plugins (names or globs) whose silence or end during a request fails it; it goes on without all "
           "others."),
    Option("nri.pass_without_validators", flag(), False,
           "Whether a create goes on without a validator that does not answer, or ends, while it is asked; by "
           "default that fails it. Those of `nri.fail_closed_plugins` and `nri.required_plugins` fail it all the "
           "same."),
    Option("nri.reject", subset(*REACTIONS), frozenset(),
           "What of plugins' adjustments, where CRI cannot express it, fails the create although a line in the log "
           "would do by default."),
    Option("nri.warn", subset(*REACTIONS), frozenset(),
           "What is left out with a line in the log where CRI cannot express it, although that fails the create by "
           "default."),
    Option("nri.validator.enable", flag(), False, "Whether the built-in validator looks at what plugins ask for."),
    _validator("reject_oci_hook_adjustment", "an OCI hook that a plugin adds"),
    _validator("reject_runtime_default_seccomp_adjustment", "a changed seccomp policy of the runtime's default"),
    _validator("reject_unconfined_seccomp_adjustment", "a seccomp policy for a container that has none"),
    _validator("reject_custom_seccomp_adjustment", "a changed seccomp policy of the pod's own"),
    _validator("reject_namespace_adjustment", "a changed Linux namespace"),
    _validator("reject_sysctl_adjustment", "a changed sysctl"),
    Option("nri.plugin.socket", socket_path(), "/var/run/nri/nri.sock",
           "The socket of the runtime's NRI that `cri-resmgr nri run` connects to.", live=False),
    Option("nri.plugin.name", matching("letters, digits and _.+-", r"[A-Za-z0-9_.+-]+"), "cri-resmgr",
           "What the plugin is called there.", live=False),
    Option("nri.plugin.index", matching("two digits", r"[0-9]{2}"), "10",
           "Its place among other plugins, which are asked in this order.", live=False),
    Option("reconcile.interval", duration(), 30.0,
           "How often the runtime's containers are compared with the state."),
    Option("reconcile.poll", duration(), 5.0,
           "How often the runtime is asked for containers that ended, while no event stream can be read."),
    Option("log.level", one_of("debug", "info", "warning", "error"), "info", "The least severe lines shown."),
    Option("log.format", one_of("console", "json"), "console", "Lines for people, or a JSON object a line."),
    Option("metrics.listen", listen(), "",
           'Where Prometheus metrics are served over HTTP; "" does not serve them.'),
    Option("tracing.endpoint", http_url(), "",
           "Where spans of intercepted calls are sent, in the JSON of OTLP/HTTP, such as http://localhost:4318/v1/traces: "
           "of the calls whose caller traces them (kubelet's `tracing`). \"\" sends none."),
)  # fmt: skip

BY_KEY = {option.key: option for option in OPTIONS}

#: The dotted keys that hold options, such as "policy" and "policy.ReservedResources".
SECTIONS = frozenset(
    option.key.rsplit(".", depth)[0] for option in OPTIONS for depth in range(1, option.key.count(".") + 1)
)
