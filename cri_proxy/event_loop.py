"""One event loop for the life of a process: uvloop's, else asyncio's; and an end that nothing holds up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from cri_proxy.light_imports import without_tls

#: "no" in this variable of the environment: asyncio's own event loop, whatever is installed.
UVLOOP_SWITCH = "CRI_RESMGR_UVLOOP"
#: How long threads have for their end, seconds. Those at work read a few files.
THREADS_END_S = 1.0
THREADS = "in-a-thread"


def run(main: Callable[[], Coroutine[Any, Any, int]], at_end: Callable[[], object] = lambda: None) -> int:
    """Run to the end; the result. While a thread hangs (a disk does not answer), the process ends here instead.

    ``at_end`` is called before that.
    Nothing can end such a thread, and both asyncio and Python would wait for it: the service could not be stopped.
    """

    async def run_main() -> int:
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(thread_name_prefix=THREADS)
        loop.set_default_executor(pool)
        try:
            return await main()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            loop.set_default_executor(ThreadPoolExecutor())  # asyncio waits for the one that is set

    code = _new_loop(run_main())
    if _threads_hang():
        at_end()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def _new_loop(work: Coroutine[Any, Any, int]) -> int:
    if os.environ.get(UVLOOP_SWITCH) != "no":
        with contextlib.suppress(ImportError):
            with without_tls():
                import uvloop

            return int(uvloop.run(work))
    return asyncio.run(work)


def _threads_hang() -> bool:
    deadline_s = time.monotonic() + THREADS_END_S
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return any(thread.is_alive() for thread in threads)
