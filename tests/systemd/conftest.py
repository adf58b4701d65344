"""The functional tests' runtime, for daemons that are run as the unit runs them."""

from tests.functional.conftest import folder, runtime

__all__ = ["folder", "runtime"]
