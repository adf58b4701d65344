"""A real Prometheus on temporary paths, which scrapes each second and is asked over its HTTP API."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.e2e.packages import prometheus

REPOSITORY = Path(__file__).resolve().parents[2]
MONITORING = REPOSITORY / "packaging" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
DASHBOARD = MONITORING / "dashboard.json"
#: What must come by then; a test that gets there has failed.
HANG_S = 60.0


def programs() -> Path:
    """The folder with prometheus and promtool; the test is skipped where they cannot be had."""
    try:
        return prometheus(REPOSITORY / ".cache")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Debian's prometheus cannot be had: {error}")


def rules() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Prometheus:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/api/v1/query"

    async def ask(self, query: str, time_s: Optional[float] = None) -> list[dict[str, Any]]:
        """The series of a query, now or then."""
        words = {"query": query, **({} if time_s is None else {"time": time_s})}

        def read() -> Any:
            with urlopen(f"{self._address}?{urlencode(words)}", timeout=HANG_S) as answer:
                return json.load(answer)

        answer = await asyncio.to_thread(read)
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    async def until(self, query: str) -> list[dict[str, Any]]:
        """The series of a query, once there are any."""
        deadline = asyncio.get_running_loop().time() + HANG_S
        while not (found := await self.ask(query)):
            assert asyncio.get_running_loop().time() < deadline, f"no series of {query}"
            await asyncio.sleep(0.1)
        return found

    async def scraped(self) -> None:
        """A scrape has begun after this call, and what it has found can be asked for."""
        [before] = await self.until('timestamp(up{job="cri-resmgr"})')
        await self.until(f'timestamp(up{{job="cri-resmgr"}}) > {float(before["value"][1]) + 1}')


@asynccontextmanager
async def running_prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """It scrapes ``target`` (HOST:PORT) as the job cri-resmgr, and has the alerts as its rules."""
    port, log = free_port(), folder / "prometheus.log"
    job = {"job_name": "cri-resmgr", "static_configs": [{"targets": [target]}]}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            programs() / "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=output,
            stderr=output,
        )
    try:
        deadline = asyncio.get_running_loop().time() + HANG_S
        while b"Server is ready to receive web requests" not in log.read_bytes():
            assert process.returncode is None and asyncio.get_running_loop().time() < deadline, (
                log.read_text()
            )
            await asyncio.sleep(0.1)
        yield Prometheus(port)
    finally:
        process.kill()
        await process.wait()
