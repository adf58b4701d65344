"""The node that is changed next: a state machine whose state is in the objects, a function from them to the next steps.

A node is *in change* from the write of its ``spec.policy`` until the operator has seen it well with that and has
written this down (``confirm``), and ``pauseSeconds`` more. At most ``maxUnavailable`` nodes of a policy are in change.
The first changed node with a reason of ``abortOn`` stops the rollout: that is recorded in the policy's status first,
then every node that has the document goes back to its document before. A new generation of the policy starts again.

Where all nodes have had the document once (``completedHash``), a node that comes later and fails with it is taken back
alone, and no further node is given that document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from cluster.api.heartbeat import lease_name
from cluster.api.names import AGENT_SILENT, NAMESPACE
from cluster.operator.heartbeats import Beat
from cluster.operator.objects import NodePlacement, PlacementPolicy, Rollout, read_time, write_time

#: Seconds that an agent has to carry out a document, and to get over what was wrong before it. An agent writes its
#: status every 10 s at most, and keeps an answer of doctor for 60 s.
ANSWER_S = 120.0
#: Nodes that no policy selects any more lose theirs this many at a time.
REMOVAL = Rollout(max_unavailable="10%")

GIVE, CONFIRM, TAKE_BACK, REMOVE = "give", "confirm", "take-back", "remove"


class Trouble(NamedTuple):
    """Why a node is not well: one of ABORT_REASONS, ``TakenBack`` or AGENT_SILENT, and a sentence."""

    reason: str
    sentence: str


class NodePlacementWrite(NamedTuple):
    """One write to a NodePlacement. It holds only as long as the node is as it was ``seen``."""

    kind: str
    seen: NodePlacement


class Abort(NamedTuple):
    """The rollout has to be stopped: to be recorded before any node is taken back."""

    node: str
    reason: str
    sentence: str


@dataclass(frozen=True)
class RolloutStep:
    """The writes of now, in this order, and when to look again without news (seconds since 1970; None: never)."""

    abort: Optional[Abort] = None
    changes: tuple[NodePlacementWrite, ...] = ()
    wake_at: Optional[float] = None
    #: Why nodes that should be changed are not: one sentence; "" where none waits.
    waits: str = ""


def trouble(state: NodePlacement, node_ready: bool) -> Optional[Trouble]:
    """The most telling fault of a node; None for a node that is well or has not answered yet."""
    answer = state.answer
    if answer and given_up(state):
        reason = "ConfigRefused" if answer.state == "Refused" else "TakenBack"
        return Trouble(reason, answer.message or f"the agent says {answer.state}")
    return _nodes_own(state, node_ready)


def given_up(state: NodePlacement) -> bool:
    """The node was given a document and has it not: the daemon has refused it, or the agent has taken it back."""
    answer = state.answer
    return (
        answer is not None
        and state.given is not None
        and answer.hash == state.given.hash
        and answer.state in ("Refused", "TakenBack")
    )


def _nodes_own(state: NodePlacement, node_ready: bool) -> Optional[Trouble]:
    """The node's fault, whatever has become of its document."""
    if not node_ready:
        return Trouble("NotReady", "the Node is not Ready: its kubelet does not answer")
    if state.silenced:
        return Trouble(AGENT_SILENT, state.complaint)
    if state.ready is False:
        return Trouble("NotReady", state.complaint)
    if state.degraded:
        return Trouble("Degraded", state.complaint)
    if state.doctor_errors:
        return Trouble("DoctorErrors", f"doctor finds {state.doctor_errors} errors")
    return None


def silence(state: NodePlacement, now: float) -> str:
    """What the agent of a changed node has not said in its time, and where to look; "" = it has, or there is time left."""
    if state.confirmed or now < state.notes.changed_at + ANSWER_S:
        return ""
    asked = f"policy {state.given.name}" if state.given else "the end of its policy"
    if not (state.acknowledged or (state.answer and state.answer.hash == state.given_hash)):
        missing = f"has not answered to {asked}"
    elif state.judged not in (None, state.given_hash):
        missing = f"has carried out {asked} and has not reported on the node since"
    else:
        return ""
    return f"the agent of {state.name} {missing}, written {write_time(state.notes.changed_at)}; {_look_at(state.name)}"


