"""Plugins as systemd units: systemd is asked to start one, its program fetches the connection and becomes the plugin."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api.supervisor import Supervisor
from cri_proxy.nri.dispatch import Preregistered
from cri_proxy.nri.io import launcher as nri_launcher
from cri_proxy.nri.io.connection import NriConnection
from cri_proxy.nri.io.host.launch import ChildLauncher, UnitLauncher
from cri_proxy.nri.io.host.supervisor import launcher_of
from cri_proxy.nri.io.launcher import unit_name
from tests.nri.io.host.plugins import HANG_S, REPOSITORY, Log, preregister

#: A systemctl that starts the unit's program, as a process that is no child of the test's.
_SYSTEMCTL = """#!/bin/sh
echo "$@" >> {folder}/asked
[ "$2" = restart ] || exit 0
instance=${{3#cri-resmgr-nri@}}
{python} -I {launcher} "${{instance%.service}}" {address} 2>> {folder}/said &
"""


@pytest.fixture
def systemctl(tmp_path: Path) -> Path:
    program = tmp_path / "systemctl"
    program.write_text(
        _SYSTEMCTL.format(
            folder=tmp_path,
            python=sys.executable,
            launcher=nri_launcher.__file__,
            address=tmp_path / "nri/launch.sock",
        )
    )
    program.chmod(0o755)
    return program


def registered(tmp_path: Path, title: str) -> tuple[Preregistered, Log]:
    log = preregister(tmp_path / "plugins", title)
    index, _, name = title.partition("-")
    return Preregistered(index, name, str(tmp_path / "plugins" / title)), log


async def test_a_unit_gets_its_connection_and_environment_from_the_daemon(tmp_path, systemctl) -> None:
    plugin, log = registered(tmp_path, "10-foo+bar")
    launcher = UnitLauncher(str(tmp_path / "nri/launch.sock"), [str(systemctl)])
    launcher.open()
    try:
        address = tmp_path / "nri/launch.sock"
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
        running = await launcher.launch(plugin)
        asked: asyncio.Future[nri.RegisterPluginRequest] = asyncio.get_running_loop().create_future()

        async def register(message: bytes, timeout_s: float) -> bytes:
            asked.set_result(nri.RegisterPluginRequest.FromString(message))
            return b""

        connection = NriConnection(*running.streams, "host", {"RegisterPlugin": register})
        serving = asyncio.ensure_future(connection.run())
        request = await asyncio.wait_for(asked, HANG_S)
        assert (request.plugin_name, request.plugin_idx) == ("foo+bar", "10")
        started = await log.line("started")
        assert started["pid"] == running.pid
        assert started["environment"] == {
            "NRI_PLUGIN_NAME": "foo+bar",
            "NRI_PLUGIN_IDX": "10",
            "NRI_PLUGIN_SOCKET": "3",
        }
        assert started["descriptors"]["3"] == "socket"
        connection.close("the test is over")
        await serving
        await running.end()
        assert (tmp_path / "asked").read_text().splitlines() == [
            "--no-block restart cri-resmgr-nri@10-foo\\x2bbar.service",
            "--no-block stop cri-resmgr-nri@10-foo\\x2bbar.service",
        ]
    finally:
        await launcher.close()
    assert not (tmp_path / "nri/launch.sock").exists()


async def test_a_unit_that_nobody_has_asked_for_does_not_start(tmp_path) -> None:
    launcher = UnitLauncher(str(tmp_path / "nri/launch.sock"), ["false"])
    launcher.open()
    try:
        command = [sys.executable, "-I", nri_launcher.__file__, "10-foo", str(tmp_path / "nri/launch.sock")]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(process.communicate(), HANG_S)
        assert process.returncode == 1
        assert said == b"cri-resmgr: the daemon does not want 10-foo to be started now\n"
    finally:
        await launcher.close()


async def test_a_systemd_that_refuses_is_quoted(tmp_path) -> None:
    refuses = tmp_path / "systemctl"
    refuses.write_text("#!/bin/sh\necho Unit not found. >&2\nexit 5\n")
    refuses.chmod(0o755)
    launcher = UnitLauncher(str(tmp_path / "nri/launch.sock"), [str(refuses)])
    launcher.open()
    try:
        with pytest.raises(OSError, match="restart cri-resmgr-nri@10-foo.service: Unit not found."):
            await launcher.launch(Preregistered("10", "foo", "/nowhere"))
    finally:
        await launcher.close()


async def test_the_program_says_what_it_cannot_do(tmp_path) -> None:
    for words, sentence in (
        (["10-foo", str(tmp_path / "none")], "no connection for 10-foo from"),
        ([], "usage: cri-resmgr nri launch NN-NAME"),
    ):
        command = [sys.executable, "-m", "cri_proxy", "nri", "launch", *words]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=REPOSITORY, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), HANG_S)
        assert process.returncode == 1 and sentence in said.decode()


def test_units_are_used_where_we_are_one(tmp_path) -> None:
    (tmp_path / "system").mkdir()
    unit = {"INVOCATION_ID": "x"}
    assert isinstance(launcher_of("auto", unit, tmp_path / "system"), UnitLauncher)
    assert isinstance(launcher_of("auto", unit, tmp_path / "none"), ChildLauncher)
    assert isinstance(launcher_of("auto", {}, tmp_path / "system"), ChildLauncher)
    assert isinstance(launcher_of("unit", {}, tmp_path / "none"), UnitLauncher)
    assert isinstance(launcher_of("child", unit, tmp_path / "system"), ChildLauncher)


def test_names_that_systemd_does_not_take_are_written_otherwise_and_read_back() -> None:
    assert unit_name("10-foo_b.c") == "cri-resmgr-nri@10-foo_b.c.service"
    assert unit_name("10-a+b") == "cri-resmgr-nri@10-a\\x2bb.service"
    assert os.path.basename(nri_launcher.__file__) == "launcher.py"


async def test_an_accept_that_fails_costs_no_later_launch(tmp_path, systemctl) -> None:
    plugin, _ = registered(tmp_path, "10-foo")
    told: asyncio.Queue[str] = asyncio.Queue()
    supervisor = Supervisor(lambda worker, error: error and told.put_nowait(worker.name))
    launcher = UnitLauncher(str(tmp_path / "nri/launch.sock"), [str(systemctl)], supervisor)
    launcher.open()
    try:
        await asyncio.sleep(0)
        supervisor.lives["NRI launcher"].cancel()
        assert await asyncio.wait_for(told.get(), HANG_S) == "NRI launcher"
        running = await asyncio.wait_for(launcher.launch(plugin), HANG_S)
        running.streams[1].close()
        await running.end()
    finally:
        await launcher.close()
    assert supervisor.workers == ()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process has none left meanwhile."""
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_descriptors_that_are_used_up_for_a_moment_cost_no_later_launch(tmp_path, systemctl) -> None:
    plugin, _ = registered(tmp_path, "10-foo")
    told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    supervisor = Supervisor(lambda worker, error: told.put_nowait((worker.name, error)))
    launcher = UnitLauncher(str(tmp_path / "nri/launch.sock"), [str(systemctl)], supervisor)
    launcher.open()
    try:
        with socket.socket(socket.AF_UNIX) as unit, no_descriptors():
            unit.setblocking(False)
            await asyncio.get_running_loop().sock_connect(unit, str(tmp_path / "nri/launch.sock"))
            name, error = await asyncio.wait_for(told.get(), HANG_S)
            assert (name, error.errno) == ("NRI launcher", errno.EMFILE)
            with pytest.raises(OSError, match="Too many open files"):
                await launcher.launch(plugin)
        running = await asyncio.wait_for(launcher.launch(plugin), HANG_S)
        running.streams[1].close()
        await running.end()
    finally:
        await launcher.close()


async def test_a_socket_that_cannot_be_had_now_is_had_with_a_later_launch(tmp_path, systemctl) -> None:
    plugin, _ = registered(tmp_path, "10-foo")
    (tmp_path / "nri").write_text("in the place of a folder")
    launcher = UnitLauncher(str(tmp_path / "nri/launch.sock"), [str(systemctl)])
    try:
        with pytest.raises(OSError, match="nri"):
            await launcher.launch(plugin)
        (tmp_path / "nri").unlink()
        running = await asyncio.wait_for(launcher.launch(plugin), HANG_S)
        running.streams[1].close()
        await running.end()
    finally:
        await launcher.close()
