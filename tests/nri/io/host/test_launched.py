"""Pre-registered plugins are launched as NRI has it, launched again, and gone when the host is."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from cri_api import nri_v1alpha1_pb2 as nri
from tests.nri.io.host.hosting import CONTAINER, POD, hosting
from tests.nri.io.host.plugins import HANG_S, REPOSITORY, eventually, preregister


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_launched_plugin_has_its_connection_on_descriptor_3_and_nothing_else(tmp_path) -> None:
    log = preregister(tmp_path / "plugins", "10-foo")
    leak, other = os.pipe()
    os.set_inheritable(leak, True)
    try:
        async with hosting(tmp_path) as it:
            # ``start`` has waited for it.
            assert it.titles() == ["10-foo"]
            started = await log.line("started")
            assert started["environment"] == {
                "NRI_PLUGIN_NAME": "foo",
                "NRI_PLUGIN_IDX": "10",
                "NRI_PLUGIN_SOCKET": "3",
            }
            descriptors = started["descriptors"]
            held = [descriptors.pop(number) for number in ("0", "1", "2", "3")]
            assert held == ["/dev/null", "/dev/null", "pipe", "socket"]  # the pipe is our log
            assert "pipe" not in descriptors.values()
            (shown,) = it.host.plugins()
            assert (shown["origin"], shown["pid"]) == ("launched", started["pid"])
    finally:
        os.close(leak)
        os.close(other)
    await eventually(lambda: not is_alive(started["pid"]), lambda: "the plugin ends with the host")


async def test_launched_and_external_plugins_are_asked_together_in_order(tmp_path) -> None:
    preregister(tmp_path / "plugins", "20-launched")
    preregister(tmp_path / "plugins", "05-first")
    async with hosting(tmp_path) as it, it.external("10-external"):
        await it.has("05-first", "10-external", "20-launched")
        await it.host.create(POD, CONTAINER)


async def test_a_configuration_is_that_of_the_index_else_that_of_the_name(tmp_path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/10-foo.conf").write_text("of 10-foo")
    (tmp_path / "conf.d/foo.conf").write_text("of foo")
    logs = [preregister(tmp_path / "plugins", title) for title in ("10-foo", "20-foo", "30-bar")]
    async with hosting(tmp_path) as it, it.external("40-foo") as plugin:
        logs.append(plugin.log)
        told = [(await log.line("Configure"))["message"].get("config", "") for log in logs]
        # One that connects by itself brings its own.
        assert told == ["of 10-foo", "of foo", "", ""]


async def test_what_is_no_plugin_is_passed_over_with_a_line_and_the_others_start(tmp_path) -> None:
    folder = tmp_path / "plugins"
    preregister(folder, "10-good")
    preregister(folder, "bad-name")
    preregister(folder, "20-unsafe")
    (folder / "20-unsafe").chmod(0o777)
    (folder / "30-readme").write_text("not executable")
    (folder / "40-wasm").write_bytes(b"\0asm\1\0\0\0")
    (folder / "40-wasm").chmod(0o755)
    (folder / "50-folder").mkdir()
    (folder / "60-dangling").symlink_to("nowhere")
    async with hosting(tmp_path) as it:
        assert it.titles() == ["10-good"]
        assert [problem.removeprefix(f"{folder}/") for problem in it.host.problems] == [
            "20-unsafe is not launched: others may write to it (mode 0777)",
            "30-readme is not launched: it is not executable",
            "40-wasm is not launched: it is WebAssembly, which is not run here",
            "60-dangling is not launched: No such file or directory",
            "bad-name is not launched: its name is not like 10-NAME, two digits and a name",
        ]


async def test_nothing_is_launched_from_where_others_may_write(tmp_path) -> None:
    folder = tmp_path / "plugins"
    preregister(folder, "10-foo")
    folder.chmod(0o777)
    async with hosting(tmp_path) as it:
        assert it.titles() == []
        (problem,) = it.host.problems
        assert "others may write to it (mode 0777)" in problem
    folder.chmod(0o755)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/foo.conf").write_text("evil")
    (tmp_path / "conf.d/foo.conf").chmod(0o666)
    async with hosting(tmp_path) as it:
        assert it.titles() == []
        (problem,) = it.host.problems
        assert "its configuration" in problem and "others may write to it (mode 0666)" in problem


async def test_a_link_is_followed_to_a_file_that_is_safe(tmp_path) -> None:
    preregister(tmp_path / "lib", "10-foo")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/10-foo").symlink_to(tmp_path / "lib/10-foo")
    (tmp_path / "plugins/20-foo").symlink_to(tmp_path / "shared/20-foo")
    preregister(tmp_path / "shared", "20-foo")
    (tmp_path / "shared").chmod(0o777)
    async with hosting(tmp_path) as it:
        assert it.titles() == ["10-foo"]
        assert "20-foo is not launched: its directory" in it.host.problems[0]


async def test_no_directory_is_no_plugins(tmp_path) -> None:
    async with hosting(tmp_path, plugin_path=str(tmp_path / "nowhere"), config_path="") as it:
        assert (it.host.plugins(), it.host.problems) == ([], [])


async def test_a_plugin_that_cannot_run_keeps_nobody_from_starting(tmp_path) -> None:
    folder = tmp_path / "plugins"
    preregister(folder, "10-good")
    (folder / "20-broken").write_text("#!/nowhere/interpreter\n")
    (folder / "20-broken").chmod(0o755)
    preregister(folder, "30-fails", {"actions": {"Configure": [{"error": "no configuration"}]}})
    async with hosting(tmp_path) as it:
        assert it.titles() == ["10-good"]
        absent = {shown["name"]: shown for shown in it.host.plugins() if shown["state"] != "connected"}
        assert sorted(absent) == ["broken", "fails"]
        assert "no configuration" in absent["fails"]["last_error"]
        assert absent["broken"]["launches"] >= 1


async def test_a_launched_plugin_that_dies_is_launched_again_and_leaves_nothing_behind(tmp_path) -> None:
    log = preregister(tmp_path / "plugins", "10-foo")
    async with hosting(tmp_path) as it, it.external("20-other") as other:
        await it.has("10-foo", "20-other")
        first = (await log.line("started"))["pid"]
        os.kill(first, signal.SIGKILL)
        second = (await log.line("started", 2))["pid"]
        await it.has("10-foo", "20-other")
        assert not Path(f"/proc/{first}").exists()  # not even a zombie
        await it.host.run_pod(POD)
        await other.log.line("RunPodSandbox")
        assert second != first


async def test_a_launched_plugin_that_hangs_is_ended_and_launched_again(tmp_path) -> None:
    script = {"actions": {"RunPodSandbox": [{"hang": True}]}}
    log = preregister(tmp_path / "plugins", "10-foo", script)
    async with hosting(tmp_path) as it:
        first = (await log.line("started"))["pid"]
        it.set(request_timeout_s=0.1)
        await it.host.run_pod(POD)
        it.set(request_timeout_s=HANG_S)
        await log.line("started", 2)
        await eventually(lambda: not is_alive(first), lambda: "the first ends")
        await it.has("10-foo")


async def test_when_the_daemon_is_killed_its_plugins_end_also_those_that_do_not_look(tmp_path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    pid_file = tmp_path / "pid"
    (folder / "10-deaf").write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec /bin/sleep 1000\n")
    (folder / "10-deaf").chmod(0o755)
    program = (
        "import asyncio\n"
        "from pathlib import Path\n"
        "from tests.nri.io.host.hosting import hosting\n"
        "async def run():\n"
        f"    async with hosting(Path({str(tmp_path)!r}), registration_timeout_s=60.0):\n"
        "        pass\n"
        "asyncio.run(run())\n"
    )
    daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=REPOSITORY)
    try:
        await eventually(lambda: pid_file.exists() and pid_file.read_text() > "", lambda: "it is launched")
        pid = int(pid_file.read_text())
        assert is_alive(pid)
    finally:
        daemon.kill()
        await asyncio.wait_for(daemon.wait(), HANG_S)
    await eventually(lambda: not is_alive(pid), lambda: "the plugin ends with its daemon")


async def test_what_the_files_name_says_counts_and_not_what_the_plugin_does(tmp_path) -> None:
    log = preregister(tmp_path / "plugins", "10-foo")
    program = tmp_path / "plugins/10-foo"
    program.write_text(program.read_text().replace('main(["', 'main(["--name", "liar", "--index", "99", "'))
    async with hosting(tmp_path) as it:
        assert it.titles() == ["10-foo"]
        await it.host.notify(nri.REMOVE_POD_SANDBOX, POD)
        assert log.events() == ["RemovePodSandbox"]


async def test_a_plugin_that_cannot_start_says_why_in_the_log(tmp_path) -> None:
    program = tmp_path / "plugins" / "10-broken"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport there_is_no_such_module\n")
    program.chmod(0o755)
    async with hosting(tmp_path) as it:
        [shown] = it.host.plugins()
        assert "No module named 'there_is_no_such_module'" in shown["last_error"]
        said = [entry["line"] for entry in it.log.entries if entry["event"] == "an NRI plugin says"]
        assert said[-1] == "ModuleNotFoundError: No module named 'there_is_no_such_module'"
        assert any("there_is_no_such_module" in warning for warning in it.warnings())
