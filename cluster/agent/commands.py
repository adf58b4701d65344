"""The commands to the daemon, one after another, until the node is as its spec says. Pure.

Level-triggered: the command that is due follows from the spec, from the daemon's report and from the memory;
how often it is asked makes no difference. A document that was refused is not sent again to the same life of the daemon,
and one that was taken back is not sent again at all.

The memory (``AgentMemory``) lasts over restarts of the agent, and over days without the API server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from cluster.agent.spec import Override, PolicyDocument, Spec, read_spec, write_policy, write_spec
from cluster.agent.status import ENOUGH, FALSE, TRUE, Condition, shortened
from cluster.api.allowed import NotAllowed, check
from cluster.api.names import CONFIG_APPLIED, NODE_PLACEMENT
from cluster.api.reader import Fields, Unreadable
from cluster.kube.known import not_written
from policies.machine.domain_names import domain_text

POLICY, MODE, FREEZE, OVERRIDES = "cluster-policy", "mode", "freeze", "overrides"
_OVERRIDE = ("namespace", "pod", "container", "zone")


@dataclass(frozen=True)
class AgentMemory:
    """``spec``: as it was seen last, None = never. ``policy``: what the daemon was given last, and when (seconds since
    1970); ``baseline``: the signs that were there before, which do not speak against it. ``previous``: what was in force
    before it. ``taken_back``: the hash of a policy that was taken back on this node, and why. ``mode_before``: the mode
    before one was asked for of a daemon that does not remember that itself, "" = none was. ``froze``: whether this
    agent froze the node.
    """

    spec: Optional[Spec] = None
    policy: Optional[PolicyDocument] = None
    applied_at_s: float = 0.0
    baseline: tuple[str, ...] = ()
    previous: Optional[PolicyDocument] = None
    taken_back: str = ""
    why_taken_back: str = ""
    mode_before: str = ""
    froze: bool = False


def write_memory(memory: AgentMemory) -> str:
    """As JSON that a person can read."""
    document: dict[str, Any] = {
        "spec": None if memory.spec is None or not memory.spec.is_known else write_spec(memory.spec),
        "policy": None if memory.policy is None else write_policy(memory.policy),
        "applied_at": memory.applied_at_s,
        "baseline": list(memory.baseline),
        "previous": None if memory.previous is None else write_policy(memory.previous),
        "taken_back": memory.taken_back,
        "why_taken_back": memory.why_taken_back,
        "mode_before": memory.mode_before,
        "froze": memory.froze,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def read_memory(text: str) -> AgentMemory:
    """A document of ``write_memory``, of this version or its neighbours.

    :raises ValueError: it is none.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")
    spec = document.get("spec")
    return AgentMemory(
        None if spec is None else read_spec(spec),
        _read_policy(document.get("policy")),
        float(document.get("applied_at") or 0),
        tuple(str(sign) for sign in document.get("baseline") or ()),
        _read_policy(document.get("previous")),
        str(document.get("taken_back") or ""),
        str(document.get("why_taken_back") or ""),
        str(document.get("mode_before") or ""),
        document.get("froze") is True,
    )


def _read_policy(document: Any) -> Optional[PolicyDocument]:
    return read_spec({"spec": {"policy": document}}).policy


@dataclass(frozen=True)
class Command:
    """One command of the control socket. ``policy``: the document it gives, None = it gives none."""

    name: str
    arguments: Mapping[str, Any] = field(hash=False)
    policy: Optional[PolicyDocument] = None

    @property
    def about(self) -> str:
        """The key of a refusal: the same command again would be refused again."""
        if self.policy is not None:
            return f"{self.name} {self.policy.hash}"
        return f"{self.name} {sorted(self.arguments.items())!r}"


@dataclass(frozen=True)
class Refusals:
    """Sentences of this life of the daemon (``instance``), by ``Command.about``."""

    instance: str = ""
    sentences: Mapping[str, str] = field(default_factory=dict)

    def of(self, instance: str) -> Refusals:
        """The refusals that still hold: another life may know more."""
        return self if instance == self.instance else Refusals(instance)

    def with_one(self, command: Command, sentence: str) -> Refusals:
        """The refusals with this one; those of the same command about other things are no longer of interest."""
        others = {about: said for about, said in self.sentences.items() if about.split()[0] != command.name}
        return Refusals(self.instance, {**others, command.about: sentence})