def _look_at(node: str) -> str:
    return f"whether it runs: kubectl -n {NAMESPACE} get pods --field-selector spec.nodeName={node}"


def missed(state: NodePlacement, beat: Optional[Beat]) -> str:
    """That an agent no longer renews its Lease, whether something is asked of it or not; "" = it does, or has none."""
    if beat is None or not beat.is_silent:
        return ""
    since = write_time(read_time(beat.heartbeat.renewed))
    lease = f"{NAMESPACE}/{lease_name(state.name)}"
    return (
        f"the agent of {state.name} has not renewed its Lease {lease} since {since}; {_look_at(state.name)}"
    )


def speaks_again(state: NodePlacement, now: float, beat: Optional[Beat]) -> bool:
    """The agent was silent, and has answered since. Of one with a Lease a renewal was seen, too."""
    is_alive = beat is None or beat.is_alive
    return state.silenced and state.up_to_date and is_alive and not silence(state, now)


def well(state: NodePlacement, node_ready: bool) -> bool:
    """The agent has carried its document out, and found no fault when it looked at the node after that.

    Its two halves write apart: an acknowledgement may stand beside conditions from before the change.
    """
    if state.judged not in (None, state.given_hash):
        return False
    return state.acknowledged and state.ready is True and trouble(state, node_ready) is None


def able(state: NodePlacement, node_ready: bool) -> bool:
    """It may be given a document: it is well, or would be but for the one that it was given and has not."""
    if given_up(state):
        return state.ready is True and _nodes_own(state, node_ready) is None
    return well(state, node_ready)


def has(policy: PlacementPolicy, state: NodePlacement) -> bool:
    """The node was given this very document of this policy."""
    return state.given is not None and state.given.name == policy.name and state.given.hash == policy.hash


def in_change(state: NodePlacement, now: float, pause_s: float = 0.0) -> bool:
    """Changed, and not confirmed or still in the pause after it. A node that was taken back, or has lost its policy,
    is waited for ANSWER_S only: a node that stays broken must not keep the others from going back."""
    notes = state.notes
    if state.confirmed:
        return notes.confirmed_at > 0 and not notes.failed and now < notes.confirmed_at + pause_s
    if notes.failed or state.given is None:
        return now < notes.changed_at + ANSWER_S
    return True


def step(
    policy: PlacementPolicy, targets: Sequence[NodePlacement], ready: Mapping[str, bool], now: float
) -> RolloutStep:
    """The next steps of one policy over the nodes that should have it (``ready``: the Nodes that are Ready)."""
    if policy.fault:
        return RolloutStep()
    # 1. A changed node that fails ends it: recorded, then everything goes back.
    blamed = [] if policy.aborted else _blamed(policy, targets, ready, now)
    if blamed and not policy.completed:
        state, found = blamed[0]
        return RolloutStep(abort=Abort(state.name, found.reason, found.sentence))
    # 2. Nodes to take back, or to change.
    if policy.aborted:
        changes, waits = _take_back(policy, targets, ready, now), ""
    elif policy.completed and (blamed or any(each.notes.failed == policy.hash for each in targets)):
        changes = [NodePlacementWrite(TAKE_BACK, state) for state, _ in blamed]
        failed = [each.name for each in targets if each.notes.failed == policy.hash] + [
            state.name for state, _ in blamed
        ]
        waits = (
            f"{min(failed)} has failed with this document, so no further node is given it; "
            "a change of spec is tried anew"
        )
    else:
        changes, waits = _give(policy, targets, ready, now)
    # 3. Nodes that are well now are written down.
    busy = {change.seen.name for change in changes}
    unconfirmed = [each for each in targets if not each.confirmed and each.name not in busy]
    confirms = [NodePlacementWrite(CONFIRM, each) for each in unconfirmed if well(each, _ready(ready, each))]
    return RolloutStep(None, (*confirms, *changes), _wake_at(policy, targets, now), waits)


