"""The calls that are intercepted, and what is done with each."""

from __future__ import annotations

from cri_proxy.front_ends.cri_calls import _KINDS
from cri_proxy.relay.interception import INTERCEPTED


def test_each_intercepted_method_has_a_class() -> None:
    assert {*_KINDS, "RestorePod", "GetContainerEvents"} == INTERCEPTED
