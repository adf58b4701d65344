"""Whatever is broken at a start: the socket is served, a pod starts, and the status says why in one sentence."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional import support
from tests.functional.conftest import ask, until


async def _check_a_pod_starts_untouched(agent: Agent, runtime: FakeRuntime, name: str = "web") -> None:
    async with CriClient(agent.socket) as client:
        _, container_id = await support.run_pod_with(client, name, cpu_limit=8000)
    assert runtime.cpuset(container_id) == ""


def _check_ready_said(agent: Agent, *words: str) -> None:
    first = support.message_with(agent, "READY=1") or ""
    status = first.partition("STATUS=")[2]
    assert status.startswith("degraded: "), agent.messages
    assert "\n" not in status
    for word in words:
        assert word in status


async def _only_reason(agent: Agent, topic: str) -> str:
    status = await ask(agent, "status")
    assert status["mode"] == "off"
    assert set(status["degraded"]) == {topic}
    reason = str(status["degraded"][topic])
    assert "\n" not in reason
    return reason


# ---------------------------------------------------------------------- the configuration


BROKEN = {"placement": {"ladder": "rope"}}
BROKEN_REASON = 'placement.ladder is "rope", expected manual or fine'


async def test_a_first_start_with_a_broken_configuration_passes_bytes_and_recovers_by_itself(runtime) -> None:
    async with support.new_agent(runtime, **BROKEN) as agent:
        await agent.start()
        _check_ready_said(agent, BROKEN_REASON)
        reason = await _only_reason(agent, "config")
        assert reason.startswith("containers are not placed until there is a valid configuration: ")
        assert f"{agent.config_file}:1: {BROKEN_REASON}" in reason
        await _check_a_pod_starts_untouched(agent, runtime)
        agent.write_config({"placement": {"ladder": "fine"}})
        await until(agent, lambda status: status["mode"] == "enforce" and not status["degraded"])
        async with CriClient(agent.socket) as client:
            _, container_id = await support.run_pod_with(client, "placed", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""


async def test_a_broken_configuration_is_no_harm_where_one_has_loaded_before(runtime, start_agent) -> None:
    agent = await start_agent(placement={"ladder": "fine"})
    await agent.terminate()
    agent.write_config(BROKEN)
    status = await support.start(agent)
    reason = status["degraded"]["config"]
    assert reason.startswith(f"the last configuration that loaded is in force: {agent.config_file}:1: ")
    assert status["mode"] == "enforce"
    shown = {row["key"]: row for row in await ask(agent, "config")}
    assert shown["placement.ladder"]["value"] == "fine"
    assert shown["placement.ladder"]["origin"] == f"{agent.config_file}:1 (last one that loaded)"
    async with CriClient(agent.socket) as client:
        _, container_id = await support.run_pod_with(client, "web", cpu_limit=8000)
    assert runtime.cpuset(container_id) != ""
    agent.write_config({"placement": {"ladder": "manual"}})
    agent.reload()
    await until(agent, lambda status: not status["degraded"])


async def test_a_configuration_that_is_not_yaml_is_no_harm_with_the_sockets_on_the_command_line(
    runtime,
) -> None:
    async with support.new_agent(runtime) as agent:
        agent.config_file.write_text("relay:\n\tsocket: /nowhere\n")
        flags = ("--relay-socket", agent.socket, "--control-socket", str(agent.control))
        await agent.start(*flags, "--runtime-socket", runtime.socket, "--state-dir", str(agent.state))
        reason = await _only_reason(agent, "config")
        assert f"{agent.config_file}:2: this is not YAML" in reason
        await _check_a_pod_starts_untouched(agent, runtime)


async def test_a_configuration_that_is_not_there_is_said(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        agent.config_file.unlink()
        flags = ("--relay-socket", agent.socket, "--control-socket", str(agent.control))
        await agent.start(*flags, "--runtime-socket", runtime.socket, "--state-dir", str(agent.state))
        assert "cannot be read: No such file or directory" in await _only_reason(agent, "config")


async def test_a_configuration_that_nothing_is_written_to_holds_up_neither_a_start_nor_a_reload(
    runtime,
) -> None:
    async with support.new_agent(runtime) as agent:
        text = agent.config_file.read_text()
        agent.config_file.unlink()
        os.mkfifo(agent.config_file)
        flags = ("--relay-socket", agent.socket, "--control-socket", str(agent.control))
        await agent.start(*flags, "--runtime-socket", runtime.socket, "--state-dir", str(agent.state))
        assert "it is a FIFO, expected a regular file" in await _only_reason(agent, "config")
        await _check_a_pod_starts_untouched(agent, runtime)
        agent.reload()
        await agent.wait_notified("RELOADING=1")
        await agent.wait_notified("READY=1")
        await _check_a_pod_starts_untouched(agent, runtime, "another")
        agent.config_file.unlink()
        agent.config_file.write_text(text)
        await until(agent, lambda status: status["mode"] == "enforce" and "config" not in status["degraded"])


# ---------------------------------------------------------------------- the machine, the state, the runtime


async def test_an_empty_sys_passes_bytes_and_recovers_by_itself(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        topology = agent.folder / "topology.json"
        empty = agent.folder / "sys"
        empty.mkdir()
        agent.write_config({"topology": {"source": str(empty)}})
        await agent.start()
        _check_ready_said(agent, str(empty))
        assert str(empty) in await _only_reason(agent, "topology")
        await _check_a_pod_starts_untouched(agent, runtime)
        empty.rmdir()
        empty.symlink_to(topology)
        status = await until(agent, lambda status: status["mode"] == "enforce")
        assert status["degraded"] == {}
        await until(agent, lambda status: status["containers"] == {"adopted": 1})


async def test_a_file_where_the_state_directory_should_be_costs_only_durability(runtime) -> None:
    async with support.new_agent(runtime, constants={"reconcile_poll_s": 0.1}) as agent:
        agent.state.write_text("not a directory")
        status = await support.start(agent)
        _check_ready_said(agent, f"{agent.state}: it is not a directory")
        assert (status["mode"], status["degraded"].keys()) == ("enforce", {"state", "last config"})
        async with CriClient(agent.socket) as client:
            _, container_id = await support.run_pod_with(client, "web", cpu_limit=8000)
            assert runtime.cpuset(container_id) != ""
            agent.state.unlink()
            await support.run_pod_with(client, "more", cpu_limit=8000)
        status = await until(agent, lambda status: "state" not in status["degraded"])
        await agent.kill()
        assert (await support.start(agent))["containers"] == {"placed": 2}


async def test_the_daemon_starts_before_the_runtime(runtime) -> None:
    await runtime.stop()
    async with support.new_agent(runtime) as agent:
        await agent.start()
        status = await ask(agent, "status")
        assert (status["mode"], status["runtime"]["connected"]) == ("enforce", False)
        await runtime.start()
        await until(agent, lambda status: status["runtime"]["connected"])
        async with CriClient(agent.socket) as client:
            _, container_id = await support.run_pod_with(client, "web", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""


async def test_a_log_that_cannot_be_written_costs_no_request(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        agent.log_file.symlink_to("/dev/full")
        await support.start(agent)
        async with CriClient(agent.socket) as client:
            _, container_id = await support.run_pod_with(client, "web", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""


# ---------------------------------------------------------------------- strict


def _break_config(agent: Agent) -> str:
    agent.write_config(BROKEN)
    return f"{agent.config_file}:1: {BROKEN_REASON}"


def _break_unknown_key(agent: Agent) -> str:
    agent.write_config({"placement": {"lader": "fine"}})
    return "unknown key placement.lader; did you mean placement.ladder?"


def _break_topology(agent: Agent) -> str:
    (agent.folder / "sys").mkdir()
    agent.write_config({"topology": {"source": str(agent.folder / "sys")}})
    return str(agent.folder / "sys")


def _break_state(agent: Agent) -> str:
    agent.state.write_text("not a directory")
    return f"{agent.state}: it is not a directory"


@pytest.mark.parametrize("damage", [_break_config, _break_unknown_key, _break_topology, _break_state])
async def test_strict_exits_with_the_sentence_instead(runtime, damage) -> None:
    async with support.new_agent(runtime) as agent:
        sentence = damage(agent)
        await agent.start("--strict", ready=False)
        assert await support.ended(agent) == 1
        log = agent.log()
        assert sentence in log
        assert "Traceback" not in log
        assert not Path(agent.socket).exists()
        assert not agent.control.exists()


# ---------------------------------------------------------------------- the program itself


DEPENDENCIES = ("structlog", "hpack", "yaml", "click")


@pytest.mark.parametrize("name", DEPENDENCIES)
async def test_a_dependency_that_is_gone_leaves_a_process_that_passes_bytes(runtime, name) -> None:
    async with support.new_agent(runtime) as agent:
        flags = ("--relay-socket", agent.socket, "--runtime-socket", f"unix://{runtime.socket}")
        with support.broken_module(agent.folder, name) as environment:
            await agent.start(*flags, environment=environment)
        _check_ready_said(agent, "passing bytes only: ImportError: it is broken")
        await _check_a_pod_starts_untouched(agent, runtime)
        assert "cri-resmgr: degraded, passing bytes only: ImportError: it is broken" in agent.log()
        async with CriClient(agent.socket) as client:  # it ends with this connection, and says nothing of it
            assert len(await client.list_containers()) == 1
            before = agent.log()
            assert await agent.terminate() == 0
        assert agent.log() == before


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("TypeError('not that version')", "TypeError: not that version"),
        ("OSError(24, 'Too many open files')", "OSError: [Errno 24] Too many open files"),
    ],
    ids=["a bug", "an error of the system"],
)
async def test_a_daemon_that_fails_unexpectedly_leaves_a_process_that_passes_bytes(
    runtime, error, sentence
) -> None:
    async with support.new_agent(runtime) as agent:
        flags = ("--relay-socket", agent.socket, "--runtime-socket", runtime.socket)
        text = f"class processors:\n    def JSONRenderer(): raise {error}\n"
        with support.broken_module(agent.folder, "structlog", text) as environment:
            await agent.start(*flags, environment=environment)
        _check_ready_said(agent, sentence)
        assert "Traceback" in agent.log()
        await _check_a_pod_starts_untouched(agent, runtime)


async def test_it_serves_the_sockets_of_the_last_configuration(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        more = str(agent.folder / "more.sock")
        agent.write_config({"relay": {"extra_sockets": [more]}})
        await support.start(agent)
        await agent.terminate()
        with support.broken_module(agent.folder, "structlog") as environment:
            await agent.start("--state-dir", str(agent.state), environment=environment)
        await _check_a_pod_starts_untouched(agent, runtime)
        async with CriClient(more) as client:
            assert len(await client.list_containers()) == 1


async def test_strict_exits_where_a_dependency_is_gone(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        with support.broken_module(agent.folder, "structlog") as environment:
            await agent.start("--strict", environment=environment, ready=False)
        assert await support.ended(agent) == 1
        assert "ImportError: it is broken" in agent.log()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--fallback-config",), "Option '--fallback-config' requires an argument."),
        (("extra",), "Got unexpected extra argument (extra)"),
        (("--confg", "/x"), "No such option"),
        (("-host-root", "/host"), "-host-root is no flag here: set topology.source"),
    ],
    ids=["a flag without its value", "a word too many", "a typo", "a flag of Intel's"],
)
async def test_a_service_whose_command_line_is_wrong_passes_bytes(runtime, words, sentence) -> None:
    async with support.new_agent(runtime) as agent:
        await agent.start("--relay-socket", agent.socket, "--runtime-socket", runtime.socket, *words)
        _check_ready_said(agent, f"passing bytes only: the command line is wrong: {sentence}")
        assert "systemctl cat cri-resource-manager" in agent.last_status()
        await _check_a_pod_starts_untouched(agent, runtime)
        assert await agent.terminate() == 0
        assert "Traceback" not in agent.log()


async def test_a_flag_of_intels_after_run_is_ignored_with_a_warning(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        status = await support.start(agent, "--metrics-interval", "10s")
        assert (status["mode"], status["degraded"]) == ("enforce", {})
        assert "warning: --metrics-interval is ignored: metrics are counted when they are read" in agent.log()


@pytest.mark.parametrize(
    "words",
    [("--strict", "extra"), ("extra",), ("--confg", "/x"), ("--dry-run",), ("-print-config",)],
    ids=["strict", "at a terminal", "a typo", "dry run", "print config"],
)
def test_wrong_usage_ends_what_is_strict_or_was_typed(words, tmp_path) -> None:
    terminal, its_end = os.openpty()
    with contextlib.closing(os.fdopen(its_end)) as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "cri_proxy", "run", "--relay-socket", str(tmp_path / "k.sock"), *words],
            stderr=subprocess.DEVNULL if "--strict" in words else stderr, timeout=60, check=False,
        )  # fmt: skip
    os.close(terminal)
    assert (done.returncode, (tmp_path / "k.sock").exists()) == (2, False)


async def test_other_commands_say_what_is_broken_and_serve_nothing(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        with support.broken_module(agent.folder, "click") as environment:
            process = subprocess.run(
                [sys.executable, "-m", "cri_proxy", "--control-socket", str(agent.control), "status"],
                env=environment, capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
    assert process.returncode == 1
    sentence = "cri-resmgr: it cannot run: ImportError: it is broken\n  reinstall the package\n"
    assert process.stderr == sentence
