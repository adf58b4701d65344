"""The calls that are intercepted, and what is done with each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Optional, Union

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Life, Management
from cri_proxy.engine.state import MESSAGE_CHARS
from cri_proxy.front_ends import cri_calls
from cri_proxy.front_ends.cri_calls import _KINDS, CreateContainer, CriInterceptor
from cri_proxy.front_ends.events import EventStream
from cri_proxy.front_ends.placer import Placer
from cri_proxy.relay.interception import INTERCEPTED, CallEnd, Forward, Outcome, Refuse
from cri_proxy.relay.status import Code
from cri_proxy.services.services import EventCount
from policies.machine.cpus import parse_cpus
from policies.model import BudgetSpent
from policies.model import Pod as SeenPod
from tests.front_ends.test_placer_properties import CriCalls, Pod, created, pod_resources, resized
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on

OK, REFUSED, UNKNOWN = CallEnd.OK, CallEnd.REFUSED, CallEnd.UNKNOWN
KEY = "p0-a"
#: An error of a runtime about the place of a container.
OF_PLACE = "failed to write cpuset.cpus: Permission denied"


def test_each_intercepted_method_has_a_class() -> None:
    assert {*_KINDS, "RestorePod", "GetContainerEvents"} == INTERCEPTED


@pytest.mark.parametrize(("code", "charged"), [(Code.UNIMPLEMENTED, 16_000), (Code.INTERNAL, 8_000)])
async def test_a_pod_is_resized_also_where_the_runtime_does_not_know_the_call(
    code: int, charged: int
) -> None:
    """Kubelet goes on with the containers then (kuberuntime_container.go: updatePodSandboxResources)."""
    front_end, pod = CriCalls("hygon"), Pod("p")
    pod.config.linux.cgroup_parent = "/kubepods/podp"
    pod.config.linux.resources.CopyFrom(pod_resources(8000))
    await front_end.pod(pod)
    for key in ("p-a", "p-b"):
        await front_end.create(key, created(key, 8000), "create")
    call = front_end.interceptor.open("/runtime.v1.RuntimeService/UpdatePodSandboxResources")
    assert call is not None
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p", resources=pod_resources(16_000))
    await call.request(request.SerializeToString())
    await call.ended(CallEnd.REFUSED, code, "no")
    grants = front_end.engine.grants
    assert sum(grant.container.resources.milli_request for grant in grants.values()) == charged


class Disk:
    """What is written down. A call that waits for that waits until it ``answers``."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        self.waits = 0

    def write(self, changes: Mapping[Any, Any]) -> None:
        self.kept.update(changes)

    write_together = write

    async def settled(self) -> None:
        self.waits += 1
        await self.answers.wait()


class Calls(CriCalls):
    """The calls of a client, with a disk, a log, and what is said to other parts of the daemon."""

    def __init__(self, policy: str = "topology-aware") -> None:
        super().__init__(policy)
        self.disk: Any = Disk()
        self.state.store = self.disk
        self.doubts, self.lines = 0, list[tuple[str, dict[str, Any]]]()
        self.state.on_doubt = self._doubt
        self.state.log = SimpleNamespace(
            info=lambda event, **fields: self.lines.append((event, fields)), error=lambda *_, **__: None
        )

    def _doubt(self) -> None:
        self.doubts += 1

    def open(self, method: str) -> Any:
        call = self.interceptor.open(f"/runtime.v1.RuntimeService/{method}")
        assert call is not None
        return call

    async def one(
        self, method: str, request: Any, end: CallEnd, code: int = 0, details: str = "", reply: Any = None
    ) -> Outcome:
        """A whole call; what it was to the runtime."""
        call = self.open(method)
        outcome: Outcome = await call.request(request.SerializeToString())
        if isinstance(outcome, Refuse):
            await call.ended(REFUSED, outcome.code, outcome.message)
        else:
            if reply is not None:
                await call.replied(reply.SerializeToString())
            await call.ended(end, code, details)
        return outcome

    async def add(self, key: str = "p0-b", limit: int = 2000) -> None:
        """Another container."""
        reply = cri.CreateContainerResponse(container_id=key)
        await self.one("CreateContainer", created(key, limit), OK, reply=reply)

    async def about(self, method: str, end: CallEnd, code: int = 0, details: str = "") -> Outcome:
        """A call that names the one container, or its pod."""
        name = "p0" if "Sandbox" in method else KEY
        asked = getattr(cri, f"{method}Request")(
            **{"pod_sandbox_id" if name == "p0" else "container_id": name}
        )
        return await self.one(method, asked, end, code, details)

    async def make(self, limit: int = 2000, started: bool = True) -> None:
        """The pod, and the one container."""
        await self.pod(Pod("p0"))
        reply = cri.CreateContainerResponse(container_id=KEY)
        await self.one("CreateContainer", created(KEY, limit), OK, reply=reply)
        if started:
            await self.about("StartContainer", OK)

    @property
    def line(self) -> dict[str, Any]:
        """The fields of the last line in the log."""
        return self.lines[-1][1]

    def counted(self, name: str, **labels: str) -> float:
        return self.state.metrics.registry.get_sample_value(f"cri_resmgr_{name}_total", labels) or 0

    @property
    def is_kept(self) -> bool:
        """Whether what is written down is what the engine has."""
        kept = {key: value for (kind, key), value in self.disk.kept.items() if kind == "grant" and value}
        pods = {key: value for (kind, key), value in self.disk.kept.items() if kind == "pod" and value}
        return kept == dict(self.engine.grants) and pods == dict(self.engine.pods)


