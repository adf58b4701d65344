"""The CRDs: they are written from the tables, structural, and described."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api import names
from cluster.api.allowed import OPTIONS as ALLOWED
from cluster.api.crds import definitions
from cluster.api.io.source_tree import module_text, read_options
from cri_proxy.config.gone import GONE
from cri_proxy.config.options.table import OPTIONS

PROJECT = Path(__file__).parents[3]
DEFINITIONS = {definition["spec"]["names"]["kind"]: definition for definition in definitions()}


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = DEFINITIONS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all below it, with their places."""
    yield place, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{place}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from walk(schema[key], f"{place}.{key}")


EVERYTHING = [found for kind in DEFINITIONS for found in walk(schema_of(kind), kind)]


def test_the_files_are_what_the_tables_say(folder: Path) -> None:
    subprocess.run([sys.executable, PROJECT / "tools/write_crds.py", folder], check=True, cwd=PROJECT)
    made = {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert len(made) == 5
    for name, text in made.items():
        assert (PROJECT / name).read_text() == text, f"{name}: run make docs"


def test_the_allow_list_is_what_the_options_table_marks() -> None:
    former = [key for key, option in GONE.items() if option.cluster]
    assert ALLOWED.keys() == {option.key for option in OPTIONS if option.cluster} | set(former)
    assert all(option.check.schema for option in OPTIONS if option.cluster)


def test_a_packages_module_has_the_same_list() -> None:
    found: dict[str, Any] = {}
    exec(module_text(read_options()), found)
    assert found["OPTIONS"] == ALLOWED


def test_no_path_socket_endpoint_or_credential_is_in_the_schema_of_a_policy() -> None:
    places = [place for place, _ in walk(schema_of(names.PLACEMENT_POLICY)["properties"]["spec"], "")]
    words = (
        "socket",
        "endpoint",
        "tls",
        "listen",
        "directory",
        "plugin",
        "path",
        "log",
        "metrics",
        "state",
        "nri",
    )
    keys = [part for place in places for part in place.lower().replace("_", ".").split(".")]
    assert set(keys) & set(words) == set()


@pytest.mark.parametrize("kind", [names.NODE_PLACEMENT, names.PLACEMENT_POLICY, names.AFFINITY_ADVICE])
def test_a_kind_is_cluster_scoped_with_a_status_of_its_own_and_columns_that_exist(kind: str) -> None:
    spec = DEFINITIONS[kind]["spec"]
    version = spec["versions"][0]
    assert (spec["scope"], version["name"], version["subresources"]) == (
        "Cluster",
        "v1alpha1",
        {"status": {}},
    )
    for column in version["additionalPrinterColumns"]:
        where = schema_of(kind)
        first, *rest = column["jsonPath"].lstrip(".").split("[")[0].split(".")
        if first == "metadata":
            continue
        for name in (first, *rest):
            where = where["properties"][name]


@pytest.mark.parametrize(("place", "schema"), EVERYTHING, ids=[place for place, _ in EVERYTHING])
def test_each_field_is_structural_and_described(place: str, schema: dict[str, Any]) -> None:
    untyped = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    assert schema.get("type") or any(map(schema.get, untyped)), "no type"
    if not place.endswith(("metadata", ".items", ".additionalProperties")):
        assert schema.get("description", "")[-1:] == ".", "no description"
    if schema.get("type") == "array":
        assert schema["x-kubernetes-list-type"] in ("atomic", "map")
    if schema.get("x-kubernetes-list-type") == "map":
        assert set(schema["x-kubernetes-list-map-keys"]) <= set(schema["items"]["required"])
    assert "expected" not in schema or place.endswith("properties.expected")


#: The options that there were take any value, and a section keeps keys for the sentence that refuses them.
@pytest.mark.parametrize(("place", "schema"), EVERYTHING, ids=[place for place, _ in EVERYTHING])
def test_each_field_is_bounded(place: str, schema: dict[str, Any]) -> None:
    if schema.get("type") == "string" and "enum" not in schema and schema.get("format") != "date-time":
        assert "maxLength" in schema or place in HEAD, "no length"
        assert "pattern" in schema or place in HEAD, "control characters"
    if schema.get("type") == "array":
        assert "maxItems" in schema
    if schema.get("type") == "object" and not schema.get("properties"):
        assert "maxProperties" in schema or place in HEAD


HEAD = [f"{kind}.{name}" for kind in DEFINITIONS for name in ("apiVersion", "kind", "metadata")]


def test_lists_of_a_status_are_atomic_but_conditions() -> None:
    for kind in DEFINITIONS:
        for place, schema in walk(schema_of(kind)["properties"]["status"], kind):
            if schema.get("type") == "array":
                expected = "map" if place.endswith(".conditions") else "atomic"
                assert schema["x-kubernetes-list-type"] == expected, place


def test_the_fields_that_the_page_for_users_of_others_names_exist() -> None:
    page = (PROJECT / "docs/migration.md").read_text()
    _, _, section = page.partition("### Custom resources\n")
    right = "".join(
        line.split("|")[2] for line in section.partition("\n## ")[0].splitlines() if line.count("|") == 3
    )
    paths = re.findall(r"`(?:NodePlacement\.)?((?:status|spec)\.[A-Za-z.\[\]]+)`", right)
    assert len(paths) > 10
    for path in paths:
        where = schema_of(names.NODE_PLACEMENT)
        for name in path.replace("[]", ".[]").split("."):
            where = where["items"] if name == "[]" else where["properties"][name]
    for key in re.findall(r"`((?:placement|affinity)\.[a-z_]+)`", right):
        assert key in ALLOWED
