"""What most tests of the engine begin with. A module on another machine has an ``engine`` of its own."""

from __future__ import annotations

import pytest

from cri_proxy.engine.engine import Engine
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on


@pytest.fixture
def engine() -> Engine:
    """The default policy on the two-socket Hygon, without containers."""
    return engine_on(HYGON_7285_2S)