def demanding(key: str, limit: int, **annotations: str) -> cri.CreateContainerRequest:
    request = created(key, limit)
    for name, value in annotations.items():
        request.sandbox_config.annotations[f"cri-resmgr.io/{name}"] = value
    return request


@pytest.fixture
async def calls() -> Calls:
    return Calls()


# ---------------------------------------------------------------------- how calls about a container or a pod end


@pytest.mark.parametrize(
    ("method", "end", "code", "life"),
    [
        ("StartContainer", OK, 0, Life.RUNNING),
        ("StartContainer", REFUSED, Code.INTERNAL, Life.CREATED),
        ("StartContainer", REFUSED, Code.UNAVAILABLE, Life.CREATED),
        ("StartContainer", UNKNOWN, Code.CANCELLED, Life.CREATED),
        ("StopContainer", OK, 0, Life.HELD),
        ("StopContainer", REFUSED, Code.INTERNAL, Life.CREATED),
        ("StopContainer", REFUSED, Code.NOT_FOUND, Life.CREATED),
        ("StopContainer", UNKNOWN, Code.CANCELLED, Life.CREATED),
        ("RemoveContainer", OK, 0, None),
        ("RemoveContainer", REFUSED, Code.NOT_FOUND, None),
        ("RemoveContainer", REFUSED, Code.INTERNAL, Life.CREATED),
        ("RemoveContainer", UNKNOWN, Code.CANCELLED, Life.CREATED),
        *[
            (method, end, code, life)
            for method in ("StopPodSandbox", "RemovePodSandbox")
            for end, code, life in (
                (OK, 0, None),
                (REFUSED, Code.NOT_FOUND, None),
                (REFUSED, Code.INTERNAL, Life.CREATED),
                (UNKNOWN, Code.CANCELLED, Life.CREATED),
            )
        ],
    ],
)
async def test_what_is_known_of_a_container_after_a_call(calls, method, end, code, life) -> None:
    await calls.make(started=False)
    assert await calls.about(method, end, code, "no") == Forward()
    grant = calls.engine.grants.get(KEY)
    assert (grant and grant.life) == life
    assert bool(calls.engine.pods) == (life is not None or "Sandbox" not in method)
    assert calls.is_kept
    assert calls.line["id"] == ("p0" if "Sandbox" in method else KEY)


@pytest.mark.parametrize(
    ("end", "code", "details", "of_place", "of_any"),
    [
        (REFUSED, Code.INTERNAL, OF_PLACE, 1, 0),
        (REFUSED, Code.INTERNAL, "no such file", 0, 1),
        # Of a runtime that is away, and of a start that may have been made, the place is not to blame.
        (REFUSED, Code.UNAVAILABLE, OF_PLACE, 0, 0),
        (UNKNOWN, Code.CANCELLED, OF_PLACE, 0, 0),
    ],
)
async def test_a_place_is_to_blame_where_the_runtime_says_so(
    calls, end, code, details, of_place, of_any
) -> None:
    await calls.make(started=False)
    await calls.about("StartContainer", end, code, details)
    assert calls.counted("start_failures", next_create="untouched") == of_place
    assert calls.counted("start_failures", next_create="placed") == of_any
    assert bool(calls.engine.distrusted) is bool(of_place)
    assert calls.line.get("next_create_untouched", False) is bool(of_place)
    assert any(kind == "distrust" for kind, _ in calls.disk.kept) is bool(of_place)


