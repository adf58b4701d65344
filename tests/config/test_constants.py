"""The constants: each may be changed for a program by its environment, typed, and by nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.config.constants import VARIABLE, BadConstants, Constants, read_constants
from cri_proxy.config.io.files import Files
from tests.agent import ROOT

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Constants)}


def test_nothing_changes_nothing() -> None:
    assert read_constants("") == read_constants("{}") == Constants()


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_may_be_another_of_its_type(name: str) -> None:
    other = "child" if isinstance(DEFAULTS[name], str) else 7
    assert read_constants(json.dumps({name: other})) == replace(Constants(), **{name: other})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not YAML"),
        ("[relay_drain_s]", "is no mapping of constants to values"),
        ("relay.drain: 5", "there is no constant relay.drain"),
        ("relay_drain_s: soon", "relay_drain_s is 'soon', expected a number"),
        ("relay_drain_s: true", "relay_drain_s is True, expected a number"),
        ("relay_drain_s:", "relay_drain_s is None, expected a number"),
        ("history_days: 1.5", "history_days is 1.5, expected a whole number"),
        ("nri_launcher: 1", "nri_launcher is 1, expected a text"),
    ],
)
def test_what_is_wrong_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadConstants) as caught:
        read_constants(text)
    assert str(caught.value).startswith(VARIABLE) and str(caught.value).endswith(sentence)


def test_a_configuration_has_those_of_its_program_also_when_it_takes_another_over(tmp_path: Path) -> None:
    constants = Constants(relay_drain_s=7)
    (tmp_path / "c.yaml").write_text("relay: {mode: off}")
    files = Files(config=tmp_path / "c.yaml", root=tmp_path, constants=constants)
    config = files.layers().read().config
    assert config.constants == constants
    assert config.taking_over(files.layers().read().config).constants == constants


def test_a_program_ends_at_once_where_its_environment_is_wrong(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: "relay_drain: 5"}
    command = [sys.executable, "-m", "cri_proxy", "run", "--config", str(tmp_path / "c.yaml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"cri-resmgr: {VARIABLE}: there is no constant relay_drain\n"
