"""Without uvloop, or with that switched off, the daemon runs on asyncio's own loop and does what it does on that."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri_proxy.event_loop import UVLOOP_SWITCH
from tests.functional import test_life, test_restart_behind_socket, test_runtime_comes_and_goes


@pytest.fixture(autouse=True)
def without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UVLOOP_SWITCH, "no")


@pytest.mark.parametrize(
    "claim",
    [
        test_life.test_a_call_under_way_is_finished_before_the_end,
        test_life.test_a_call_that_outlasts_the_drain_is_ended_and_left_in_doubt,
        test_life.test_streams_and_pulls_are_ended_at_once_with_unavailable,
        test_life.test_a_signal_turns_debugging_on_and_off_and_ends_nothing,
        test_restart_behind_socket.test_no_call_of_a_thousand_fails_and_no_create_goes_unplaced,
        test_runtime_comes_and_goes.test_the_daemon_starts_without_the_runtime_and_finds_it_later,
    ],
    ids=lambda claim: claim.__name__[len("test_") :],
)
async def test_it_holds_on_asyncio_that(claim, runtime) -> None:
    await claim(runtime)


@pytest.mark.parametrize("is_wanted", [True, False], ids=["wanted", "switched off"])
async def test_uvloop_is_used_unless_it_is_switched_off(is_wanted, start_agent, monkeypatch) -> None:
    monkeypatch.setenv(UVLOOP_SWITCH, "yes" if is_wanted else "no")
    agent = await start_agent()
    assert agent.process is not None
    mapped = Path(f"/proc/{agent.process.pid}/maps").read_text()
    assert ("/uvloop/loop" in mapped) is is_wanted