# ---------------------------------------------------------------------- creates


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainerResources"])
async def test_nothing_is_sent_before_it_is_written_down(calls, method) -> None:
    await calls.make()
    request = created("p0-b", 4000) if method == "CreateContainer" else resized(KEY, 4000)
    calls.disk.answers.clear()
    waits = calls.disk.waits
    deciding = asyncio.ensure_future(calls.open(method).request(request.SerializeToString()))
    while calls.disk.waits == waits:
        assert not deciding.done()
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not deciding.done()
    assert any(kind == "ticket" and value for (kind, _), value in calls.disk.kept.items())
    calls.disk.answers.set()
    outcome = await deciding
    assert isinstance(outcome, Forward) and outcome.delta


@pytest.mark.parametrize(("details", "is_of_place"), [(OF_PLACE, True), ("no image", False)])
async def test_a_create_that_is_refused_leaves_no_place_and_says_why(calls, details, is_of_place) -> None:
    await calls.pod(Pod("p0"))
    await calls.one("CreateContainer", created(KEY, 2000), REFUSED, Code.UNKNOWN, details)
    assert not calls.engine.grants and not calls.engine.tickets and calls.is_kept
    assert calls.line["outcome"] == "cancelled" and calls.doubts == 0
    assert f"not created: {details}" in [record.outcome for record in calls.engine.history]
    assert calls.counted("start_failures", next_create="untouched") == is_of_place
    assert calls.line.get("next_create_untouched", False) is is_of_place
    await calls.one(
        "CreateContainer", created(KEY, 2000), OK, reply=cri.CreateContainerResponse(container_id=KEY)
    )
    assert calls.engine.grants[KEY].stance is (Management.UNTOUCHED if is_of_place else Management.PLACED)


@pytest.mark.parametrize("reply", [None, cri.CreateContainerResponse()], ids=["none", "empty"])
async def test_a_create_whose_answer_is_lost_or_names_nothing_is_looked_for(calls, reply) -> None:
    await calls.pod(Pod("p0"))
    end = UNKNOWN if reply is None else OK
    await calls.one("CreateContainer", created(KEY, 2000), end, 0, "", reply)
    [ticket] = calls.engine.tickets.values()
    assert ticket.in_doubt and calls.doubts == 1 and calls.is_kept
    assert calls.disk.kept["ticket", ticket.id] == ticket
    assert calls.line["outcome"] == "in doubt"


async def test_a_create_that_was_made_is_bound_and_nothing_is_looked_for(calls) -> None:
    await calls.make()
    assert (calls.doubts, dict(calls.engine.tickets), calls.is_kept) == (0, {}, True)
    told = next(fields for event, fields in calls.lines if event == "CreateContainer")
    assert (told["outcome"], told["id"], told["container"]) == ("placed", KEY, "default/p0/a")
    assert told["describe"]()["rung"] == "core"


async def test_a_create_is_decided_anew_where_plugins_have_changed_it(calls) -> None:
    await calls.pod(Pod("p0"))
    call = calls.open("CreateContainer")
    await call.request(created(KEY, 2000).SerializeToString())
    outcome = await call.decide_again(created(KEY, 6000).SerializeToString())
    [grant] = calls.engine.grants.values()
    assert len(grant.exclusive) == 6 and len(calls.engine.tickets) == 1
    linux = cri.CreateContainerRequest.FromString(outcome.delta).config.linux.resources
    assert linux.cpuset_cpus and calls.is_kept
    await call.replied(cri.CreateContainerResponse(container_id=KEY).SerializeToString())
    await call.ended(OK, 0, "")
    assert list(calls.engine.grants) == [KEY] and not calls.engine.tickets


async def test_what_is_made_while_it_is_not_known_what_is_owned_is_looked_at_afterwards(calls) -> None:
    await calls.pod(Pod("p0"))
    calls.state.books.why, calls.state.books.may_be_owned = "it was said", None
    calls.state.books.known = waited(calls, 2.0)
    reply = cri.CreateContainerResponse(container_id=KEY)
    await calls.one("CreateContainer", created(KEY, 2000), OK, reply=reply)
    assert calls.engine.grants[KEY].stance is Management.WAITING
    assert (calls.doubts, calls.line["outcome"]) == (1, "untouched: waiting")


def waited(calls: Calls, seconds: float) -> Any:
    """Stands in for ``Books.known``: so many seconds pass, and it is not known."""

    async def known(what: str, most_s: float) -> bool:
        calls.now_s += seconds
        return False

    return known


async def test_a_create_that_another_engine_comes_after_is_looked_for(calls) -> None:
    await calls.pod(Pod("p0"))
    call = calls.open("CreateContainer")
    await call.request(created(KEY, 2000).SerializeToString())
    calls.state.engine = engine_on(HYGON_7285_2S)
    await call.replied(cri.CreateContainerResponse(container_id=KEY).SerializeToString())
    assert calls.doubts == 1


