"""What several of the observer's tests begin with: containers on the real kernel, a folder for sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bpf.pod_network import Pods
from tests.bpf.pods import Host
from tests.bpf.talkers import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    host = Host()
    try:
        yield Stage(host)
    finally:
        host.close()


@pytest.fixture(params=["v2", "v1"])
def pods(request: pytest.FixtureRequest) -> Iterator[Pods]:
    made = Pods(v2=request.param == "v2")
    yield made
    made.host.close()
