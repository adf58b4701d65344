"""What the pages say is there is there: links, commands, options, units, reasons, metrics."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from cri_proxy.cli.main import cli
from cri_proxy.config.options.table import BY_KEY, SECTIONS
from cri_proxy.daemon.metrics_documents import COMMAND, metrics_markdown

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def anchors(text: str) -> set[str]:
    """What GitHub links to: headings without signs, blanks as dashes."""
    plain = (re.sub(r"[^\w -]", "", heading).strip().lower() for heading in HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in plain}


@each_page
def test_each_link_of_a_page_leads_to_a_page_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text()), target


@each_page
def test_no_page_names_another_without_a_link(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text())
    assert re.findall(r"(?<![\w(/])docs/\w+\.md(?!\))", text) == []


@each_page
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    folders = "|".join(sorted(path.name for path in REPOSITORY.iterdir() if (path / "__init__.py").exists()))
    named = re.findall(rf"`((?:{folders}|tools|packaging|systemd|docs)/[\w./-]+)`", page.read_text())
    named += re.findall(r"-n0 (?:--kubelet )?(tests/\S+)", page.read_text())
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()


def test_the_readme_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(docs/(\w+\.md)\)", (REPOSITORY / "README.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")}


@each_page
def test_each_command_of_a_page_is_one(page: Path) -> None:
    context = click.Context(cli)
    typed = re.findall(r"(?:`|^ {4})cri-resmgr ([a-z-]+)(?: ([a-z][a-z-]*))?", page.read_text(), re.MULTILINE)
    for first, second in typed:
        command = cli.get_command(context, first)
        assert command is not None, first
        if isinstance(command, click.Group) and second:
            assert second in command.commands, f"cri-resmgr {first} {second}"


#: Not those that name what others call their options.
@pytest.mark.parametrize("name", sorted({page.name for page in PAGES} - {"configuration.md", "migration.md"}))
def test_each_option_of_a_page_is_one(name: str) -> None:
    [page] = [page for page in PAGES if page.name == name]
    sections = "|".join(key for key in SECTIONS if "." not in key)
    named = set(re.findall(rf"`((?:{sections})\.[\w.]+)(?=[`:])", page.read_text()))
    files = {word for word in named if word.endswith((".db", ".json", ".sock"))}
    assert {word for word in named - files if word not in BY_KEY and word not in SECTIONS} == set()


def test_each_unit_is_in_the_table_of_units() -> None:
    table = (DOCS / "operations.md").read_text().partition("## Units")[2]
    names = [path.name for path in (REPOSITORY / "systemd").iterdir()]
    assert names
    assert [name for name in names if f"| `{name.replace('@', '@NN-NAME')}` |" not in table] == []


def test_each_degraded_reason_is_explained() -> None:
    sources = [path.read_text() for path in (REPOSITORY / "cri_proxy").rglob("*.py")]
    noted = {topic for text in sources for topic in re.findall(r'health\.note\(\s*f?"([^"]+)"', text)}
    assert {"config", "socket {path}", "last config"} <= noted
    page = (DOCS / "incident.md").read_text()
    assert {topic for topic in noted if f"| ({topic.replace('{path}', 'PATH')}) |" not in page} == set()


def test_the_page_of_metrics_is_what_the_metrics_say() -> None:
    assert (DOCS / "metrics.md").read_text() == metrics_markdown(), f"run: {COMMAND}"


def test_each_metric_of_an_alert_is_one() -> None:
    table, _, alerts = metrics_markdown().partition("## What to be woken for")
    rules = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", alerts, re.DOTALL)[0])["groups"][0]["rules"]
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "annotations"}, rule
        named = set(re.findall(r"cri_resmgr_\w+|\bup\b", rule["expr"]))
        assert named, rule
        assert {name for name in named if f"`{name}`" not in table} <= {"up"}, rule
    # What has to be told of a daemon that does nothing, or not what it should.
    expressions = " ".join(rule["expr"] for rule in rules)
    for part in (
        "up{",
        "absent(",
        'mode{mode="enforce"} == 0',
        "drift_total",
        'updates_total{result="failed"}',
    ):
        assert part in expressions
