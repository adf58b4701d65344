"""The ladder of providers: the best that works here is used, and why those above it are not is told.

A rung is tried by opening it, which tests itself. When a provider is lost in service the next one below is opened;
the ones above are tried again every five minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from bpf.service.log import log
from bpf.sources.samples import Provider, ProviderLost, Sample

RETRY_S = 300.0


class DeclaredProvider:
    """Sees nothing: only what annotations declare draws containers to each other. The last rung.

    ``is_chosen``: it is configured so; then nothing talks. Where it is only the last rung left, the talkers are not known,
    and its samples are none (0 seconds long).
    """

    name = "declared"

    def __init__(self, now_s: float, is_chosen: bool = False) -> None:
        self._last_s = now_s
        self._is_chosen = is_chosen
        kept = "" if is_chosen else ", and what was seen before is kept as it was"
        self.detail = f"no traffic is seen{kept}; only declared affinities count"

    def sample(self, now_s: float) -> Sample:
        seconds, self._last_s = now_s - self._last_s, now_s
        return Sample(now_s, seconds if self._is_chosen else 0.0)

    def close(self) -> None:
        """There is nothing to leave behind."""


@dataclass(frozen=True)
class Rung:
    """A provider that may work here. ``open``: given the time (CLOCK_BOOTTIME), raises ProviderLost if it does not."""

    name: str
    open: Callable[[float], Provider]


class ProviderFallback:
    """Providers, best first. Its calls may take long (compiling): not for an event loop."""

    def __init__(self, rungs: Sequence[Rung]) -> None:
        self._rungs = rungs
        self._at = 0
        self._reasons: dict[str, str] = {}
        self._tried_s = 0.0
        self._provider: Provider = DeclaredProvider(0.0)

    def open(self, now_s: float) -> None:
        """Open the first that works.

        :raises ProviderLost: none does; the sentence has all their reasons.
        """
        self._tried_s = now_s
        self._open_first(0, len(self._rungs), now_s)

    @property
    def provider(self) -> Provider:
        """The one in use."""
        return self._provider

    @property
    def refused(self) -> tuple[str, ...]:
        """Why those above it are not used, a sentence each, ``NAME: REASON``."""
        return self._refusals(self._rungs[: self._at])

    def sample(self, now_s: float) -> Sample:
        """The sample since the last call; after a step down or up the new provider's so far.

        :raises ProviderLost: the last rung is lost, too.
        """
        if self._at and now_s - self._tried_s >= RETRY_S:
            self._climb(now_s)
        while True:
            try:
                return self._provider.sample(now_s)
            except ProviderLost as error:
                lost = self._rungs[self._at]
                self._reasons[lost.name] = f"lost in service: {error}"
                log("warning", "provider lost", provider=lost.name, reason=error)
                self.close()
                self._tried_s = now_s
                self._open_first(self._at + 1, len(self._rungs), now_s)

    def close(self) -> None:
        """Leave nothing in the kernel."""
        with contextlib.suppress(ProviderLost, OSError):
            self._provider.close()

    def _climb(self, now_s: float) -> None:
        """Try those above; the one in use is closed when a better one works."""
        self._tried_s = now_s
        before = self._provider
        with contextlib.suppress(ProviderLost):
            self._open_first(0, self._at, now_s)
            with contextlib.suppress(ProviderLost, OSError):
                before.close()

    def _open_first(self, start: int, end: int, now_s: float) -> None:
        for index in range(start, end):
            rung = self._rungs[index]
            try:
                provider = rung.open(now_s)
            except ProviderLost as error:
                if self._reasons.get(rung.name) != str(error):  # it is tried again every few minutes
                    log("info", "provider refused", provider=rung.name, reason=error)
                self._reasons[rung.name] = str(error)
                continue
            except Exception as error:
                # A bug in one provider, or an installation without it: the next one may be well.
                self._reasons[rung.name] = f"failed unexpectedly: {error!r}"
                log("error", "provider failed", provider=rung.name, reason=repr(error))
                continue
            self._provider, self._at = provider, index
            log("info", "provider opened", provider=provider.name, detail=provider.detail)
            return
        raise ProviderLost("no provider works here: " + "; ".join(self._refusals(self._rungs)))

    def _refusals(self, rungs: Sequence[Rung]) -> tuple[str, ...]:
        return tuple(
            f"{rung.name}: {self._reasons[rung.name]}" for rung in rungs if rung.name in self._reasons
        )
