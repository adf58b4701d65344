"""A thread that hangs, for a disk does not answer, holds up neither the end of the process nor who takes it over."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cri_proxy.event_loop import UVLOOP_SWITCH
from tests.agent import ROOT

#: A daemon that comes to its end as argv says, while a thread of it hangs or does not.
PROGRAM = """
import asyncio, sys, threading
from cri_proxy import event_loop

how, thread = sys.argv[1:]


async def main():
    begun, over = threading.Event(), threading.Event()
    reading = asyncio.ensure_future(asyncio.to_thread(lambda: begun.set() or over.wait()))
    while not begun.is_set():
        await asyncio.sleep(0)
    if thread == "ends":
        over.set()
        await reading
    print("at the end")
    if how == "fails":
        raise TypeError("a bug")
    return 3


try:
    code = event_loop.run(main)
except TypeError as error:
    import os
    print("taken over:", error, flush=True)
    os.execv("/bin/echo", ["echo", "by another program"])
print("after", flush=True)
sys.exit(code)
"""


@pytest.mark.parametrize("uvloop", ["no", "yes"])
@pytest.mark.parametrize(
    ("how", "thread", "code", "said"),
    [
        ("returns", "ends", 3, ["at the end", "after"]),
        ("returns", "hangs", 3, ["at the end"]),
        ("fails", "hangs", 0, ["at the end", "taken over: a bug", "by another program"]),
    ],
)
def test_a_process_ends_though_a_thread(
    how: str, thread: str, code: int, said: list[str], uvloop: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, thread],
        cwd=ROOT, env={UVLOOP_SWITCH: uvloop}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (code, said, "")
