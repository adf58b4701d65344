"""``tools/prints`` knows no other way to a terminal than the function that escapes what is not to be shown raw."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

import pytest

from tests.agent import ROOT

_loader = importlib.machinery.SourceFileLoader("prints", str(ROOT / "tools" / "prints"))
_spec = importlib.util.spec_from_loader("prints", _loader)
assert _spec is not None
prints = importlib.util.module_from_spec(_spec)
_loader.exec_module(prints)


@pytest.mark.parametrize(
    "line",
    [
        "print(name)",
        "print(printable(name), other)",
        "click.echo(name)",
        "click.secho(name)",
        "from click import echo",
        "from sys import stderr",
        "sys.stdout.write(name)",
        "sys.stderr.write(name)",
        "sys.stdout.buffer.write(name)",
        "sys.exit(f'{name} is bad')",
        "raise SystemExit(name)",
        "print(f'{printable(name)} {other}')",
    ],
)
def test_a_print_past_the_function_is_a_fault_where_no_reason_is_known(line: str) -> None:
    found = list(prints.prints("room.py", f"class Room:\n    def show(self):\n        {line}\n"))
    assert found == [("room.py:Room.show", 3)]
    (fault,) = prints.faults(found, {})
    assert fault.startswith("room.py:Room.show (line 3) prints as it is")
    assert prints.faults(found, {"room.py:Room.show": "a number"}) == []
    assert prints.faults(found, {"room.py:Room.show": ""}) == [fault]


@pytest.mark.parametrize(
    "line",
    ["echo(name)", "print(printable(name), file=sys.stderr)", "print()", "sys.exit(1)", "sys.exit(main())"],
)
def test_what_is_escaped_is_no_fault_and_a_reason_for_nothing_is(line: str) -> None:
    found = list(prints.prints("room.py", f"{line}\n"))
    assert found == []
    assert prints.faults(found, {"room.py:": "a number"}) == [
        "tools/prints knows room.py:, which prints nothing"
    ]


def test_the_product_has_none() -> None:
    run = subprocess.run([sys.executable, "tools/prints"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