def next_command(
    spec: Spec, report: Mapping[str, Any], memory: AgentMemory, refusals: Refusals
) -> Optional[Command]:
    """The command that is due, None = the node is as it can be.

    The caller sends it, and then says ``done`` or ``Refusals.with_one``, and asks again with a new report.
    """
    if not spec.is_known:
        return None
    cluster = report.get("cluster") or {}
    for command in (
        _freeze(spec, cluster, memory, True),
        _mode(spec, report, memory),
        _policy(spec, cluster, memory),
        _overrides(spec, cluster),
        _freeze(spec, cluster, memory, False),
    ):
        if command is not None and command.about not in refusals.sentences:
            return command
    return None


def _freeze(spec: Spec, cluster: Mapping[str, Any], memory: AgentMemory, on: bool) -> Optional[Command]:
    wanted = spec.freeze if spec.freeze is not None else (False if memory.froze else None)
    if wanted is not on or bool(cluster.get("freeze", False)) is on:
        return None
    return Command(FREEZE, {"on": on})


def _mode(spec: Spec, report: Mapping[str, Any], memory: AgentMemory) -> Optional[Command]:
    # A daemon of the version before does not say what has set its mode, nor does it remember what was configured.
    asked_by = report.get("mode_from", NODE_PLACEMENT if spec.mode else "")
    if spec.mode:
        # It is told where it has the mode already, too: what is asked here holds against policies that come.
        is_so = (report.get("mode_wanted"), asked_by) == (spec.mode, NODE_PLACEMENT)
        return None if is_so else Command(MODE, {"mode": spec.mode, "by": NODE_PLACEMENT})
    if asked_by == NODE_PLACEMENT:
        return Command(MODE, {"mode": "", "by": NODE_PLACEMENT})
    wanted = memory.mode_before
    return Command(MODE, {"mode": wanted}) if wanted and report.get("mode_wanted") != wanted else None


def _policy(spec: Spec, cluster: Mapping[str, Any], memory: AgentMemory) -> Optional[Command]:
    wanted = wanted_policy(spec, memory)
    there = cluster.get("policy")
    if wanted is None:
        return None if there is None else give(None)
    return None if _is_there(wanted, there) else give(wanted)


def wanted_policy(spec: Spec, memory: AgentMemory) -> Optional[PolicyDocument]:
    """The document that should be in force: that of the spec, or, where it was taken back, the one before."""
    if spec.policy is not None and spec.policy.hash == memory.taken_back:
        return memory.previous
    return spec.policy


def _is_there(policy: PolicyDocument, there: Optional[Mapping[str, Any]]) -> bool:
    return there is not None and there.get("hash") == policy.hash


def give(policy: Optional[PolicyDocument]) -> Command:
    """The command that puts a document in force; None = none at all."""
    if policy is None:
        return Command(POLICY, {"name": None})
    arguments = {"name": policy.name, "generation": policy.generation, "config": dict(policy.config)}
    return Command(POLICY, {**arguments, "hash": policy.hash}, policy)


def _overrides(spec: Spec, cluster: Mapping[str, Any]) -> Optional[Command]:
    there = {tuple(str(row.get(key, "")) for key in _OVERRIDE) for row in cluster.get("overrides") or ()}
    if there == set(spec.overrides):
        return None
    return Command(OVERRIDES, {"overrides": [dict(zip(_OVERRIDE, row)) for row in spec.overrides]})


def refused_here(command: Command) -> str:
    """Why this agent does not even send it: "" = it does. The daemon looks again."""
    if command.policy is None:
        return ""
    try:
        check(command.policy.config)
    except NotAllowed as error:
        return str(error)
    return ""


def done(
    command: Command,
    spec: Spec,
    report: Mapping[str, Any],
    memory: AgentMemory,
    signs: frozenset[str],
    now_s: float,
) -> AgentMemory:
    """The memory once the daemon has carried a command out. ``report``: from before it; ``now_s``: since 1970."""
    if command.name == MODE:
        if not spec.mode or "mode_from" in report:
            return replace(memory, mode_before="")
        return replace(memory, mode_before=memory.mode_before or str(report.get("mode_wanted") or ""))
    if command.name == FREEZE:
        return replace(memory, froze=bool(command.arguments["on"]))
    if command.name != POLICY:
        return memory
    policy = command.policy
    if policy is not None and memory.policy is not None and policy.hash == memory.policy.hash:
        # Told again, to a daemon that had lost it: it is as old as it was.
        return replace(memory, policy=policy)
    is_return = spec.policy is not None and spec.policy.hash == memory.taken_back
    return replace(
        memory,
        policy=policy,
        applied_at_s=now_s,
        baseline=tuple(sorted(signs)),
        # The document before stays the one to go back to: it is wanted for as long as the spec says the same.
        previous=memory.previous if is_return else memory.policy,
    )


