"""The graph of traffic: samples in, smoothed edges out. Pure and deterministic.

*Weight*: cache lines a second that must cross, bytes / 64 + K x messages. *Smoothing*: each sample of s seconds
moves a rate by the part 1 - 2^(-s / half-life) of the way to the seen rate, so that a flow that has stopped counts half
after a half-life, and a burst of one sample counts little. *Sleep*: an edge on which nothing was seen for 10
half-lives has no rates any more, but a steady weight. *Expiry*: after 100 half-lives it is gone; one whose container has
ended is gone at once, and of more than ``MOST_EDGES`` those asleep that are lightest. *Which edges count*: traffic.py.
*Owners*: owner_memory.py, which outlives the containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from typing import Any, Callable, Generic, NamedTuple, Optional, Protocol, TypeVar

from policies.affinity.graph.owner_memory import OwnerMemory
from policies.affinity.graph.traffic import (
    LINE_BYTES,
    POD_PREFIX,
    Edge,
    Key,
    Traffic,
    counted,
    read_amount,
    traffic_of,
)
from policies.frozen import dataclass

SLEEPS_AFTER_HALF_LIVES, EXPIRES_AFTER_HALF_LIVES = 10, 100
#: An edge asleep is looked at once in so many half-lives, so that it costs next to nothing.
SLEEPS_FOR_HALF_LIVES = 1.0
MOST_EDGES = 10_000
#: A reader is told of an edge again when its weight has changed by more than this part.
LEAST_CHANGE = 0.01


class SeenFlow(Protocol):
    """Two endpoints in one interval (``bpf.sources.samples.Flow``)."""

    @property
    def a(self) -> str: ...
    @property
    def b(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def bytes_ab(self) -> int: ...
    @property
    def bytes_ba(self) -> int: ...
    @property
    def messages(self) -> int: ...


@dataclass(frozen=True)
class EndpointIdentity:
    """The names of an endpoint; all but ``id`` may be unknown (""). ``owner``: owners.py."""

    id: str
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    owner: str = ""


@dataclass(frozen=True)
class GraphSettings:
    """See the options ``affinity.*``. ``within``: node, namespace or owner."""

    half_life_s: float = 66.0
    message_lines: float = 30.0
    least_weight: float = 1000.0
    least_share: float = 0.01
    most_weight: float = 10_000_000.0
    within: str = "node"


class GraphEdge(NamedTuple):
    """One edge that counts; ``a`` < ``b``. Rates are smoothed; ``weight`` is capped, and so is ``steady_weight``, by which
    containers are placed. (A tuple: there are many.)"""

    a: str
    b: str
    weight: float
    bytes_ab_per_s: float
    bytes_ba_per_s: float
    messages_per_s: float
    kinds: tuple[str, ...]
    steady_weight: float

    @property
    def is_pod_level(self) -> bool:
        """Whether an end is a pod, because it is not known which of its containers it is."""
        return self.a.startswith(POD_PREFIX) or self.b.startswith(POD_PREFIX)


class OwnerEdge(NamedTuple):
    """All replicas of two owners together; ``a`` <= ``b``."""

    a: str
    b: str
    weight: float


@dataclass(frozen=True)
class GraphChanges:
    """The changes after a version that a reader has."""

    edges: Difference[Key, GraphEdge]
    owners: Difference[Key, OwnerEdge]
    endpoints: Difference[str, EndpointIdentity]


class _Rates:
    """The rates of an edge, smoothed; ``silent_s``: for how long nothing was seen on it; ``owed_s``: of that, what
    the steady weight of an edge asleep has not taken in yet."""

    __slots__ = ("ab", "ba", "kinds", "messages", "owed_s", "silent_s", "steady")

    def __init__(self, ab: float = 0.0, ba: float = 0.0, messages: float = 0.0) -> None:
        self.ab = ab
        self.ba = ba
        self.messages = messages
        self.kinds: frozenset[str] = frozenset()
        self.silent_s = self.owed_s = 0.0
        self.steady = SteadyWeight()


# *Steady weight*, which placements go by: the mean of a flow's rates for as long as its pattern lasts, over two hours at
# most. The rates of the graph forget half within a half-life of about a minute, so that they follow a change; of a flow
# that talks one minute in ten they are never right. What is a change is told by the pair's own past, at two scales:
#
# 1. Each scale has a rate that follows (*minutes*: the graph's own; *tens*: ten times slower) and the least and the most
#    that this rate was, in blocks. A block is held against the past first and belongs to it a block later; the past fades
#    with the half-life of the mean. So silence is no news of a flow that was as silent before, nor a burst of one
#    that had such bursts, nor a rate that the flow comes back to.
# 2. A rate that is ``factor`` times outside of that in ``SAMPLES`` samples one after another is another pattern. The
#    scale's rate counts then, for ``FOLLOWING`` half-lives of it, and the mean begins anew with that rate's memory. Such
#    silence counts only of a flow that was known for ``KNOWN_BLOCKS`` of its scale: a new one may have begun with a burst.
# 3. A flow that is new has the rate of minutes, and then the mean since it began.

FOLLOWING = 3.0
#: Half-lives of the graph's rates that the one of tens has, and the mean.
TENS, LONG = 10.0, 80.0
#: How far outside of its past a rate is of another pattern, by scale.
FACTOR, TENS_FACTOR = 2.5, 1.25
#: The same for the most that a flow was which was never silent, if it is ``FACTOR`` times the mean, too.
EVEN_FACTOR = 1.5
#: Blocks are so many half-lives of their scale's rate long.
BLOCK = 1.8
SAMPLES = 3
KNOWN_BLOCKS = 5
#: Less than this part of the most is silence.
SILENT = 0.01
#: The range of rates while there was none. (No infinity, as it is written to JSON.)
_NONE = (1e300, 0.0)
#: The memory of a rate that fades is as long as that of a plain mean over this many half-lives.
_MEMORY = 1.0 / log(2.0)


class _Past:
    """The least and the most that a pair's rate was, at one scale: ``ever``, in the block before (``last``), and in the
    present one (``block``), which is ``filled_s`` long so far. ``blocks``: how many there were."""

    __slots__ = ("apart", "block", "blocks", "ever", "filled_s", "last")

    def __init__(self, blocks: float = 0.0, filled_s: float = 0.0) -> None:
        self.blocks, self.filled_s = blocks, filled_s
        self.ever = self.last = self.block = _NONE
        self.apart = 0

    def take(
        self, rate: float, mean: float, factor: float, seconds: float, block_s: float, half_life_s: float
    ) -> bool:
        """Take in the rate after a sample; whether it is of another pattern than the past, whose mean is ``mean``."""
        # 1. Hold it against the past.
        least, most = self.ever
        if least <= rate <= most:
            self.apart = 0
        else:
            # What was silent has bursts, of which some are far higher than others.
            was_silent = least <= SILENT * most
            enough = factor * most if was_silent else max(factor * mean, min(factor, EVEN_FACTOR) * most)
            is_above = self.blocks > 1 and rate > enough
            # The less even a flow was, the less silence says: it is below if factor * rate < least / sqrt(most / least).
            is_known = self.blocks >= KNOWN_BLOCKS and not was_silent
            is_below = is_known and factor * rate * factor * rate * most < least * least * least
            self.apart = self.apart + 1 if is_above or is_below else 0
        # 2. Add it.
        least, most = self.block
        if not least <= rate <= most:
            self.block = (min(least, rate), max(most, rate))
        self.filled_s += seconds
        if self.filled_s >= block_s:
            self._end_block(half_life_s)
        if self.apart < SAMPLES:
            return False
        self.apart = 0
        return True

    def _end_block(self, half_life_s: float) -> None:
        if self.blocks == 1:
            self.ever = self.last
        elif self.blocks > 1:
            keep = 2.0 ** (-self.filled_s / half_life_s)
            (least, most), (last_least, last_most) = self.ever, self.last
            self.ever = (
                min(last_least, last_least + keep * (least - last_least)),
                max(last_most, last_most + keep * (most - last_most)),
            )
        self.last, self.block = self.block, _NONE
        self.blocks, self.filled_s = self.blocks + 1, 0.0

    def row(self) -> list[float]:
        """As JSON."""
        return [self.blocks, self.filled_s, *self.ever, *self.last, *self.block]


class SteadyWeight:
    """Of one edge, lines a second. ``value``: what placements go by; ``mean``: since ``since_s``, when the pattern last
    changed; ``tens``: the slower rate, of ``known_s``; ``scale``: of the rate that told, in half-lives."""

    __slots__ = ("known_s", "mean", "minutes_past", "scale", "since_s", "tens", "tens_past", "value")

    def __init__(self, value: float = 0.0, since_s: float = 0.0) -> None:
        self.value = self.mean = self.tens = value
        self.since_s = self.known_s = since_s
        self.scale = 1.0
        self.minutes_past, self.tens_past = _Past(), _Past()

    def follow(self, minutes: float, seen: float, step: _Step) -> None:
        """Take in a sample. ``minutes``: the graph's rate after it; ``seen``: lines a second in it."""
        seconds, half_life_s = step.seconds, step.half_life_s
        since_s = self.since_s = self.since_s + seconds
        known_s = self.known_s = self.known_s + seconds
        # 1. The means: plain at first, fading later.
        self.tens += max(step.tens_part, seconds / known_s) * (seen - self.tens)
        self.mean += max(step.long_part, seconds / since_s) * (seen - self.mean)
        # 2. Is it another pattern? Not while the last one is as young as the scale's memory. A new rate of minutes begins at
        #    0, which is no past. A change at both scales is that of minutes.
        if known_s > step.follows_s:
            tens_past, minutes_past, long_s = self.tens_past, self.minutes_past, step.long_s
            is_left = tens_past.take(self.tens, self.mean, TENS_FACTOR, seconds, step.tens_block_s, long_s)
            if is_left and since_s > TENS * step.follows_s:
                self._begin(self.tens, TENS, half_life_s)
            is_left = minutes_past.take(minutes, self.mean, FACTOR, seconds, step.block_s, long_s)
            if is_left and since_s > step.follows_s:
                self._begin(minutes, 1.0, half_life_s)
        # 3. What counts.
        if self.since_s > self.scale * step.follows_s:
            self.value = self.mean
        else:
            self.value = minutes if self.scale == 1.0 else self.tens

    def _begin(self, rate: float, scale: float, half_life_s: float) -> None:
        self.mean, self.scale, self.since_s = rate, scale, _MEMORY * scale * half_life_s

    def past(self) -> list[Any]:
        """All but ``value`` and ``since_s``, as JSON."""
        scales = [self.minutes_past.row(), self.tens_past.row()]
        return [self.mean, self.tens, self.known_s, self.scale, *scales]

    def restore_past(self, row: Any) -> None:
        """Take over what ``past()`` gave."""
        mean, tens, known_s, scale, minutes_past, tens_past = row
        self.mean, self.tens = read_amount(mean), read_amount(tens)
        self.known_s, self.scale = read_amount(known_s), read_amount(scale)
        self.minutes_past = _read_past(minutes_past)
        self.tens_past = _read_past(tens_past)


