"""crictl, at one socket; and what it prints, without what differs between two calls that do the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: How long a call may wait for the runtime; what crictl is told, too.
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str


class Crictl:
    """The program at a socket; it reads no configuration of the machine."""

    def __init__(self, program: Path, socket: str) -> None:
        self._command = (
            str(program),
            "--config=/dev/null",
            f"--runtime-endpoint=unix://{socket}",
            f"--timeout={TIMEOUT_S:g}s",
        )

    async def __call__(self, *words: str, typed: str = "") -> Said:
        """Run a subcommand that ends by itself; ``typed`` is its input."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command, *words, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment()
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(typed.encode()), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Said(process.returncode or 0, out.decode(), err.decode())

    async def ask(self, *words: str) -> str:
        """What a subcommand that must succeed prints."""
        said = await self(*words)
        assert said.code == 0, said
        return said.out.strip()

    @contextlib.asynccontextmanager
    async def lines(self, *words: str) -> AsyncIterator[asyncio.StreamReader]:
        """What a subcommand prints that goes on until it is ended."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(),
        )
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "ENDPOINT" not in name}


def alike(text: str, names: Mapping[str, str]) -> str:
    """A text with names for ids, of which the first 13 digits may be shown, and without times, addresses and others' ids."""
    for name, id in names.items():
        text = text.replace(id, f"<{name}>").replace(id[:13], f"<{name}>")
    text = re.sub(r"\b[0-9a-f]{64}\b", "<id>", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)", "<time>", text)
    text = re.sub(r"^E\d{4} \S+ +\d+ \S+\]", "<klog>", text, flags=re.MULTILINE)
    return re.sub(r"\b10\.213\.\d+\.\d+", "<address>", text)


def shape(value: Any) -> Any:
    """A JSON value without its numbers, which are texts too, and its lists in one order: measured again, both are others."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((shape(each) for each in value), key=json.dumps)
    return "#" if isinstance(value, (int, float)) or re.fullmatch(r"[0-9.]+", str(value)) else value


def shape_of(text: str) -> Any:
    """The shape of what was printed as JSON."""
    return shape(json.loads(text))
