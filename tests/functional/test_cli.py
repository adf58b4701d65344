"""The command line is a contract: what it prints, on which stream, and how it exits."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Optional

import click
import pytest
import pytest_asyncio
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from cri_proxy.cli.answers import NEXT_STEPS
from cri_proxy.cli.intel_flags import INTEL_FLAGS, intel_arguments
from cri_proxy.cli.main import cli
from cri_proxy.config import compatibility
from cri_proxy.config.io.files import Files, load
from cri_proxy.control import ABSENT_HINT
from cri_proxy.node.lock import NodeLock
from cri_proxy.version import VERSION
from tests.agent import ROOT, Agent
from tests.cri_client import CriClient
from tests.form import FORM
from tests.functional import support
from tests.functional.conftest import ask, until
from tests.machines import HYGON_7285_2S, machine, write_sysfs


def commands(text: str) -> list[tuple[str, ...]]:
    """The words of each, of a list with commas."""
    return [tuple(each.split()) for each in text.split(", ")]


COMMANDS = commands(
    "acknowledge, adopt, config, config check, config show, explain, kubelet, kubelet disable, "
    "kubelet enable, kubelet status, metrics, mode, placements, release, reset-policy, run, simulate, "
    "status, top, topology"
)
#: Commands that ask the daemon, with arguments that are good.
ASKING = commands(
    "acknowledge, adopt default/web/web, adopt --all, config show, explain default/web/web, metrics, "
    "mode, mode off, placements, reset-policy --replace, status"
)


def run(*words: str, environment: Optional[dict[str, str]] = None) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cri_proxy", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def invoke(*words: str) -> Any:
    """The same commands in this process, where it makes no difference."""
    return CliRunner().invoke(cli, list(words))


@pytest_asyncio.fixture
async def busy(agent: Agent, client: CriClient) -> Agent:
    """A daemon with one container."""
    await support.run_pod_with(client, "web", cpu_limit=8000, memory_limit=1 << 30)
    return agent


# ---------------------------------------------------------------------- help and usage


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help(words) -> None:
    result = invoke(*words, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.output
    assert result.output == invoke(*words, "-h").output


def test_every_command_is_listed() -> None:
    known = {words[0] for words in COMMANDS}
    assert known <= set(cli.list_commands(click.Context(cli)))
    text = invoke("--help").output
    assert [name for name in sorted(known) if f"\n  {name} " not in text] == []


def test_the_version_is_told() -> None:
    for word in ("--version", "-version"):
        assert invoke(word).output == f"cri-resmgr, version {VERSION}\n"


@pytest.mark.parametrize(
    "words",
    commands(
        "nonsense, explain, status --nonsense, mode nonsense, release, release a --all, "
        "config check, simulate x.json, run nonsense"
    ),
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(words) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert "Usage: " in result.output


# ---------------------------------------------------------------------- asking the daemon


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_a_daemon_that_is_not_running_is_one_sentence_and_a_hint(words, tmp_path) -> None:
    path = tmp_path / "c.sock"
    result = CliRunner().invoke(cli, ["--control-socket", str(path), *words])
    assert result.exit_code == 1
    assert result.output == (
        f"cri-resmgr: the daemon is not running: nothing serves {path}\n  {ABSENT_HINT}\n"
    )


def test_a_daemon_that_does_not_answer_is_one_sentence(tmp_path) -> None:
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        # It hangs up: a daemon that dies while it is asked.
        process = subprocess.Popen(
            [sys.executable, "-m", "cri_proxy", "--control-socket", str(path), "status"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        listener.accept()[0].close()
        out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    sentence = "cri-resmgr: the daemon closed the connection without an answer"
    assert error == f"{sentence}\n  {NEXT_STEPS['ControlError']}\n"


async def test_every_json_answer_is_one_document_and_nothing_else(busy) -> None:
    for words in commands(
        "status, mode, placements, explain default/web/web, config show, topology, release "
        "default/web/web, adopt default/web/web, reset-policy"
    ):
        code, out, error = await busy.cli(*words, "--json")
        assert (code, error) == (0, ""), words
        json.loads(out)


async def test_answers_for_people_say_the_same(busy) -> None:
    outs = {}
    for words in (("status",), ("placements",), ("explain", "web/web"), ("mode",), ("config", "show")):
        code, outs[words[0]], error = await busy.cli(*words)
        assert (code, error) == (0, ""), words
    assert outs["status"].startswith(f"cri-resmgr {VERSION}, {FORM}: mode enforce (default)\n")
    assert "containerd 1.7.0, runtime.v1" in outs["status"]
    assert "1 placed; 0 places held, 0 creates of unknown outcome" in outs["status"]
    header, row = outs["placements"].splitlines()
    titles = ["CONTAINER", "STATE", "LEVEL", "CPUS", "EXCLUSIVE", "MEMS", "REQUEST", "LIMIT", "MANAGED"]
    assert header.split() == titles
    cells = ["default/web/web", "running", "ccx", "0-3,64-67", "-", "0", "8000m", "8000m", "placed"]
    assert row.split() == cells
    assert "why: 8 CPUs wanted" in outs["explain"]
    assert "L3 0 (0-3,64-67): 8000m allocated, 0m free" in outs["explain"]
    assert outs["mode"] == "enforce\n"
    shown = [line.split() for line in outs["config"].splitlines()]
    assert ["relay.socket", busy.socket, f"{busy.config_file}:1"] in shown


async def test_the_daemons_refusals_exit_with_1(busy) -> None:
    for words, sentence in (
        (
            ("explain", "nobody"),
            "no container or pod 'nobody' is known, nor was one among the last decisions; see: cri-resmgr placements",
        ),
        (("adopt", "nobody"), "no container 'nobody' is known; see: cri-resmgr placements"),
        (
            ("adopt", "default/web/web"),
            "default/web/web is managed already; see: cri-resmgr explain default/web/web",
        ),
    ):
        code, out, error = await busy.cli(*words)
        assert (code, out, error) == (1, "", f"cri-resmgr: {sentence}\n")


@pytest.mark.parametrize("running", [True, False], ids=["daemon up", "daemon down"])
async def test_a_name_that_means_several_releases_none(runtime, busy, running) -> None:
    async with CriClient(busy.socket) as client:
        await support.run_pod_with(client, "web", cpu_limit=8000, pod_namespace="other")
    before = support.cpusets(runtime)
    if not running:
        await busy.kill()
    code, out, error = await busy.cli("release", "web/web", "--config", str(busy.config_file))
    assert (code, out, "'web/web' means 2 containers: default/web/web (" in error) == (1, "", True)
    assert support.cpusets(runtime) == before


async def test_a_release_that_the_runtime_refuses_is_not_called_done(runtime, busy) -> None:
    [container_id] = runtime.containers
    runtime.script("UpdateContainerResources", error=(14, "containerd is restarting"), times=1)
    code, out, _ = await busy.cli("release", "--all")
    assert (code, f" ({container_id[:13]}): 0-127  NOT DONE: " in out) == (1, True)
    await support.compared(busy)
    await support.eventually(lambda: runtime.cpuset(container_id) == "0-127", "the release is tried again")


async def test_a_release_without_daemon_that_the_runtime_refuses_is_made_by_the_next(runtime, busy) -> None:
    [container_id] = runtime.containers
    await busy.kill()
    runtime.script("UpdateContainerResources", error=(4, "containerd is slow"), times=1)
    told = []
    for _ in range(2):
        code, out, _ = await busy.cli("release", "--all", "--config", str(busy.config_file))
        told.append((code, runtime.cpuset(container_id), out.splitlines()))
    named = f"default/web/web ({container_id[:13]})"
    assert told == [
        (1, "0-3,64-67", [f"{named}: 0-127  NOT DONE: containerd is slow", "0 of 1 containers changed"]),
        (0, "0-127", [f"{named}: 0-127", "1 of 1 containers changed"]),
    ]
    assert (await support.start(busy))["containers"] == {"released": 1}


async def test_a_daemon_that_is_started_during_a_release_passes_bytes_until_that_is_over(
    runtime, busy
) -> None:
    await busy.kill()
    hold = asyncio.Event()
    script = runtime.script("UpdateContainerResources", hold=hold)
    release = asyncio.ensure_future(busy.cli("release", "--all", "--config", str(busy.config_file)))
    await runtime.wait_until(lambda: script.used == 1)
    await busy.start()
    status = await busy.ask("status")
    assert (status["mode"], "cri-resmgr release" in status["degraded"]["owner"]) == ("off", True)
    hold.set()
    code, out, _ = await release
    assert (code, "1 of 1 containers changed" in out) == (0, True)
    status = await until(busy, lambda status: not status["degraded"] and "containers" in status)
    assert (status["containers"], list(busy.state.glob("*.aside-*"))) == ({"released": 1}, [])


@pytest.mark.parametrize(
    "words", [("release", "--all"), ("reset-policy",), ("--reset-policy",)], ids=" ".join
)
async def test_beside_an_owner_of_the_node_nothing_is_done_without_the_daemon(runtime, busy, words) -> None:
    await busy.kill()
    before = support.cpusets(runtime)
    owner = NodeLock(load(Files(config=busy.config_file)).config, "proxy")
    assert owner.take() == ""
    code, out, error = await busy.cli(*words, "--config", str(busy.config_file))
    owner.give_up()
    assert (code, out, "(cri-resmgr run) places containers on this node already" in error) == (1, "", True)
    assert (support.cpusets(runtime), list(busy.state.glob("*.aside-*"))) == (before, [])


async def test_a_release_without_daemon_and_runtime_is_a_sentence(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        await runtime.stop()
        code, out, error = await agent.cli("release", "--all", "--config", str(agent.config_file))
        assert (code, out) == (1, "")
        assert "cri-resmgr: the runtime does not answer: " in error
        assert "Traceback" not in error


async def test_a_container_that_is_gone_can_be_explained(busy, runtime) -> None:
    [container_id] = runtime.containers
    async with CriClient(busy.socket) as client:
        await client.stop(container_id)
        await client.remove(container_id)
    document = await busy.ask("explain", container_id[:12])
    assert document["containers"] == []
    assert [row["cpus"] for row in document["history"]] == ["0-3,64-67"]


async def test_a_degraded_daemon_says_what_it_cannot_answer(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        agent.write_config({"topology": {"source": "/nonexistent"}})
        await agent.start()
        code, _, error = await agent.cli("placements")
        assert (code, error.startswith("cri-resmgr: the daemon is degraded and passes bytes only: ")) == (
            1,
            True,
        )
        code, out, _ = await agent.cli("status")
        assert (code, "mode off, DEGRADED\n  degraded (topology): " in out) == (0, True)


async def test_output_into_a_pipe_that_is_closed_is_no_traceback(busy) -> None:
    read, write = os.pipe()
    os.close(read)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cri_proxy", "--control-socket", str(busy.control), "metrics",
        stdout=write, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(write)
    _, error = await process.communicate()
    assert b"Traceback" not in error


# ---------------------------------------------------------------------- starting the daemon


def test_flags_of_intels_are_left_out_or_read_as_ours_with_a_warning(capsys) -> None:
    known = {"--relay-socket", "--fallback-config"}
    words = (
        "-relay-socket=/run/a.sock -metrics-interval 10s -fallback-config /etc/f --allow-untested-runtimes -v=3 "
        "-relay-dir /var/lib/x"
    )
    assert intel_arguments(words.split(), known) == [
        "--relay-socket=/run/a.sock",
        "--fallback-config",
        "/etc/f",
        "--state-dir=/var/lib/x",
    ]
    assert capsys.readouterr().err.splitlines() == [
        "warning: -metrics-interval is ignored: metrics are counted when they are read; metrics.listen",
        "warning: --allow-untested-runtimes is ignored: any runtime that serves CRI is served",
        "warning: -v is ignored: log.level and log.format say what is logged",
        "warning: -relay-dir is read as --state-dir",
    ]


@pytest.mark.parametrize("name", sorted(INTEL_FLAGS))
@pytest.mark.parametrize("dashes", ["-", "--"])
def test_each_flag_of_intels_is_accepted_and_said_or_refused_by_name(name, dashes, capsys) -> None:
    flag, given = INTEL_FLAGS[name], f"{dashes}{name}"
    words = [given, *(["value"] if flag.takes_value and not flag.is_refused else []), "--strict"]
    if flag.is_refused:
        with pytest.raises(click.UsageError) as error:
            intel_arguments(words, {"--strict"})
        assert str(error.value) == f"{given} is no flag here: {flag.says}"
    else:
        kept = [f"{flag.ours}=value"] if flag.ours else []
        assert intel_arguments(words, {"--strict"}) == [*kept, "--strict"]
        assert capsys.readouterr().err.startswith(f"warning: {given} is ")
    if flag.takes_value and not flag.is_refused:
        with pytest.raises(click.UsageError, match="requires an argument"):
            intel_arguments([given], set())


@pytest.mark.parametrize("words", [(), ("run",), ("--control-socket", "/c.sock", "run")], ids="-".join)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--confg /x", "--config"),
        ("-confg=/x", "--config"),
        ("--strct", "--strict"),
        ("--dry-run", "--dry-run is no flag here: relay.mode: observe decides and changes nothing"),
        ("-print-config", "-print-config is no flag here: type: cri-resmgr config show"),
        ("--relay-sock=/x", "--relay-socket"),
        ("--metrics-interval 10s --config", "Option '--config' requires an argument."),
    ],
)
def test_a_daemon_is_not_started_with_a_flag_that_it_has_not(words, flags, said) -> None:
    result = invoke(*words, *flags.split())
    error = result.output.partition("Error: ")[2]
    assert (result.exit_code, said in error) == (2, True), result.output


@pytest.mark.parametrize("command", ["nri run", "observer run", "web", "kubelet enable", "run"])
def test_no_command_that_starts_something_takes_a_typo(command) -> None:
    result = invoke(*command.split(), "--confg", "/x")
    assert (result.exit_code, "No such option" in result.output) == (2, True), result.output


@pytest.mark.parametrize("subcommand", [(), ("run",)], ids=["bare", "run"])
async def test_it_runs_as_intels_unit_starts_it(runtime, subcommand) -> None:
    async with support.new_agent(runtime) as agent:
        forced = agent.folder / "forced.cfg"
        forced.write_text("policy:\n  ReservedResources:\n    CPU: cpuset:0\n")
        flags = [f"-fallback-config={agent.config_file}", "-force-config", str(forced)]
        flags += [f"-relay-socket={agent.socket}", f"-runtime-socket=unix://{runtime.socket}"]
        if not subcommand:
            flags += ["-metrics-interval", "10s"]
        code = f"import sys; sys.argv[1:] = {[*subcommand, *flags]!r}; import cri_proxy.__main__"
        await agent.start(command=(sys.executable, "-c", code))
        assert (await ask(agent, "status"))["reserved"] == "0"
        origins = {row["key"]: row["origin"] for row in await ask(agent, "config")}
        assert origins["policy.ReservedResources.CPU"] == f"{forced}:3"
        assert origins["relay.socket"] == "command line"


@pytest.mark.parametrize(
    "words", [("reset-policy",), ("--reset-policy",), ("-reset-policy",)], ids=["ours", "Intel's", "Go's"]
)
async def test_the_state_is_set_aside_with_the_daemon_down(busy, words) -> None:
    await busy.terminate()
    code, out, _ = await busy.cli(*words, "--config", str(busy.config_file))
    assert (code, out.splitlines()[0]) == (0, "state set aside as state.db.aside-1")
    assert (await support.start(busy))["containers"] == {"adopted": 1}


async def test_intels_reset_policy_leaves_a_running_daemon_its_state(busy) -> None:
    code, _, error = await busy.cli("--reset-policy", "--config", str(busy.config_file))
    assert (code, error) == (
        1,
        f"cri-resmgr: the daemon is running: {busy.socket} is served\n  use: cri-resmgr reset-policy\n",
    )
    assert (await support.restart(busy))["containers"] == {"placed": 1}


async def test_a_socket_that_cannot_be_had_ends_the_daemon_with_a_sentence(runtime) -> None:
    async with support.new_agent(runtime) as agent:
        (agent.folder / "file").write_text("")
        agent.write_config({"relay": {"socket": str(agent.folder / "file" / "k.sock")}})
        await agent.start(ready=False)
        assert await support.ended(agent) == 1
        assert (
            f"{agent.folder}/file/k.sock cannot be served: its folder cannot be made: File exists"
            in agent.log()
        )
        assert "Traceback" not in agent.log()


# ---------------------------------------------------------------------- configuration


def test_a_good_file_is_good(tmp_path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("placement:\n  ladder: fine\n")
    result = run("config", "check", str(file))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{file}: good\n", "")


def test_errors_and_unknown_keys_are_shown_with_file_and_line(tmp_path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("placement:\n  ladder: rope\n  lader: fine\nnri:\n  sync_timeout: -1\n")
    result = run("config", "check", str(file))
    assert (result.returncode, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert f'{file}:2: placement.ladder is "rope", expected manual or fine' in lines
    assert f"{file}:3: unknown key placement.lader; did you mean placement.ladder?" in lines
    assert any(line.startswith(f'{file}:5: nri.sync_timeout is "-1", expected a duration') for line in lines)


def test_what_files_of_intels_say_besides_is_a_warning_and_no_error(tmp_path) -> None:
    file = tmp_path / "fallback.cfg"
    file.write_text("policy: {Active: static}\ndump: {Config: off}\n")
    result = run("config", "check", str(file))
    assert (result.returncode, result.stdout) == (0, f"{file}: good\n")
    assert result.stderr.splitlines() == [
        f'warning: {file}:1: policy.Active is "static"; topology-aware is placed by instead',
        f"warning: {file}:2: dump.Config has no meaning here: {compatibility.REASONS['dump']}",
    ]


async def test_a_diff_says_what_a_reload_would_move_and_moves_nothing(runtime, busy) -> None:
    before = support.cpusets(runtime)
    file = busy.folder / "other.yaml"
    changes: list[tuple[dict[str, Any], str, str]] = [
        ({"placement": {"ladder": "fine"}}, "placement.ladder: manual -> fine", "nothing would move"),
        (
            {"policy": {"Active": "topology-aware"}},
            "policy.Active: hygon -> topology-aware",
            "nothing would move",
        ),
        (
            {"policy": {"ReservedResources": {"CPU": "4"}}},
            'policy.ReservedResources.CPU: "" -> 4',
            "1 of 1 containers would move",
        ),
    ]
    for change, differs, told in changes:
        file.write_text(json.dumps({**busy.config, **change}))
        code, out, error = await busy.cli("config", "check", str(file), "--diff")
        assert (code, error) == (0, "")
        lines = out.splitlines()
        assert [lines[0], lines[1], lines[-1]] == [f"{file}: good", differs, told]
    assert lines[2].split()[:4] == ["default/web/web", "0-3,64-67", "->", "2-3,66-67"]
    assert support.cpusets(runtime) == before
    assert (await busy.ask("status"))["policy"] == "hygon"


async def test_a_diff_of_the_daemons_own_file_is_against_what_it_runs_with(busy) -> None:
    _, out, _ = await busy.cli("config", "check", str(busy.config_file), "--diff")
    assert out == f"{busy.config_file}: good\nnothing would move\n"
    busy.write_config({"placement": {"memory": "off"}})
    _, out, _ = await busy.cli("config", "check", str(busy.config_file), "--diff")
    assert out.splitlines()[1:] == ["placement.memory: prefer -> off", "nothing would move"]


def test_a_diff_without_a_daemon_is_one_sentence_and_a_hint(tmp_path) -> None:
    file, path = tmp_path / "good.yaml", tmp_path / "c.sock"
    file.write_text("placement: {ladder: fine}\n")
    result = invoke("--control-socket", str(path), "config", "check", str(file), "--diff")
    assert result.exit_code == 1
    assert result.output.splitlines()[1:] == [
        f"cri-resmgr: the daemon is not running: nothing serves {path}",
        f"  {ABSENT_HINT}",
    ]


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe\x00", b"a: [\n"], ids=["absent", "not text", "not YAML"]
)
def test_a_file_that_cannot_be_read_is_one_sentence(content, tmp_path) -> None:
    file = tmp_path / "bad.yaml"
    if content is not None:
        file.write_bytes(content)
    for words, hints in ((("config", "check", str(file)), 0), (("config", "show", "--config", str(file)), 1)):
        result = invoke(*words)
        assert (result.exit_code, str(file) in result.output) == (1, True)
        assert len(result.output.splitlines()) in (1, 1 + hints)


def test_show_tells_where_each_value_is_from(tmp_path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("\nplacement:\n  ladder: fine\n")
    rows = {
        row["key"]: row
        for row in json.loads(invoke("config", "show", "--config", str(file), "--json").output)
    }
    assert rows["placement.ladder"] == {"key": "placement.ladder", "value": "fine", "origin": f"{file}:3"}
    assert rows["placement.memory"]["origin"] == "default"


# ---------------------------------------------------------------------- topology


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return write_sysfs(HYGON_7285_2S, tmp_path)


def test_a_saved_sysfs_is_drawn_and_goes_through_json(sysfs, tmp_path) -> None:
    drawn = run("topology", "--sysfs", str(sysfs))
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert "HygonGenuine: 2 sockets" in drawn.stdout
    saved = run("topology", "--sysfs", str(sysfs), "--json")
    document = json.loads(saved.stdout)
    assert len(document["cpus"]) == len(machine(HYGON_7285_2S).cpus)
    file = tmp_path / "topology.json"
    file.write_text(saved.stdout)
    assert invoke("topology", "--sysfs", str(file)).output == drawn.stdout
    assert invoke("topology", "--sysfs", str(file), "--json").output == saved.stdout


def test_a_terminal_without_box_characters_gets_none(sysfs) -> None:
    drawn = run("topology", "--sysfs", str(sysfs), environment={"PYTHONIOENCODING": "ascii"})
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout == invoke("topology", "--sysfs", str(sysfs), "--ascii").output


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"cpus": []}'], ids=["absent", "empty", "a list", "no CPUs"]
)
def test_a_machine_that_cannot_be_read_is_a_sentence(content, tmp_path) -> None:
    file = tmp_path / "topology.json"
    if content is not None:
        file.write_text(content)
    result = invoke("topology", "--sysfs", str(file))
    assert (result.exit_code, str(file) in result.output) == (1, True)
    assert result.output.startswith("cri-resmgr: ")
    assert "Traceback" not in result.output


def test_an_empty_sysfs_is_a_sentence(tmp_path) -> None:
    result = invoke("topology", "--sysfs", str(tmp_path))
    assert (result.exit_code, str(tmp_path) in result.output) == (1, True)


# ---------------------------------------------------------------------- metrics


async def test_metrics_are_prometheus_text_and_hold_what_was_promised(busy) -> None:
    code, out, error = await busy.cli("metrics")
    assert (code, error) == (0, "")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(out)
        for sample in family.samples
    }
    names = {name for name, _ in samples}
    placed = (("method", "CreateContainer"), ("outcome", "placed"))
    assert samples["cri_resmgr_requests_total", placed] == 1
    assert samples["cri_resmgr_decision_seconds_count", ()] == 1
    assert samples["cri_resmgr_mode", (("mode", "enforce"),)] == 1
    assert samples["cri_resmgr_mode", (("mode", "off"),)] == 0
    assert samples["cri_resmgr_degraded", ()] == 0
    assert samples["cri_resmgr_tickets_in_doubt", ()] == 0
    assert samples["cri_resmgr_build_info", (("version", VERSION),)] == 1
    l3 = (("domain", "L3 0"), ("level", "l3"), ("pool", "shared"))
    assert samples["cri_resmgr_cpus", l3] == 8
    assert samples["cri_resmgr_charged_milli_cpus", (("domain", "L3 0"), ("level", "l3"))] == 8000
    assert samples["cri_resmgr_containers", (("stance", "placed"),)] == 1
    assert {"cri_resmgr_updates_total", "cri_resmgr_drift_total"} <= names | _families(out)


def _families(text: str) -> set[str]:
    """Names of counters, also those that have counted nothing yet."""
    return {
        f"{family.name}_total" for family in text_string_to_metric_families(text) if family.type == "counter"
    }


async def test_metrics_are_served_over_http(start_agent) -> None:
    agent = await start_agent(metrics={"listen": "127.0.0.1:18894"})

    def get(path: str) -> tuple[int, str, str]:
        request = urllib.request.Request(f"http://127.0.0.1:18894{path}")
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, reply.headers["Content-Type"], reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    status, kind, text = await asyncio.to_thread(get, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert list(text_string_to_metric_families(text))
    status, _, text = await asyncio.to_thread(get, "/secrets")
    assert (status, text) == (404, "only GET /metrics is served\n")
    # Whoever sends something else is hung up on; the daemon goes on.
    reader, writer = await asyncio.open_connection("127.0.0.1", 18894)
    writer.write(b"\x16\x03\x01" * 8000)
    assert await reader.read() == b""
    writer.close()
    assert (await ask(agent, "status"))["degraded"] == {}


# ---------------------------------------------------------------------- mistakes that a daemon answers

#: A daemon whose policy may look at no place at all.
SPENT = "import policies.ladder; policies.ladder.BUDGET = 0; import cri_proxy.__main__"


async def test_a_container_that_the_budget_does_not_place_stays_and_is_said(runtime) -> None:
    support.run_without_us(runtime, "web", cpu_limit=4000)
    before = support.cpusets(runtime)
    async with support.new_agent(runtime) as agent:
        await agent.start(command=(sys.executable, "-c", SPENT))
        await until(agent, lambda status: status.get("containers") == {"adopted": 1})
        code, out, error = await agent.cli("adopt", "default/web/web")
        assert (code, out) == (1, "")
        assert error == (
            "cri-resmgr: default/web/web cannot be placed, and stays as it is: more than 0 places to look at; "
            "see: cri-resmgr explain default/web/web\n"
        )
        code, out, error = await agent.cli("adopt", "--all")
        assert (code, error) == (0, "")
        assert "): left as it is: more than 0 places to look at\n0 of 1 containers changed\n" in out
        assert "Traceback" not in agent.log()
    assert support.cpusets(runtime) == before


async def test_an_observer_that_is_not_there_has_a_next_step(agent) -> None:
    code, out, error = await agent.cli("observer", "status")
    assert (code, out) == (1, "")
    assert error.startswith("cri-resmgr: no observer answers at ")
    assert "\n  systemctl enable --now cri-resmgr-observer; " in error
