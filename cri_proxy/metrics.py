"""The daemon's counters and gauges, as Prometheus text. One object of the daemon's; no global registry."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterable, Iterator
from typing import Optional

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import DecisionRecord, Management, TicketKind
from cri_proxy.engine.report import domain_pools
from cri_proxy.instruments import Collector, Counter, Family, Registry

#: Seconds. Decisions take tens to hundreds of microseconds.
DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
#: Seconds. Plans take a tenth of a second for 1,000 containers, and half a second more with a new worker process.
PLAN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
#: Why requests go through untouched because of us.
FAILED_OPEN = (
    "bug",
    "budget",
    "unreadable",
    "too large",
    "compressed",
    "incomplete",
    "too slow",
    "slow state",
)
#: Seconds. A plugin in Go answers in half a millisecond; after two seconds it is given up.
CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.0, 5.0)
#: Plugins name themselves: beyond these many they share a label.
MOST_LABELS = 50
OTHERS = "others"


class Metrics:
    """Everything counted: the table of names, labels, help, and where known the values or buckets of a label.

    Labels are few and bounded: methods we intercept, outcomes, reasons, domains.
    """

    def __init__(self, version: str) -> None:
        self.registry = Registry()
        counter, gauge, histogram = self.registry.counter, self.registry.gauge, self.registry.histogram
        # fmt: off
        self.requests = counter("cri_resmgr_requests_total", "method outcome",
            "Intercepted requests by outcome: placed, passed, untouched, refused, cancelled, in doubt, failed open")
        self.failed_open = counter("cri_resmgr_failed_open_total", "reason",
            "Requests that went through untouched because of us, by reason: bug, budget, unreadable, too large, ...",
            FAILED_OPEN)
        self.connections_closed = counter("cri_resmgr_connections_closed_total", "",
            "Connections closed because a frame was not understood")
        self.connections_lost = counter("cri_resmgr_connections_lost_total", "",
            "Connections closed because more was in memory for them than an equal share of 128 MiB")
        self.connections_dismissed = counter("cri_resmgr_idle_connections_closed_total", "",
            "Connections without a call closed because there were more than 1,024")
        self.spans_dropped = counter("cri_resmgr_spans_dropped_total", "",
            "Spans that were not sent, because tracing.endpoint was away or slow")
        self.history_dropped = counter("cri_resmgr_history_dropped_total", "",
            "Entries of the history that were lost, because its disk was away or full for long")
        self.decision_seconds = histogram("cri_resmgr_decision_seconds", "",
            "Time to decide about a request", DECISION_BUCKETS)
        self.state_seconds = histogram("cri_resmgr_state_write_seconds", "",
            "Time to make a change durable", DECISION_BUCKETS)
        self.updates = counter("cri_resmgr_updates_total", "result",
            "Cpusets sent to containers other than the requested one, by result: sent, failed, retried",
            ("sent", "failed", "retried"))
        self.drift = counter("cri_resmgr_drift_total", "result",
            "What a comparison found changed past us, by result: repaired, foreign (cpusets), resized, pod resized",
            ("repaired", "foreign", "resized", "pod resized"))
        self.isolation_writes = counter("cri_resmgr_isolation_writes_total", "subject outcome",
            "Values and groups written for isolation, by subject and outcome: written, put back, refused")
        self.isolation_refusals = gauge("cri_resmgr_isolation_refusals", "",
            "Values and groups of isolation that the kernel refuses now")
        self.isolation_values = gauge("cri_resmgr_isolation_values", "subject",
            "Values of files and threads that isolation keeps, by subject")
        self.isolation_groups = gauge("cri_resmgr_isolation_groups", "", "Groups of resctrl that are ours")
        self.isolation_other_groups = gauge("cri_resmgr_isolation_other_groups", "",
            "Groups of resctrl that other programs have made")
        self.isolation_drift = gauge("cri_resmgr_isolation_drift", "",
            "How often other programs have changed values of isolation, since the start")
        self.state_failures = counter("cri_resmgr_state_write_failures_total", "",
            "Changes that could not be made durable at once")
        self.state_unsaved = gauge("cri_resmgr_state_unsaved", "", "Changes that are not durable yet")
        self.state_late = counter("cri_resmgr_state_late_total", "",
            "Waits for a record that ended before it was durable: the call went on")
        self.state_dropped = counter("cri_resmgr_state_records_dropped_total", "kind",
            "Records of the state file that could not be read at the start, by kind")
        self.log_lines_dropped = counter("cri_resmgr_log_lines_dropped_total", "",
            "Log lines that were dropped: stderr was not read")
        self.start_failures = counter("cri_resmgr_start_failures_total", "next_create",
            "Starts that failed for placed containers, by what is done with the next create: placed, untouched",
            ("placed", "untouched"))
        self.not_alone = counter("cri_resmgr_not_alone_total", "method",
            "Containers that were started or resized, and claims that were prepared, while others were still on their CPUs",
            ("StartContainer", "UpdateContainerResources", "claim-prepare"))
        self.claim_calls = counter("cri_resmgr_claim_calls_total", "call result",
            "What the agent has asked about claims of CPUs, by call (prepare, unprepare) and result: done, refused")
        self.books_waits = counter("cri_resmgr_books_waits_total", "what result",
            "Requests that waited until it was known which CPUs are owned, by what they were and result: in time, given up")
        self.resyncs = counter("cri_resmgr_resyncs_total", "result",
            "Comparisons with the runtime's list, by result: ok, failed", ("ok", "failed"))
        self.observer_up = gauge("cri_resmgr_observer_up", "", "1 while the observer is heard of")
        self.observer_counts = gauge("cri_resmgr_observer_count", "what",
            "What the observer has counted since it started, by what: resolved, missed, ...; ends with it")
        self.edges = gauge("cri_resmgr_affinity_edges", "", "Edges between containers in the graph; ends with the observer")
        self.plans = counter("cri_resmgr_plans_total", "result",
            "Plans of what moves where, by result: accepted, rejected, failed", ("accepted", "rejected", "failed"))
        self.moves = counter("cri_resmgr_moves_total", "result",
            "Containers moved towards others, by result: made, refused, taken_back", ("made", "refused", "taken_back"))
        self.demand_containers = gauge("cri_resmgr_demand_containers", "set",
            "Containers with usage-based sizing, by cpuset: by limit, shrunk")
        self.demand_resizes = counter("cri_resmgr_demand_resizes_total", "action result",
            "Cpusets sized by usage, by action (grow, shrink, limit: back to its limit's) and result: made, not possible")
        self.demand_looks = counter("cri_resmgr_demand_looks_total", "", "Looks at what containers have used")
        self.demand_look_seconds = counter("cri_resmgr_demand_look_seconds_total", "",
            "Time that these looks took, in a thread")
        self.demand_triggers = counter("cri_resmgr_demand_triggers_total", "",
            "Times that the kernel told of tasks waiting in a shrunk cpuset")
        self.isolation_steps = counter("cri_resmgr_isolation_steps_total", "direction",
            "What measured protection has changed in an L3, by direction: less (for batch), back, taken back (it brought "
            "nothing), asked (the planner, to move a batch container away)", ("less", "back", "taken back", "asked"))
        self.isolation_batch_share = gauge("cri_resmgr_isolation_batch_share", "l3 of",
            "What measured protection has left to batch in an L3, 0 to 1, of cache or bandwidth; absent where batch has "
            "what is configured")
        self.isolation_look_seconds = counter("cri_resmgr_isolation_look_seconds_total", "",
            "Time that measured protection's looks at containers took, in a thread")
        self.plan_seconds = histogram("cri_resmgr_plan_seconds", "", "Time to make a plan", PLAN_BUCKETS)
        self.effects = counter("cri_resmgr_plan_effects_total", "verdict",
            "Plans that were measured, by verdict: better, worse, within the noise, not known",
            ("better", "worse", "within the noise", "not known"))
        self.effect_rate = gauge("cri_resmgr_plan_effect_rate", "event when",
            "What the last measured plan's containers fetched per thousand instructions, by event and when: before, after")
        self.mode = gauge("cri_resmgr_mode", "mode", "1 for the mode in force")
        self.background_failures = counter("cri_resmgr_background_failures_total", "name",
            "Failures of background tasks and threads, each of which is begun again, by name")
        self.degraded = gauge("cri_resmgr_degraded", "", "1 while something keeps the daemon from its full work")
        self.build = gauge("cri_resmgr_build_info", "version", "Always 1; the version is the label")
        # fmt: on
        self.build.labels(version).set(1)
        self.counterparts = KubeletCounterparts(self.requests)
        self.registry.register(self.counterparts)

    def watch(self, engine: Engine) -> Collector:
        """Add gauges that are read from an engine when asked for; returns what to hand to ``unwatch``."""
        collector = _EngineCollector(engine)
        self.registry.register(collector)
        self.counterparts.follow(engine)
        return collector

    def unwatch(self, collector: Collector) -> None:
        self.registry.unregister(collector)

    def pieces(self) -> Iterator[str]:
        """The text, made as it is gone through."""
        return self.registry.pieces()

    def text(self) -> str:
        """Prometheus text format."""
        return self.registry.text()


def engine_families() -> tuple[Family, ...]:
    """The gauges that are read from an engine: CPUs, charges, containers, tickets in doubt. Empty."""
    # fmt: off
    return tuple(
        Family(f"cri_resmgr_{name}", documentation, "gauge", labels.split())
        for name, labels, documentation in (
            ("cpus", "level domain pool", "CPUs by domain and pool: usable, shared, exclusive, reserved"),
            ("charged_milli_cpus", "level domain", "CPU requests allocated on the shared CPUs of a domain"),
            ("containers", "stance", "Containers by whose cpuset they have"),
            ("tickets_in_doubt", "", "Creates whose outcome is unknown"),
            ("claims", "", "Claims of CPUs that are prepared"),
            ("claimed_cpus", "", "CPUs that claims own"),
        )
    )
    # fmt: on


class _EngineCollector:
    #: Of all its families.
    kind = "gauge"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterable[Family]:
        engine = self.engine
        cpus, charged, containers, in_doubt, claims, claimed = families = engine_families()
        for pools in domain_pools(engine.node):
            for pool, count in pools.counts.items():
                cpus.add_metric([pools.level, pools.name, pool], count)
            charged.add_metric([pools.level, pools.name], pools.charged_milli)
        stances = Counted(grant.stance.value for grant in engine.grants.values() if not grant.is_claim)
        for stance, count in sorted(stances.items()):
            containers.add_metric([stance], count)
        in_doubt.add_metric([], sum(1 for ticket in engine.tickets.values() if ticket.in_doubt))
        parts = [grant for grant in engine.grants.values() if grant.is_claim]
        claims.add_metric([], len({part.container.pod.uid for part in parts}))
        claimed.add_metric([], sum(len(part.exclusive) for part in parts))
        return families


#: What kubelet's metrics say of one container, not of a pod.
SCOPE = "container"
#: Boundaries by kubelet's names, and the levels of the machine they are.
BOUNDARIES = {"uncore_cache": "l3", "numa_node": "numa"}


class KubeletCounterparts:
    """What kubelet's CPU manager would count if it placed: under the names that it has there, so that dashboards find it.

    Decisions are counted as they are made (``note``), those of creates and resizes that place a container. Types are not
    told: kubelet's counters have names that a counter may not have in the text format.
    """

    def __init__(self, requests: Counter) -> None:
        self._requests = requests
        self._engine: Optional[Engine] = None
        #: The last entry of the engine's history that was looked at.
        self._newest = 0
        self._aligned = dict.fromkeys(BOUNDARIES, 0)
        self._failed = dict.fromkeys(BOUNDARIES, 0)
        self._pinned = 0

    def follow(self, engine: Engine) -> None:
        """Look at this engine from now on, at what it decides after this."""
        self._engine, self._newest = engine, engine.newest_record

    def note(self, records: Iterable[DecisionRecord]) -> None:
        """Count decisions of the engine; those that were counted before, and are amended now, are passed over."""
        engine = self._engine
        if engine is None:
            return
        for record in sorted(records, key=lambda record: record.number):
            if record.number <= self._newest:
                continue
            self._newest = record.number
            is_asked = record.operation in (TicketKind.CREATE.value, TicketKind.RESIZE.value)
            if is_asked and record.stance == Management.PLACED.value and record.placement.cpus:
                self._pinned += bool(record.placement.exclusive or record.placement.claimed)
                self._count(engine, record)

    def _count(self, engine: Engine, record: DecisionRecord) -> None:
        grant, node = engine.grants.get(record.id), engine.node
        resources = None if grant is None else grant.container.resources
        milli = 0 if resources is None else resources.milli_limit or resources.milli_request
        for boundary, level in BOUNDARIES.items():
            domains = [domain.cpus for domain in node.topology.at(level)]
            if any(record.placement.cpus <= cpus for cpus in domains):
                self._aligned[boundary] += 1
            # One that needs more than such a domain has could not be in one.
            elif 0 < milli <= max((len(cpus & node.usable) for cpus in domains), default=0) * 1000:
                self._failed[boundary] += 1

    def collect(self) -> Iterable[Family]:
        aligned, failed, requests, errors, shared, exclusive = families = _counterparts()
        for boundary in BOUNDARIES:
            labels = {"boundary": boundary, "scope": SCOPE}
            aligned.add_sample(aligned.name, labels, self._aligned[boundary])
            failed.add_sample(failed.name, labels, self._failed[boundary])
        refused = sum(
            sample.value
            for family in self._requests.collect()
            for sample in family.samples
            if sample.name.endswith("_total") and sample.labels["outcome"] == "refused"
        )
        requests.add_sample(requests.name, {}, self._pinned + refused)
        errors.add_sample(errors.name, {}, refused)
        if self._engine is not None:
            node = self._engine.node
            shared.add_sample(shared.name, {}, len(node.shared) * 1000)
            exclusive.add_sample(exclusive.name, {}, len(node.exclusive))
        return families


def _counterparts() -> tuple[Family, ...]:
    # fmt: off
    return tuple(
        Family(f"kubelet_{name}", f"As kubelet's: {documentation}", "unknown")
        for name, documentation in (
            ("container_aligned_compute_resources_count",
             "placements of containers whose CPUs are inside one boundary: uncore_cache (L3), numa_node"),
            ("container_aligned_compute_resources_failure_count",
             "those whose CPUs are not, though the limit, or else the request, would fit in one"),
            ("cpu_manager_pinning_requests_total",
             "creates and resizes that got exclusive CPUs, and those of the next line"),
            ("cpu_manager_pinning_errors_total", "creates and resizes that were refused for want of CPUs"),
            ("cpu_manager_shared_pool_size_millicores", "CPUs that are exclusive to no container"),
            ("cpu_manager_exclusive_cpu_allocation_count", "exclusive CPUs of containers"),
        )
    )
    # fmt: on


class NriMetrics:
    """Labels: plugins as ``NN-name``, events as their calls are named."""

    def __init__(self, registry: Registry) -> None:
        self._labels: set[str] = set()
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram
        # fmt: off
        self.calls = counter("cri_resmgr_nri_calls_total", "plugin event result",
            "Calls of NRI plugins by result: ok, error, timeout, closed, bad reply")
        self.seconds = histogram("cri_resmgr_nri_call_seconds", "plugin event",
            "Time until an NRI plugin answered", CALL_BUCKETS)
        self.adjustments = counter("cri_resmgr_nri_adjustments_total", "plugin kind",
            "What NRI plugins asked for: adjust, update, evict (not done)")
        self.plugins = gauge("cri_resmgr_nri_plugins", "", "NRI plugins that are connected")
        self.dropped = counter("cri_resmgr_nri_plugins_dropped_total", "plugin", "NRI plugins that went or were given up")
        # fmt: on

    def label(self, title: str) -> str:
        """A plugin's label."""
        if title not in self._labels and len(self._labels) >= MOST_LABELS:
            return OTHERS
        self._labels.add(title)
        return title
