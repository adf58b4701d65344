"""``python -m tests.packaging.runtime SOCKET``: the tests' runtime as a process, for a node that it runs beside."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.fake_runtime import FakeRuntime


async def main(socket: str) -> None:
    async with FakeRuntime(socket):
        print("serving", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    # As containerd's is: root's alone.
    os.umask(0o117)
    asyncio.run(main(sys.argv[1]))
