"""Hours of simulated traffic on one node: whether moves come to an end, how good what they end at is, and how soon another
pattern is answered.

Nothing sleeps; all else is the real code: flows go into the observer's graph every ten seconds, containers are admitted by
an engine, questions are made of its books, and plans are carried out at the pace of the options' defaults. The rates are
steady in the mean and noisy in every sample: a flow is busy half of the time, and what it sends then is lognormal. In the
middle every flow gets the rate of another one. With churn a container ends every minute and its successor, of the same
Deployment, comes 20 seconds later. The noise is invented. Other kinds of flows (``KINDS``) keep their pattern, and what is
missed is held against knowing their mean rates.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import pi, sin
from random import Random
from typing import Optional

from bench.affinity_baselines import FREE
from bench.affinity_graphs import Case, Machine, applications
from bpf.sources.samples import Flow
from cri_proxy.affinity.io.executor import is_made
from cri_proxy.affinity.io.rebalancer import MoveRateLimit
from cri_proxy.affinity.moves import plan_of
from cri_proxy.affinity.problem import PlanningSnapshot, snapshot_of
from cri_proxy.affinity.settings import AffinitySettings
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Host
from policies.affinity.graph.graph import EndpointIdentity, Graph
from policies.affinity.graph.traffic import LINE_BYTES
from policies.affinity.planner.instance import Instance
from policies.affinity.planner.planner import plan
from policies.affinity.planner.problem import PlanSettings, Problem, Proposal
from policies.affinity.pull.observed import owner_of_container
from policies.hygon import Hygon
from policies.machine.topology import Cpu, Topology, TopologyData
from policies.model import NO_CONSTRAINT, Container, Pod, Qos, Resources
from policies.settings import EngineOptions, PlacementSettings

SAMPLE_S, MINUTE_S, HOUR_S = 10, 60, 3600
#: Lognormal noise of a sample; the part of the time a flow is busy; how often that is drawn anew, per sample.
SIGMA, BUSY, CHANGES = 0.8, 0.5, 0.3
#: How much more the applications exchange than in the other tables, whose rates are so small that most moves save less
#: than ``affinity_least_gain``.
HEAVIER = 100
#: A container that moves twice in this time has moved for nothing.
AGAIN_S = 600
#: How often a container ends, and when its successor comes; how often the placement is held against the best one.
CHURN_S, SUCCESSOR_S, PROBE_S = 60, 20, 600
#: A plan answers a change if it saves this part of what the traffic truly costs.
ANSWER = 0.1
GIB = 1 << 30
#: What Deployments call their pods by, so that a successor has the owner of the container before it.
TEMPLATE = "7f9c"
DAY_S = 24 * HOUR_S
#: How much above and below its mean a daily flow is, as a part of it.
DAILY = 0.8


@dataclass(frozen=True)
class Kind:
    """How rates change. ``one_in``: a flow talks one minute in so many, each at a phase of its own. ``flips_s``: after so
    long every flow has the rate of another one, and after so long again its own. ``is_daily``: a wave of a day, each flow
    at a phase of its own."""

    one_in: int = 1
    flips_s: int = 0
    is_daily: bool = False


STEADY = "steady"
KINDS = {
    STEADY: Kind(),
    "bursty, 1 minute in 10": Kind(one_in=10),
    "bursty, 1 minute in 30": Kind(one_in=30),
    "daily": Kind(is_daily=True),
    "flips every 2 minutes": Kind(flips_s=120),
    "flips every 10 minutes": Kind(flips_s=600),
}


@dataclass
class Outcome:
    """``settled``: moves by hours of which the first one of a pattern is past. ``again``: of all moves those of a container
    within ``AGAIN_S`` of its last one. ``held`` and ``best``: CPUs that true rates cost, where containers are and in the
    best placement that a plan without damping finds; ``blind``: what a pattern costs when it begins.
    ``plans``: how many it took to answer the change; None = not answered."""

    moves: int = 0
    again: int = 0
    settled: int = 0
    settled_minutes: int = 0
    held: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    blind: list[float] = field(default_factory=list)
    plans: Optional[int] = None

    @property
    def moves_a_minute(self) -> float:
        return self.settled / self.settled_minutes if self.settled_minutes else 0.0

    @property
    def regret(self) -> float:
        """What is paid above the best, as a part of it."""
        return sum(self.held) / sum(self.best) - 1 if sum(self.best) else 0.0

    @property
    def missed(self) -> float:
        """What is paid above the best, as a part of what is paid above it when a pattern begins."""
        held, best, blind = (sum(costs) / len(costs) for costs in (self.held, self.best, self.blind))
        return (held - best) / (blind - best)


class Hours:
    """One node. ``key``: by number of a service its container, "" while there is none."""

    def __init__(
        self, case: Case, topology: Topology, seed: int, work: int, kind: Kind = KINDS[STEADY]
    ) -> None:
        self._random = Random(f"hours {seed}")
        #: Of its own, so that steady flows are the same whatever other kinds there are.
        kinds = Random(f"kinds {seed}")
        self._kind = kind
        self._case, self._settings, self._work = case, AffinitySettings(), work
        self.rates = [HEAVIER * weight for _, _, weight in case.problem.edges]
        self._phases = [kinds.random() for _ in self.rates]
        self._others = self.rates[:]
        kinds.shuffle(self._others)
        self._busy = [self._random.random() < BUSY for _ in self.rates]
        host = Host(topology, topology.online, topology.memory_nodes, topology.online)
        self.engine = Engine(host, Hygon(topology, PlacementSettings()), EngineOptions())
        self.graph = Graph()
        self.identities: dict[str, EndpointIdentity] = {}
        self.key = [""] * len(case.app)
        self._begun = 0
        self._pace = MoveRateLimit(self._settings)
        self._rest: Optional[tuple[PlanningSnapshot, Proposal]] = None
        self._plan_at_s = self._settings.interval_s
        self._moved: dict[str, int] = {}
        self.outcome = Outcome()
        order = list(range(len(self.key)))
        self._random.shuffle(order)
        for service in order:
            self._begin(service, 0)

    def run(self, hours: float, churn: bool, settles_s: float = HOUR_S, changes: bool = True) -> Outcome:
        """All of it; ``settles_s``: for how long a pattern is new; ``changes``: there is another one in the middle."""
        end, changed = round(hours * HOUR_S), round(hours * HOUR_S / 2) if changes else round(hours * HOUR_S)
        changed -= changed % SAMPLE_S
        plans_since = 0
        for now in range(SAMPLE_S, end + 1, SAMPLE_S):
            if changes and now == changed:
                self._random.shuffle(self.rates)
                self._note_blind(now)
            if churn:
                self.come_and_go(now)
            self.graph.observe(SAMPLE_S, self._flows(now), self.identities)
            is_settled = now % changed >= settles_s
            if self._rest is None and now >= self._plan_at_s:
                if not self.outcome.blind:
                    self._note_blind(now)
                answered = self._plan(now)
                plans_since += now > changed
                if now > changed and answered and self.outcome.plans is None:
                    self.outcome.plans = plans_since
            moves = self._go_on(now)
            self.outcome.moves += moves
            if is_settled:
                self.outcome.settled += moves
                if now % MINUTE_S == 0:
                    self.outcome.settled_minutes += 1
                if now % PROBE_S == 0:
                    self._probe(now)
        return self.outcome

    # ------------------------------------------------------------------ containers and traffic

    def _begin(self, service: int, now: int) -> None:
        self._begun += 1
        key = f"c{self._begun}"
        milli = self._case.problem.vertices[service].milli
        pod = Pod(
            id=f"s-{key}",
            uid=f"u-{key}",
            name=f"service{service}-{TEMPLATE}-{self._begun:05}",
            namespace="bench",
            labels={"app": f"service{service}", "pod-template-hash": TEMPLATE},
        )
        container = Container(pod, "app", 0, Qos.BURSTABLE, Resources(milli_request=milli, milli_limit=1000))
        self.engine.set_traffic(self.graph.traffic())
        admission = self.engine.admit(container, NO_CONSTRAINT, float(now))
        self.engine.bind(admission.ticket, key, float(now))
        self.engine.started(key)
        self.engine.drain()
        self.key[service] = key
        self.identities[key] = EndpointIdentity(key, owner=owner_of_container(container))

    def come_and_go(self, now: int) -> None:
        """End a container, or begin its successor, if it is time."""
        if now % CHURN_S == SUCCESSOR_S:
            for service, key in enumerate(self.key):
                if not key:
                    self._begin(service, now)
        if now % CHURN_S == 0:
            service = self._random.randrange(len(self.key))
            key, self.key[service] = self.key[service], ""
            self.engine.remove(key)
            self.engine.drain()
            del self.identities[key]
            self.graph.forget([key])

    def _flows(self, now: int) -> list[Flow]:
        random, flows, busy = self._random, [], 1.0 if self._kind.one_in > 1 else BUSY
        for index, (a, b, _) in enumerate(self._case.problem.edges):
            if random.random() < CHANGES:
                self._busy[index] = random.random() < BUSY
            rate = self._rate(index, now)
            is_busy = self._busy[index] if busy < 1.0 else rate > 0.0
            if not is_busy or not self.key[a] or not self.key[b]:
                continue
            lines = rate * random.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) / busy
            flows.append(Flow(self.key[a], self.key[b], "tcp", int(lines * LINE_BYTES * SAMPLE_S)))
        return flows

    def _rate(self, index: int, now: int) -> float:
        """What a flow has in the sample that ends now, before noise."""
        kind, rate, phase = self._kind, self.rates[index], self._phases[index]
        begun = now - SAMPLE_S
        if kind.one_in > 1:
            return rate * kind.one_in if (begun / MINUTE_S + phase * kind.one_in) % kind.one_in < 1 else 0.0
        if kind.flips_s and begun // kind.flips_s % 2:
            return self._others[index]
        return rate * self._of_day(index, now)

    def _of_day(self, index: int, now: int) -> float:
        return 1.0 + DAILY * sin(2 * pi * (now / DAY_S + self._phases[index])) if self._kind.is_daily else 1.0

    def _mean(self, index: int, now: int) -> float:
        """What placements are held against: its mean over bursts and flips, in this part of the day."""
        rate = self.rates[index]
        return (rate + self._others[index]) / 2 if self._kind.flips_s else rate * self._of_day(index, now)

    # ------------------------------------------------------------------ plans

    def _plan(self, now: int) -> bool:
        """Make one; whether it makes what the traffic truly costs less by ``ANSWER``."""
        self.engine.set_traffic(self.graph.traffic())
        question = snapshot_of(self.engine, self._settings, float(now))
        unrest = self._pace.unrest(float(now))
        problem = self._searched(question.problem)
        proposal = plan(replace(problem, settings=replace(problem.settings, unrest=unrest)))
        self._plan_at_s = now + self._settings.interval_s
        if not proposal.accepted:
            return False
        self._rest = (question, proposal)
        true = Instance(self._true(question.problem, now))
        return true.cost(_reached(question.problem, proposal)) < (1 - ANSWER) * true.cost(
            _at(question.problem)
        )

    def _go_on(self, now: int) -> int:
        """Make the moves that tokens allow, and return how many containers that were."""
        allowed = self._pace.allowed(float(now))
        if self._rest is None or not allowed:
            return 0
        chosen = plan_of(self.engine, *self._rest, allowed, float(now))
        self.engine.apply(chosen)
        self.engine.drain()
        # What finds no room any more stays, and a part of which nothing could be made ends the plan, as in the daemon.
        made = [move for move in chosen.moves if is_made(self.engine, move)]
        if not made:
            self._rest, self._plan_at_s = None, now + self._settings.interval_s
        self._pace.spend(len(made), 0.0, float(now))
        for move in made:
            self.outcome.again += now - self._moved.get(move.id, -AGAIN_S) < AGAIN_S
            self._moved[move.id] = now
        return len(made)

    def _probe(self, now: int) -> None:
        """Hold the placement against the best one for the true rates, in which every container may move."""
        free = replace(self._settings, minimum_age_s=0.0, cooldown_s=0.0)
        problem = self._true(snapshot_of(self.engine, free, float(now)).problem, now)
        proposal = plan(self._searched(replace(problem, settings=FREE)))
        self.outcome.held.append(proposal.cost_before)
        self.outcome.best.append(proposal.cost_after)

    def _searched(self, problem: Problem) -> Problem:
        return replace(problem, settings=replace(problem.settings, work=self._work))

    def _note_blind(self, now: int) -> None:
        problem = self._true(snapshot_of(self.engine, self._settings, float(now)).problem, now)
        self.outcome.blind.append(Instance(problem).cost(_at(problem)))

    def _true(self, problem: Problem, now: int) -> Problem:
        index = {vertex.key: number for number, vertex in enumerate(problem.vertices)}
        edges = []
        for flow, (a, b, _) in enumerate(self._case.problem.edges):
            ends = index.get(self.key[a]), index.get(self.key[b])
            if ends[0] is not None and ends[1] is not None:
                edges.append((ends[0], ends[1], self._mean(flow, now)))
        return replace(problem, edges=tuple(edges))


def _at(problem: Problem) -> list[int]:
    return [vertex.at for vertex in problem.vertices]


def _reached(problem: Problem, proposal: Proposal) -> list[int]:
    site_of = {vertex.key: vertex.at for vertex in problem.vertices}
    site_of.update({move.key: move.target for move in proposal.moves})
    return list(site_of.values())


def topology_of(machine: Machine) -> Topology:
    """A machine of the benchmarks as the daemon knows machines."""
    each = machine.l3s * machine.cpus
    count = machine.sockets * machine.nodes * each
    cpus = [
        Cpu(cpu=i, core=i, l3=i // machine.cpus, die=0, numa=i // each, socket=i // (each * machine.nodes))
        for i in range(count)
    ]
    memory = dict.fromkeys(range(machine.sockets * machine.nodes), 128 * GIB)
    return Topology(TopologyData(cpus=tuple(cpus), memory=memory))


def simulate(
    machine: Machine,
    filled: float,
    churn: bool,
    seed: int,
    hours: float,
    settles_s: float = HOUR_S,
    work: int = PlanSettings.work,
    kind: str = STEADY,
) -> Outcome:
    """One run on one machine; ``work``: how much a plan's search may look at. Only steady flows get another pattern."""
    case = applications(machine, 1, seed, filled)
    found = Hours(case, topology_of(machine), seed, work, KINDS[kind])
    return found.run(hours, churn, settles_s, changes=kind == STEADY)
