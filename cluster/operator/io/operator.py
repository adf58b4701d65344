"""The operator's process: watches in, one plan at a time, its writes out.

It remembers nothing that matters. Before each write the Lease is checked; before a node is changed the node is read
once more, and the write fails if it has changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Optional

from cluster.api import placement_policy
from cluster.api.names import (
    GROUP,
    NAMESPACE,
    OPERATOR,
    OPERATOR_MANAGER,
    PLACEMENT_POLICIES,
    VERSION,
)
from cluster.api.reader import Skipped
from cluster.kube.events import Events
from cluster.kube.io.access import NoAccess
from cluster.kube.io.clock import Clock
from cluster.kube.io.event_writer import EventWriter
from cluster.kube.io.known_fields import KnownFields
from cluster.kube.known import not_written
from cluster.kube.requests import HOPELESS, ApiError, Resource, Unreachable
from cluster.operator import events
from cluster.operator.advice import ZONE, observed
from cluster.operator.events import Announcement
from cluster.operator.heartbeats import has_outlived
from cluster.operator.io.advices import Advices
from cluster.operator.io.cache import Cache
from cluster.operator.io.leader import Leader
from cluster.operator.io.pulse import Pulse
from cluster.operator.io.unread import PLACEMENTS, UnreadPlacements
from cluster.operator.objects import (
    KubernetesNode,
    NodePlacement,
    PlacementPolicy,
    read_node,
    read_node_placement,
    read_policy,
)
from cluster.operator.plan import (
    AgentsWord,
    ClusterPlan,
    NewStatus,
    NodeChange,
    agents_word,
    agents_word_document,
    changed,
    merge_patch,
    new_node_placement,
    plan,
)
from cluster.operator.rollout import GIVE, REMOVE, TAKE_BACK, able, missed, still, trouble
from cluster.operator.summary import status_document
from cri_api.supervisor import together

NODES = Resource("", "v1", "nodes")
POLICIES = Resource(GROUP, VERSION, PLACEMENT_POLICIES)

#: NodePlacements in one page of a list: one has up to 256 KiB, and a page is in memory as a whole.
PAGE = 20
#: Seconds that news are collected before the next plan: with 5,000 agents there is always some.
QUIET_S = 0.5
#: Seconds after which it is told why the first lists have not come.
SILENCE_S = 5.0
#: Seconds between two rounds of Events.
EVENTS_EVERY_S = 1.0
#: Seconds after a write that failed, at first and at most.
RETRY_S, RETRY_MOST_S = 1.0, 60.0

#: Of its own: what the operator writes of a node besides is left as it is.
AGENTS_WORD_MANAGER = f"{OPERATOR_MANAGER}-agents-word"

_DONE = {GIVE: "is given", TAKE_BACK: "is taken back from", REMOVE: "loses"}


@dataclass(frozen=True)
class OperatorSettings:
    me: str
    namespace: str = NAMESPACE
    quiet_s: float = QUIET_S
    #: Called with every try for the Lease, which goes on for as long as the operator runs.
    alive: Callable[[], None] = lambda: None


class Operator:
    """``run`` until it is cancelled or the Lease is lost."""

    def __init__(
        self,
        client: Any,
        settings: OperatorSettings,
        clock: Clock,
        log: Callable[[str], None],
        refused: Optional[Callable[[Any], list[str]]] = None,
        lease_client: Any = None,
    ) -> None:
        """``lease_client``: for the Lease alone, so that its renewal does not wait behind a large answer."""
        self._client, self._settings, self._clock, self._log = client, settings, clock, log
        self._changed = asyncio.Event()
        #: What is planned may be wrong now: a policy or a Node is another, or a node has come into trouble.
        self._is_stale = False
        self._leader = Leader(
            lease_client or client, settings.namespace, OPERATOR, settings.me, clock, log, settings.alive
        )
        self.nodes: Cache[KubernetesNode] = Cache(read_node, self._changed, news=self._node_is_other)
        self.placements: Cache[NodePlacement] = Cache(
            read_node_placement, self._changed, observed, self._placement_is_other
        )
        self.policies: Cache[PlacementPolicy] = Cache(
            lambda found: read_policy(found, refused), self._changed, news=self._policy_is_other
        )
        self._pulse = Pulse(client, clock, self._changed, log)
        self._events = Events(OPERATOR, f"{int(clock.wall()):x}")
        self._to_tell = asyncio.Event()
        self._unread = UnreadPlacements(client, clock, self._events, log)
        self._advices = Advices(client, clock, self._leader.check, log)
        self._known = KnownFields(client, POLICIES, placement_policy.schema(), clock.monotonic)
        #: By policy: the status that was written last, and what the server had of it then.
        self._told: dict[str, tuple[Any, Any]] = {}
        self._left_out: tuple[str, ...] = ()
        self._missing_since: Any = {}
        self._may_not = False
        #: By node, and by ``_key_of`` a policy: why the server does not take a change or a status. All others go on.
        self._refused: dict[str, str] = {}
        self._failures = 0

    async def run(self) -> None:
        """:raises LeaseLost: another operator may have begun; end the process."""
        await self._leader.acquire()
        work = [self._leader.keep(), self._plans(), self._advise(), self._tell(), self._pulse.run()]
        work += self._follow()
        try:
            await together(*work)
        finally:
            await self._leader.release()

    def _follow(self) -> list[Any]:
        watches: list[tuple[Resource, Cache[Any], int]] = [
            (NODES, self.nodes, 500),
            (PLACEMENTS, self.placements, PAGE),
            (POLICIES, self.policies, 100),
        ]
        follows: list[Any] = []
        for resource, cache, limit in watches:
            follows.append(cache.follow(self._client.watch(resource, keep=cache.keep, limit=limit)))
        return follows

    async def _plans(self) -> None:
        for follower in (self.nodes, self.placements, self.policies, self._pulse):
            await self._until(follower.synced)
        while True:
            self._changed.clear()
            wait_s = await self._pass()
            if wait_s != 0.0:
                await self._news(wait_s)

    async def _until(self, synced: asyncio.Event) -> None:
        """A list that cannot be had (no CRD, no right) is told: the watch itself only tries again."""
        said = ""
        while not synced.is_set():
            waiting = asyncio.ensure_future(synced.wait())
            timer = asyncio.ensure_future(self._clock.sleep(SILENCE_S))
            try:
                await asyncio.wait([waiting, timer], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                timer.cancel()
            why = str(getattr(self._client, "problem", ""))
            if not synced.is_set() and why and why != said:
                said = why
                self._log(f"what there is cannot be listed: {why}")

    async def _advise(self) -> None:
        """No rollout waits for advice."""
        await self.placements.synced.wait()
        await self.nodes.synced.wait()
        await self._advices.run(self.placements.beside, self._zones)

    def _zones(self) -> dict[str, str]:
        """Of the nodes that have one."""
        return {node.name: node.labels[ZONE] for node in self.nodes.values.values() if node.labels.get(ZONE)}

    async def _tell(self) -> None:
        """No rollout waits for Events, and what goes wrong with them is logged."""
        writer = EventWriter(
            self._client,
            self._clock,
            self._events,
            lambda count: self._log(f"{count} Events are not written"),
        )
        said = ""
        while True:
            await self._to_tell.wait()
            self._to_tell.clear()
            try:
                while await writer.round(self._leader.check):
                    said = ""
                    await self._clock.sleep(EVENTS_EVERY_S)
            except (ApiError, Unreachable, NoAccess) as error:
                if str(error) != said:
                    said = str(error)
                    self._log(f"Events: {error}")
            if len(self._events):
                self._to_tell.set()
            await self._clock.sleep(EVENTS_EVERY_S)

    def _announce(self, *told: Announcement) -> None:
        for each in told:
            self._events.add(*each, self._clock.stamp())
            self._to_tell.set()

    # --- news of the watches

    def _node_is_other(self, before: Optional[KubernetesNode], now: Optional[KubernetesNode]) -> None:
        self._is_stale = True

    def _policy_is_other(self, before: Optional[PlacementPolicy], now: Optional[PlacementPolicy]) -> None:
        # A status is the operator's own.
        if before is None or now is None or replace(before, status={}) != replace(now, status={}):
            self._is_stale = True

    def _placement_is_other(self, before: Optional[NodePlacement], now: Optional[NodePlacement]) -> None:
        if now is None or (trouble(now, True) and not (before and trouble(before, True))):
            self._is_stale = True
        if now is not None:
            policy = self.policies.values.get(now.given.name) if now.given else None
            self._announce(*events.of_answer(self.nodes.values.get(now.name), policy, before, now))

    # --- rounds

    async def _pass(self) -> Optional[float]:
        """One plan and its writes; seconds until the next without news, 0 where it has to be made at once."""
        now = self._clock.wall()
        self._is_stale = False
        made = plan(
            self.policies.values,
            self.nodes.values,
            self.placements.values,
            self._missing_since,
            now,
            {**self.nodes.unread, **self.placements.unread},
            self._refused,
            self._pulse.beats,
        )
        self._missing_since = made.missing_since
        wanted = {change.change.seen.name for change in made.changes}
        wanted |= {_key_of(status.policy.name) for status in made.statuses}
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}
        # What an older schema makes of a status is no difference: it would be written for ever.
        made = replace(made, statuses=tuple(filter(self._is_other, made.statuses)))
        try:
            whole = await self._write(made)
            await self._unread.round(self.placements, self._leader.check)
            if len(self._events):
                self._to_tell.set()
        except ApiError as error:
            return self._again(f"the API server says {error}")
        except (Unreachable, NoAccess) as error:
            return self._again(f"the API server does not answer: {error}")
        if self._refused:
            name, why = min(self._refused.items())
            return self._again(f"the API server refuses a write for {name}: {why}")
        self._failures = 0
        if not whole:
            return 0.0
        return None if made.wake_at is None else max(QUIET_S, made.wake_at - now)

    def _again(self, why: str) -> float:
        wait_s: float = min(RETRY_MOST_S, RETRY_S * 2.0**self._failures) * (0.5 + self._clock.random01() / 2)
        self._failures = min(self._failures + 1, 10)
        self._log(f"{why}; again in {wait_s:.0f} s")
        return wait_s

    async def _news(self, wait_s: Optional[float]) -> None:
        """Until something has changed or the time has come, and a little more, so that news come together."""
        if not self._failures:
            changed = asyncio.ensure_future(self._changed.wait())
            timer = asyncio.ensure_future(self._clock.sleep(wait_s)) if wait_s is not None else None
            waiting = [changed] if timer is None else [changed, timer]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()
            await self._clock.sleep(self._settings.quiet_s * (0.5 + self._clock.random01() / 2))
        else:
            await self._clock.sleep(wait_s or 0.0)

    async def _write(self, made: ClusterPlan) -> bool:
        """False: there is more to write, and another plan is to be made before."""
        for name in made.create:
            self._leader.check()
            await self._create(name)
        for word in made.words:
            self._leader.check()
            await self._word(word)
        for status in made.statuses:
            self._leader.check()
            await self._status(status)
        for change in made.changes:
            # A rollout may have ended meanwhile: plan again first. What the writes of this round change is in the plan.
            if self._is_stale:
                return False
            self._leader.check()
            await self._change(change)
        for state in made.delete:
            self._leader.check()
            await self._delete(state)
        return True

    async def _create(self, node: str) -> None:
        try:
            self.placements.put(await self._client.create(PLACEMENTS, new_node_placement(node)))
        except ApiError as error:
            # It is there, and the watch has not told yet.
            if error.status != 409:
                raise

    async def _word(self, word: AgentsWord) -> None:
        name = word.seen.name
        try:
            found = await self._client.get(PLACEMENTS, name)
            fresh = self.placements.put(found)
            now, beat = self._clock.wall(), self._pulse.beats.get(name)
            if isinstance(fresh, Skipped) or agents_word(fresh, now, beat) != [word._replace(seen=fresh)]:
                return
            if beat and word.silence == missed(fresh, beat) and has_outlived(found, beat.heartbeat):
                self._pulse.heard(name)
                return
            self._leader.check()
            document = agents_word_document(word, found, now)
            answer = await self._client.apply(
                PLACEMENTS, name, document, manager=AGENTS_WORD_MANAGER, subresource="status"
            )
        except ApiError as error:
            # An account with the rights of an older version may not; the policy's status says it as well.
            if error.status not in HOPELESS and error.status != 409:
                raise
            if error.status == 403 and not self._may_not:
                self._may_not = True
                self._log(f"that agents are silent is not written on their NodePlacements: {error}")
            return
        self.placements.put(answer)
        self._log(f"node {name}: {word.silence or 'the agent has answered again'}")
        if name in self.nodes.values:
            self._announce(events.of_word(self.nodes.values[name], word.silence))

    def _is_other(self, new: NewStatus) -> bool:
        policy = self.policies.values.get(new.policy.name)
        return policy is None or self._told.get(policy.name) != (new.status, policy.status)

    async def _status(self, new: NewStatus) -> None:
        name = new.policy.name
        try:
            document = status_document(name, new.status)
            answer = await self._known.apply(name, document, manager=OPERATOR_MANAGER, subresource="status")
        except ApiError as error:
            if error.status not in HOPELESS:
                raise
            if error.status == 404:
                self.policies.drop(name)
                self._told.pop(name, None)
            else:
                self._refused[_key_of(name)] = str(error)
            return
        self._refused.pop(_key_of(name), None)
        kept = self.policies.put(answer)
        self._told[name] = (new.status, None if isinstance(kept, Skipped) else kept.status)
        if (left_out := self._known.left_out) != self._left_out:
            self._left_out = left_out
            if left_out:
                self._log(not_written(left_out))
        if new.news:
            self._log(new.news)
        self._announce(*events.of_status(new.policy, new.status))
        if new.abort and new.abort.node in self.nodes.values:
            self._announce(events.of_failure(self.nodes.values[new.abort.node], new.policy, new.abort))

    async def _change(self, wanted: NodeChange) -> None:
        policy, change = wanted
        name = change.seen.name
        try:
            found = await self._client.get(PLACEMENTS, name)
            fresh = self.placements.put(found)
            node = self.nodes.values.get(name)
            ready = node is not None and node.ready
            if isinstance(fresh, Skipped) or not still(change, policy, fresh, ready):
                self._changed.set()
                return
            self._leader.check()
            document = changed(change, policy, found, self._clock.wall(), able(fresh, ready))
            answer = await self._client.patch(PLACEMENTS, name, merge_patch(found, document))
        except ApiError as error:
            if error.status == 404:
                self.placements.drop(name)
            elif error.status == 409:
                # The agent has written between the read and the write: the next plan reads again.
                self._changed.set()
            elif error.status in HOPELESS:
                self._refused[name] = str(error)
            else:
                raise
            return
        self._refused.pop(name, None)
        self.placements.put(answer)
        if node is not None:
            self._announce(events.of_change(node, policy, change))
        if change.kind in _DONE:
            given = change.seen.given if change.kind != GIVE else None
            which = policy.name if policy else given.name if given else ""
            self._log(f"node {name} {_DONE[change.kind]} policy {which}")

    async def _delete(self, state: NodePlacement) -> None:
        try:
            await self._client.delete(PLACEMENTS, state.name, uid=state.uid)
            self._log(f"NodePlacement {state.name} is deleted: its Node is gone")
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self.placements.drop(state.name)


def _key_of(policy: str) -> str:
    """Beside the names of nodes, which have no space."""
    return f"policy {policy}"
