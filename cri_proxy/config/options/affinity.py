"""The options of affinity: what the observer sees, what of it counts, and what may be moved. See ``options.py``.

Those of ``OBSERVERS`` are read by the observer only.
"""

from __future__ import annotations

from cri_proxy.config.checks import (
    Option,
    decimal,
    duration,
    empty_or_path,
    flag,
    listen,
    networks,
    one_of,
    socket_path,
    whole,
)

#: What the observer reads, and whether its own reload applies it; else its restart does.
OBSERVERS = {
    **dict.fromkeys(("affinity.listen", "affinity.provider", "affinity.replay"), False),
    **dict.fromkeys(("affinity.tls_certificate", "affinity.tls_key", "affinity.tls_client_ca"), False),
    **dict.fromkeys(("affinity.interval", "affinity.half_life", "affinity.message_lines"), True),
    **dict.fromkeys(("affinity.least_weight", "affinity.least_share", "affinity.most_weight"), True),
    "affinity.within": True,
    "affinity.remote_networks": False,
}

AFFINITY_OPTIONS: tuple[Option, ...] = (
    Option(
        "affinity.enabled",
        flag(),
        True,
        "Whether traffic that the observer sees draws containers to each other.",
    ),
    Option(
        "affinity.socket",
        socket_path(),
        "/var/run/cri-resmgr/affinity.sock",
        "The socket of the observer's affinity service.",
        live=False,
    ),
    Option(
        "affinity.listen",
        listen(),
        "",
        'Where the affinity service is also served over TCP with mutual TLS; "" does not serve it.',
    ),
    Option("affinity.tls_certificate", empty_or_path(), "", "PEM file of its certificate."),
    Option("affinity.tls_key", empty_or_path(), "", "PEM file of its private key."),
    Option(
        "affinity.tls_client_ca",
        empty_or_path(),
        "",
        "PEM file of the authority whose clients may ask.",
    ),
    Option(
        "affinity.provider",
        one_of("auto", "ebpf", "sock_diag", "declared", "replay"),
        "auto",
        "How the observer sees traffic. auto: the first of ebpf, sock_diag and declared (only what annotations "
        "say) that works here.",
    ),
    Option(
        "affinity.replay",
        empty_or_path(),
        "",
        "The file of samples that provider replay plays.",
    ),
    Option("affinity.interval", duration(), 10.0, "How often the observer takes a sample.", "seconds"),
    Option(
        "affinity.half_life",
        duration(),
        66.0,
        "After this time traffic that has stopped counts half.",
        "seconds",
        cluster=True,
    ),
    Option(
        "affinity.message_lines",
        decimal(0, 10_000),
        30.0,
        "Cache lines that one message costs besides its bytes.",
        "cache lines",
        cluster=True,
    ),
    Option(
        "affinity.least_weight",
        decimal(0, 1e12),
        1000.0,
        "Edges that are lighter do not count.",
        "cache lines a second",
        cluster=True,
    ),
    Option(
        "affinity.least_share",
        decimal(0, 1),
        0.01,
        "Edges that are a smaller part of all traffic of either end do not count: they are what glues all "
        "containers to name servers and metrics collectors.",
        cluster=True,
    ),
    Option(
        "affinity.most_weight",
        decimal(1, 1e15),
        10_000_000.0,
        "An edge counts as this much at most, whatever a container does to attract another.",
        "cache lines a second",
        cluster=True,
    ),
    Option(
        "affinity.within",
        one_of("node", "namespace", "owner"),
        "node",
        "Which traffic counts: all of it, only inside a namespace, or only among replicas and containers of one "
        "workload.",
        cluster=True,
    ),
    Option(
        "affinity.remote_networks",
        networks(),
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
        "The networks that pods of other nodes have addresses in: what containers exchange with these is told to the "
        "cluster (AffinityAdvice). Best the cluster's pod networks; [] sees nothing beyond the node.",
    ),
    Option(
        "affinity.declared_weight",
        decimal(0, 1e12),
        10_000.0,
        "What a weight of 1 in an affinity annotation counts beside traffic that was seen.",
        "cache lines a second",
        cluster=True,
    ),
    Option(
        "affinity.rebalance",
        one_of("auto", "manual"),
        "auto",
        "auto: running containers are moved when a plan pays; manual: only by `cri-resmgr rebalance`.",
        cluster=True,
    ),
    Option(
        "affinity.rebalance_interval", duration(), 60.0, "How often a plan is made.", "seconds", cluster=True
    ),
    Option(
        "affinity.hysteresis",
        decimal(0, 1),
        0.1,
        "The part of all communication cost that a plan must save.",
        cluster=True,
    ),
    Option(
        "affinity.moves_per_minute",
        whole(0, 1000),
        10,
        "Containers moved in a minute at most; 0 freezes all.",
        cluster=True,
    ),
    Option(
        "affinity.minimum_age", duration(), 60.0, "Younger containers are not moved.", "seconds", cluster=True
    ),
    Option(
        "affinity.move_exclusive",
        flag(),
        False,
        "Whether containers with CPUs of their own may be moved as well.",
        cluster=True,
    ),
    Option(
        "affinity.most_memory_moved",
        whole(0, 1_000_000),
        8,
        "Containers with more memory in use do not change their NUMA node.",
        "GiB",
        cluster=True,
    ),
    Option(
        "affinity.pressure_guard",
        flag(),
        True,
        "Whether a move is taken back when containers then wait for CPUs that did not before.",
        cluster=True,
    ),
    Option(
        "affinity.l3_distance",
        decimal(0, 10_000),
        84.0,
        "What a cache line costs more between two L3s of one NUMA node than inside an L3.",
        "nanoseconds",
        cluster=True,
    ),
    Option(
        "affinity.slit_distance",
        decimal(0, 1000),
        4.1,
        "What it costs more for each point of the SLIT distance above 10.",
        "nanoseconds",
        cluster=True,
    ),
)
