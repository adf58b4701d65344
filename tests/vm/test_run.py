"""A boot as the host sees it: verdicts as they come, and what it says of a guest that ends too early."""

from __future__ import annotations

from pathlib import Path

from tests.vm.image import Image
from tests.vm.machine import SMT_8
from tests.vm.run import VirtualMachine
from tests.vm.verdicts import Verdict, read_verdict, write_verdict

PASSED = Verdict("it_holds", True, 1.5, "said\nin two lines")


class Guest(VirtualMachine):
    """A shell script in the place of QEMU."""

    script = ""

    def _command(self) -> list[str]:
        return ["sh", "-c", f"folder={self._folder}; touch $folder/console; {self.script}"]


def guest(script: str) -> Guest:
    made = Guest(SMT_8, Image(Path()), Path())
    made.script = script
    return made


def test_a_verdict_is_one_line_and_read_as_it_was_written() -> None:
    line = write_verdict(PASSED)
    assert "\n" not in line
    assert read_verdict(line) == PASSED
    assert read_verdict("Starting kernel") is None


def test_a_verdict_is_there_before_the_guest_ends() -> None:
    with guest(f"printf '%s\\n' '{write_verdict(PASSED)}'; exec tail -f /dev/null") as machine:
        assert machine.verdict("it_holds") == PASSED
        assert machine.end == ""


def test_the_end_is_what_systemd_said() -> None:
    with guest("echo noise; echo 'VM end exit-code exited 1'") as machine:
        assert machine.finish() == "exit-code exited 1"
        assert machine.lines == ["noise"]


def test_a_check_the_guest_did_not_come_to_has_failed_and_says_what_was_last() -> None:
    with guest("echo 'Kernel panic'") as machine:
        verdict = machine.verdict("it_holds")
    assert not verdict.passed
    assert "Kernel panic" in verdict.said


def test_what_qemu_says_of_its_arguments_is_told() -> None:
    with guest("rm -f $folder/console; echo 'no such device' >&2") as machine:
        verdict = machine.verdict("it_holds")
    assert not verdict.passed
    assert "no such device" in verdict.said


def test_a_guest_that_says_nothing_any_more_is_ended() -> None:
    never = guest("exec tail -f /dev/null")
    never.silence_s = 0.1
    with never as machine:
        assert "silent for 0.1 s" in machine.verdict("it_holds").said


def test_an_accelerator_and_further_words_are_qemus() -> None:
    machine = VirtualMachine(
        SMT_8, Image(Path()), Path(), accelerator="tcg,thread=single", more=("-plugin", "x")
    )
    machine._folder = Path()
    assert machine._command()[1:5] == ["-accel", "tcg,thread=single", "-plugin", "x"]
