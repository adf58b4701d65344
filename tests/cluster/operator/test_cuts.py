"""Each write of a story is cut by each fault: what heals ends in the same objects, the rest in a sentence with the node."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from cluster.api.names import READY
from cluster.kube.requests import Unreachable
from cluster.kubectl import complaints
from cluster.operator.objects import read_node_placement
from tests.cluster.operator.api import Key, Killed
from tests.cluster.operator.fleet import AWAY_S, BETTER, GOOD, LONG_REST_S, MARKED, NODES, REST_S, Fleet

FOR_EVER = 1e9
Fault = Callable[[Fleet, Key], None]


def killed(fleet: Fleet, key: Key) -> None:
    raise Killed


def server_away(fleet: Fleet, key: Key) -> None:
    fleet.server_goes()
    raise Unreachable("no route")


HEALED: dict[str, Fault] = {
    "the API server goes for a while": server_away,
    "the agent goes for a while": lambda fleet, key: fleet.agent_goes(AWAY_S),
    "the Node goes for a while": lambda fleet, key: fleet.node_goes(AWAY_S),
}
LASTING: dict[str, Fault] = {
    "the agent goes for ever": lambda fleet, key: fleet.agent_goes(FOR_EVER),
    "the daemon does nothing any more": lambda fleet, key: fleet.daemon_sticks(),
    "the Node goes for ever": lambda fleet, key: fleet.node_goes(FOR_EVER),
    "the Node is no longer Ready": lambda fleet, key: fleet.node_breaks(),
}


@functools.lru_cache
def undisturbed(fails: str, rest_s: float) -> Fleet:
    return Fleet(fails, rest_s=rest_s).run()


@pytest.mark.parametrize("fails", ["", "n2"])
@pytest.mark.parametrize("after", [False, True], ids=["before-a-write", "after-a-write"])
def test_killed_at_any_write_it_ends_in_the_same_objects(fails: str, after: bool) -> None:
    whole = undisturbed(fails, REST_S)
    assert (whole.starts, whole.led_by) == (2, "operator-1")
    (_, changed, deleted) = whole.ends
    config = GOOD if fails else BETTER
    assert {name: each["config"] for name, each in changed[0].items()} == dict.fromkeys(NODES, config)
    assert changed[1]["p"]["phase"] == ("Aborted" if fails else "Complete")
    assert deleted == (dict.fromkeys(NODES), {})
    assert 20 < whole.writes < 100
    for at in range(whole.writes):
        run = Fleet(fails, at=at, after=after, fault=killed).run()
        assert run.ends == whole.ends, f"killed at write {at}"
        assert run.starts == 3 and run.led_by in ("operator-2", "operator-3")
        assert run.most_in_change <= 1, f"killed at write {at}"
        if run.aborted_at is not None and run.aborted_at < len(run.given):
            changes = [config for _, config in run.given[run.aborted_at + 2 :]]
            assert BETTER not in changes, f"write {at}"


def every(writes: int, offset: int, request: pytest.FixtureRequest) -> range:
    """All writes where there is time for them, else every ninth: others for each case."""
    return range(writes) if request.config.getoption("--long") else range(offset % 9, writes, 9)


@pytest.mark.parametrize("fails", ["", "n2"])
@pytest.mark.parametrize("after", [False, True], ids=["before-a-write", "after-a-write"])
@pytest.mark.parametrize("name", HEALED)
def test_what_comes_back_ends_in_the_same_objects(
    fails: str, after: bool, name: str, request: pytest.FixtureRequest
) -> None:
    whole = undisturbed(fails, LONG_REST_S)
    for at in every(whole.writes, len(name) + 3 * after, request):
        run = Fleet(fails, at=at, after=after, fault=HEALED[name], rest_s=LONG_REST_S).run()
        if "Node" in name:
            # It comes back as a new one, which is given nothing by a policy that has been aborted.
            assert list(map(_of_others, run.ends)) == list(map(_of_others, whole.ends)), f"at write {at}"
        else:
            assert run.ends == whole.ends, f"at write {at}"
        # A node that is taken back is waited for two minutes only: the others go back meanwhile.
        assert "agent" in name or run.most_in_change <= 1


def _of_others(end: Any) -> Any:
    documents, policies = end
    others = {name: document for name, document in documents.items() if name != MARKED}
    return others, {name: each["phase"] for name, each in policies.items()}


@pytest.mark.parametrize("fails", ["", "n2"])
@pytest.mark.parametrize("name", LASTING)
def test_what_does_not_come_back_is_named_with_the_next_step(
    fails: str, name: str, request: pytest.FixtureRequest
) -> None:
    whole = undisturbed(fails, LONG_REST_S)
    for at in every(whole.writes, len(name), request):
        run = Fleet(fails, at=at, fault=LASTING[name], rest_s=LONG_REST_S).run()
        for objects in run.objects:
            said = unexplained(objects)
            assert said == "", f"at write {at}: {said}"


def unexplained(objects: dict[Key, dict[str, Any]]) -> str:
    """A rollout that has ended neither well nor in a sentence, or a node that has not answered and looks well."""
    policies = [each for key, each in objects.items() if key[0] == "placementpolicies"]
    for each in policies:
        status = each["status"]
        if status["phase"] == "Complete":
            continue
        stopped = status["phase"] in ("Waiting", "Aborted", "Stopped")
        named = any(name in status["message"] for name in NODES)
        if not (stopped and named and (": " in status["message"])):
            return f"{status['phase']}: {status['message']!r}"
    found = objects.get(("nodeplacements", MARKED))
    state = read_node_placement(found) if found is not None else None
    # One that says Pending has answered.
    has_answered = state and (state.acknowledged or (state.answer and state.answer.hash == state.given_hash))
    if found is not None and not has_answered:
        ready = [each for each in found["status"]["conditions"] if each["type"] == READY]
        if ready[0]["status"] == "True" and ("nodes", MARKED) in objects:
            return f"{MARKED} has not answered and is Ready: {ready}"
        if ready[0]["status"] != "True" and not any(MARKED in each["message"] for each in complaints(found)):
            return f"doctor does not say it: {complaints(found)}"
    return ""
