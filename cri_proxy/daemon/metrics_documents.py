"""Writes docs/metrics.md: the metrics from where they are defined, and how to read metrics and logs.

python -m cri_proxy.daemon.metrics_documents > docs/metrics.md
"""

from __future__ import annotations

from pathlib import Path

from cri_proxy.isolation.io.series import monitoring_families
from cri_proxy.metrics import Metrics, NriMetrics, engine_families

ALERTS = Path(__file__).resolve().parents[2] / "packaging" / "monitoring" / "alerts.yaml"
COMMAND = "python -m cri_proxy.daemon.metrics_documents > docs/metrics.md"

_PAGE = """\
# Metrics and logs

<!-- Written by `{command}`; a test compares. -->

`cri-resmgr metrics` prints the metrics as Prometheus text; `metrics.listen: 127.0.0.1:8891` also serves them over
HTTP, at `/metrics`. `cri-resmgr status --json` has the counters that are not zero.

| metric | kind | what |
|---|---|---|
{rows}

Counters begin at 0 with each start of the daemon. Those of calls and of plugins appear when they are first counted.

## A dashboard, and kubelet's names

`packaging/monitoring/` has a Grafana dashboard (`dashboard.json`: import it, choose the Prometheus) and the alerts below
(`alerts.yaml`, for `rule_files`); the packages put both into `/usr/share/doc/cri-resmgr/monitoring/`. A test asks a
real Prometheus, which scrapes a real daemon, every query of both.

Metrics that begin with `kubelet_` are those that kubelet's CPU manager has: while we place, its own stand still (policy
`none`), and a dashboard that shows them finds these. They are not quite the same:

| metric | kubelet's | ours |
|---|---|---|
| `kubelet_container_aligned_compute_resources_count` | \
exclusive CPUs only, where an option demands alignment; also `physical_cpu` and scope `pod` | \
every placement by a create or a resize; `boundary` is `uncore_cache` or `numa_node`, `scope` is `container` |
| `kubelet_container_aligned_compute_resources_failure_count` | \
what was refused or not aligned | \
placed across boundaries though the limit (without one the request) is no more than one has; \
counted with each placement, not by why |
| `kubelet_cpu_manager_pinning_requests_total` | \
Guaranteed containers with whole CPUs | \
creates and resizes that got exclusive CPUs, and those refused |
| `kubelet_cpu_manager_pinning_errors_total` | \
allocations that failed | \
creates and resizes refused (`cri_resmgr_requests_total{{outcome="refused"}}`); policies that never refuse have none |
| `kubelet_cpu_manager_shared_pool_size_millicores` | \
the default set, with CPUs reserved | \
usable CPUs that are exclusive to no container, without those reserved |
| `kubelet_cpu_manager_exclusive_cpu_allocation_count` | \
CPUs it has assigned | \
CPUs that containers own, those that kubelet has assigned among them |

Moves of plans, repairs and other containers that make room are not counted there. Both in one Prometheus are told apart by
their job: `kubelet_cpu_manager_pinning_requests_total{{job="cri-resmgr"}}`. A dashboard that sums over all jobs counts both;
where kubelet's policy is `static` too, drop ours in the scrape job:

```yaml
metric_relabel_configs:
  - source_labels: [__name__]
    regex: kubelet_.*
    action: drop
```

## What containers have in L3s

With `isolation.monitoring` each container has a monitoring group of resctrl, as long as there are RMIDs: protected ones
first, then batch beside those, then by the CPUs that are used. `l3` is the L3's name here, `cache_id` the kernel's; a
container that may run in more than 4 L3s has one series, `l3="several"`. "Unavailable" is not 0: there is no value then.

`l3_llc_occupancy`, `l3_mbm_local_bytes` and `l3_mbm_total_bytes` are named and labelled as cri-resource-manager has them
(`rdt_class`, `rdt_mon_group`, `cache_id`, `pod_name`, `container_name`); `rdt_class` is the control group. nri-plugins puts
`nri_` before the names; for a dashboard made for that, in the scrape job:

```yaml
metric_relabel_configs:
  - source_labels: [__name__]
    regex: (l3_.*)
    target_label: __name__
    replacement: nri_$1
```

## What to be woken for

The daemon has to serve its metrics (`metrics.listen`), and Prometheus to scrape them under a job's name, here `cri-resmgr`.
A daemon that passes bytes only because its installation is broken, and one that is dead, serve none: that is `up == 0`.

```yaml
{alerts}```

[incident](incident.md) says what each degraded reason means.

## Logs

Lines go to standard error, under systemd to the journal: for people, or with `log.format: json` an object a line, whose
`event` is the line's text. `log.level: debug` shows more; so does SIGUSR1 to the daemon, until it is sent again.

No call waits for the log: a thread writes it, and where nothing reads it lines are dropped beyond 8 million characters,
counted, and told by a line of their own. Lines of one kind that may come with every request ("failed open", closed
connections) are shown once a minute; how many more there were is told when the minute is over (`again=`, `of=`).

    journalctl -u cri-resource-manager -f                       # as NRI plugin: -u cri-resmgr-nri, or -t cri-resmgr
    journalctl -u cri-resource-manager -g 'degraded|recovered|failed open'
    journalctl -u cri-resource-manager -o cat -g CreateContainer --since -1h
    journalctl -u cri-resmgr-observer                           # what sees traffic, and by what means

Each intercepted request is one line, when it has ended: time, level, the method, and fields:

| field | |
|---|---|
| `container`, `attempt`, `id` | NAMESPACE/POD/CONTAINER, which attempt, and the runtime's id |
| `cpus`, `mems` | what was decided; empty: nothing is set |
| `rung` | its domain level, a step of the ladder |
| `why` | in one sentence, as `cri-resmgr explain` tells it |
| `outcome` | see below |
| `us` | microseconds until it was decided, with what was waited for meanwhile |
| `code`, `details` | gRPC's, where the call failed |

Outcomes: `placed`; `passed`: nothing was to be decided; `untouched: STANCE`; `refused`; `cancelled`: the runtime refused;
`in doubt`: not known yet; `failed open: REASON`.

Further lines are `degraded` and `recovered` (`topic`, `reason`), `failed open` (`method`, `reason`, of a bug the traceback),
`annotations` (`ignored`: what of them was not understood), `update failed` (another container's CPUs could not be changed
yet), `containers moved`, `configuration loaded` (`changed`), standalone `arrival` (`late_ms`).

## Traces

kubelet and containerd can trace what they do (kubelet's `tracing` with `endpoint` and `samplingRatePerMillion`; containerd's
`io.containerd.tracing.processor.v1.otlp`). With

    tracing:
      endpoint: http://localhost:4318/v1/traces

an intercepted call that comes with a `traceparent` whose caller records it has a span of ours under kubelet's: the
method, when it was decided and when the runtime replied, and the fields of its line in the log
(`cri_resmgr.container`, `cri_resmgr.cpus`, `cri_resmgr.why`, ...). It is OTLP/HTTP in JSON, which OpenTelemetry's
collector and Jaeger take at port 4318; their gRPC port, 4317, which kubelet sends to, does not take it. How many
calls have spans is the caller's to say; calls without the header have none. The header itself goes to the runtime as
it came, also where NRI plugins are asked before.

A thread sends, a second after the first span at the latest; 4,096 wait in memory. What a collector that is away or
slow does not take is dropped, counted (`cri_resmgr_spans_dropped_total`) and told by `cri-resmgr status`; calls do
not wait for it. Beside an untouched kubelet and as NRI plugin there are no calls to trace.
"""


def metrics_markdown() -> str:
    """The page docs/metrics.md."""
    metrics = Metrics("")
    NriMetrics(metrics.registry)
    families = [*metrics.registry.collect(), *engine_families(), *monitoring_families()]
    rows = [
        f"| `{f.name}{'_total' if f.type == 'counter' else ''}` | {f.type} | {f.documentation} |"
        for f in sorted(families, key=lambda family: family.name)
    ]
    return _PAGE.format(command=COMMAND, rows="\n".join(rows), alerts=ALERTS.read_text())


if __name__ == "__main__":
    print(metrics_markdown(), end="")
