"""Both halves on a clock of the test's, between a real daemon and an API server: what is not written, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent.commands import HOLD_S, LOST_S
from cluster.agent.io.commander import Commander, MemoryFile
from cluster.agent.io.daemon import DaemonClient
from cluster.agent.io.reporter import Reporter, Reporting
from cluster.api.crds import definitions
from cluster.api.heartbeat import read_heartbeat
from cluster.api.names import NAMESPACE
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.known_fields import WHOLE_AGAIN_S
from cluster.kube.requests import LEASES
from cluster.operator.objects import read_time
from cri_api.supervisor import Supervisor
from tests.cluster.agent.io.node import NAME, NodeAgent, policy
from tests.cluster.api_server import Fault
from tests.cluster.declared import older, schema_of
from tests.functional.conftest import HANG_S, ask, until
from tests.functional.support import run_pod_with

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/node-{NAME}"


class Time:
    """Seconds that go on when a test says so."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("rounds are the test's")


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def api_client(node: NodeAgent) -> AsyncIterator[Client]:
    made = Client(Access.kubeconfig(node.kubeconfig), user_agent="test")
    yield made
    await made.close()


@pytest.fixture
def reporter(node: NodeAgent, api_client: Client, time: Time) -> Reporter:
    return Reporter(DaemonClient(node.view), api_client, Reporting(NAME), _clock(time))


@pytest.fixture
def commander(node: NodeAgent, api_client: Client, time: Time, tmp_path: Path) -> Commander:
    file = MemoryFile(tmp_path / "state")
    return Commander(DaemonClient(node.daemon.control), api_client, NAME, file, _clock(time))


def _clock(time: Time) -> Clock:
    return Clock(time.now, time.now, time.sleep, lambda: 0.5)


async def test_where_nothing_changes_nothing_is_written(node, reporter, time, client) -> None:
    node.create()
    await run_pod_with(client, "web", cpu_limit=2000)
    for _ in range(5):
        await reporter.round()
        await reporter.problems_known()
        time.at_s += 20
    calls = len(node.api.calls)
    for _ in range(50):
        time.at_s += 5
        await reporter.round()
    # But that it lives, each 50 s here.
    renewed = node.api.calls[calls:]
    assert {(call.method, call.path) for call in renewed} == {("PATCH", LEASE)}
    assert len(renewed) == 5


async def test_a_lease_is_renewed_and_belongs_to_the_nodes_object(node, reporter, time) -> None:
    await reporter.round()
    assert not any(call.path == LEASE for call in node.api.calls)  # there is no object yet
    node.create()
    time.at_s += 50
    await reporter.round()
    for _ in range(2):
        time.at_s += 50
        await reporter.round()
        found = node.api.object(LEASES, f"node-{NAME}", NAMESPACE)
        assert read_heartbeat(found).node == found["spec"]["holderIdentity"] == NAME
        assert read_time(found["spec"]["renewTime"]) == time.at_s
        [owner] = found["metadata"]["ownerReferences"]
        assert owner["uid"] == node.placement["metadata"]["uid"]


async def test_a_lease_is_renewed_before_the_status_is_written(node, reporter, time, client) -> None:
    node.create()
    await reporter.round()
    for number in range(3):
        await run_pod_with(client, f"web-{number}", cpu_limit=100)
        time.at_s += 200
        calls = len(node.api.calls)
        await reporter.round()
        assert [call.path.rsplit("/", 1)[-1] for call in node.api.calls[calls:]][:2] == [
            f"node-{NAME}",
            "status",
        ]


async def test_an_agent_without_the_right_to_its_lease_says_it_once_and_goes_on(
    node, reporter, time, client, capfd
) -> None:
    node.create()
    node.api.refuse = lambda call: "leases is forbidden" if "/leases/" in call.path else ""
    for number in range(30):
        await run_pod_with(client, f"web-{number}", cpu_limit=100)
        await reporter.round()
        time.at_s += 20
    assert sum("leases is forbidden" in line for line in capfd.readouterr().err.splitlines()) == 1
    assert len(node.status["placements"]) == 30
    node.api.refuse = lambda call: ""
    time.at_s += 100
    await reporter.round()
    assert node.api.object(LEASES, f"node-{NAME}", NAMESPACE)


async def test_a_lease_is_renewed_soon_after_an_api_server_that_was_away(node, reporter, time) -> None:
    node.create()
    await reporter.round()
    await node.api.stop()
    for _ in range(120):
        time.at_s += 5
        await reporter.round()
    await node.api.start()
    for _ in range(3):
        time.at_s += 5
        await reporter.round()
    found = node.api.object(LEASES, f"node-{NAME}", NAMESPACE)
    assert read_time(found["spec"]["renewTime"]) >= time.at_s - 15


