"""The order in which workers get tests."""

from __future__ import annotations

import pytest

from tests import conftest


def test_the_order_is_a_hook_that_pytest_calls(request: pytest.FixtureRequest) -> None:
    called = request.config.pluginmanager.hook.pytest_collection_modifyitems.get_hookimpls()
    assert conftest.pytest_longest_first in [one.function for one in called]
