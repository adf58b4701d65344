"""The best provider that works is used; why not a better one is told; what is lost is replaced."""

from __future__ import annotations

import pytest

from bpf.sources.fallback import RETRY_S, DeclaredProvider, ProviderFallback, Rung
from bpf.sources.samples import Flow, Provider, ProviderLate, ProviderLost, Sample


class Eyes:
    """A provider that can be made to fail. ``opens``: what opening says, "" = well."""

    detail = "for tests"

    def __init__(self, name: str, opens: str = "") -> None:
        self.name = name
        self.opens = opens
        self.is_lost = False
        self.is_late = False
        self.is_open = False

    def open(self, _now_s: float) -> Provider:
        if self.is_late:
            raise ProviderLate("bcc is at work")
        if self.opens:
            raise ProviderLost(self.opens)
        self.is_open = True
        return self

    def sample(self, now_s: float) -> Sample:
        if self.is_lost:
            raise ProviderLost("the map is gone")
        return Sample(now_s, 10.0, (Flow(self.name, "b"),))

    def close(self) -> None:
        self.is_open = False


def ladder(*eyes: Eyes) -> ProviderFallback:
    return ProviderFallback(
        [*(Rung(each.name, each.open) for each in eyes), Rung("declared", DeclaredProvider)]
    )


def test_the_first_that_works_is_used_and_the_refusals_are_kept() -> None:
    found = ladder(Eyes("ebpf", "bcc is not installed"), Eyes("sock_diag"))
    found.open(0.0)
    assert found.provider.name == "sock_diag"
    assert found.refused == ("ebpf: bcc is not installed",)


def test_without_any_only_declared_affinities_count_and_nobody_is_said_to_be_silent() -> None:
    found = ladder(Eyes("ebpf", "no"), Eyes("sock_diag", "no"))
    found.open(0.0)
    sample = found.sample(10.0)
    assert (found.provider.name, sample.flows, sample.seconds) == ("declared", (), 0.0)


def test_where_only_declared_affinities_are_wanted_nobody_talks() -> None:
    found = ProviderFallback([Rung("declared", lambda now_s: DeclaredProvider(now_s, is_chosen=True))])
    found.open(0.0)
    sample = found.sample(10.0)
    assert (found.provider.name, sample.flows, sample.seconds) == ("declared", (), 10.0)


def test_a_provider_that_is_lost_is_closed_and_the_next_one_sees() -> None:
    first, second = Eyes("ebpf"), Eyes("sock_diag")
    found = ladder(first, second)
    found.open(0.0)
    first.is_lost = True
    assert found.sample(10.0).flows[0].a == "sock_diag"
    assert found.refused == ("ebpf: lost in service: the map is gone",)
    assert (first.is_open, second.is_open) == (False, True)


def test_better_ones_are_tried_again_after_some_minutes() -> None:
    first, second = Eyes("ebpf", "no bcc"), Eyes("sock_diag")
    found = ladder(first, second)
    found.open(0.0)
    first.opens = ""
    assert found.sample(RETRY_S - 1).flows[0].a == "sock_diag"
    assert found.sample(RETRY_S + 1).flows[0].a == "ebpf"
    assert (found.refused, second.is_open) == ((), False)


def test_one_that_is_still_being_compiled_is_used_at_the_next_sample_after_that() -> None:
    first, second = Eyes("ebpf"), Eyes("sock_diag")
    found = ladder(first, second)
    first.is_late = True
    found.open(0.0)
    assert found.refused == ("ebpf: bcc is at work",)
    assert found.sample(10.0).flows[0].a == "sock_diag"
    first.is_late = False
    assert found.sample(20.0).flows[0].a == "ebpf"
    assert (found.refused, second.is_open) == ((), False)


def test_one_whose_compile_failed_late_is_tried_again_after_some_minutes_only() -> None:
    first, second = Eyes("ebpf", "it does not compile"), Eyes("sock_diag")
    found = ladder(first, second)
    first.is_late = True
    found.open(0.0)
    first.is_late = False
    found.sample(10.0)
    assert found.refused == ("ebpf: it does not compile",)
    first.opens = ""
    assert found.sample(20.0).flows[0].a == "sock_diag"
    assert found.sample(10.0 + RETRY_S).flows[0].a == "ebpf"


def test_a_better_one_that_still_does_not_work_changes_nothing() -> None:
    first, second = Eyes("ebpf", "no bcc"), Eyes("sock_diag")
    found = ladder(first, second)
    found.open(0.0)
    first.opens = "no rights"
    assert found.sample(RETRY_S + 1).flows[0].a == "sock_diag"
    assert found.refused == ("ebpf: no rights",)
    assert second.is_open


def test_a_bug_in_one_provider_is_a_refusal() -> None:
    def fail(_now_s: float) -> Provider:
        raise TypeError("a bug")

    found = ProviderFallback([Rung("ebpf", fail), Rung("declared", DeclaredProvider)])
    found.open(0.0)
    assert found.refused == ("ebpf: failed unexpectedly: TypeError('a bug')",)


def test_when_nothing_works_all_reasons_are_said() -> None:
    found = ProviderFallback([Rung("replay", Eyes("replay", "no file").open)])
    with pytest.raises(ProviderLost, match="no provider works here: replay: no file"):
        found.open(0.0)
