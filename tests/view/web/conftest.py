"""The page's server before a daemon with a container."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.agent import Agent
from tests.view.web.browser import WebProcess


@pytest_asyncio.fixture
async def web(busy: Agent) -> AsyncIterator[WebProcess]:
    process = WebProcess(busy)
    await process.start()
    yield process
    await process.stop()
