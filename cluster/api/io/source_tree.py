"""The allow-list as the source tree has it: in the CRD of PlacementPolicy. Packages have a module, which is made of that:

python -m cluster.api.io.source_tree FILE
"""

from __future__ import annotations

import pprint
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.api.schema import without_rules

CRD = Path(__file__).resolve().parents[3] / "packaging/cluster/crds/placementpolicies.yaml"


def read_options(path: Path = CRD) -> dict[str, dict[str, Any]]:
    """The options that a policy may set, by key, with the schema of each."""
    definition = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return dict(_options(root["properties"]["config"], ""))


def _options(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in section["properties"].items():
        if "properties" in schema:
            yield from _options(schema, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", without_rules(schema)


def module_text(options: Mapping[str, Any]) -> str:
    """``cluster/api/allowed_options.py`` of a package."""
    table = pprint.pformat(dict(options), width=110, sort_dicts=False)
    return f'"""The options that a policy of the cluster may set. Made of its CRD."""\n\nOPTIONS = {table}\n'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(module_text(read_options()))
