"""The providers of this host, best first, and how each is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, cast

from bpf.identity.attribution import Attribution
from bpf.service.options import Options
from bpf.sources.fallback import DeclaredProvider, Rung
from bpf.sources.samples import Provider, ProviderLost

_NO_V2 = "containers have no cgroup v2 of their own here (cgroup v1 only), and the kernel's ids of cgroups name no container"


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


def rungs_of(options: Options, attribution: Optional[Attribution], owners: Optional[Owners]) -> list[Rung]:
    """The ladder that ``options.provider`` means. Below what a person has chosen is only ``declared``."""
    declared = Rung("declared", lambda now_s: DeclaredProvider(now_s, is_chosen=True))
    if attribution is None or owners is None:
        return [declared]
    found = attribution, owners
    rungs = [
        Rung("ebpf", lambda _now_s: _open_ebpf(options, *found)),
        Rung("sock_diag", lambda _now_s: _open_sock_diag(options, found[0])),
    ]
    chosen = [rung for rung in rungs if options.provider in ("auto", rung.name)]
    return [*chosen, Rung("declared", DeclaredProvider)]


def _open_ebpf(options: Options, attribution: Attribution, owners: Owners) -> Provider:
    attribution.refresh()
    if not attribution.has_v2_ids:
        raise ProviderLost(_NO_V2)
    from bpf.sources.ebpf import EbpfProvider
    from bpf.sources.peer_search import PeerSearch, find_peers

    return EbpfProvider(
        owners.container_of_cgroup,
        python=options.python,
        networks=options.remote_networks,
        openers=int(options.openers),
        peers=PeerSearch(lambda: find_peers(attribution)).peers,
    )


def _open_sock_diag(options: Options, attribution: Attribution) -> Provider:
    from bpf.sources.sock_diag import open_sock_diag

    # Its detail is worked out when asked for; the protocol has it as a plain attribute.
    return cast(Provider, open_sock_diag(attribution, options.python))
