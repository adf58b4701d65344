"""When incoming packets are looked at: a row is (now_s, messages that wait, receivers found so far) -> is it on?"""

from __future__ import annotations

import pytest

from bpf.sources.udp_paths import SearchPace

CASES = {
    "nothing waits": [(0, 0, 0, False), (10, 0, 0, False)],
    "a resolver's few": [(0, 19, 0, False), (10, 38, 0, False), (20, 57, 0, False)],
    "much waits": [(0, 20, 0, True)],
    "it stays while it finds something": [(0, 50, 0, True), (10, 0, 3, True), (20, 0, 6, True), (30, 0, 6, False)],
    "it found nothing: a pause, then a longer one": [
        (0, 50, 0, True), (10, 100, 0, False), (15, 200, 0, False), (20, 300, 0, True), (30, 400, 0, False),
        (40, 500, 0, False), (50, 600, 0, True),
    ],
    "having found something it is soon on again": [
        (0, 50, 0, True), (10, 100, 0, False), (20, 150, 0, True), (30, 150, 9, True), (40, 150, 9, False),
        (50, 200, 9, True),
    ],
    "what waits must have become more": [(0, 50, 0, True), (10, 50, 0, False), (20, 50, 0, False), (99, 69, 0, False)],
}  # fmt: skip


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES.keys())
def test_incoming_packets_are_looked_at_only_while_that_helps(
    rows: list[tuple[float, int, int, bool]],
) -> None:
    pace = SearchPace()
    assert [pace.decide(now_s, waiting, found) for now_s, waiting, found, _ in rows] == [
        row[3] for row in rows
    ]


def test_the_pause_has_an_end() -> None:
    pace = SearchPace()
    on = [now_s for now_s in range(0, 10_000, 10) if pace.decide(now_s, now_s * 10, 0)]
    assert on[-1] - on[-2] == 310
