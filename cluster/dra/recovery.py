"""Which claims the daemon has that are gone, and which it has lost that are prepared. Pure: clocks are handed in.

Three know of a claim: the daemon, kubelet by its state file, and the API. A claim of the daemon's ends where neither of the
others has it: its pod was deleted by force while nothing ran here, or the node was away for long. A claim that kubelet has
prepared and the daemon has not is prepared again: kubelet asks for it no more.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

from cluster.dra.claims import ClaimName

#: Kubelet's file, in its folder (k8s.io/kubernetes/pkg/kubelet/cm/dra/state).
STATE_FILE = "dra_manager_state"
#: A claim that came so lately is left alone.
YOUNG_S = 60.0
#: Between two questions to the API about one claim.
ASK_S = 180.0
#: A claim is lost if it is missing in two looks so far apart: kubelet notes it a moment before or after the daemon does.
LOST_S = 3.0
#: What the answer to a node's own credentials is about an object that no pod of the node has.
NO_RELATION = "no relationship found between node"


class KubeletClaims(NamedTuple):
    """Out of kubelet's state. ``known``: UIDs of all claims; ``prepared``: those with devices of the driver, by UID."""

    known: frozenset[str]
    prepared: Mapping[str, ClaimName]


def read_kubelet(text: str, driver: str) -> KubeletClaims:
    """The claims in kubelet's state file.

    :raises ValueError: it is not understood, or its checksum is wrong.
    """
    try:
        checkpoint = json.loads(text)
        data = checkpoint["Data"]
        if zlib.crc32(data.encode()) != checkpoint["Checksum"]:
            raise ValueError("its checksum is wrong")
        rows = json.loads(data)["ClaimInfoStateList"] or ()
        claims = {row["ClaimUID"]: row for row in rows}
        prepared = {
            uid: ClaimName(str(row["Namespace"]), str(row["ClaimName"]), str(uid))
            for uid, row in claims.items()
            if ((row.get("DriverState") or {}).get(driver) or {}).get("Devices")
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not understood: {type(error).__name__} {error}") from None
    return KubeletClaims(frozenset(map(str, claims)), prepared)


class Looked(NamedTuple):
    #: To be looked up in the API: gone from there, they end.
    doubtful: tuple[ClaimName, ...] = ()
    #: To be prepared again.
    lost: tuple[ClaimName, ...] = ()


class Recovery:
    """Looks at the claims of the daemon beside those of kubelet, and remembers since when they are there or missing."""

    def __init__(self) -> None:
        self._there_since: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    def look(
        self, rows: Iterable[Mapping[str, Any]], kubelet: Optional[KubeletClaims], now_s: float
    ) -> Looked:
        """``rows``: the daemon's ``claims``, asked for before kubelet's file was read. ``kubelet`` None: its state is not
        known, and the API alone says what is gone."""
        claims: dict[str, ClaimName] = {}
        used = set()
        for row in rows:
            claim = ClaimName(*(str(row.get(key, "")) for key in ClaimName._fields))
            claims[claim.uid] = claim
            if row.get("containers"):
                used.add(claim.uid)
        prepared = {} if kubelet is None else kubelet.prepared
        missing = prepared.keys() - claims.keys()
        self._there_since = {uid: self._there_since.get(uid, now_s) for uid in claims}
        self._missing_since = {uid: self._missing_since.get(uid, now_s) for uid in missing}
        self._asked = {uid: s for uid, s in self._asked.items() if uid in claims or uid in missing}
        known = frozenset() if kubelet is None else kubelet.known
        doubtful = [
            claim
            for uid, claim in claims.items()
            if uid not in known and uid not in used and now_s - self._there_since[uid] >= YOUNG_S
        ]
        lost = [prepared[uid] for uid in sorted(missing) if now_s - self._missing_since[uid] >= LOST_S]
        return Looked(self._due(doubtful, now_s), self._due(lost, now_s))

    def asked(self, claim: ClaimName, now_s: float) -> None:
        """The API has answered about it, or the daemon has: not again so soon."""
        self._asked[claim.uid] = now_s

    def _due(self, claims: Iterable[ClaimName], now_s: float) -> tuple[ClaimName, ...]:
        return tuple(claim for claim in claims if now_s - self._asked.get(claim.uid, now_s - ASK_S) >= ASK_S)


def is_allocated_here(found: Mapping[str, Any], uid: str, driver: str, node: str) -> bool:
    """Whether a ResourceClaim is still the one of this UID, with devices of this driver on this node."""
    if (found.get("metadata") or {}).get("uid") != uid:
        return False
    allocation = (found.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return any(row.get("driver") == driver and row.get("pool") == node for row in results)