def _read_past(row: Any) -> _Past:
    blocks, filled_s, *ranges = map(read_amount, row)
    past = _Past(blocks, filled_s)
    a, b, c, d, e, f = ranges
    past.ever, past.last, past.block = (a, b), (c, d), (e, f)
    return past


class _Step:
    """What all edges have in common in a step of time."""

    __slots__ = (
        "block_s", "follows_s", "half_life_s", "long_part", "long_s", "seconds", "tens_block_s", "tens_part",
    )  # fmt: skip

    def __init__(self, seconds: float, half_life_s: float) -> None:
        self.seconds, self.half_life_s = seconds, half_life_s
        self.long_s = LONG * half_life_s
        self.follows_s = FOLLOWING * half_life_s
        self.block_s = BLOCK * half_life_s
        self.tens_block_s = TENS * self.block_s
        self.tens_part = 1.0 - 2.0 ** (-seconds / (TENS * half_life_s))
        self.long_part = 1.0 - 2.0 ** (-seconds / self.long_s)


class Graph:
    """Edges between endpoints and between their owners. ``version`` grows with every change that readers see."""

    def __init__(self, settings: Optional[GraphSettings] = None) -> None:
        self.settings = settings or GraphSettings()
        self.version = 0
        #: For how long this graph has been fed.
        self.observed_s = 0.0
        self._rates: dict[Key, _Rates] = {}
        self._owners = OwnerMemory()
        self._identities: Mapping[str, EndpointIdentity] = {}
        self._edges: Changes[Key, GraphEdge] = Changes(_is_same_edge)
        self._owner_edges: Changes[Key, OwnerEdge] = Changes(lambda a, b: _is_near(a.weight, b.weight))
        self._endpoints: Changes[str, EndpointIdentity] = Changes(EndpointIdentity.__eq__)

    # ------------------------------------------------------------------ in

    def observe(
        self,
        seconds: float,
        flows: Iterable[SeenFlow],
        identities: Optional[Mapping[str, EndpointIdentity]] = None,
    ) -> None:
        """Take in all flows of an interval. ``identities``: all endpoints that live and are known; None = as before."""
        if identities is not None:
            self._identities = identities
        if seconds > 0:
            seen = _summed(flows)
            self._smooth(seconds, seen)
            self._remember_owners(seconds, seen)
            self.observed_s += seconds
        self.refresh()

    def forget(self, endpoints: Iterable[str]) -> None:
        """Drop the edges of containers that have ended; their owners' edges stay. Seen after the next ``refresh``."""
        ended = frozenset(endpoints)
        if ended:
            self._rates = {
                key: rates for key, rates in self._rates.items() if not (key[0] in ended or key[1] in ended)
            }

    def refresh(self) -> None:
        """Work out anew which edges count, after ``forget`` or new ``settings``; ``observe`` does it itself."""
        version = self.version + 1
        is_changed = [
            self._edges.update(self._counted_edges(), version),
            self._owner_edges.update(self._counted_owners(), version),
            self._endpoints.update(self._identities, version),
        ]
        if any(is_changed):
            self.version = version

    def _smooth(self, seconds: float, seen: Mapping[Key, _Rates]) -> None:
        half_life_s = self.settings.half_life_s
        keep = 2.0 ** (-seconds / half_life_s)
        # 1. All fade.
        for rates in self._rates.values():
            rates.silent_s += seconds
            if not rates.owed_s:
                rates.ab *= keep
                rates.ba *= keep
                rates.messages *= keep
        # 2. The traffic seen is added.
        part = (1.0 - keep) / seconds
        for key, amounts in seen.items():
            found = self._rates.get(key)
            if found is None:
                found = self._rates[key] = _Rates()
            found.ab += part * amounts.ab
            found.ba += part * amounts.ba
            found.messages += part * amounts.messages
            found.silent_s = 0.0
            if not amounts.kinds <= found.kinds:
                found.kinds |= amounts.kinds
        # 3. And the weights that placements go by follow.
        expired, step = [], _Step(seconds, half_life_s)
        for key, rates in self._rates.items():
            if key in seen:
                if rates.owed_s:
                    self._wake(rates)
                lines = self._lines(seen[key]) / seconds
                rates.steady.follow(self._lines(rates), lines, step)
            elif rates.silent_s <= SLEEPS_AFTER_HALF_LIVES * half_life_s:
                rates.steady.follow(self._lines(rates), 0.0, step)
            elif rates.silent_s > EXPIRES_AFTER_HALF_LIVES * half_life_s:
                expired.append(key)
            else:
                rates.ab = rates.ba = rates.messages = 0.0
                rates.owed_s += seconds
                if rates.owed_s >= SLEEPS_FOR_HALF_LIVES * half_life_s:
                    self._wake(rates)
        for key in expired:
            del self._rates[key]
        self._keep_the_heaviest()

    def _wake(self, rates: _Rates) -> None:
        """Let its steady weight take in the silence that it has slept through."""
        rates.steady.follow(0.0, 0.0, _Step(rates.owed_s, self.settings.half_life_s))
        rates.owed_s = 0.0

    def _keep_the_heaviest(self) -> None:
        many = len(self._rates) - MOST_EDGES
        if many > 0:
            sleeps_s = SLEEPS_AFTER_HALF_LIVES * self.settings.half_life_s
            asleep = [(r.steady.value, key) for key, r in self._rates.items() if r.silent_s > sleeps_s]
            for _, key in sorted(asleep)[:many]:
                del self._rates[key]

    def _remember_owners(self, seconds: float, seen: Mapping[Key, _Rates]) -> None:
        lines: dict[Key, float] = {}
        for (a, b), amounts in seen.items():
            owner_a, owner_b = self._owner(a), self._owner(b)
            if owner_a and owner_b:
                key = (owner_a, owner_b) if owner_a <= owner_b else (owner_b, owner_a)
                lines[key] = lines.get(key, 0.0) + self._lines(amounts)
        replicas: dict[str, int] = {}
        for identity in self._identities.values():
            replicas[identity.owner] = replicas.get(identity.owner, 0) + 1
        self._owners.observe(seconds, lines, replicas)

    def _owner(self, endpoint: str) -> str:
        identity = self._identities.get(endpoint)
        return identity.owner if identity is not None else ""

    def _lines(self, rates: _Rates) -> float:
        return (rates.ab + rates.ba) / LINE_BYTES + self.settings.message_lines * rates.messages

    # ------------------------------------------------------------------ what counts

    def _counted_edges(self) -> dict[Key, GraphEdge]:
        most = self.settings.most_weight
        weights = {key: min(most, rates.steady.value) for key, rates in self._rates.items()}
        if self.settings.within != "node":
            weights = {key: weight for key, weight in weights.items() if self._is_within(key)}
        known, found = self._edges.values, {}
        for key in counted(weights, self.settings.least_weight, self.settings.least_share):
            edge, rates = known.get(key), self._rates[key]
            # An unchanged edge is not made anew: that would be most of the work.
            is_known = (
                edge is not None
                and _is_near(edge.weight, min(most, self._lines(rates)))
                and _is_near(edge.steady_weight, weights[key])
                and len(edge.kinds) == len(rates.kinds)
            )
            found[key] = edge if edge is not None and is_known else self._edge(key, rates)
        return found

    def _counted_owners(self) -> dict[Key, OwnerEdge]:
        most, within = self.settings.most_weight, self.settings.within
        weights = {
            key: min(most, weight)
            for key, weight in self._owners.weights().items()
            if _scope(key[0], within) == _scope(key[1], within)
        }
        return {
            key: OwnerEdge(*key, weight)
            for key, weight in counted(weights, self.settings.least_weight, self.settings.least_share).items()
        }

    def _is_within(self, key: Key) -> bool:
        """Endpoints that are not known yet are in no namespace."""
        a, b = self._owner(key[0]), self._owner(key[1])
        return bool(a and b) and _scope(a, self.settings.within) == _scope(b, self.settings.within)

    # ------------------------------------------------------------------ out

    @property
    def edges(self) -> list[GraphEdge]:
        """The edges that count, by their ends, with the rates of this moment: changes tell of 1 % only."""
        return [self._present(key, edge) for key, edge in sorted(self._edges.values.items())]

    @property
    def edge_count(self) -> int:
        """How many edges count."""
        return len(self._edges.values)

    @property
    def owner_edges(self) -> list[OwnerEdge]:
        return [self._owner_edges.values[key] for key in sorted(self._owner_edges.values)]

    @property
    def endpoints(self) -> Mapping[str, EndpointIdentity]:
        """The endpoints that live and are known, by id."""
        return self._endpoints.values

    def identity(self, endpoint: str) -> EndpointIdentity:
        """Its identity; of an endpoint that is not known nothing but its id."""
        return self._identities.get(endpoint) or EndpointIdentity(endpoint)

    def traffic(self) -> Traffic:
        """The graph as the rest of the program sees it."""
        owners = {key: edge.weight for key, edge in self._owner_edges.values.items()}
        return traffic_of(self.version, map(_as_listed, self._edges.values.values()), owners)

    def changes_since(self, version: int) -> Optional[GraphChanges]:
        """The changes that a reader of ``version`` lacks; None = it must be told everything."""
        edges, owners = self._edges.since(version), self._owner_edges.since(version)
        endpoints = self._endpoints.since(version)
        if version > self.version or edges is None or owners is None or endpoints is None:
            return None
        return GraphChanges(edges, owners, endpoints)

    def _present(self, key: Key, edge: GraphEdge) -> GraphEdge:
        rates = self._rates.get(key)
        return edge if rates is None else self._edge(key, rates)

    def _edge(self, key: Key, rates: _Rates) -> GraphEdge:
        most = self.settings.most_weight
        weight, steady = min(most, self._lines(rates)), min(most, rates.steady.value)
        return GraphEdge(*key, weight, rates.ab, rates.ba, rates.messages, tuple(sorted(rates.kinds)), steady)

    # ------------------------------------------------------------------ over restarts

    def state(self) -> dict[str, Any]:
        """All that is remembered, as JSON. Which edges count follows from it."""
        rows = [
            [a, b, r.ab, r.ba, r.messages, r.silent_s, sorted(r.kinds), r.steady.value, r.steady.since_s]
            for (a, b), r in sorted(self._rates.items())
        ]
        # Beside the edges, whose rows an older observer reads, too.
        pasts = [[a, b, r.owed_s, *r.steady.past()] for (a, b), r in sorted(self._rates.items())]
        return {
            "version": self.version,
            "observed_s": self.observed_s,
            "edges": rows,
            "pasts": pasts,
            "owners": self._owners.state(),
        }

    def restore(self, state: Any, elapsed_s: float = 0.0, with_edges: bool = True) -> None:
        """Take over what ``state()`` gave ``elapsed_s`` ago; edges of containers only ``with_edges``.

        Nothing fades for the time in between, but what would have expired is gone.

        :raises ValueError: it is something else; nothing is taken over then.
        """
        try:
            rates = dict(map(_read_row, state["edges"])) if with_edges else {}
            for a, b, owed_s, *past in state.get("pasts", ()) if rates else ():
                found = rates[str(a), str(b)]
                found.owed_s = read_amount(owed_s)
                found.steady.restore_past(past)
            version, observed_s = int(state["version"]), float(state["observed_s"])
            self._owners.restore(state["owners"], elapsed_s)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not the state of a graph: {error!r}") from None
        for found in rates.values():
            found.silent_s += elapsed_s
            if not found.steady.known_s:
                found.steady = SteadyWeight(self._lines(found))
        expires_s = EXPIRES_AFTER_HALF_LIVES * self.settings.half_life_s
        self._rates = {key: found for key, found in rates.items() if found.silent_s <= expires_s}
        # Without edges it is young, however long it has remembered owners.
        self.version, self.observed_s = version, observed_s if self._rates else 0.0
        self.refresh()


