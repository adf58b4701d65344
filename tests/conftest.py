"""Settings for all tests: Hypothesis profiles, and the tests that only ``make test-long`` runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

# As the launcher does for the daemon, and as early: before grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests import form
from tests.e2e.runtimes import DEFAULT, RUNTIMES
from tests.guard import plugin as guard

# Deterministic by default: a red build must be red again. "long" searches at random, and longer.
settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Before Python 3.12, pytest-asyncio would make a loop to put back after each test; nobody closes that one.
asyncio.set_event_loop(None)

# Without bytecode every worker rewrites all tests again and each daemon compiles 200 modules: twice the processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


#: What is not done twice at a time: the tests of such folders or files are one worker's, one after the other.
ONE_AFTER_ANOTHER = (
    # Observers of both see the machine's whole traffic.
    ("tests/e2e/", "tests/bpf/"),
    ("tests/packaging/",),
    ("tests/vm/",),
    ("tests/kubelet/real/shared/",),
    ("tests/kubelet/real/dra/",),
    # A control plane with a kubelet: a daemon's doctor sees every kubelet of the machine.
    tuple(f"tests/cluster/real/test_{name}.py" for name in ("away", "daemon_sets", "node", "rollout")),
)
#: Which tests an option of its marker's name is for: what it says, and what a test that is left out without it does.
LEFT_OUT = {
    "long": ("also run the tests that take minutes", "takes minutes: make test-long"),
    "vm": ("also run those that boot a virtual machine", "boots a virtual machine: make e2e-vm"),
    "cluster": (
        "also run those on a real kube-apiserver",
        "builds and runs a kube-apiserver: make e2e-cluster",
    ),
    "kubelet": ("also run those under a real kubelet", "builds and runs a kubelet: make e2e-kubelet"),
    "cri_tools": ("also run critest and crictl", "builds and runs critest and crictl: make e2e-cri-tools"),
}
#: Where a test takes seconds: one at a time goes to the worker that is free. Elsewhere a file does.
ONE_AT_A_TIME = "tests/functional/"


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if why := form.stale():
        pytest.exit(why, returncode=2)
    cgroups = Path("/proc/self/cgroup")  # of Linux
    if cgroups.exists() and "crm-isolation-" in cgroups.read_text():
        from tests.isolation.io.hierarchy import end_left_behind

        end_left_behind()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In the order of the collection (below). Not by pytest-xdist's groups: pytest 9.2 ignores them."""
    from xdist.scheduler import LoadScopeScheduling

    class Folders(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scheduled_together(nodeid)

    config.option.loadscopereorder = False
    return Folders(config, log)


def scheduled_together(nodeid: str) -> str:
    """What a test goes to a worker with: a folder or file that is one worker's, its file, or itself alone."""
    whole = next((parts[0] for parts in ONE_AFTER_ANOTHER if nodeid.startswith(parts)), "")
    return whole or (nodeid if nodeid.startswith(ONE_AT_A_TIME) else nodeid.partition("::")[0])


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_longest_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with what takes longest as a whole, and end with single tests: they end together.

    pytest takes no function for a hook whose own name does not begin as this one's, whatever ``specname`` says.
    """
    if hasattr(config, "workerinput"):
        together = {item.nodeid: scheduled_together(item.nodeid) for item in items}
        sizes = Counter(together.values())
        whole = {parts[0] for parts in ONE_AFTER_ANOTHER}
        items.sort(key=lambda i: (together[i.nodeid] not in whole, -sizes[together[i.nodeid]]))


def pytest_addoption(parser: pytest.Parser) -> None:
    for marker, (told, _) in LEFT_OUT.items():
        parser.addoption(f"--{marker.replace('_', '-')}", action="store_true", help=told)
    parser.addoption(
        "--runtime",
        choices=tuple(RUNTIMES),
        default=DEFAULT,
        help=f"what those of tests/e2e run on: {', '.join(RUNTIMES)}; {DEFAULT} is the machine's own",
    )
    guard.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    guard.begin(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker, (_, reason) in LEFT_OUT.items():
        if not config.getoption(f"--{marker.replace('_', '-')}"):
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the tests as ^C does: what they have started ends with them."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name leaves room for the 108 bytes of a socket's path."""
    path = Path(tempfile.mkdtemp(prefix="crf-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest_asyncio.fixture
async def runtime(folder: Path) -> AsyncIterator[Any]:
    """A runtime without containers, at ``r.sock`` in the folder."""
    from tests.fake_runtime import FakeRuntime  # needs grpc, which most tests do not

    async with FakeRuntime(f"{folder}/r.sock") as runtime:
        yield runtime