def finished(
    policy: PlacementPolicy, targets: Sequence[NodePlacement], ready: Mapping[str, bool], now: float
) -> bool:
    """The document is on every node that can take it; a few that are not well do not keep a rollout open for ever."""
    holders = [each for each in targets if has(policy, each)]
    if (
        policy.fault
        or policy.aborted
        or any(in_change(each, now, policy.rollout.pause_s) for each in targets)
    ):
        return False
    others = [each for each in targets if not has(policy, each)]
    if any(able(each, _ready(ready, each)) or each.notes.failed == policy.hash for each in others):
        return False
    allowed = max(policy.rollout.most(len(targets)), REMOVAL.most(len(targets)))
    return bool(holders) and len(others) <= allowed


def removal(states: Sequence[NodePlacement], nodes: int, now: float) -> RolloutStep:
    """The next steps for nodes that no policy selects: those with one lose it, some at a time, of ``nodes`` in all."""
    confirms = [
        NodePlacementWrite(CONFIRM, each)
        for each in states
        if each.given is None and not each.confirmed and each.acknowledged
    ]
    leaving = [each for each in states if each.given is not None]
    moving = [each for each in leaving if in_change(each, now)]
    settled = [each for each in leaving if not in_change(each, now)]
    going = sum(each.given is None and in_change(each, now) for each in states)
    room = REMOVAL.most(nodes) - going - len(moving)
    chosen = moving + sorted(settled)[: max(0, room)]
    waking = [
        each.notes.changed_at + ANSWER_S for each in states if each.given is None and in_change(each, now)
    ]
    return RolloutStep(
        None, (*confirms, *(NodePlacementWrite(REMOVE, each) for each in chosen)), min(waking, default=None)
    )


def still(
    change: NodePlacementWrite, policy: Optional[PlacementPolicy], fresh: NodePlacement, node_ready: bool
) -> bool:
    """Whether a step holds for the node as it is at the moment of the write."""
    seen = change.seen
    if (fresh.uid, fresh.given, fresh.notes) != (seen.uid, seen.given, seen.notes):
        return False
    if change.kind == CONFIRM:
        return well(fresh, node_ready) or (fresh.given is None and fresh.acknowledged)
    if change.kind == GIVE:
        return _replaced_in_place(policy, fresh) or able(fresh, node_ready)
    return True


def _blamed(
    policy: PlacementPolicy, targets: Iterable[NodePlacement], ready: Mapping[str, bool], now: float
) -> list[tuple[NodePlacement, Trouble]]:
    """Nodes that fail with the document, the one changed first at the front."""
    blamed = []
    for state in targets:
        if not has(policy, state):
            continue
        found = trouble(state, _ready(ready, state))
        if found is None or (found.reason != "TakenBack" and found.reason not in policy.rollout.abort_on):
            continue
        # After completion a confirmed node that fails has another reason than the change.
        if policy.completed and state.confirmed:
            continue
        if _its_own(state, found, now):
            blamed.append((state, found))
    return sorted(blamed, key=lambda pair: (pair[0].notes.changed_at, pair[0].name))


def _its_own(state: NodePlacement, found: Trouble, now: float) -> bool:
    """The trouble is that of the document that the node has now, not left over from before."""
    if found.reason in ("ConfigRefused", "TakenBack") or state.confirmed:
        return True
    answered = state.answer is not None and state.answer.hash == state.given_hash
    return (answered and not state.notes.unwell) or now >= state.notes.changed_at + ANSWER_S