def _as_listed(edge: GraphEdge) -> Edge:
    """An edge for tables."""
    return Edge(
        a=edge.a,
        b=edge.b,
        weight=edge.weight,
        bytes_per_s=edge.bytes_ab_per_s + edge.bytes_ba_per_s,
        messages_per_s=edge.messages_per_s,
        kinds=edge.kinds,
        is_pod_level=edge.is_pod_level,
        steady_weight=edge.steady_weight,
    )


def _summed(flows: Iterable[SeenFlow]) -> dict[Key, _Rates]:
    """The traffic by pair of endpoints, the lower one first. An endpoint's traffic with itself is left out."""
    seen: dict[Key, _Rates] = {}
    for flow in flows:
        a, b, ab, ba = flow.a, flow.b, flow.bytes_ab, flow.bytes_ba
        if a == b or not a or not b:
            continue
        if a > b:
            a, b, ab, ba = b, a, ba, ab
        amounts = seen.get((a, b))
        if amounts is None:
            amounts = seen[(a, b)] = _Rates()
        amounts.ab += ab
        amounts.ba += ba
        amounts.messages += flow.messages
        if flow.kind not in amounts.kinds:
            amounts.kinds |= {flow.kind}
    return seen


def _is_same_edge(a: GraphEdge, b: GraphEdge) -> bool:
    is_near = _is_near(a.weight, b.weight) and _is_near(a.steady_weight, b.steady_weight)
    return a is b or (is_near and a.kinds == b.kinds)


