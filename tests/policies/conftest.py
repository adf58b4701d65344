"""What most tests of the policies begin with: the two-socket Hygon, without containers."""

from __future__ import annotations

import pytest

from policies.node import Node
from tests.machines import HYGON_7285_2S
from tests.scenes import Scene, node_of


@pytest.fixture
def node() -> Node:
    """Its books."""
    return node_of(HYGON_7285_2S)


@pytest.fixture
def scene() -> Scene:
    """Its books, and the default policy on it."""
    return Scene(HYGON_7285_2S)
