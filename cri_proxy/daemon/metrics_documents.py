"""Writes docs/metrics.md: the metrics from where they are defined, and how to read metrics and logs.

python -m cri_proxy.daemon.metrics_documents > docs/metrics.md
"""

from __future__ import annotations

from cri_proxy.metrics import Metrics, engine_families
from cri_proxy.services.nri_metrics import NriMetrics

COMMAND = "python -m cri_proxy.daemon.metrics_documents > docs/metrics.md"

_PAGE = """\
# Metrics and logs

<!-- Written by `{command}`; a test compares. -->

`cri-resmgr metrics` prints the metrics as Prometheus text; `metrics.listen: 127.0.0.1:8891` also serves them over
HTTP, at `/metrics`. `cri-resmgr status --json` has the counters that are not zero.

| metric | kind | what |
|---|---|---|
{rows}

Counters begin at 0 with each start of the daemon, and those with labels appear when they are first counted.

## What to be woken for

The daemon has to serve its metrics (`metrics.listen`), and Prometheus to scrape them under a job's name, here `cri-resmgr`.
A daemon that passes bytes only because its installation is broken, and one that is dead, serve none: that is `up == 0`.

```yaml
groups:
  - name: cri-resmgr
    rules:
      - alert: CriResmgrDown              # dead, or only the launcher is left and passes bytes: systemctl status
        expr: up{{job="cri-resmgr"}} == 0
        for: 2m
      - alert: CriResmgrNowhere           # no daemon is scraped at all: is the job still there?
        expr: absent(up{{job="cri-resmgr"}})
        for: 10m
      - alert: CriResmgrNotEnforcing      # observe or off by command, or off since it is degraded: nothing is placed
        expr: cri_resmgr_mode{{mode="enforce"}} == 0
        for: 15m
      - alert: CriResmgrDegraded          # cri-resmgr status says why
        expr: cri_resmgr_degraded == 1
        for: 5m
      - alert: CriResmgrFailedOpen        # a request went through unplaced: the log has the line "failed open"
        expr: >
          cri_resmgr_failed_open_total
          - (cri_resmgr_failed_open_total offset 15m or cri_resmgr_failed_open_total * 0) > 0
      - alert: CriResmgrStartsFail        # containers we had placed did not start: cri-resmgr explain
        expr: >
          cri_resmgr_start_failures_total
          - (cri_resmgr_start_failures_total offset 15m or cri_resmgr_start_failures_total * 0) > 0
      - alert: CriResmgrDrift             # something else writes cpusets: status lists as foreign what we gave up on
        expr: >
          cri_resmgr_drift_total{{result=~"repaired|foreign"}}
          - (cri_resmgr_drift_total offset 1h or cri_resmgr_drift_total * 0) > 3
      - alert: CriResmgrForeign           # such a container is left alone from then on
        expr: cri_resmgr_containers{{stance="foreign"}} > 0
        for: 5m
      - alert: CriResmgrUpdatesFail       # the runtime does not take new cpusets: the log has "update failed"
        expr: >
          cri_resmgr_updates_total{{result="failed"}}
          - (cri_resmgr_updates_total{{result="failed"}} offset 15m or cri_resmgr_updates_total{{result="failed"}} * 0) > 0
        for: 5m
      - alert: CriResmgrInDoubt           # the runtime should have told by now what became of a create
        expr: cri_resmgr_tickets_in_doubt > 0
        for: 10m
```

`increase()` would not see the first count of a counter that was not there before. [incident](incident.md) says what
each degraded reason means.

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
| `rung` | the step of the ladder it is on |
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
    families = [*metrics.registry.collect(), *engine_families()]
    rows = [
        f"| `{f.name}{'_total' if f.type == 'counter' else ''}` | {f.type} | {f.documentation} |"
        for f in sorted(families, key=lambda family: family.name)
    ]
    return _PAGE.format(command=COMMAND, rows="\n".join(rows))


if __name__ == "__main__":
    print(metrics_markdown(), end="")
