"""What most tests of a relayed connection begin with."""

from __future__ import annotations

import pytest

from tests.relay.http2.pair import Pair


@pytest.fixture
def pair() -> Pair:
    """A client and a runtime, and the relay between them."""
    return Pair()
