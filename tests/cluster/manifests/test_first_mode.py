"""What is applied lets new nodes observe, in every variant, and sets no mode that would change another node's."""

from __future__ import annotations

from typing import Any

import click
import pytest
import yaml

from cri_proxy.cli.main import cli
from tests.cluster.manifests.rendered import PACKAGING, kustomized, pod_of
from tests.cluster.manifests.test_chart import helm
from tests.config.configs import read

VARIANTS = {
    **{f"kustomize {name}": lambda name=name: kustomized(name) for name in ("nri", "standalone", "proxy")},
    **{
        f"kustomize dra/{name}": lambda name=name: kustomized(f"dra/{name}")
        for name in ("nri", "standalone", "proxy")
    },
    **{f"chart {name}": lambda name=name: helm(frontEnd=name) for name in ("nri", "standalone", "proxy")},
}


def parameters(words: list[str]) -> dict[str, Any]:
    """What the program takes a command line of a daemon for."""
    assert words[0] == "/usr/bin/cri-resmgr"
    command: click.Command = cli
    context = click.Context(cli, **cli.context_settings)
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        assert found is not None
        command = found
    return command.make_context(words[1], rest, parent=context).params


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_daemon_of_the_cluster_lets_a_new_node_observe(variant: str) -> None:
    objects = list(VARIANTS[variant]())
    commands = [
        one["command"]
        for workload in objects
        if workload["kind"] == "DaemonSet"
        for one in pod_of(workload)["containers"]
        if one["name"] in ("nri", "standalone")
    ]
    # The proxy's daemon is the host's own.
    assert len(commands) == ("proxy" not in variant)
    assert [parameters(words)["first_mode"] for words in commands] == ["observe"] * len(commands)
    for config in (one["data"]["config.yaml"] for one in objects if one["kind"] == "ConfigMap"):
        assert read(config).config.origins["relay.mode"] == "default"


@pytest.mark.parametrize("front_end", ["nri", "standalone"])
def test_with_dra_the_daemon_prepares_claims_and_has_all_else_as_without(front_end: str) -> None:
    def files(folder: str) -> dict[str, str]:
        [found] = [one["data"] for one in kustomized(folder) if one["kind"] == "ConfigMap"]
        return {str(name): str(text) for name, text in found.items()}

    before, after = files(front_end), files(f"dra/{front_end}")
    loaded = read(after.pop("fallback.cfg"))
    assert after == before
    assert loaded.warnings == ()
    set_here = {key for key, origin in loaded.config.origins.items() if origin != "default"}
    assert set_here == {"dra.enabled"} and loaded.config["dra.enabled"] is True


def test_the_line_of_the_configmap_without_its_sign_makes_all_enforce() -> None:
    config = yaml.safe_load((PACKAGING / "base/node/config.yaml").read_text())["data"]["config.yaml"]
    edited = read(config.replace("# relay:", "relay:")).config
    assert (edited["relay.mode"], edited.origins["relay.mode"]) == ("enforce", "c.yaml:2")
