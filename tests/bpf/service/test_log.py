"""A line an event, which a journal and a person can read."""

from __future__ import annotations

import pytest

from bpf.service.log import log


def test_words_are_plain_and_sentences_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    log("info", "sample", edges=3, seconds=0.123456, reason='it said "no"\nand left')
    expected = 'level=info event=sample edges=3 seconds=0.123 reason="it said \\"no\\"\\nand left"\n'
    assert capsys.readouterr().err == expected