def _give(
    policy: PlacementPolicy, targets: Sequence[NodePlacement], ready: Mapping[str, bool], now: float
) -> tuple[list[NodePlacementWrite], str]:
    pause_s = policy.rollout.pause_s
    outdated = [each for each in targets if not has(policy, each)]
    moving = [each for each in targets if in_change(each, now, pause_s)]
    # 1. Nodes in the middle of an earlier document of this policy get this one instead: they are in change already.
    replaced = [each for each in outdated if _replaced_in_place(policy, each)]
    # 2. Others only while there is room, and only nodes that are well: a fault of before is not held against it.
    busy = {each.name for each in (*moving, *replaced)}
    others = [each for each in outdated if each.name not in busy]
    takers = sorted(each for each in others if able(each, _ready(ready, each)))
    room = max(0, policy.rollout.most(len(targets)) - len(busy))
    chosen = [*replaced, *takers[:room]]
    return [NodePlacementWrite(GIVE, each) for each in chosen], _why_waiting(
        moving, others, takers, ready, now
    )


def _why_waiting(
    moving: Sequence[NodePlacement],
    others: Sequence[NodePlacement],
    takers: Sequence[NodePlacement],
    ready: Mapping[str, bool],
    now: float,
) -> str:
    for state in sorted(moving):
        found = trouble(state, _ready(ready, state))
        if found and found.reason != AGENT_SILENT:
            return f"{state.name} is not well since it was changed ({found.reason}): {found.sentence}"
        if found or silence(state, now):
            return found.sentence if found else silence(state, now)
        if not state.confirmed and now >= state.notes.changed_at + ANSWER_S:
            said = state.answer
            what = (
                f"{said.state}: {said.message}" if said and not state.acknowledged else "not that it is Ready"
            )
            return f"{state.name} is not well since it was changed: its agent says {what}"
    unable = sorted(set(others) - set(takers))
    if not unable:
        return ""
    found = trouble(unable[0], _ready(ready, unable[0]))
    sentence = found.sentence if found else f"its agent has written nothing; {_look_at(unable[0].name)}"
    more = f", and {len(unable) - 1} more" if len(unable) > 1 else ""
    return f"{unable[0].name} is not changed before it is well: {sentence}{more}"


def _replaced_in_place(policy: Optional[PlacementPolicy], state: NodePlacement) -> bool:
    return (
        policy is not None
        and state.given is not None
        and state.given.name == policy.name
        and not state.confirmed
        and not state.notes.failed
    )


def _take_back(
    policy: PlacementPolicy, targets: Sequence[NodePlacement], ready: Mapping[str, bool], now: float
) -> list[NodePlacementWrite]:
    pause_s = policy.rollout.pause_s
    holders = [each for each in targets if has(policy, each)]
    # 1. Nodes in change go back at once: that makes no further node unavailable.
    moving = [each for each in holders if in_change(each, now, pause_s)]
    # 2. The others, the failing ones first, as many at a time as were changed at a time.
    settled = [each for each in holders if not in_change(each, now, pause_s)]
    settled.sort(
        key=lambda each: (trouble(each, _ready(ready, each)) is None, -each.notes.changed_at, each.name)
    )
    going = sum(in_change(each, now, pause_s) for each in targets)
    room = max(0, policy.rollout.most(len(targets)) - going)
    return [NodePlacementWrite(TAKE_BACK, each) for each in (*moving, *settled[:room])]


def _wake_at(policy: PlacementPolicy, targets: Sequence[NodePlacement], now: float) -> Optional[float]:
    times = []
    for state in targets:
        if state.notes.confirmed_at:
            times.append(state.notes.confirmed_at + policy.rollout.pause_s)
        elif state.notes.changed_at:
            times.append(state.notes.changed_at + ANSWER_S)
    return min((each for each in times if each > now), default=None)


def _ready(ready: Mapping[str, bool], state: NodePlacement) -> bool:
    return ready.get(state.name, False)