async def test_what_changes_without_end_is_written_once_in_a_period(node, reporter, time, client) -> None:
    node.create()
    for number in range(60):
        await run_pod_with(client, f"web-{number}", cpu_limit=100)
        await reporter.round()
        time.at_s += 1
    # The first at once, then one in 10 s and its jitter.
    assert node.writes == 1 + 59 // 11
    assert len(node.status["placements"]) >= 50


async def test_an_api_server_that_asks_for_patience_gets_it(node, reporter, time) -> None:
    node.create()
    node.api.faults.append(Fault("refuse", 1, "PATCH", "nodeplacements", 429, "120"))
    await reporter.round()
    time.at_s += 100
    await reporter.round()
    assert node.writes == 1
    time.at_s += 60
    await reporter.round()
    assert node.writes == 2


async def test_newer_schemas_get_the_whole_status_though_nothing_has_changed(node, reporter, time) -> None:
    new = definitions()[0]
    node.api.schemas["nodeplacements"] = schema_of(older(new, "status.frozen", "status.zones.sharedCpus"))
    node.create()
    for _ in range(3):
        await reporter.round()
        time.at_s += 20
    assert "status.frozen, status.zones.sharedCpus" in node.condition("SchemaCurrent")["message"]
    assert "frozen" not in node.status and node.status["version"]
    node.api.schemas["nodeplacements"] = schema_of(new)
    time.at_s += WHOLE_AGAIN_S
    for _ in range(2):
        await reporter.round()
        time.at_s += 20
    assert node.status["frozen"] is False
    assert node.condition("SchemaCurrent") == {}


async def _applied(node: NodeAgent, commander: Commander) -> None:
    node.create(policy=policy("bad", abortOn=["NotReady"]))
    commander.read_again()
    await commander.round()
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "bad"


async def test_a_policy_goes_back_where_the_node_fails_and_the_api_server_is_lost(
    node, commander, time
) -> None:
    await _applied(node, commander)
    await node.api.stop()
    await node.daemon.kill()
    for _ in range(int((HOLD_S + LOST_S) / 5) + 2):
        time.at_s += 5
        await commander.round()
    # It is told as soon as the daemon is there again.
    await node.daemon.start()
    await commander.round()
    assert (await ask(node.daemon, "cluster-policy"))["policy"] is None
    # And is not given it again, by this process or the next, with the API server or without.
    await node.api.start()
    commander.read_again()
    for _ in range(10):
        time.at_s += 20
        await commander.round()
    assert (await ask(node.daemon, "cluster-policy"))["policy"] is None
    assert (node.status["policy"]["hash"], node.status["policy"]["state"]) == ("bad", "TakenBack")
    assert node.condition("ConfigApplied")["reason"] == "TakenBack"


async def test_with_the_api_server_there_taking_back_is_the_operators(node, commander, time) -> None:
    await _applied(node, commander)
    await node.daemon.kill()
    for _ in range(20):
        time.at_s += 5
        await commander.round()
    await node.daemon.start()
    await commander.round()
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "bad"


async def test_it_answers_again_is_said_once_a_request_has_been_answered(
    node, reporter, time, capsys
) -> None:
    node.create()
    await node.api.stop()
    for _ in range(8):
        await reporter.round()
        time.at_s += 0.2
    said = capsys.readouterr().err
    assert said.count("the API server does not answer") == 1
    assert "it answers again" not in said
    await node.api.start()
    time.at_s += 60
    await reporter.round()
    assert capsys.readouterr().err.count('event="api server" reason="it answers again"') == 1
    time.at_s += 60
    await reporter.round()
    assert "it answers again" not in capsys.readouterr().err


async def test_what_another_object_is_answered_does_not_end_the_trouble_of_a_status(
    node, reporter, time, capsys
) -> None:
    # Without its NodePlacement; the topology for schedulers can be written.
    for _ in range(8):
        await reporter.round()
        time.at_s += 0.2
    assert node.topology is not None
    said = capsys.readouterr().err
    assert said.count("this agent waits") == 1
    assert "it answers again" not in said


