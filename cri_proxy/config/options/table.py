"""The options: one table, an entry an option, from which all else of an option is made.

Files are read by it; docs/configuration.md, the sample file, the allow-list of the cluster's policies and the schema of
PlacementPolicy are written from it (``make docs``). Sections come in the order of the document.
"""

from __future__ import annotations

from typing import Any, Union

from cri_proxy.config.balloons import CONDITIONS, balloon_types
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
    memory,
    names,
    networks,
    nodes,
    one_of,
    path,
    section,
    selectors,
    socket_path,
    socket_paths,
    subset,
    whole,
)
from cri_proxy.config.load_classes import load_classes
from cri_proxy.config.options.nri_capabilities import REACTIONS
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS
from policies.registry import POLICIES

#: What plugins of NRI may be forbidden to adjust: the words of ``nri.validators``.
VALIDATORS = (
    "oci_hook",
    "runtime_default_seccomp",
    "unconfined_seccomp",
    "custom_seccomp",
    "namespace",
    "sysctl",
)


@frozen
class Option:
    """One setting. ``default`` is the typed value; ``live``: a reload applies it, else a restart does.

    ``cluster``: a policy of the cluster may set it; a check: to what that takes. Never an option that names a path, a
    socket or a program of the node, or that keeps pods from starting: a policy reaches every node at once.
    ``observer``: only the observer reads it, and what of the observer's applies it: "reload" or "restart".
    ``beside``: an option with a path. Where nothing sets this one, it is as far from that one as the defaults are.
    """

    key: str
    check: Check
    default: Any
    help: str
    live: bool = True
    cluster: Union[bool, Check] = False
    observer: str = ""
    beside: str = ""


_DOMAINS = one_of("ccx", "numa", "socket", "machine")


