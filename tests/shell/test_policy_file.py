"""A policy on disk is read as it was written; one that makes no sense is a problem and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cri_proxy.core.cluster_policy import read_policy
from cri_proxy.shell import settings
from cri_proxy.shell.policy_file import FILE, NOTHING, Kept, read_kept, write_kept

GOLD = read_policy({"name": "gold", "generation": 3, "config": {"placement": {"ladder": "fine"}}})


@pytest.mark.parametrize("kept", [NOTHING, Kept(GOLD), Kept(held_off=True)])
def test_what_is_kept_is_read_again(tmp_path: Path, kept: Kept) -> None:
    folder = tmp_path / "state"
    write_kept(folder, kept)
    assert read_kept(folder) == kept


def test_nothing_takes_away_what_was_kept(tmp_path: Path) -> None:
    write_kept(tmp_path, Kept(GOLD))
    write_kept(tmp_path, NOTHING)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"name": "x"}', '{"name": "x", "generation": 1, "config": {"relay": {"socket": "/x"}}}'],
)  # fmt: skip
def test_what_makes_no_sense_is_a_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    kept = read_kept(tmp_path)
    assert kept.policy is None and kept.problem and "\n" not in kept.problem


def test_a_policy_comes_between_the_nodes_file_and_what_is_forced(tmp_path: Path) -> None:
    own, forced, state = tmp_path / "own.yaml", tmp_path / "forced.yaml", tmp_path / "state"
    own.write_text(f"state: {{directory: {state}}}\nplacement: {{ladder: manual, besteffort: ccx}}\n")
    write_kept(state, Kept(GOLD))
    files = settings.Files(config=own, force=None, root=tmp_path)
    loaded = settings.load(files)
    assert loaded.config["placement.ladder"] == "fine"
    assert loaded.config.origins["placement.ladder"] == "cluster policy gold (generation 3)"
    assert (loaded.cluster.policy, loaded.config["placement.besteffort"]) == (GOLD, "ccx")
    forced.write_text("placement: {ladder: manual}\n")
    loaded = settings.load(settings.Files(config=own, force=forced, root=tmp_path))
    assert loaded.config.origins["placement.ladder"].startswith(str(forced))
    overridden = settings.Files(config=own, root=tmp_path, overrides={"placement.ladder": "manual"})
    assert settings.load(overridden).config["placement.ladder"] == "manual"


def test_the_last_configuration_that_loaded_has_the_policy_too(tmp_path: Path) -> None:
    own, state = tmp_path / "own.yaml", tmp_path / "state"
    own.write_text(f"state: {{directory: {state}}}\nplacement: {{besteffort: ccx}}\n")
    write_kept(state, Kept(GOLD))
    files = settings.Files(config=own, root=tmp_path)
    assert settings.keep(settings.load(files), state, "") is None
    own.write_text(f"state: {{directory: {state}}}\nplacement: {{besteffort: nowhere}}\n")
    loaded = settings.load_or_last(files)
    assert "the last configuration that loaded is in force" in loaded.problem
    assert (loaded.config["placement.ladder"], loaded.config["placement.besteffort"]) == ("fine", "ccx")


def test_a_policy_in_force_is_not_kept_among_the_nodes_own_files(tmp_path: Path) -> None:
    own, state = tmp_path / "own.yaml", tmp_path / "state"
    own.write_text(f"state: {{directory: {state}}}\n")
    write_kept(state, Kept(GOLD))
    settings.keep(settings.load(settings.Files(config=own, root=tmp_path)), state, "")
    assert [name for name, _ in json.loads((state / settings.LAST).read_text())] == [str(own)]
