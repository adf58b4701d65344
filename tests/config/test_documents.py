"""The written documentation is the table, and the sample is the defaults."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.cli.intel_flags import INTEL_FLAGS
from cri_proxy.config import compatibility as config_intel
from cri_proxy.config.balloons import FIELDS, MEANINGLESS
from cri_proxy.config.documents import COMMAND, configuration_markdown, sample_config
from cri_proxy.config.options.table import BY_KEY, OPTIONS
from cri_proxy.config.sections.reading import READERS
from tests.config.configs import read, value_of

REPOSITORY = Path(__file__).parents[2]


def test_the_documentation_is_what_the_table_says() -> None:
    written = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert written == configuration_markdown(), f"run: {COMMAND}"


def test_the_command_writes_the_documentation_and_the_sample() -> None:
    module = [sys.executable, "-m", "cri_proxy.config.documents"]
    assert subprocess.check_output(module, cwd=REPOSITORY, text=True) == configuration_markdown()
    assert subprocess.check_output([*module, "sample"], cwd=REPOSITORY, text=True) == sample_config()


def test_the_sample_sets_nothing_and_without_its_comments_every_default() -> None:
    lines = sample_config().splitlines()
    assert all(line.startswith("#") for line in lines)
    assert all(len(line) <= 110 for line in lines)
    loaded = read("\n".join(line[1:] for line in lines), strict=True)
    assert loaded.config.differences(read("").config) == ()
    assert "default" not in loaded.config.origins.values()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_is_described_and_its_default_is_valid(option: Any) -> None:
    assert option.help.endswith(".")
    assert f"### `{option.key}`" in configuration_markdown()
    assert value_of(option.key, option.check.write(option.default)) == option.default


# ---------------------------------------------------------------- docs/migration.md


def _reasons_of(name: str) -> dict[str, str]:
    """The keys without a meaning of a section, by the module that reads it."""
    readings = [each for each in vars(import_module(name)).values() if isinstance(each, type)]
    return {key: why for each in readings for key, why in getattr(each, "MEANINGLESS", {}).items()}


MIGRATION = (REPOSITORY / "docs" / "migration.md").read_text()


@pytest.mark.parametrize(
    "word",
    sorted({*config_intel.POLICIES, *config_intel.KINDS} - {"TemplatePolicy"}) + [f.key for f in FIELDS],
)
def test_the_page_for_users_of_others_names_what_is_translated(word: str) -> None:
    assert f"`{word}`" in MIGRATION or f" {word}`" in MIGRATION


@pytest.mark.parametrize(("theirs", "ours"), sorted(config_intel.COUNTERPARTS.items()))
def test_it_names_each_key_and_our_option(theirs: str, ours: str) -> None:
    assert theirs.lower() in MIGRATION.lower()
    assert (
        ours.replace("#", ".") in MIGRATION
        or ours.rpartition(".")[2] == theirs
        or theirs == "DynamicPoolTypes"
    )


#: Keys of other programs that nothing here depends on, and why.
REASONS = {
    **config_intel.MEANINGLESS,
    **config_intel.REASONS,
    **MEANINGLESS,
    **{key: why for name in READERS.values() for key, why in _reasons_of(name).items()},
}
#: The words between backquotes.
SPANS = re.findall(r"`([^`]+)`", MIGRATION.lower())


@pytest.mark.parametrize("key", sorted(REASONS))
def test_a_key_without_a_meaning_has_a_reason_and_the_page_names_it(key: str) -> None:
    why = REASONS[key]
    assert len(why.split()) > 2 and why[-1] not in ".:;" and "yet" not in why
    assert any(f".{key}." in f".{span}." for span in SPANS) or key in ("spec", "kind")


def test_the_options_it_names_exist() -> None:
    ours = re.findall(r"`((?:placement|metrics|log|state)\.[a-z_.]+)", MIGRATION)
    assert ours
    assert {key for key in ours if key not in BY_KEY and key not in ("log.debug", "state.db")} == set()


def test_the_page_names_each_flag_of_intels() -> None:
    missing = [name for name in {*INTEL_FLAGS} - {"dry-run"} if f"`-{name}`" not in MIGRATION]
    assert missing == []