def _is_near(old: float, new: float) -> bool:
    return abs(new - old) <= LEAST_CHANGE * old


def _scope(owner: str, within: str) -> str:
    """The scope that two owners must have in common: nothing, the namespace, or namespace and workload."""
    if within == "node":
        return ""
    namespace, _, rest = owner.partition("/")
    return namespace if within == "namespace" else f"{namespace}/{rest.partition('/')[0]}"


def _read_row(row: Any) -> tuple[Key, _Rates]:
    # Without the last two, an older observer has written it: the flow is followed as a new one.
    a, b, ab, ba, messages, silent_s, kinds, *steady = row
    if str(a) >= str(b):
        raise ValueError(f"no edge: {row}")
    rates = _Rates(read_amount(ab), read_amount(ba), read_amount(messages))
    rates.silent_s = read_amount(silent_s)
    rates.kinds = frozenset(map(str, kinds))
    rates.steady = SteadyWeight(*map(read_amount, steady))
    return (str(a), str(b)), rates


# ---------------------------------------------------------------------- trust

# *Trust*: the part of an endpoint's messages that was seen, where a provider had no room for some, both smoothed as the
# graph's rates are. A connection that found no room had two messages at least, a request and its response; how many more
# is not known.

MESSAGES_OF_A_CONNECTION = 2
#: A part so near to all is not told.
_NEARLY_ALL = 0.95
_LEAST_RATE = 1e-3


