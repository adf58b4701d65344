"""When a client called last: an ``Interceptor`` around the one that decides, for ``cri-resmgr doctor``."""

from __future__ import annotations

import time
from typing import Callable, Optional

from cri_proxy.relay.interception import Interception, Interceptor


class LastCall:
    """Notes the time of every call, intercepted or not; ``clock`` counts seconds."""

    def __init__(self, decides: Interceptor, clock: Callable[[], float] = time.monotonic) -> None:
        self._decides = decides
        self._clock = clock
        self._at_s: Optional[float] = None

    def open(self, full_method: str) -> Optional[Interception]:
        """As the one inside."""
        self._at_s = self._clock()
        return self._decides.open(full_method)

    @property
    def age_s(self) -> Optional[float]:
        """Seconds since then; None: there was no call yet."""
        return None if self._at_s is None else self._clock() - self._at_s