@pytest.mark.parametrize("when", ["before", "within"])
async def test_a_create_is_decided_by_the_engine_that_there_is_after_it_has_waited(calls, when) -> None:
    await calls.pod(Pod("p0"))
    other: Engine = engine_on(HYGON_7285_2S)

    async def replace(*_: object) -> bool:
        calls.state.engine = other
        calls.state.know_whose = real
        return True

    real = calls.state.know_whose
    call = calls.open("CreateContainer")
    if when == "before":
        calls.state.books.known = replace
    else:
        calls.state.know_whose = replace
    await call.request(created(KEY, 2000).SerializeToString())
    assert len(other.tickets) == 1 and call.creation.engine is other


async def test_a_create_is_decided_once_it_is_known_again_what_is_owned(calls) -> None:
    await calls.pod(Pod("p0"))
    real, asked = calls.state.know_whose, 0

    async def doubt(*_: object) -> None:
        calls.state.expect_comparison("it is said while it is asked")
        calls.state.know_whose = real

    async def known(what: str, most_s: float) -> bool:
        nonlocal asked
        asked += 1
        calls.state.books.confirm()
        return True

    calls.state.know_whose, calls.state.books.known = doubt, known
    await calls.open("CreateContainer").request(created(KEY, 2000).SerializeToString())
    [grant] = calls.engine.grants.values()
    assert (asked, grant.stance) == (2, Management.PLACED)


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainerResources"])
async def test_what_waits_when_the_mode_becomes_off_passes(calls, method) -> None:
    await calls.make()
    before = dict(calls.engine.grants)

    async def off(*_: object) -> bool:
        calls.state.mode = "off"
        return True

    calls.state.books.known = off
    request = created("p0-b", 2000) if method == "CreateContainer" else resized(KEY, 4000)
    assert await calls.one(method, request, REFUSED, Code.INTERNAL, "no") == Forward()
    assert (dict(calls.engine.grants), calls.line["outcome"]) == (before, "passed")


