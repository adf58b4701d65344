"""Runs the planner in a process of its own: a plan takes tenths of a second, and its imports 20 MB.

The worker is started with the first problem and ends after some idle minutes, so that its memory is given back.
Both pipes speak in frames: four bytes of length, then a pickle (of our own classes, between our own processes).
A worker that crashes or thinks too long is killed; the next problem starts another. One that loses its daemon
reads the end of its pipe and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, Optional

from cri_api.waiting import wait_within
from policies.affinity.planner.problem import Problem, Proposal

#: 1,000 containers are planned in a tenth of a second on a quiet machine; one that is busy may take its time.
TIMEOUT_S = 30.0
IDLE_S = 300.0
#: How long one whose pipe has ended may take to end itself.
ENDING_S = 1.0
#: As much of a crashed worker's last words is told.
LAST_WORDS = 300
_LENGTH = struct.Struct(">I")


class PlannerFailed(Exception):
    """There is no proposal. The message is one sentence that says why."""


def worker_command() -> tuple[str, ...]:
    """A function that starts a worker."""
    return (sys.executable, "-m", "cri_proxy.affinity.io.planner_process")


class PlannerWorker:
    """One worker process at a time. ``plan`` may be called any time; problems wait for each other."""

    def __init__(
        self,
        command: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._command = tuple(command) or worker_command()
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._process: Optional[asyncio.subprocess.Process] = None
        self._idle: Optional[asyncio.TimerHandle] = None
        self._ends: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> Optional[int]:
        """The worker's process id; None while there is none."""
        return None if self._process is None else self._process.pid

    async def plan(self, problem: Problem) -> Proposal:
        """The planner's answer.

        :raises PlannerFailed: the worker could not be started, has crashed, or took too long.
        """
        async with self._lock:
            self._stop_idling()
            try:
                answer = await wait_within(self._timeout_s, self._ask(problem))
            except asyncio.TimeoutError:
                await self._kill()
                raise PlannerFailed(f"the planner was ended after {self._timeout_s:g} s") from None
            except (OSError, EOFError, asyncio.IncompleteReadError) as error:
                raise PlannerFailed(await self._last_words(error)) from None
            except BaseException:
                await self._kill()  # cancelled: the answer to come would be taken for the next one's
                raise
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)
        if isinstance(answer, Proposal):
            return answer
        raise PlannerFailed(f"the planner has failed: {answer}")

    async def close(self) -> None:
        """End the worker."""
        self._stop_idling()
        await self._kill()
        await asyncio.gather(*self._ends)

    async def _ask(self, problem: Problem) -> Any:
        import pickle  # no plan is made in a start

        if self._process is None or self._process.returncode is not None:
            self._process = await self._start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        body = pickle.dumps(problem, protocol=pickle.HIGHEST_PROTOCOL)
        stdin.write(_LENGTH.pack(len(body)) + body)
        await stdin.drain()
        (length,) = _LENGTH.unpack(await stdout.readexactly(_LENGTH.size))
        return pickle.loads(await stdout.readexactly(length))

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # It finds our modules where we have found them, wherever we were installed.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"):
            environment.pop(name, None)
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd="/"
        )

    async def _last_words(self, error: BaseException) -> str:
        """The last words of a worker that has ended; for one that never began, the reason."""
        process = self._process
        if process is None or process.stderr is None:
            return f"the planner could not be started: {error}"
        with contextlib.suppress(asyncio.TimeoutError):
            await wait_within(ENDING_S, process.wait())
        _end(process)
        said = (await process.stderr.read()).decode(errors="replace").strip()
        code = await process.wait()
        self._process = None
        last = said.splitlines()[-1][:LAST_WORDS] if said else ""
        return f"the planner has ended with {code}" + (f": {last}" if last else "")

    # ------------------------------------------------------------------ the end of a worker

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_idle(self) -> None:
        task = asyncio.get_running_loop().create_task(self._end_quietly())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _end_quietly(self) -> None:
        async with self._lock:
            await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _end(process)
        # Its pipes are read to their ends, so that the transport is closed and not left to the collector.
        await process.communicate()


def _end(process: asyncio.subprocess.Process) -> None:
    # Process.kill() would look first whether it has ended, and take its exit code away from asyncio (seen).
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


# ---------------------------------------------------------------------- in the worker


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer problems with proposals until there are no more; with a sentence where the planner fails."""
    import pickle

    from policies.affinity.planner.planner import plan

    while True:
        head = requests.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return
        problem = pickle.loads(requests.read(_LENGTH.unpack(head)[0]))
        try:
            answer: Any = plan(problem)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        body = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
        replies.write(_LENGTH.pack(len(body)) + body)
        replies.flush()


def _main() -> None:
    os.nice(10)  # kubelet's calls come first
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # the daemon has -999, and starts another
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a print does not spoil a frame
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    _main()
