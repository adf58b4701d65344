"""`cri-resmgr observer run` reads the usual configuration and becomes the observer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from bpf.service.options import Options, parse_options
from cri_proxy.cli.observer import observer, observer_options
from cri_proxy.config.cluster_policy import read_policy
from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.config.constants import VARIABLE
from cri_proxy.config.io.cluster_policy_file import StoredPolicy, write_kept
from cri_proxy.config.options.table import BY_KEY, OPTIONS
from tests.bpf.observer import ObserverProcess


def test_the_defaults_of_both_are_the_same() -> None:
    document = observer_options(read_config([]).config)
    document["runtime_sockets"], document["watch"] = [], ""
    assert parse_options(json.dumps(document), "here") == Options()


#: A value that is not the default.
OTHER = {
    "affinity.listen": "127.0.0.1:7001", "affinity.provider": "declared",
    "affinity.tls_certificate": "/x.pem", "affinity.tls_key": "/x.pem", "affinity.tls_client_ca": "/x.pem",
    "affinity.within": "owner", "affinity.remote_networks": "[10.244.0.0/16]",
}  # fmt: skip


#: What only the observer reads.
OBSERVERS = [option.key for option in OPTIONS if option.observer]


def _told(text: str) -> Options:
    return Options(**observer_options(read_config([SettingsSource("c.yaml", text)]).config))


@pytest.mark.parametrize("key", OBSERVERS)
def test_what_is_documented_as_the_observers_is_told_to_it_and_live_where_that_is_said(key: str) -> None:
    default, changed = _told(""), _told(f"{key}: {OTHER[key]}")
    assert changed != default
    assert (default.live_part_of(changed) == changed) == (BY_KEY[key].observer == "reload")


def test_everything_else_of_affinity_is_the_daemons() -> None:
    told = {f"affinity.{re.sub('_s$', '', field.name)}" for field in fields(Options)}
    assert told & {o.key for o in OPTIONS if o.key.startswith("affinity.")} == {*OBSERVERS, "affinity.socket"}


def test_a_configuration_that_is_wrong_is_a_sentence(folder: Path) -> None:
    (folder / "config.yaml").write_text("affinity:\n  provider: magic\n")
    shown = CliRunner().invoke(observer, ["run", "--config", str(folder / "config.yaml")])
    assert shown.exit_code == 1
    assert "affinity.provider" in shown.output
    assert "Traceback" not in shown.output


WHOLE = {"name": "whole", "generation": 1, "config": {"affinity": {"within": "node"}}}


def test_run_becomes_the_observer_and_reads_its_configuration_again(folder: Path) -> None:
    config = folder / "config.yaml"
    settings = f"state:\n  directory: {folder}\naffinity:\n  socket: {folder}/affinity.sock\n"
    config.write_text(f"{settings}  within: node\n")
    code = "from cri_proxy.cli.observer import observer; observer()"
    command = [sys.executable, "-c", code, "run", "--config", str(config), "--provider", "declared"]
    constants = json.dumps({"affinity_interval_s": 0.1, "affinity_half_life_s": 1})
    environment = {**os.environ, VARIABLE: constants}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        client = ObserverProcess(folder)
        assert client.graph().status.half_life_s == 1.0
        assert "bpf" in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        # What needs a restart is named, so the file has been read again.
        config.write_text(f"{settings}  within: owner\n  remote_networks: []\n")
        os.kill(process.pid, signal.SIGHUP)
        assert any("need a restart" in line for line in process.stderr)
        assert "event=reloaded" in next(process.stderr)
        # A policy of the cluster needs no signal.
        write_kept(folder, StoredPolicy(read_policy(WHOLE)))
        assert any("event=reloaded" in line for line in process.stderr)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
    assert (folder / "observer" / "graph.json").exists()
