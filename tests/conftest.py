"""Settings for all tests: Hypothesis profiles, and the tests that only ``make test-long`` runs."""

from __future__ import annotations

import os

# As the launcher does for the daemon, and as early: before grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import pytest
from hypothesis import HealthCheck, settings

# Deterministic by default: a red build must be red again. "long" searches at random, and longer.
settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--vm", action="store_true", help="also run those that boot a virtual machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make test-long"))
    if not config.getoption("--vm"):
        for item in items:
            if item.get_closest_marker("vm"):
                item.add_marker(pytest.mark.skip(reason="boots a virtual machine: make e2e-vm"))