def with_spec(memory: AgentMemory, spec: Spec) -> AgentMemory:
    """A spec was seen. Another policy than the one that was taken back gets its own try."""
    if not spec.is_known:
        return replace(memory, spec=spec)
    kept = spec.policy is not None and spec.policy.hash == memory.taken_back
    return replace(
        memory,
        spec=spec,
        taken_back=memory.taken_back if kept else "",
        why_taken_back=memory.why_taken_back if kept else "",
    )


def settled(memory: AgentMemory, spec: Spec, report: Mapping[str, Any]) -> AgentMemory:
    """The memory without states that the node is back in already, by this agent or by a person."""
    if memory.mode_before and not spec.mode and report.get("mode_wanted") == memory.mode_before:
        memory = replace(memory, mode_before="")
    if memory.froze and spec.freeze is None and not (report.get("cluster") or {}).get("freeze"):
        memory = replace(memory, froze=False)
    return memory


def taken_back(memory: AgentMemory, sign: str) -> AgentMemory:
    """The policy in force speaks for itself no longer: ``next_command`` then goes back to the one before."""
    assert memory.policy is not None
    fallback = "no policy" if memory.previous is None else f"policy {memory.previous.name}"
    sentence = (
        f"taken back by the agent, which could not reach the API server: {sign} since it was applied; "
        f"{fallback} is in force"
    )
    return replace(memory, taken_back=memory.policy.hash, why_taken_back=sentence)


def recalled(memory: AgentMemory, node_placement: Mapping[str, Any]) -> AgentMemory:
    """The policy that an earlier process took back, from the status, where the agent's own file is lost."""
    if memory.spec is not None:
        return memory
    try:
        told = Fields(node_placement).fields("status").fields("policy")
        policy_hash, state, why = (told.text(key, "") for key in ("hash", "state", "message"))
    except Unreadable:
        return memory
    if state != "TakenBack" or not policy_hash:
        return memory
    return replace(memory, taken_back=policy_hash, why_taken_back=why)


# ---------------------------------------------------------------------- acknowledgement


def acknowledgement(
    spec: Spec, report: Optional[Mapping[str, Any]], trouble: str, memory: AgentMemory, refusals: Refusals
) -> dict[str, Any]:
    """The status that the commanding half owns, without its condition (``config_applied``).

    ``report`` None or ``trouble``: the daemon does not answer, and the request waits for it.
    """
    cluster = (report or {}).get("cluster") or {}
    status: dict[str, Any] = {"observedGeneration": spec.generation}
    status["policy"] = _policy_status(spec, cluster, trouble, memory, refusals)
    overrides = [_override_status(row) for row in cluster.get("overrides") or ()]
    if overrides or spec.overrides:
        told = {tuple(row[key] for key in _OVERRIDE) for row in overrides}
        waiting = [_waiting(row, trouble) for row in spec.overrides if row not in told]
        rows = sorted(overrides + waiting, key=lambda row: [row[key] for key in _OVERRIDE])
        status["overrides"] = [{**row, "zone": domain_text(row["zone"])} for row in rows]
    return status


def _policy_status(
    spec: Spec, cluster: Mapping[str, Any], trouble: str, memory: AgentMemory, refusals: Refusals
) -> dict[str, Any]:
    policy = spec.policy
    if not spec.is_known:
        return {"state": "Pending", "message": spec.wrong}
    if policy is None:
        return {"state": "None"}
    state, message = _policy_state(policy, cluster, trouble, memory, refusals)
    status: dict[str, Any] = {
        "name": policy.name,
        "generation": policy.generation,
        "hash": policy.hash,
        "state": state,
    }
    if message:
        status["message"] = shortened(message, ENOUGH)
    if state == "Applied" and cluster.get("needs_restart"):
        status["needsRestart"] = sorted(cluster["needs_restart"])
    return status


def _policy_state(
    policy: PolicyDocument, cluster: Mapping[str, Any], trouble: str, memory: AgentMemory, refusals: Refusals
) -> tuple[str, str]:
    if policy.hash == memory.taken_back:
        return "TakenBack", memory.why_taken_back
    refusal = refusals.sentences.get(give(policy).about)
    if refusal is not None:
        return "Refused", refusal
    known = memory.policy is not None and memory.policy.hash == policy.hash
    if _is_there(policy, cluster.get("policy")) or (trouble and known):
        return "Applied", ""
    return (
        "Pending",
        trouble or "the daemon has not been told yet",
    )


def _override_status(row: Mapping[str, Any]) -> dict[str, Any]:
    status = {key: str(row.get(key, "")) for key in _OVERRIDE}
    return {
        **status,
        "state": str(row.get("state", "waiting")).capitalize(),
        "message": shortened(str(row.get("sentence", "")), ENOUGH),
    }