OPTIONS: tuple[Option, ...] = (
    Option("policy.Active", one_of(*POLICIES), "hygon",
           "The placement policy. hygon: the ladder of the Hygon manual, CPUs shared; topology-aware: exclusive "
           "CPUs for Guaranteed containers; balloons: pools of CPUs by policy.balloons.BalloonTypes; none: "
           "nothing is placed.", cluster=True),
    Option("policy.ReservedResources.CPU", cpus("none", may_be_zero=True), CpuConstraint(),
           "CPUs kept for the system and for placement.reserved_namespaces. A quantity is rounded up to whole "
           "cores and taken from one L3.", cluster=True),
    Option("policy.ReservedResources.Memory", memory(), 0,
           "Memory kept for the system: limits of containers fill that much less of the NUMA nodes with CPUs, each by its "
           "part of their memory.", cluster=True),
    Option("policy.AvailableResources.CPU", cpus("all that are online", may_be_zero=False), CpuConstraint(),
           "The only CPUs that containers may be placed on, besides reserved ones. A quantity takes as many, L3 by "
           "L3.", cluster=True),
    Option("policy.balloons.BalloonTypes", balloon_types(), (),
           "The types of balloons, for the policy balloons: a list of mappings, whose keys are in the table of "
           "configuration.md. A container is of the first type that matches it, or of the type its annotation "
           "names.", cluster=True),
    Option("policy.balloons.LoadClasses", load_classes(), (),
           "Loads that balloons are not to have in one core, cache or larger domain, for the policy balloons: a list of "
           "{Name: NAME, Level: LEVEL, OverloadsLevelInBalloon: true or false}. Types name them in Loads. Level: core, "
           "l2cache, l3cache, numa, die or package. OverloadsLevelInBalloon: CPUs of one balloon are not to share it "
           "either.", cluster=True),
    Option("policy.balloons.ShowContainersInNrt", flag(), False,
           "Balloons and their containers are zones of the node's NodeResourceTopology; for types that do not say.",
           cluster=True),
    Option("policy.balloons.AllocatorTopologyBalancing", flag(), False,
           "Balloons are made where most CPUs are free, rather than packed; for types that do not say.",
           cluster=True),
    Option("policy.balloons.PreferSpreadOnPhysicalCores", flag(), False,
           "Balloons take one thread of many cores, rather than whole cores; for types that do not say.",
           cluster=True),
    Option("placement.cpus", one_of("preset", "shared", "exclusive"), "preset",
           "What runs on a container's CPUs. shared: others of its domain, too; exclusive: whole CPUs for it alone, "
           "for Guaranteed containers that ask for 1 or more; preset: exclusive with policy.Active topology-aware, "
           "else shared. Balloons are shared by those in them, whatever this says.", cluster=True),
    Option("placement.ladder", one_of("manual", "fine"), "manual",
           "The rule by which containers climb from one CCX to the machine: that of the Hygon manual, or fine, "
           "which tries a cluster of cores (Kunpeng 920: four that share L3 tags) before an L3, and the fewest CCXs "
           "of one NUMA node before a whole NUMA node.", cluster=True),
    Option("placement.size", one_of("limit", "demand"), "limit",
           "What the cpuset of a container that shares CPUs is sized by. limit: its CPU limit, by the ladder; demand: "
           "usage-based sizing, the smallest domain that holds what it uses, never more than by its limit.",
           cluster=True),
    Option("placement.unlimited", _DOMAINS, "numa",
           "Where a container without a CPU limit may run; never less than its request needs.", cluster=True),
    Option("placement.besteffort", _DOMAINS, "numa", "Where a BestEffort container may run.", cluster=True),
    Option("placement.l3", one_of("prefer", "require", "exclusive", "spread"), "prefer",
           "Exclusive CPUs and L3s. prefer: as few L3s as can be; require: one L3; exclusive: no other "
           "container in those L3s; spread: one thread a core over many L3s (of shared CPUs those of a socket). Where "
           "that cannot be had, require and exclusive fail the create, whether this option or an annotation asks for "
           "it; with spread the container shares CPUs.", cluster=True),
    Option("placement.smt", one_of("any", "full-core", "hide", "spread"), "any",
           "Exclusive CPUs and hyperthreads. any: whole cores first; full-core: nothing but whole "
           "cores; hide: whole cores, of which one thread each runs; spread: one thread a core, the others stay "
           "free. Of shared CPUs hide and spread give one thread of each core.", cluster=True),
    Option("placement.cfs_quota", one_of("keep", "lift"), "keep",
           "The CPU quota of containers with exclusive CPUs. keep: as kubelet set it; lift: taken away, from the pod "
           "too where all its limited containers have exclusive CPUs.", cluster=True),
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
           "How many containers may be moved at once so that another fits the domain it needs, or so that they have as "
           "many CPUs as their limit; 0 moves none.",
           cluster=True),
    Option("placement.move_exclusive", flag(), False,
           "Whether those may be containers with exclusive CPUs.", cluster=True),
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
           "Namespaces whose containers are left alone, and counted where they run.", cluster=True),
    Option("placement.unmanaged_handlers", names(), ("kata*", "*firecracker*", "*cloud-hypervisor*", "*qemu*"),
           "Runtime handlers (of a RuntimeClass) that start virtual machines; their containers are left alone."),
    Option("placement.preserve", CONDITIONS, (),
           "Containers for which one of these holds are left alone as well, with what CPUs and memory nodes they have: a "
           "list of {key: ..., operator: ..., values: [...]}, as MatchExpressions of a balloon type.", cluster=True),
    Option("placement.fail_closed_namespaces", names(), (),
           "Namespaces whose containers are refused when no placement can be decided; elsewhere the request then "
           "passes unchanged."),
    Option("relay.mode", one_of("enforce", "observe", "off"), "enforce",
           "enforce: place containers; observe: decide, log and explain, change nothing; off: pass bytes only. Nodes of a "
           "new cluster install observe where nothing sets it.",
           # Off keeps no books that a rollout could judge a node by.
           cluster=one_of("enforce", "observe")),
    Option("relay.socket", socket_path(), "/var/run/cri-resmgr.sock",
           "The socket kubelet connects to.", live=False),
    Option("relay.extra_sockets", socket_paths(), ("/var/run/cri-resmgr/cri-resmgr.sock",),
           "Further sockets that serve the same; the default is that of Intel's cri-resource-manager.", live=False),
    Option("relay.runtime_endpoint", endpoint("the first found"), "",
           'The container runtime\'s socket. "" looks for containerd, CRI-O and iSulad in their usual places.',
           live=False),
    Option("relay.image_endpoint", endpoint("the runtime's"), "",
           "The socket of a separate image service, which is kubelet's own setting (imageServiceEndpoint): `kubelet "
           "enable` writes it there. As long as another socket than the runtime's stands here, the daemon is degraded "
           "and refuses image calls.", live=False),
    Option("state.directory", path(), "/var/lib/cri-resmgr",
           "Where the state and the last configuration that loaded are kept.", live=False),
    Option("history.entries", whole(0, 1_000_000), 10_000,
           "How many decisions and moves are kept for `cri-resmgr history`, in history.db of state.directory, over "
           "restarts too. They have 64 MiB at most, whatever their number. 0 keeps none."),
    Option("control.socket", socket_path(), "/var/run/cri-resmgr/control.sock",
           "The socket the command line talks to.", live=False),
    Option("control.view_socket", endpoint("none"), "/var/run/cri-resmgr/view/view.sock",
           "A second socket, which answers questions and changes nothing: for what reports on this node. It has a "
           "folder of its own, so that a container may see that and not the other. Where nothing sets it, it is "
           "view/view.sock in the folder of control.socket.", live=False, beside="control.socket"),
    Option("control.view_group", matching('the name of a group, or ""', r"[a-z_][a-z0-9_-]{0,31}|"), "cri-resmgr-view",
           "A group that may connect to control.view_socket besides root, such as that of cri-resmgr-web.service. Where "
           "there is no such group, or it is empty, root alone may.", live=False),
    Option("control.cpu", section("a mapping with classes"), None,
           "Classes of CPUs, as Intel's cri-resource-manager (its cpu) and nri-plugins (cpuClasses) have them: minFreq, "
           "maxFreq, freqGovernor, energyPerformancePreference, disabledCstates, turboPriority, and boost. idle, shared, "
           "reserved and exclusive name the classes of CPUs that nothing uses, that containers share, that are reserved, "
           "and that containers own which have no class otherwise. It counts as isolation.clocks says.", cluster=True),
    Option("control.rdt", section("a mapping with enable and partitions"), None,
           "Classes of caches and memory bandwidth, as Intel's cri-resource-manager (its rdt) and nri-plugins have "
           "them: options, partitions, and in these classes. Containers have a class by "
           "annotation, or by their QoS class with usePodQoSAsDefaultClass. It counts with enable: true; caches as "
           "isolation.caches says, bandwidth as isolation.bandwidth does.", cluster=True),
    Option("control.interrupts", section("a mapping with controllable and sink"), None,
           "Which interrupts may be controlled (controllable: patterns of their names in /proc/interrupts, as nri-plugins' "
           "controllableInterrupts), and the CPUs that handle those which no balloon claims (sink). It counts as "
           "isolation.interrupts says.", cluster=True),
    Option("control.scheduling", section("a mapping with schedulingClasses and others"), None,
           "Classes of CPU scheduling and I/O priority, as nri-plugins have them: schedulingClasses, "
           "namespaceSchedulingClasses, podQoSSchedulingClasses. Containers have a class by annotation, by their balloon's "
           "type, their namespace or their QoS class, or one named protected, standard or batch. It counts as "
           "isolation.scheduling says.", cluster=True),
    Option("control.blockio", section("a mapping with Classes"), None,
           "Classes of block I/O, as Intel's cri-resource-manager (its blockio) has them: in Classes, by name, a list of "
           "Devices with Weight, ThrottleReadBps, ThrottleWriteBps, ThrottleReadIOPS and ThrottleWriteIOPS. Ours are: "
           "annotations, those that pods may have limits by (volcano.sh/blkio-limit), and costs, what iocost knows of the "
           "node's disks. It counts as isolation.disks says.", cluster=True),
    Option("control.memory", section("a mapping with classes and unifiedannotations"), None,
           "Classes of memory, as nri-plugins' memory-qos has them: name and swaplimitratio; and high, low, min (a "
           "percentage, bytes such as 512Mi, or max), swapMax, swap. Containers have a class by annotation, or the one "
           "named like their QoS class or what they are to others. unifiedannotations lists what pods may set "
           "themselves. It counts as isolation.memory says.", cluster=True),
    Option("topology.source", path(), "/sys",
           "What the machine looks like: a sysfs root directory, or a JSON file as printed by `cri-resmgr topology "
           "--json`."),
    Option("topology.cgroup_root", path(), "/sys/fs/cgroup", "Where cgroups are mounted.", live=False),
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
    Option("affinity.provider", one_of("auto", "ebpf", "sock_diag", "declared"), "auto",
           "How the observer sees traffic. auto: the first of ebpf, sock_diag and declared (only what annotations "
           "say) that works here.", observer="restart"),
    Option("affinity.within", one_of("node", "namespace", "owner"), "node",
           "Which traffic counts: all of it, only inside a namespace, or only among replicas and containers of one "
           "workload.", cluster=True, observer="reload"),
    Option("affinity.remote_networks", networks(),
           ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
           "The networks that pods of other nodes have addresses in: what containers exchange with these is told "
           "to the cluster (AffinityAdvice). Best the cluster's pod networks; [] sees nothing beyond the node.",
           observer="restart"),
    Option("affinity.rebalance", one_of("auto", "manual"), "auto",
           "auto: running containers are moved when a plan pays; manual: only by `cri-resmgr rebalance`.",
           cluster=True),
    Option("affinity.hysteresis", decimal(0, 1), 0.1,
           "The part of all communication cost that a plan must save.", cluster=True),
    Option("affinity.cooldown", duration(), 600.0,
           "A container that a plan has moved stays for so long.", cluster=True),
    Option("affinity.moves_per_minute", whole(0, 1000), 10,
           "Containers moved in a minute at most; 0 freezes all.", cluster=True),
    Option("affinity.most_memory_moved", whole(0, 1_000_000, "GiB"), 8,
           "Containers with more memory in use do not change their NUMA node.", cluster=True),
    Option("affinity.pressure_guard", flag(), True,
           "Whether a move is taken back when containers then wait for CPUs that did not before.", cluster=True),
    Option("affinity.measure_effect", flag(), True,
           "Whether the hardware's counters are read before and after each plan, where it has those that tell where cache "
           "lines come from; a plan begins ten seconds later then.", cluster=True),
    Option("demand.headroom", decimal(0, 10), 0.25,
           "With usage-based sizing: how much larger than its usage a cpuset is, as a part of that.", cluster=True),
    Option("isolation.caches", one_of("off", "observe", "enforce"), "off",
           "Whether batch containers have a part of an L3 only where protected ones run in it, too (resctrl). observe: what "
           "would be done is told, and nothing is.", cluster=True),
    Option("isolation.bandwidth", one_of("off", "observe", "enforce"), "off",
           "The same of memory bandwidth.", cluster=True),
    Option("isolation.batch_cache",
           matching('a percentage ("30%"), ways ("2 bits") or a mask ("0x3")',
                    r"([1-9][0-9]?|100)%|[1-9][0-9]? bits?|0x0{0,7}[1-9a-fA-F][0-9a-fA-F]{0,7}", 16), "30%",
           "The part of an L3 that batch containers have where protected ones run in it, too: rounded up to what the "
           "hardware can.", cluster=True),
    Option("isolation.batch_bandwidth",
           matching('a percentage ("30%") or a rate ("4000MBps")', r"([1-9][0-9]?|100)%|[1-9][0-9]{0,6}MBps", 16), "30%",
           "The part of memory bandwidth that they have there.", cluster=True),
    Option("isolation.cpu", one_of("off", "observe", "enforce"), "off",
           "Whether batch containers have CPU time only where others leave it, and protected ones may save up quota for a "
           "burst.", cluster=True),
    Option("isolation.scheduling", one_of("off", "observe", "enforce"), "off",
           "Whether containers have the scheduling policy, nice value and I/O priority of their class.", cluster=True),
    Option("isolation.clocks", one_of("off", "observe", "enforce"), "off",
           "Whether CPUs have the frequencies and idle states of the class that all their containers are of.", cluster=True),
    Option("isolation.interrupts", one_of("off", "observe", "enforce"), "off",
           "Whether interrupts of devices are kept off CPUs that protected containers own.", cluster=True),
    Option("isolation.disks", one_of("off", "observe", "enforce"), "off",
           "Whether containers have the weight and limits of their class of block I/O.", cluster=True),
    Option("isolation.memory", one_of("off", "observe", "enforce"), "off",
           "Whether containers have the memory of their class: what is kept for them, and from where on it is taken.",
           cluster=True),
    Option("isolation.protection", one_of("off", "observe", "enforce"), "off",
           "Whether batch gets less than that, a step at a time, while a protected container beside it measures more than "
           "without batch (fills from memory, or how long it waits), and back when it does not.", cluster=True),
    Option("isolation.turbo_most",
           matching('off or a percentage above 100 ("200%")', r"off|(10[1-9]|1[1-9][0-9]|[2-9][0-9]{2}|1000)%", 16), "off",
           "How far above its limit the CPU quota of a protected container, or one with volcano.sh/quota-turbo, may be "
           "raised, step by step, while it is throttled and its L3s have idle CPUs; off: never.", cluster=True),
    Option("isolation.protected", selectors(), ("qos/Guaranteed",),
           "Containers that others must not disturb. The annotation cri-resmgr.io/class counts before it.", cluster=True),
    Option("isolation.batch", selectors(), ("qos/BestEffort",),
           "Containers that give way to those. Where both lists name a container, balloons count before namespaces, and "
           "these before QoS classes; at the same rank it is protected.", cluster=True),
    Option("isolation.monitoring", flag(), False,
           "Whether each container's lines in L3s and its memory bandwidth are read every ten seconds, where the processor "
           "counts them (resctrl monitoring).", cluster=True),
    Option("dra.enabled", flag(), False,
           "Whether claims of CPUs (Dynamic Resource Allocation) are prepared here; the node agent publishes devices then. "
           "Only with policy.Active hygon, in mode enforce."),
    Option("dra.driver_name",
           matching("a DNS subdomain of at most 63 characters", r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", 63),
           "cpu.cri-resmgr.io",
           "The driver's name, in device classes and ResourceSlices. dra.cpu: devices also have the attributes of that "
           "driver, for claims that were written for it. It stays what it is until claims prepared under it have ended."),
    Option("nri.host", one_of("auto", "on", "off"), "auto",
           "Whether NRI plugins are hosted here. auto: where the runtime has no NRI of its own.", live=False),
    Option("nri.socket", endpoint("no external plugins"), "/var/run/cri-resmgr/nri/nri.sock",
           "The socket external plugins connect to; /var/run/nri/nri.sock is where most look for it.", live=False),
    Option("nri.plugin_path", empty_or_path(), "/opt/nri/plugins",
           "Plugins in this directory, named like 10-NAME, are launched.", live=False),
    Option("nri.plugin_config_path", empty_or_path(), "/etc/nri/conf.d",
           "Their configurations: 10-NAME.conf, else NAME.conf.", live=False),
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
    Option("nri.warn", subset(*REACTIONS), frozenset(),
           "What is left out with a line in the log where CRI cannot express it, although that fails the create or the "
           "update by default."),
    Option("nri.validators", subset(*VALIDATORS), frozenset(),
           "What plugins must not adjust: an OCI hook, the seccomp policy of containers that have the runtime's default, "
           "none or one of the pod's own, a Linux namespace, a sysctl. It fails the create."),
    Option("nri.plugin.socket", socket_path(), "/var/run/nri/nri.sock",
           "The socket of the runtime's NRI that `cri-resmgr nri run` connects to.", live=False),
    Option("nri.plugin.index", matching("two digits", r"[0-9]{2}"), "10",
           "Its place among other plugins, which are asked in this order.", live=False),
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
