"""The planner's process: started when asked, killed when it fails, gone when nobody asks or the daemon ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from cri_proxy.affinity.io.planner_process import PlannerFailed, PlannerWorker
from policies.affinity.planner.problem import CandidateDomain, Leaf, Problem, Tree, Vertex
from tests.agent import ROOT

Start = Callable[..., PlannerWorker]

_LEAVES = (Leaf("L3 0", 8000, 0, 0), Leaf("L3 1", 8000, 0, 0))
_SITES = (CandidateDomain("ccx", "L3 0", (0,)), CandidateDomain("ccx", "L3 1", (1,)))
#: Two containers that talk much, and sit apart.
APART = Problem(
    Tree(_LEAVES, _SITES, ((0.0, 84.0), (84.0, 0.0))),
    (Vertex("a", 1000, 0, (0, 1)), Vertex("b", 1000, 1, (0, 1))),
    ((0, 1, 1e7),),
)


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    workers: list[PlannerWorker] = []

    def make(script: str = "", **settings: float) -> PlannerWorker:
        command = (sys.executable, "-c", script) if script else ()
        workers.append(PlannerWorker(command, **settings))
        return workers[-1]

    yield make
    for worker in workers:
        await worker.close()


async def gone(pid: int) -> None:
    """Wait until a process is no more."""
    while Path(f"/proc/{pid}").exists():
        await asyncio.sleep(0.01)


async def within(what: Awaitable[object]) -> None:
    await asyncio.wait_for(what, 20)


async def test_a_problem_is_answered_by_a_process_of_its_own(start: Start) -> None:
    worker = start()
    assert worker.pid is None, "it is not started before it is needed"
    proposal = await worker.plan(APART)
    assert proposal.accepted
    assert [(move.source, move.target) for move in proposal.moves] in ([(0, 1)], [(1, 0)])
    assert worker.pid not in (None, os.getpid())


async def test_the_next_problem_goes_to_the_same_process(start: Start) -> None:
    worker = start()
    first, pids = await worker.plan(APART), {worker.pid}
    second = await asyncio.gather(worker.plan(APART), worker.plan(APART))
    assert [first, first] == second
    assert pids == {worker.pid}


async def test_a_problem_that_contradicts_itself_is_a_sentence_and_the_process_goes_on(start: Start) -> None:
    worker = start()
    await worker.plan(APART)
    pid = worker.pid
    with pytest.raises(PlannerFailed, match="the planner has failed: "):
        await worker.plan(Problem(APART.tree, APART.vertices, ((0, 7, 1.0),)))
    assert (await worker.plan(APART)).accepted
    assert worker.pid == pid


async def test_a_worker_that_was_killed_is_started_anew(start: Start) -> None:
    worker = start()
    await worker.plan(APART)
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await within(_survived(worker))
    assert worker.pid != first


async def _survived(worker: PlannerWorker) -> None:
    """At most the problem it was killed over is lost."""
    for _ in range(2):
        try:
            assert (await worker.plan(APART)).accepted
            return
        except PlannerFailed:
            pass
    raise AssertionError("two problems in a row were lost")


async def test_a_worker_that_crashes_tells_its_last_words(start: Start) -> None:
    with pytest.raises(PlannerFailed, match="the planner has ended with 3: no memory left"):
        await start("import sys; print('no memory left', file=sys.stderr); sys.exit(3)").plan(APART)


async def test_a_worker_that_cannot_be_started_is_a_sentence() -> None:
    with pytest.raises(PlannerFailed, match="could not be started: .*No such file"):
        await PlannerWorker(("/nowhere/python",)).plan(APART)


async def test_a_worker_that_thinks_too_long_is_killed(start: Start) -> None:
    worker = start("import time; time.sleep(600)", timeout_s=0.2)
    with pytest.raises(PlannerFailed, match=r"was ended after 0\.2 s"):
        await worker.plan(APART)
    assert worker.pid is None


async def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_the_next_one(start: Start) -> None:
    worker = start("import time; time.sleep(600)")
    asking = asyncio.ensure_future(worker.plan(APART))
    while worker.pid is None:
        await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert worker.pid is None


async def test_an_idle_worker_ends_and_is_started_again_when_needed(start: Start) -> None:
    worker = start(idle_s=0.05)
    await worker.plan(APART)
    pid = worker.pid
    assert pid is not None
    await within(gone(pid))
    assert (await worker.plan(APART)).accepted


async def test_closing_ends_the_process() -> None:
    worker = PlannerWorker()
    await worker.plan(APART)
    pid = worker.pid
    assert pid is not None
    await worker.close()
    assert not Path(f"/proc/{pid}").exists()


async def test_a_worker_ends_with_its_daemon() -> None:
    """Whatever ends the daemon: the worker reads the end of its pipe."""
    program = (
        "import asyncio, sys\n"
        "from cri_proxy.affinity.io.planner_process import PlannerWorker\n"
        "from tests.affinity.io.test_planner_process import APART\n"
        "async def main():\n"
        "    worker = PlannerWorker()\n"
        "    await worker.plan(APART)\n"
        "    print(worker.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=str(ROOT)
    )
    assert daemon.stdout is not None
    pid = int(await asyncio.wait_for(daemon.stdout.readline(), 20))
    daemon.kill()
    await daemon.communicate()
    await within(gone(pid))
