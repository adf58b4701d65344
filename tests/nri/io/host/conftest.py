"""What most tests of the host of NRI plugins begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.nri.io.host.hosting import Hosting, hosting


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Hosting]:
    """A host that runs, below ``tmp_path``, without plugins."""
    async with hosting(tmp_path) as it:
        yield it
