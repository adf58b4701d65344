"""`cri-resmgr observer run` reads the usual configuration and becomes the observer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from bpf.options import Options, parse_options
from cri_proxy.cli_observer import observer, observer_options
from cri_proxy.core.config import read_config
from tests.bpf.observer import ObserverProcess, watch, write_recording


def test_the_defaults_of_both_are_the_same() -> None:
    document = observer_options(read_config([]).config)
    document["runtime_sockets"] = []
    assert parse_options(json.dumps(document), "here") == Options()


def test_a_configuration_that_is_wrong_is_a_sentence(folder: Path) -> None:
    (folder / "config.yaml").write_text("affinity:\n  provider: magic\n")
    shown = CliRunner().invoke(observer, ["run", "--config", str(folder / "config.yaml")])
    assert shown.exit_code == 1
    assert "affinity.provider" in shown.output
    assert "Traceback" not in shown.output


def test_run_becomes_the_observer_and_reads_its_configuration_again(folder: Path) -> None:
    config = folder / "config.yaml"
    settings = (
        f"state:\n  directory: {folder}\naffinity:\n  socket: {folder}/affinity.sock\n  interval: 100ms\n"
    )
    config.write_text(f"{settings}  half_life: 1s\n")
    recording = write_recording(folder / "replay.jsonl")
    code = "from cri_proxy.cli_observer import observer; observer()"
    command = [sys.executable, "-c", code, "run", "--config", str(config), "--replay", str(recording)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        client = ObserverProcess(folder)
        assert client.graph().status.half_life_s == 1.0
        assert "bpf" in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        config.write_text(f"{settings}  half_life: 2s\n")
        os.kill(process.pid, signal.SIGHUP)
        with client.channel() as channel:
            deltas = watch(channel)
            assert any(delta.status.half_life_s == 2.0 for delta in deltas)
            deltas.cancel()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert (folder / "observer" / "graph.json").exists()