class SeenParts:
    """Messages seen and lost, by endpoint that has lost some."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = {}

    def observe(
        self, seconds: float, flows: Iterable[SeenFlow], lost: Mapping[str, int], half_life_s: float
    ) -> None:
        """Take in an interval. ``lost``: connections without room, by endpoint."""
        if seconds <= 0:
            return
        keep = 2.0 ** (-seconds / half_life_s)
        part = (1.0 - keep) / seconds
        # 1. All fade; what has nothing lost any more is forgotten.
        self._rates = {
            end: [seen * keep, missed * keep]
            for end, (seen, missed) in self._rates.items()
            if missed * keep >= _LEAST_RATE or end in lost
        }
        # 2. The messages lost and seen are added.
        for end, connections in lost.items():
            rates = self._rates.setdefault(end, [0.0, 0.0])
            rates[1] += part * MESSAGES_OF_A_CONNECTION * connections
        for flow in flows:
            for end in {flow.a, flow.b} & self._rates.keys():
                self._rates[end][0] += part * flow.messages

    def forget(self, endpoints: Iterable[str]) -> None:
        """Drop containers that have ended."""
        for end in endpoints:
            self._rates.pop(end, None)

    @property
    def trust(self) -> dict[str, float]:
        """The seen part, in tenths, of those of which it is not nearly all."""
        parts = {end: seen / (seen + missed) for end, (seen, missed) in sorted(self._rates.items())}
        return {end: round(part, 1) for end, part in parts.items() if part < _NEARLY_ALL}


# ---------------------------------------------------------------------- differences

K = TypeVar("K")
V = TypeVar("V")

#: Of more keys, a reader that is that far behind is told everything.
MOST_GONE = 10_000


class Difference(Generic[K, V]):
    """The values that are new or changed, and the keys that are gone."""

    def __init__(self, changed: list[V], gone: list[K]) -> None:
        self.changed = changed
        self.gone = gone


class Changes(Generic[K, V]):
    """Values by key, each with the version at which it came; gone keys are remembered, ``MOST_GONE`` of them."""

    def __init__(self, is_same: Callable[[V, V], bool]) -> None:
        self._is_same = is_same
        self.values: dict[K, V] = {}
        #: What readers know: of a value that is the same for ``is_same``, the older one.
        self._told: dict[K, V] = {}
        self._versions: dict[K, int] = {}
        self._gone: dict[K, int] = {}
        #: Differences from before this version are not known any more.
        self._oldest = 0

    def update(self, values: Mapping[K, V], version: int) -> bool:
        """Take new values; True if readers must be told of one, as it is not the same as what they know."""
        changed = [
            key
            for key, value in values.items()
            if key not in self._told or not self._is_same(self._told[key], value)
        ]
        gone = [key for key in self._told if key not in values]
        self.values = dict(values)
        for key in changed:
            self._told[key] = values[key]
            self._versions[key] = version
            self._gone.pop(key, None)
        for key in gone:
            del self._told[key], self._versions[key]
            self._gone[key] = version
        if len(self._gone) > MOST_GONE:
            self._gone.clear()
            self._oldest = version
        return bool(changed or gone)

    def since(self, version: int) -> Optional[Difference[K, V]]:
        """The changes after ``version``; None = that is too long ago, everything must be told."""
        if version < self._oldest:
            return None
        changed = [self.values[key] for key, at in self._versions.items() if at > version]
        return Difference(changed, [key for key, at in self._gone.items() if at > version])
