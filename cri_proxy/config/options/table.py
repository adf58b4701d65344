"""The options: one table, by which files are validated and from which docs/configuration.md is written."""

from __future__ import annotations

from cri_proxy.config.checks import (
    Option,
    duration,
    endpoint,
    listen,
    one_of,
    path,
    socket_path,
    socket_paths,
    whole,
)
from cri_proxy.config.options.affinity import AFFINITY_OPTIONS
from cri_proxy.config.options.nri import NRI_OPTIONS
from cri_proxy.config.options.placement import POLICY_OPTIONS

OPTIONS: tuple[Option, ...] = (
    *POLICY_OPTIONS,
    Option(
        "relay.mode",
        one_of("enforce", "observe", "off"),
        "enforce",
        "enforce: place containers; observe: decide, log and explain, change nothing; off: pass bytes only.",
    ),
    Option(
        "relay.socket",
        socket_path(),
        "/var/run/cri-resmgr.sock",
        "The socket kubelet connects to.",
        live=False,
    ),
    Option(
        "relay.extra_sockets",
        socket_paths(),
        ("/var/run/cri-resmgr/cri-resmgr.sock",),
        "Further sockets that serve the same; the default is that of Intel's cri-resource-manager.",
        live=False,
    ),
    Option(
        "relay.runtime_endpoint",
        endpoint("the first found"),
        "",
        'The container runtime\'s socket. "" looks for containerd, CRI-O and iSulad in their usual places.',
        live=False,
    ),
    Option(
        "relay.image_endpoint",
        endpoint("the runtime's"),
        "",
        "The socket of a separate image service. With one, calls are relayed by grpc (relay.transport).",
        live=False,
    ),
    Option(
        "relay.transport",
        one_of("frames", "grpc"),
        "frames",
        "frames: HTTP/2 frames pass as they are; grpc: each call is received and made anew, several times slower,"
        " should a client or runtime not get along with the other.",
        live=False,
    ),
    Option(
        "relay.memory",
        whole(64, 16_384),
        128,
        "How much of messages, calls and what clients have not read may be in memory for all connections together. Past"
        " that, connections are closed: of those with at least half an equal share first the idle (no call answered for a"
        " minute), then the others, the newest first.",
        "MiB",
        live=False,
    ),
    Option(
        "relay.drain",
        duration(),
        5.0,
        "How long requests under way may take to finish when the service stops.",
        "seconds",
    ),
    Option(
        "relay.drain_stops",
        duration(),
        60.0,
        "How long a stop of the service waits at most for StopContainer requests, each of which has its own timeout and"
        " relay.drain. Everything is served meanwhile.",
        "seconds",
    ),
    Option(
        "relay.idle_connections",
        whole(64, 65_536),
        1_024,
        "How many connections without a call may stay open. With more, the oldest is closed: first of those whose"
        " client has not finished its preface, then of those that had no call yet, then of the others.",
        live=False,
    ),
    Option(
        "state.directory",
        path(),
        "/var/lib/cri-resmgr",
        "Where the state and the last configuration that loaded are kept.",
        live=False,
    ),
    Option(
        "state.wait",
        duration(),
        1.0,
        "How long a call waits for its record to be written. Past that it goes on, the record is kept in memory, and"
        " `status` says so until it is written; no call waits meanwhile.",
        "seconds",
    ),
    Option(
        "control.socket",
        socket_path(),
        "/var/run/cri-resmgr/control.sock",
        "The socket the command line talks to.",
        live=False,
    ),
    Option(
        "control.view_socket",
        endpoint("none"),
        "/var/run/cri-resmgr/view/view.sock",
        "A second socket, which answers questions and changes nothing: for what reports on this node. It has a"
        " folder of its own, so that a container may see that and not the other. As long as only control.socket is set it"
        " is view/view.sock in that folder.",
        live=False,
    ),
    Option(
        "topology.source",
        path(),
        "/sys",
        "What the machine looks like: a sysfs root directory, or a JSON file as printed by "
        "`cri-resmgr topology --json`.",
    ),
    Option(
        "topology.cgroup_root",
        path(),
        "/sys/fs/cgroup",
        "Where cgroups are mounted.",
        live=False,
    ),
    Option(
        "topology.interval",
        duration(),
        10.0,
        "How often CPUs and NUMA nodes are looked at for changes.",
        "seconds",
    ),
    Option(
        "kubelet.directory",
        path(),
        "/var/lib/kubelet",
        "Where kubelet keeps cpu_manager_state and config.yaml.",
    ),
    *AFFINITY_OPTIONS,
    *NRI_OPTIONS,
    Option(
        "reconcile.interval",
        duration(),
        30.0,
        "How often the runtime's containers are compared with the state.",
        "seconds",
    ),
    Option(
        "reconcile.poll",
        duration(),
        5.0,
        "How often the runtime is asked for containers that ended, while no event stream can be read.",
        "seconds",
    ),
    Option("log.level", one_of("debug", "info", "warning", "error"), "info", "The least severe lines shown."),
    Option("log.format", one_of("console", "json"), "console", "Lines for people, or a JSON object a line."),
    Option(
        "metrics.listen",
        listen(),
        "",
        'Where Prometheus metrics are served over HTTP; "" does not serve them.',
    ),
)

BY_KEY = {option.key: option for option in OPTIONS}

#: The dotted keys that hold options, such as "policy" and "policy.ReservedResources".
SECTIONS = frozenset(
    option.key.rsplit(".", depth)[0] for option in OPTIONS for depth in range(1, option.key.count(".") + 1)
)