@pytest.mark.parametrize("kind", ["status", "noderesourcetopologies", "events"])
async def test_an_api_server_without_an_answer_is_asked_less_and_less(
    node, reporter, time, client, kind
) -> None:
    node.create()
    for number in range(20):
        await run_pod_with(client, f"web-{number}", cpu_limit=7000)
    node.api.faults.append(Fault("reset", 1000, path=kind))
    for _ in range(150):
        await reporter.round()
        time.at_s += 4
    # At 0.75, 1.5, 3 and then 6.75 s after each other; twice where the connection that is kept turns out to be closed.
    assert sum(kind in call.path for call in node.api.calls) <= 2 * (5 + 600 // 6.75)
    node.api.faults.clear()
    time.at_s += 10
    await reporter.round()
    await reporter.round()
    assert len(node.status["placements"]) == 20 and node.topology is not None and node.events


@pytest.mark.parametrize("away_s", [40, 600])
@pytest.mark.parametrize("chance", [0.0, 1.0])
async def test_both_halves_are_back_within_15_s_of_the_api_server(
    node, api_client, time, client, tmp_path, away_s, chance
) -> None:
    clock = Clock(time.now, time.now, time.sleep, lambda: chance)
    reporter = Reporter(DaemonClient(node.view), api_client, Reporting(NAME), clock)
    file = MemoryFile(tmp_path / "state")
    commander = Commander(DaemonClient(node.daemon.control), api_client, NAME, file, clock)
    node.create(policy=policy("good"))
    await reporter.round()
    due_s = {reporter: time.at_s, commander: time.at_s}

    async def until(end_s: float) -> None:
        """Each half looks when its process would, as late as its jitter lets it."""
        while min(due_s.values()) <= end_s:
            half = min(due_s, key=lambda each: due_s[each])
            time.at_s = due_s[half]
            wait_s = await half.round() or Reporting(NAME).poll_s
            due_s[half] = time.at_s + wait_s * 1.1
        time.at_s = end_s

    await node.api.stop()
    await run_pod_with(client, "web", cpu_limit=2000)
    commander.read_again()
    await until(time.at_s + away_s)
    assert not node.status["placements"]
    await node.api.start()
    await until(time.at_s + 15)
    assert [row["pod"] for row in node.status["placements"]] == ["web"]
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "good"


async def test_a_spec_that_cannot_be_read_is_asked_for_less_and_less_and_its_end_is_told(
    node, commander, time, capsys
) -> None:
    node.create(policy=policy("good"))
    node.api.faults.append(Fault("refuse", 1000, "GET", status=500))
    commander.read_again()
    for _ in range(150):
        await commander.round()
        time.at_s += 4
    # At 3.75, 7.5, 15, 30 and then 45 s after each other.
    assert len(node.api.calls) <= 5 + 600 // 45
    assert "it answers again" not in capsys.readouterr().err
    node.api.faults.clear()
    time.at_s += 60
    await commander.round()
    assert (await ask(node.daemon, "cluster-policy"))["policy"]["hash"] == "good"
    assert "it answers again" in capsys.readouterr().err


async def test_a_policy_is_judged_once_report_and_doctor_are_younger(node, reporter, commander, time) -> None:
    node.create()
    await reporter.round()
    await reporter.problems_known()
    time.at_s += 20
    await reporter.round()
    node.ask(policy=policy("bad"))
    commander.read_again()
    await commander.round()
    # 1. The acknowledgement is there, the report is from before.
    assert (node.status["policy"]["state"], node.status["judgedPolicy"]) == ("Applied", "")
    # 2. A report, and doctor asked for this policy: only once it has answered.
    time.at_s += 20
    await reporter.round()
    assert node.status["judgedPolicy"] == ""
    await reporter.problems_known()
    time.at_s += 20
    await reporter.round()
    assert node.status["judgedPolicy"] == "bad"
    # 3. The next process of the agent does not begin anew.
    again = Reporter(reporter._daemon, reporter._client, Reporting(NAME), _clock(time))
    await again._begin()
    await again.round()
    assert node.status["judgedPolicy"] == "bad"
    await again.problems_known()


class Stumbling:
    """A client whose watch fails by a bug of ours, so many times."""

    def __init__(self, client: Client, failures: int) -> None:
        self._client, self.failures = client, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def watch(self, *what: Any, **how: Any) -> AsyncIterator[Any]:
        if self.failures:
            self.failures -= 1
            raise KeyError("metadata")
        async for event in self._client.watch(*what, **how):
            yield event


async def test_a_watch_of_the_spec_that_fails_is_begun_again(node, api_client, tmp_path) -> None:
    told: list[str] = []
    supervisor = Supervisor(lambda worker, error: error and told.append(worker.name))
    node.create(policy=policy("good"))
    commander = Commander(
        DaemonClient(node.daemon.control), Stumbling(api_client, 1), NAME,
        MemoryFile(tmp_path / "state"), Clock(), supervisor=supervisor,
    )  # fmt: skip
    running = supervisor.keep("commander", commander.run)
    try:
        await until(node.daemon, lambda status: status["cluster"]["policy"] is not None)
    finally:
        running.cancel()
        await supervisor.end()
    assert told == ["watch of the spec"]


async def test_a_watch_of_a_nodes_object_that_fails_is_begun_again(node, api_client) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    supervisor = Supervisor(lambda worker, error: told.put_nowait(f"{worker.name}: {error!r}"))
    node.create(policy=policy("good"))
    client = Stumbling(api_client, 1)
    reporter = Reporter(
        DaemonClient(node.view),
        client,
        Reporting(NAME, commands_elsewhere=False),
        Clock(),
        supervisor=supervisor,
    )
    running = supervisor.keep("reporter", reporter.run)
    try:
        said = [await asyncio.wait_for(told.get(), HANG_S) for _ in range(2)]
    finally:
        running.cancel()
        await supervisor.end()
    assert said == ["watch of its object: KeyError('metadata')", "watch of its object: None"]
