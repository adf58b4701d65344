"""What the pages say is there is there: links, commands, options, units, reasons, metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cluster.api.allowed import refused
from cluster.operator.objects import read_policy
from cri_proxy.claims.parameters import VALUES, read_parameters
from cri_proxy.cli.main import cli
from cri_proxy.config.options.table import BY_KEY, SECTIONS
from cri_proxy.cri.annotations.read import read_preferences
from cri_proxy.daemon.metrics_documents import COMMAND, metrics_markdown
from cri_proxy.simulator.replay import simulate
from cri_proxy.simulator.scenario import FIELDS
from policies.machine.topology_json import write_topology
from policies.model import PlacementPreferences
from tests.config.configs import read
from tests.machines import HYGON_7285_2S, machine
from tests.scenes import make_pod

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = (
    *(REPOSITORY / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted(DOCS.rglob("*.md")),
)
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
    assert re.findall(r"(?<![\w(/])docs/[\w/]+\.md(?!\))", text) == []


@each_page
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    folders = "|".join(sorted(path.name for path in REPOSITORY.iterdir() if (path / "__init__.py").exists()))
    named = re.findall(rf"`((?:{folders}|tools|packaging|systemd|docs)/[\w./-]+)`", page.read_text())
    named += re.findall(r"-n0 (?:--kubelet )?(tests/\S+)", page.read_text())
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()


def test_the_readme_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(docs/([\w/]+\.md)\)", (REPOSITORY / "README.md").read_text()))
    assert linked == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


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
    # Not what is called alike: files, and the driver of others.
    others = {word for word in named if word.endswith((".db", ".json", ".sock"))} | {"dra.cpu"}
    assert {word for word in named - others if word not in BY_KEY and word not in SECTIONS} == set()


def chapter(page: str, heading: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    _, found, text = (DOCS / page).read_text().partition(f"\n## {heading}\n")
    assert found, heading
    return text.partition("\n## ")[0]


def test_each_chapter_of_migration_begins_with_what_is_lost() -> None:
    for heading in ("cri-resource-manager", "nri-plugins", "rubik", "Koordinator"):
        assert chapter("migration.md", heading).lstrip().startswith("**What is lost"), heading
    of_openeuler = chapter("migration.md", "The openEuler pod affinity plugin")
    assert of_openeuler.lstrip().startswith("**openEuler, Kunpeng and iSulad were never run")
    assert "\n**What is lost:**" in of_openeuler


def test_users_of_nri_plugins_are_not_sent_to_the_socket_of_the_proxy() -> None:
    text = chapter("migration.md", "nri-plugins")
    assert "cri-resmgr-nri" in text
    assert "kubelet enable" not in text
    assert "cri-resmgr.sock" not in text


POLICIES = (DOCS / "policies.md").read_text()


def test_each_step_of_a_scenario_is_in_the_table_of_steps() -> None:
    table = POLICIES.partition("| `op` |")[2].partition("\n\n")[0]
    rows = {op: row for row in table.splitlines()[2:] for op in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert rows.keys() == FIELDS.keys()
    for op, fields in FIELDS.items():
        assert [name for name in fields if f"`{name}`" not in rows[op]] == [], op


def test_the_scenario_of_the_page_comes_out_as_the_page_says() -> None:
    steps = json.loads(re.findall(r"```json\n(.*?)```", POLICIES, re.DOTALL)[0])
    lines = list(simulate(machine(HYGON_7285_2S), read("").config, steps, lambda file: read("").config))
    for line in lines[:-1]:
        assert f"    {line['id']}  {line['cpus']}  {line['why']}\n" in POLICIES
    assert lines[-1]["invariants"] == "ok"


def test_the_scenario_of_the_readme_comes_out_as_the_readme_says() -> None:
    text = (REPOSITORY / "README.md").read_text()
    [machine_file, scenario] = re.findall(r"simulate --topology (\S+) (\S+)\n", text)[0]
    described = json.loads((REPOSITORY / machine_file).read_text())
    assert described == json.loads(json.dumps(write_topology(machine(HYGON_7285_2S))))
    steps = json.loads((REPOSITORY / scenario).read_text())
    rows = simulate(machine(HYGON_7285_2S), read("").config, steps, lambda file: read("").config)
    shown = [f"{row['id']} {row['cpus']} {row['level']}" for row in rows if "id" in row]
    assert re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0].splitlines() == shown


def examples_of_claims() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The claim template and the pod of each example on the page about claims."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "dra.md").read_text(), re.DOTALL)
    found = [tuple(yaml.safe_load_all(block)) for block in blocks if "apiVersion" in block]
    return [(template, pod) for template, pod in found]


@pytest.mark.parametrize(
    ("template", "pod"),
    [pytest.param(*both, id=both[1]["metadata"]["name"]) for both in examples_of_claims()],
)
def test_an_example_of_a_claim_names_what_it_has_and_repeats_its_cpus(
    template: dict[str, Any], pod: dict[str, Any]
) -> None:
    assert (template["kind"], pod["kind"]) == ("ResourceClaimTemplate", "Pod")
    [claim] = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"] == pod["metadata"]["name"]
    devices = template["spec"]["spec"]["devices"]
    exactly = {request["name"]: request["exactly"] for request in devices["requests"]}
    classes = [name for name in (one["deviceClassName"] for one in exactly.values()) if "gpu" not in name]
    assert set(classes) <= {f"{kind}.cpu.cri-resmgr.io" for kind in ("l3", "whole-l3", "whole-numa")}
    for constraint in devices.get("constraints", ()):
        assert set(constraint["requests"]) <= exactly.keys()
    for entry in devices.get("config", ()):
        assert set(entry["requests"]) <= exactly.keys()
        read_parameters(entry["opaque"]["parameters"], "the example")
    used = [one for container in pod["spec"]["containers"] for one in container["resources"]["claims"]]
    assert {one["name"] for one in used} == {claim["name"]}
    assert {one["request"] for one in used if "request" in one} <= exactly.keys()
    asked = sum(int(one.get("capacity", {}).get("requests", {}).get("cpu", 0)) for one in exactly.values())
    holders = [pod["spec"]] if "resources" in pod["spec"] else pod["spec"]["containers"]
    assert sum(int(one["resources"]["requests"]["cpu"]) for one in holders) >= asked


def test_each_key_of_the_parameters_of_a_claim_and_each_of_its_values_is_on_the_page() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", chapter("dra.md", "Parameters"), re.MULTILINE))
    assert rows.keys() == VALUES.keys()
    for key, values in VALUES.items():
        assert [value for value in values if f"`{value}`" not in rows[key]] == []


def test_the_policies_of_the_cluster_page_are_policies() -> None:
    texts = re.findall(r"```yaml\n(.*?)```", (DOCS / "cluster.md").read_text(), re.DOTALL)
    policies = [found for found in map(yaml.safe_load, texts) if "PlacementPolicy" in str(found)]
    assert len(policies) == 2
    for policy in policies:
        assert read_policy(policy, refused).fault == ""


def test_the_pod_of_the_page_of_annotations_is_understood_as_it_says() -> None:
    text = (DOCS / "annotations.md").read_text()
    pod = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    scene = make_pod("db-0", annotations=pod["metadata"]["annotations"])
    postgres, exporter = (read_preferences(c["name"], {}, scene, None) for c in pod["spec"]["containers"])
    assert (postgres.ownership, postgres.l3, postgres.notes) == ("exclusive", "require", ())
    assert (exporter.ownership, exporter.l3, exporter.notes) == ("", "require", ())
    assert exporter.affinity != PlacementPreferences().affinity


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
