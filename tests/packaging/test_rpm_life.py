"""What is the rpm's alone: its scriptlets tell a first installation from an upgrade by a mark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.packaging.kinds import RPM, Kind
from tests.packaging.roots import Root

pytestmark = pytest.mark.packages


@pytest.fixture
def kind() -> Kind:
    return RPM


def test_after_a_first_installation_that_was_cut_off_an_upgrade_is_an_upgrade(
    root: Root, install: Callable[..., str]
) -> None:
    root.pretend_systemd()
    install()
    root.asked_of_systemd()
    root.write("/var/lib/cri-resmgr/.fresh", "")
    root.write("/var/lib/cri-resmgr/.kept-cri-resource-manager", "")
    install("2")
    assert "try-restart cri-resource-manager.service" in root.asked_of_systemd()
    assert not [name for name in root.files() if name.startswith("var/lib/cri-resmgr/.")]
