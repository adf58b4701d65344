"""The ladder of providers: the best that works here is used, and why those above it are not is told.

A rung is tried by opening it, which tests itself. When a provider is lost in service the next one below is opened;
the ones above are tried again every five minutes, one that is still being compiled with each sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable, Optional, cast

from bpf.identity.attribution import Attribution
from bpf.kernel.compiler import Compiler
from bpf.service.log import log
from bpf.service.options import Options
from bpf.sources.samples import Provider, ProviderLate, ProviderLost, Sample

RETRY_S = 300.0
_NO_V2 = "containers have no cgroup v2 of their own here (cgroup v1 only), and the kernel's ids of cgroups name no container"


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
        self._late: set[str] = set()
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
        if self._at and (self._late or now_s - self._tried_s >= RETRY_S):
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
            was_late = rung.name in self._late
            self._late.discard(rung.name)
            try:
                provider = rung.open(now_s)
            except ProviderLost as error:
                if isinstance(error, ProviderLate):
                    self._late.add(rung.name)
                # It is tried again every few minutes, or seconds.
                if self._reasons.get(rung.name) != str(error) and not (was_late and rung.name in self._late):
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


class Owners:
    """Names cgroup ids for a provider, also those of containers that have ended since the last look."""

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._before: Mapping[int, str] = {}

    def refresh(self) -> frozenset[str]:
        """Look at the cgroups anew; returns the containers that have ended since."""
        before, self._before = self._attribution.containers, self._attribution.cgroup_ids
        self._attribution.refresh()
        return frozenset(before.keys() - self._attribution.containers.keys())

    def container_of_cgroup(self, cgroup_id: int) -> Optional[str]:
        """The container's id, "" = the host's own, None = not known.

        :raises ProviderLost: there are containers now, and it shows that ids of cgroups name none of them.
        """
        if not self._attribution.has_v2_ids:
            raise ProviderLost(_NO_V2)
        found = self._attribution.container_of_cgroup(cgroup_id)
        return self._before.get(cgroup_id) if found is None else found


def rungs_of(
    options: Options, attribution: Optional[Attribution], owners: Optional[Owners], compiler: Compiler
) -> list[Rung]:
    """The ladder that ``options.provider`` means. Below what a person has chosen is only ``declared``."""
    declared = Rung("declared", lambda now_s: DeclaredProvider(now_s, is_chosen=True))
    if attribution is None or owners is None:
        return [declared]
    found = attribution, owners
    rungs = [
        Rung("ebpf", lambda _now_s: _open_ebpf(options, *found, compiler)),
        Rung("sock_diag", lambda _now_s: _open_sock_diag(found[0], compiler)),
    ]
    chosen = [rung for rung in rungs if options.provider in ("auto", rung.name)]
    return [*chosen, Rung("declared", DeclaredProvider)]


def _open_ebpf(options: Options, attribution: Attribution, owners: Owners, compiler: Compiler) -> Provider:
    attribution.refresh()
    if not attribution.has_v2_ids:
        raise ProviderLost(_NO_V2)
    from bpf.sources.ebpf import EbpfProvider
    from bpf.sources.peer_search import PeerSearch, find_peers

    return EbpfProvider(
        owners.container_of_cgroup,
        compiler=compiler,
        networks=options.remote_networks,
        openers=int(options.openers),
        peers=PeerSearch(lambda: find_peers(attribution)).peers,
    )


def _open_sock_diag(attribution: Attribution, compiler: Compiler) -> Provider:
    from bpf.sources.sock_diag import open_sock_diag

    # Its detail is worked out when asked for; the protocol has it as a plain attribute.
    return cast(Provider, open_sock_diag(attribution, compiler))
