"""The time since a client called last."""

from __future__ import annotations

from typing import Optional

from cri_proxy.relay.interception import Interception
from cri_proxy.relay.io.last_call import LastCall


class Deciding:
    """Takes note of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open(self, full_method: str) -> Optional[Interception]:
        self.asked.append(full_method)
        return None


def test_every_call_counts_also_one_that_passes() -> None:
    time_s = [100.0]
    inside = Deciding()
    calls = LastCall(inside, clock=lambda: time_s[0])
    assert calls.age_s is None
    assert calls.open("/runtime.v1.RuntimeService/Version") is None
    time_s[0] = 103.5
    assert calls.age_s == 3.5
    calls.open("/runtime.v1.ImageService/PullImage")
    assert calls.age_s == 0.0
    assert inside.asked == ["/runtime.v1.RuntimeService/Version", "/runtime.v1.ImageService/PullImage"]