async def test_limits_that_are_to_be_lifted_are_before_the_client_hears_of_its_container(calls) -> None:
    await calls.pod(Pod("p0"))
    calls.state.quotas = SimpleNamespace(
        is_waiting=True, follow=lambda *_, **__: None, refusal=lambda parent: "", taken={}
    )
    call = calls.open("CreateContainer")
    await call.request(created(KEY, 2000).SerializeToString())
    calls.disk.answers.clear()
    replied = asyncio.ensure_future(
        call.replied(cri.CreateContainerResponse(container_id=KEY).SerializeToString())
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert not replied.done()
    calls.disk.answers.set()
    await replied


# ---------------------------------------------------------------------- what cannot be decided


@pytest.mark.parametrize(
    ("error", "reason"), [(ValueError("a bug"), "bug"), (BudgetSpent("much"), "budget"), (None, "unreadable")]
)
@pytest.mark.parametrize(("closed", "is_refused"), [((), False), (("other",), False), (("def*",), True)])
async def test_what_cannot_be_decided_passes_unless_its_namespace_fails_closed(
    calls, monkeypatch, error, reason, closed, is_refused
) -> None:
    def create(*_: object) -> None:
        raise error

    await calls.pod(Pod("p0"))
    calls.state.fail_closed = closed
    if error is not None:
        monkeypatch.setattr(Placer, "create", create)
    call = calls.open("CreateContainer")
    message = created(KEY, 2000).SerializeToString() if error is not None else b"\xff"
    outcome = await call.request(message)
    await call.ended(REFUSED, Code.INTERNAL, "over")
    # Of which namespace it is an unreadable request does not say.
    is_refused = is_refused and error is not None
    sentence = f"cri-resmgr: CreateContainer could not be decided ({reason}) and default fails closed"
    assert outcome == (Refuse(Code.INTERNAL, sentence) if is_refused else Forward())
    assert calls.counted("failed_open", reason=reason) == 1
    told = "refused" if is_refused else f"failed open: {reason}"
    assert calls.counted("requests", method="CreateContainer", outcome=told) == 1
    assert (calls.line["outcome"], calls.line["code"], calls.line["details"]) == (told, 13, "over")


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainerResources"])
@pytest.mark.parametrize("closed", [(), ("default",)])
async def test_what_was_decided_and_could_not_be_sent_is_no_place_of_its_container(
    calls, monkeypatch, method, closed
) -> None:
    """It passes as it came, or not at all: a record of what it was to get would not be true."""
    is_create = method == "CreateContainer"

    def write(*_: object) -> None:
        raise ValueError("a bug")

    await (calls.pod(Pod("p0")) if is_create else calls.make())
    before = dict(calls.engine.grants)
    calls.state.fail_closed = closed
    monkeypatch.setattr(cri_calls, "write_create_delta" if is_create else "write_update_delta", write)
    request = created(KEY, 4000) if is_create else resized(KEY, 4000)
    reply = cri.CreateContainerResponse(container_id=KEY) if is_create else None
    outcome = await calls.one(method, request, OK, reply=reply)
    assert isinstance(outcome, Refuse if closed else Forward) and not getattr(outcome, "delta", b"")
    assert dict(calls.engine.grants) == before and not calls.engine.tickets and calls.is_kept
    # What it is now is seen by a look.
    assert calls.doubts == 1


async def test_an_error_while_a_place_is_given_back_is_counted_as_well(calls, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    await calls.pod(Pod("p0"))
    monkeypatch.setattr(cri_calls, "write_create_delta", fail)
    monkeypatch.setattr(Engine, "cancel", fail)
    reply = cri.CreateContainerResponse(container_id=KEY)
    assert await calls.one("CreateContainer", created(KEY, 4000), OK, reply=reply) == Forward()
    assert calls.counted("failed_open", reason="bug") == 2


async def test_a_demand_that_cannot_be_met_is_refused_with_what_is_free(calls) -> None:
    await calls.pod(Pod("p0"))
    outcome = await calls.one("CreateContainer", demanding(KEY, 12000, l3="require"), OK)
    assert isinstance(outcome, Refuse) and outcome.code == Code.FAILED_PRECONDITION
    assert outcome.message.startswith("cri-resmgr: default/p0/a wants 12 CPUs in one L3; ")
    assert (calls.line["outcome"], "cri-resmgr: " + calls.line["why"]) == ("refused", outcome.message)
    assert not calls.engine.grants and not calls.engine.tickets


async def test_an_error_after_the_reply_leaves_the_create_in_doubt(calls, monkeypatch) -> None:
    def bind(*_: object) -> None:
        raise ValueError("a bug")

    await calls.pod(Pod("p0"))
    monkeypatch.setattr(Engine, "bind", bind)
    reply = cri.CreateContainerResponse(container_id=KEY)
    await calls.one("CreateContainer", created(KEY, 2000), OK, reply=reply)
    assert (calls.line["outcome"], calls.doubts) == ("in doubt", 1)
    assert calls.counted("failed_open", reason="bug") == 1


async def test_an_error_at_the_end_is_counted_and_the_line_is_there(calls, monkeypatch) -> None:
    def remove(*_: object) -> None:
        raise ValueError("a bug")

    await calls.make()
    monkeypatch.setattr(Engine, "remove", remove)
    await calls.about("RemoveContainer", OK)
    assert calls.line["outcome"] == "failed open: bug" and calls.line["container"] == "default/p0/a"
    assert calls.counted("requests", method="RemoveContainer", outcome="failed open: bug") == 1


async def test_a_line_has_as_much_of_an_error_as_a_record(calls) -> None:
    await calls.make()
    await calls.about("StopContainer", REFUSED, Code.INTERNAL, "x" * (MESSAGE_CHARS + 1))
    assert (calls.line["details"], calls.line["code"]) == ("x" * MESSAGE_CHARS, 13)
    await calls.about("StopContainer", OK)
    assert "code" not in calls.line and 0 <= calls.line["us"] < 3600e6


# ---------------------------------------------------------------------- which calls


@pytest.mark.parametrize("how", ["degraded", "off"])
def test_while_nothing_is_to_be_asked_bytes_pass_and_events_are_seen(how) -> None:
    async def opened() -> tuple[Optional[Any], Optional[Any]]:
        calls = Calls()
        if how == "off":
            calls.state.mode = "off"
        else:
            calls.state.engine = None
        of = "/runtime.v1.RuntimeService"
        assert {calls.interceptor.open(f"{of}/{m}") for m in INTERCEPTED - {"GetContainerEvents"}} == {None}
        return calls.interceptor.open(f"{of}/GetContainerEvents"), calls.interceptor.open(f"{of}/Version")

    events, version = asyncio.run(opened())
    assert isinstance(events, EventStream) and version is None


# ---------------------------------------------------------------------- resizes


@pytest.mark.parametrize(
    ("end", "own", "doubts", "outcome"),
    [(OK, 4, 0, "placed"), (REFUSED, 2, 0, "cancelled"), (UNKNOWN, 4, 1, "in doubt")],
)
async def test_what_is_known_of_a_resize_after_its_end(calls, end, own, doubts, outcome) -> None:
    await calls.make()
    await calls.one("UpdateContainerResources", resized(KEY, 4000), end, 0 if end is OK else 2, "no")
    assert len(calls.engine.node.exclusive) == own
    assert (calls.doubts, calls.line["outcome"]) == (doubts, outcome)
    tickets = list(calls.engine.tickets.values())
    assert [ticket.in_doubt for ticket in tickets] == [True] * doubts and calls.is_kept
    assert all(calls.disk.kept["ticket", ticket.id] == ticket for ticket in tickets)
    assert calls.line["id"] == KEY and calls.line["container"] == "default/p0/a"
    assert len(parse_cpus(calls.line["describe"]()["cpus"])) == 4


@pytest.mark.parametrize(
    ("code", "is_told"), [(Code.INTERNAL, True), (Code.CANCELLED, False), (Code.UNAVAILABLE, False)]
)
async def test_a_container_is_told_again_where_the_runtime_has_refused_its_resize_and_not_where_none_was_sent(
    calls, monkeypatch, code, is_told
) -> None:
    await calls.make()
    has, told = calls.engine.told[KEY].cpus, list[str]()
    calls.updates.cpusets[KEY] = has, frozenset()
    monkeypatch.setattr(calls.updates, "tell", lambda key, *_: told.append(key))
    await calls.one("UpdateContainerResources", resized(KEY, 4000), REFUSED, code, "no")
    assert told == [KEY] * is_told and calls.engine.told[KEY].cpus == has


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_a_resize_while_it_is_not_known_what_is_owned_passes_and_a_look_follows(calls, mode) -> None:
    await calls.make()
    calls.state.books.why = "it was said"
    calls.state.books.known = waited(calls, 2.0)
    calls.state.mode = mode
    outcome = await calls.one("UpdateContainerResources", resized(KEY, 4000), OK)
    is_waiting = mode == "enforce"
    assert (outcome, calls.doubts) == (Forward(), int(is_waiting))
    assert calls.line["outcome"] == ("untouched: waiting" if is_waiting else "passed")
    assert not calls.engine.tickets


async def test_a_resize_whose_engine_is_replaced_while_it_is_asked_whose_its_cpus_are_passes(calls) -> None:
    await calls.make()
    old = calls.engine

    async def replace(*_: object) -> None:
        calls.state.engine = engine_on(HYGON_7285_2S)

    calls.state.know_whose = replace
    assert await calls.one("UpdateContainerResources", resized(KEY, 4000), OK) == Forward()
    assert not old.tickets and not calls.engine.tickets


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_what_a_quota_must_find_changed_is_waited_for_before_it_is_sent(calls, mode) -> None:
    await calls.make()
    calls.state.mode, quotas, answers = mode, list[tuple[str, int]](), asyncio.Event()

    async def on_quota(key: str, quota_us: int) -> None:
        quotas.append((key, quota_us))
        await answers.wait()

    calls.state.on_quota = on_quota
    pod = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p0", resources=pod_resources(4000))
    for method, request in (
        ("UpdateContainerResources", resized(KEY, 4000)),
        ("UpdateContainerResources", resized("p0-z", 4000)),
        ("UpdatePodSandboxResources", pod),
    ):
        answers.clear()
        call = calls.interceptor.open(f"/runtime.v1.RuntimeService/{method}")
        sent = asyncio.ensure_future(call.request(request.SerializeToString()))
        while not quotas:
            await asyncio.sleep(0)
        assert not sent.done()
        answers.set()
        assert isinstance(await sent, Forward)
        await call.ended(OK, 0, "")
        key = pod.pod_sandbox_id if "Pod" in method else request.container_id
        assert quotas == [(key, 400_000)]
        quotas.clear()
    # A request without a quota waits for nothing.
    without = cri.UpdateContainerResourcesRequest(container_id=KEY)
    assert isinstance(await calls.one("UpdateContainerResources", without, OK), Forward) and not quotas


async def test_of_what_has_no_record_nothing_is_resized(calls) -> None:
    await calls.make()
    assert await calls.one("UpdateContainerResources", resized("p0-z", 4000), OK) == Forward()
    assert calls.line["outcome"] == "passed" and "container" not in calls.line


# ---------------------------------------------------------------------- others on CPUs that it owns


class Company:
    """Stands in for ``Updates.alone``: these stay."""

    def __init__(self, calls: Calls, *others: str) -> None:
        self.asked: list[tuple[str, float]] = []
        self._others = others
        calls.updates.alone = self  # type: ignore[assignment,method-assign]

    async def __call__(self, key: str, seconds: float) -> tuple[str, ...]:
        self.asked.append((key, seconds))
        return self._others


@pytest.mark.parametrize(("others", "paths"), [((), None), (("p0-b",), ["default/p0/b"])])
async def test_a_resize_waits_until_others_have_left_and_goes_then(calls, others, paths) -> None:
    await calls.make()
    await calls.add()
    calls.state.shrink_wait_s = 1.5
    company = Company(calls, *others)
    outcome = await calls.one("UpdateContainerResources", resized(KEY, 4000), OK)
    assert isinstance(outcome, Forward) and outcome.delta
    [(ticket, seconds)] = company.asked
    assert ticket not in calls.engine.grants and seconds == 1.5
    assert calls.line.get("not_alone") == paths
    assert calls.counted("not_alone", method="UpdateContainerResources") == len(others)


@pytest.mark.parametrize(("waits_s", "left_s"), [(0.0, 1.5), (1.0, 0.5), (5.0, 0)])
async def test_a_start_waits_for_both_what_is_owned_and_others_no_longer_than_for_one(
    calls, waits_s, left_s
) -> None:
    await calls.make(started=False)
    calls.state.shrink_wait_s = 1.5
    asked = []

    async def known(what: str, most_s: float) -> bool:
        asked.append((what, most_s))
        calls.now_s += waits_s
        return True

    calls.state.books.known = known
    company = Company(calls)
    assert await calls.about("StartContainer", OK) == Forward()
    assert (asked, company.asked) == ([("StartContainer", 1.5)], [(KEY, left_s)])
    assert calls.engine.grants[KEY].life is Life.RUNNING


@pytest.mark.parametrize("becomes", ["gone", "shared"])
async def test_what_owns_nothing_any_more_after_it_has_waited_waits_for_none(calls, becomes) -> None:
    await calls.make(started=False)

    async def known(*_: object) -> bool:
        if becomes == "gone":
            calls.engine.remove(KEY)
        else:
            calls.engine.release(KEY)
        return True

    calls.state.books.known = known
    company = Company(calls, "p0-b")
    assert await calls.about("StartContainer", OK) == Forward()
    assert not company.asked and calls.line["outcome"] == "passed"


@pytest.mark.parametrize("method", ["StartContainer", "UpdateContainerResources"])
@pytest.mark.parametrize("closed", [(), ("def*",)])
async def test_calls_about_a_container_fail_closed_as_its_create_does(calls, method, closed) -> None:
    async def alone(*_: object) -> tuple[str, ...]:
        raise ValueError("a bug")

    await calls.make(started=False)
    calls.state.fail_closed = closed
    calls.updates.alone = alone
    is_start = method == "StartContainer"
    outcome = await (calls.about(method, OK) if is_start else calls.one(method, resized(KEY, 4000), OK))
    sentence = f"cri-resmgr: {method} could not be decided (bug) and default fails closed"
    assert outcome == (Refuse(Code.INTERNAL, sentence) if closed else Forward())


@pytest.mark.parametrize("why", ["shared", "observe"])
async def test_a_start_of_what_owns_nothing_or_is_not_placed_waits_for_none(calls, why) -> None:
    await calls.make(500 if why == "shared" else 2000, started=False)
    if why == "observe":
        calls.state.mode = "observe"
    calls.state.books.known = None
    company = Company(calls, "p0-b")
    assert await calls.about("StartContainer", OK) == Forward()
    assert not company.asked and calls.line["outcome"] == "passed"


async def test_a_start_waits_for_what_is_to_be_done_before_it(calls) -> None:
    await calls.make(started=False)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def on_start(key: str) -> None:
        assert key == KEY
        begun.set()
        await goes_on.wait()

    calls.state.on_start = on_start
    start = asyncio.ensure_future(calls.about("StartContainer", OK))
    await begun.wait()
    assert not start.done()
    goes_on.set()
    assert await start == Forward()


@pytest.mark.parametrize("is_demanded", [False, True])
async def test_a_start_among_others_is_refused_where_it_demands_to_be_alone(calls, is_demanded) -> None:
    await calls.pod(Pod("p0"))
    wishes = {"l3": "exclusive"} if is_demanded else {}
    reply = cri.CreateContainerResponse(container_id=KEY)
    await calls.one("CreateContainer", demanding(KEY, 2000, **wishes), OK, reply=reply)
    await calls.add()
    Company(calls, "p0-b")
    outcome: Union[Forward, Refuse, Any] = await calls.about("StartContainer", OK)
    assert calls.line["not_alone"] == ["default/p0/b"]
    assert calls.counted("not_alone", method="StartContainer") == 1
    if not is_demanded:
        assert outcome == Forward() and calls.engine.grants[KEY].life is Life.RUNNING
        return
    assert outcome.code == Code.FAILED_PRECONDITION
    assert "are its own by l3: exclusive, and default/p0/b may still run there" in outcome.message
    # It is no failure of its place.
    assert calls.counted("start_failures", next_create="untouched") == 0
    assert calls.counted("start_failures", next_create="placed") == 0
    assert (calls.line["outcome"], calls.engine.grants[KEY].life) == ("refused", Life.CREATED)


# ---------------------------------------------------------------------- pods


async def test_a_pod_is_written_down_before_others_hear_of_it(calls) -> None:
    seen: list[tuple[str, bool]] = []

    async def on_pod(pod: SeenPod) -> None:
        seen.append((pod.id, calls.is_kept))

    calls.state.on_pod = on_pod
    await calls.pod(Pod("p0"))
    assert seen == [("p0", True)] and "p0" in calls.engine.pods
    assert (calls.line["pod"], calls.line["id"]) == ("default/p0", "p0")


@pytest.mark.parametrize("end", [OK, REFUSED, UNKNOWN])
async def test_a_pods_resources_are_those_of_a_call_that_was_carried_out(calls, end) -> None:
    pod = Pod("p0")
    pod.config.linux.resources.CopyFrom(pod_resources(8000))
    await calls.pod(pod)
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p0", resources=pod_resources(16_000))
    await calls.one("UpdatePodSandboxResources", request, end, 0 if end is OK else Code.INTERNAL, "no")
    size = calls.engine.pods["p0"].size
    assert size is not None and size.milli_limit == (16_000 if end is OK else 8000)
    assert calls.is_kept


# ---------------------------------------------------------------------- restores


class Restores:
    """Stands in for what places the containers of restored pods."""

    def __init__(self, calls: Calls, places: bool = True) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._places = places
        self._calls = calls
        restores: Any = self
        calls.interceptor = CriInterceptor(calls.state, EventCount(), restores)

    def begun(self, uid: str) -> None:
        self.said.append(("begun", uid))

    def ended(self, uid: str, is_known: bool) -> None:
        self.said.append(("ended", uid, is_known))

    async def place(self, engine: Engine, made: Mapping[str, Any]) -> None:
        self.said.append(("place", *made))
        if self._places:
            for key, request in made.items():
                creation = Placer(engine).create(request.container, request.constraint, 0.0, True)
                creation.created(key, 0.0)


RESTORED = cri.RestorePodRequest(
    config=Pod("p0").config, container_configs=[created(KEY, 2000).config, created("p0-b", 2000).config]
)


def restored(*names: str) -> cri.RestorePodResponse:
    made = [cri.RestoredContainer(name=name, container_id=f"p0-{name}") for name in names]
    return cri.RestorePodResponse(pod_sandbox_id="p0", restored_containers=made)


@pytest.mark.parametrize(
    ("names", "places", "end", "is_known", "outcome"),
    [
        ("ab", True, OK, True, "placed"),
        # One that the request does not name, and one that could not be placed.
        ("abz", True, OK, False, "in doubt"),
        ("ab", False, OK, False, "in doubt"),
        (None, True, REFUSED, True, "passed"),
        (None, True, UNKNOWN, False, "passed"),
    ],
)
async def test_what_is_known_of_a_restored_pod(calls, names, places, end, is_known, outcome) -> None:
    restores = Restores(calls, places)
    reply = None if names is None else restored(*names)
    assert await calls.one("RestorePod", RESTORED, end, 0 if end is OK else 2, "no", reply) == Forward()
    placed = [] if names is None else [("place", "p0-a", "p0-b")]
    assert restores.said == [("begun", "p0"), *placed, ("ended", "p0", is_known)]
    assert (calls.doubts, calls.line["outcome"]) == (int(not is_known), outcome)
    assert calls.line["pod"] == "default/p0"


async def test_a_pod_that_is_restored_while_it_is_not_known_what_is_owned_is_left_to_the_next_look(
    calls,
) -> None:
    restores = Restores(calls)
    calls.state.books.why = "it was said"
    calls.state.books.known = waited(calls, 2.0)
    await calls.one("RestorePod", RESTORED, OK, reply=restored("a", "b"))
    assert restores.said == [("begun", "p0"), ("ended", "p0", False)] and calls.doubts == 1


def test_a_create_is_the_only_call_that_is_decided_again() -> None:
    assert [kind for kind in _KINDS.values() if hasattr(kind, "decide_again")] == [CreateContainer]
