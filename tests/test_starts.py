"""``tools/starts`` knows no other way to a long-lived task or thread than the supervisor."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

import pytest

from tests.agent import ROOT

_loader = importlib.machinery.SourceFileLoader("starts", str(ROOT / "tools" / "starts"))
_spec = importlib.util.spec_from_loader("starts", _loader)
assert _spec is not None
starts = importlib.util.module_from_spec(_spec)
_loader.exec_module(starts)


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "loop.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "asyncio.ensure_future(work())",
        "ensure_future(work())",
        "asyncio.run_coroutine_threadsafe(work(), loop)",
        "async with asyncio.TaskGroup() as group: pass",
        "threading.Thread(target=work).start()",
        "Thread(target=work).start()",
        "threading.Timer(1.0, work).start()",
        "_thread.start_new_thread(work, ())",
    ],
)
def test_a_start_past_the_supervisor_is_a_fault_where_no_reason_is_known(line: str) -> None:
    found = list(starts.starts("room.py", f"class Room:\n    async def open(self):\n        {line}\n"))
    assert found == [("room.py:Room.open", 3)]
    (fault,) = starts.faults(found, {})
    assert fault.startswith("room.py:Room.open (line 3) starts a task or thread past the supervisor")
    assert starts.faults(found, {"room.py:Room.open": "awaited"}) == []
    assert starts.faults(found, {"room.py:Room.open": ""}) == [fault]


def test_the_supervisor_itself_is_no_fault_and_a_reason_for_nothing_is() -> None:
    found = list(starts.starts("room.py", 'self.supervisor.keep("room", self.run)\n'))
    assert found == []
    assert starts.faults(found, {"room.py:Room.open": "awaited"}) == [
        "tools/starts knows room.py:Room.open, which starts nothing"
    ]


def test_the_product_has_none() -> None:
    run = subprocess.run([sys.executable, "tools/starts"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
