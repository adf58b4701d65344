"""A plugin that is launched takes over from the one launched before it, and asks no other process to stop."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from cri_proxy.config.config import Config, read_config
from cri_proxy.node.lock import NodeLock
from cri_proxy.nri.io.plugin.plugin import launched_owner, take_over
from cri_proxy.text.sources import SettingsSource

#: Holds the lock until it is told to stop, as a daemon does. Arguments: control socket, front end.
HOLDER = """
import signal, sys
from cri_proxy.config.config import read_config
from cri_proxy.text.sources import SettingsSource
from cri_proxy.node.lock import NodeLock
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
config = read_config([SettingsSource("test", values={"control.socket": sys.argv[1]})]).config
assert NodeLock(config, sys.argv[2]).take() == ""
print("held", flush=True)
signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return read_config([SettingsSource("test", values={"control.socket": str(tmp_path / "c.sock")})]).config


async def hold(
    config: Config, front_end: str, environment: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, config["control.socket"], front_end,
        env={"PYTHONPATH": ":".join(sys.path), **environment}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process, process.stdout


async def test_one_that_was_launched_before_is_told_to_stop(config: Config) -> None:
    process, _ = await hold(config, "nri-plugin", {"NRI_PLUGIN_SOCKET": "3"})
    await take_over(config, structlog.get_logger())
    assert await process.wait() == 0
    ownership = NodeLock(config, "nri-plugin")
    assert ownership.take() == ""
    ownership.give_up()


@pytest.mark.parametrize(
    ("front_end", "environment"),
    [("nri-plugin", {}), ("proxy", {"NRI_PLUGIN_SOCKET": "3"})],
    ids=["a plugin of its own unit", "a proxy"],
)
async def test_any_other_owner_is_left_alone(
    config: Config, front_end: str, environment: dict[str, str]
) -> None:
    process, _ = await hold(config, front_end, environment)
    try:
        await take_over(config, structlog.get_logger())
        assert process.returncode is None
        assert NodeLock(config, "nri-plugin").take() != ""
    finally:
        process.kill()
        await process.wait()


async def test_where_nobody_owns_the_node_nothing_is_left_locked(config: Config) -> None:
    await take_over(config, structlog.get_logger())
    ownership = NodeLock(config, "proxy")
    assert ownership.take() == ""
    ownership.give_up()


@pytest.mark.parametrize("text", ["", "{}", '{"pid": "x", "front_end": "nri-plugin"}', "[]"])
def test_a_lock_that_says_nothing_names_nobody(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "owner.lock"
    lock.write_text(text)
    assert launched_owner(lock) == 0
    assert launched_owner(tmp_path / "none") == 0


def test_a_process_that_has_gone_is_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "owner.lock"
    lock.write_text(json.dumps({"pid": 4_000_000_000, "front_end": "nri-plugin"}))
    assert launched_owner(lock) == 0