def _waiting(row: Override, trouble: str) -> dict[str, Any]:
    sentence = trouble or "the daemon has not taken it"
    return {**dict(zip(_OVERRIDE, row)), "state": "Waiting", "message": sentence}


def config_applied(
    spec: Spec,
    status: Mapping[str, Any],
    refusals: Refusals,
    left_out: Sequence[str] = (),
    waiting: str = "",
) -> Condition:
    """One condition for everything that is asked: whether the node is as its spec says, and each reason why not.

    ``left_out``: paths of this half's status that the server's schema does not know. They change nothing on the node.
    ``waiting``: a command that is still due.
    """
    found = _config_applied(spec, status, refusals)
    if waiting and found.status == TRUE:
        found = Condition(CONFIG_APPLIED, FALSE, "Pending", f"{waiting}: the daemon has not done it yet")
    if not left_out:
        return found
    return replace(found, message=f"{found.message}; {not_written(left_out)}")


def _config_applied(spec: Spec, status: Mapping[str, Any], refusals: Refusals) -> Condition:
    if not spec.is_known:
        return Condition(CONFIG_APPLIED, FALSE, "Refused", spec.wrong)
    policy = status.get("policy") or {}
    named = f"policy {policy.get('name')} of generation {policy.get('generation')}"
    sentences = [spec.wrong] if spec.wrong else []
    if policy.get("state") in ("Refused", "TakenBack", "Pending"):
        sentences.append(f"{named}: {policy.get('message', '')}")
    about_policy = give(spec.policy).about if spec.policy is not None else ""
    sentences += [
        f"{about.split()[0]}: {said}" for about, said in refusals.sentences.items() if about != about_policy
    ]
    sentences += [
        f"override of {row['namespace']}/{row['pod']}/{row['container']}: {row['message']}"
        for row in status.get("overrides", ())
        if row["state"] == "Refused"
    ]
    if sentences:
        reason = policy["state"] if policy.get("state") in ("TakenBack", "Pending") else "Refused"
        return Condition(CONFIG_APPLIED, FALSE, reason, "; ".join(sentences))
    if spec.policy is None:
        return Condition(CONFIG_APPLIED, TRUE, "NoPolicy", "no policy is asked for")
    return Condition(CONFIG_APPLIED, TRUE, "Applied", f"{named} is in force")


# ---------------------------------------------------------------------- abort

# An agent that has lost the API server takes a policy back by itself. With the API server there, this is the operator's
# work, which stops the other nodes as well.

NOT_READY, DEGRADED, DOCTOR_ERRORS = "NotReady", "Degraded", "DoctorErrors"

#: A sign counts once it has held so long: a daemon that restarts is away for some seconds.
HOLD_S = 10.0
#: The API server is lost once nothing was heard of it for so long.
LOST_S = 30.0
#: A policy that has held so long is not what a new trouble comes from.
WITHIN_S = 900.0


def signs_of(
    report: Optional[Mapping[str, Any]], trouble: str, problems: Optional[Sequence[Mapping[str, Any]]]
) -> frozenset[str]:
    """The signs against a node now, in the words of ``abortOn``."""
    found = set()
    if trouble or report is None or report.get("machine") is None:
        found.add(NOT_READY)
    if not trouble and report is not None and report.get("degraded"):
        found.add(DEGRADED)
    if any(problem.get("severity") == "error" for problem in problems or ()):
        found.add(DOCTOR_ERRORS)
    return frozenset(found)


class Signs:
    """Since when each sign has been there without a break."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.now: frozenset[str] = frozenset()

    def see(self, signs: frozenset[str], now_s: float) -> None:
        self.now = signs
        self._since = {sign: self._since.get(sign, now_s) for sign in signs}

    def against(self, memory: AgentMemory, now_s: float, since_1970_s: float) -> str:
        """The sign for which the policy in force should go, "" = there is none.

        ``now_s`` is of the clock of ``see``; ``since_1970_s`` of the one that ``AgentMemory.applied_at_s`` is from.
        """
        policy = memory.policy
        if policy is None or memory.spec is None or memory.spec.policy is None:
            return ""
        if policy.hash != memory.spec.policy.hash or policy.hash == memory.taken_back:
            return ""
        if not 0 <= since_1970_s - memory.applied_at_s < WITHIN_S:
            return ""
        held = [
            sign
            for sign in policy.abort_on
            if sign not in memory.baseline and now_s - self._since.get(sign, now_s) >= HOLD_S
        ]
        return held[0] if held else ""
