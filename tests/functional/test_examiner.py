"""Programs get from the daemon what doctor finds, from one process at a time, and not a new one for every question."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from cri_api.control import ControlError
from cri_proxy.config.io.files import Files
from cri_proxy.daemon.commands_view import KEPT_S, Examiner, read_findings
from tests.functional.conftest import ask
from tests.functional.test_view_socket import look

FINDINGS = (
    '{"findings": [{"topic": "us", "check": "a", "verdict": "ok", "sentence": "fine", "hint": ""},'
    '{"topic": "us", "check": "b", "verdict": "warning", "sentence": "odd", "hint": "look"},'
    '{"topic": "us", "check": "c", "verdict": "problem", "sentence": "bad", "hint": "mend"}]}'
)


def program(folder: Path, text: str) -> tuple[str, ...]:
    """A doctor that notes each start in ``starts``, and prints a text."""
    script = folder / "doctor.py"
    script.write_text(
        "import sys, pathlib\n"
        f"with open({str(folder / 'starts')!r}, 'a') as f: f.write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"print({text!r})\n"
    )
    return sys.executable, str(script)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def examiner(folder: Path, text: str, clock: Clock) -> Examiner:
    return Examiner(
        lambda: Files(config=Path("/etc/x.yaml")), lambda: "/run/c.sock", program(folder, text), clock
    )


def starts(folder: Path) -> list[str]:
    return (folder / "starts").read_text().splitlines()


async def test_the_daemon_answers_with_what_doctor_finds(agent) -> None:
    answer = await look(agent, "doctor")
    assert set(answer) == {"problems"}
    for problem in answer["problems"]:
        assert set(problem) == {"severity", "check", "sentence", "hint"}
        assert problem["severity"] in ("error", "warning")
    assert await ask(agent, "doctor") == answer


async def test_problems_are_errors_and_what_is_well_is_not_told(tmp_path) -> None:
    answer = await examiner(tmp_path, FINDINGS, Clock()).problems()
    assert answer["problems"] == [
        {"severity": "warning", "check": "b", "sentence": "odd", "hint": "look"},
        {"severity": "error", "check": "c", "sentence": "bad", "hint": "mend"},
    ]
    assert starts(tmp_path) == ["--control-socket /run/c.sock doctor --json --config /etc/x.yaml"]


async def test_questions_at_one_time_and_within_a_minute_have_one_process(tmp_path) -> None:
    clock = Clock()
    doctor = examiner(tmp_path, FINDINGS, clock)
    await asyncio.gather(*(doctor.problems() for _ in range(5)))
    clock.now_s += KEPT_S - 1
    await doctor.problems()
    assert len(starts(tmp_path)) == 1
    clock.now_s += 2
    await doctor.problems()
    assert len(starts(tmp_path)) == 2


@pytest.mark.parametrize("text", ["", "Traceback", "[]", '{"findings": [{}]}'])
async def test_a_doctor_that_fails_is_one_sentence_and_is_asked_again(tmp_path, text) -> None:
    doctor = examiner(tmp_path, text, Clock())
    for _ in range(2):
        with pytest.raises(ControlError, match="doctor has failed; see: cri-resmgr doctor"):
            await doctor.problems()
    assert len(starts(tmp_path)) == 2


def test_findings_that_are_none_are_no_problems() -> None:
    assert read_findings(b'{"findings": []}') == {"problems": []}
