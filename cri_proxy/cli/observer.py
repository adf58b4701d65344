"""``cri-resmgr observer``: starts the observer, a process of its own that stays small. Nothing of it is loaded here."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import click

from cri_proxy.affinity.report import observer_lines
from cri_proxy.affinity.settings import graph_settings
from cri_proxy.cli.answers import ask_daemon, fail, json_option, show_document
from cri_proxy.cli.arguments import Commands, configured
from cri_proxy.cli.output import echo
from cri_proxy.config.config import BadConfig, Config
from cri_proxy.config.io import files as settings
from cri_proxy.config.io.cluster_policy_file import FILE as POLICY_FILE
from cri_proxy.runtime import WELL_KNOWN

#: Options of the observer by ours; those of its graph beside them.
_OPTIONS = {
    "socket": "affinity.socket",
    "listen": "affinity.listen",
    "tls_certificate": "affinity.tls_certificate",
    "tls_key": "affinity.tls_key",
    "tls_client_ca": "affinity.tls_client_ca",
    "provider": "affinity.provider",
    "cgroup_root": "topology.cgroup_root",
    "remote_networks": "affinity.remote_networks",
}


@click.group(cls=Commands)
def observer() -> None:
    """See which containers talk to each other: the observer, which the daemon asks."""


@observer.command()
@configured
@click.option("--socket", help="Where it is served; affinity.socket.")
@click.option("--provider", help="How traffic is seen; affinity.provider.")
@click.option("--state-dir", help="Where its graph is kept, in observer/graph.json; state.directory.")
def run(
    config_file: Optional[Path],
    fallback_config: Optional[Path],
    force_config: Optional[Path],
    **flags: Optional[str],
) -> None:
    """Run the observer in the foreground. SIGHUP reads the configuration again."""
    files = _files(config_file, fallback_config, force_config, flags)
    # It reads its options anew by this command: it is too small to read our configuration itself.
    again = [sys.executable, "-m", "cri_proxy", "observer", "options", *_arguments(files, flags)]
    document = {**_document(files), "reload": again}
    os.execv(sys.executable, [sys.executable, "-m", "bpf", "--options", json.dumps(document)])


@observer.command()
@json_option
def status(as_json: bool) -> None:
    """How traffic is seen, as the daemon hears it from the observer. Exit code 1: it is not."""
    found = ask_daemon("status").get("affinity") or {}
    if not found.get("enabled"):
        fail("no observer is asked: affinity.enabled is false", "set it to true: cri-resmgr config show")
    if problem := found["observer"].get("problem"):
        fail(
            problem,
            "systemctl enable --now cri-resmgr-observer; journalctl -u cri-resmgr-observer says why it ended",
        )
    show_document(found["observer"], as_json, lambda observer: "\n".join(observer_lines(observer)))


@observer.command(hidden=True)
@configured
@click.option("--socket")
@click.option("--provider")
@click.option("--state-dir")
def options(
    config_file: Optional[Path],
    fallback_config: Optional[Path],
    force_config: Optional[Path],
    **flags: Optional[str],
) -> None:
    """Print what the observer is started with, as JSON."""
    echo(json.dumps(_document(_files(config_file, fallback_config, force_config, flags))))


def _files(
    config: Optional[Path], fallback: Optional[Path], force: Optional[Path], flags: dict[str, Optional[str]]
) -> settings.Files:
    overrides = {
        key: flags[name]
        for name, key in (
            ("socket", "affinity.socket"),
            ("provider", "affinity.provider"),
            ("state_dir", "state.directory"),
        )
        if flags.get(name)
    }
    return settings.Files(fallback, config, force, overrides)


def _arguments(files: settings.Files, flags: dict[str, Optional[str]]) -> list[str]:
    """The command line that gives the same files and flags again."""
    named = {
        "--config": files.config,
        "--fallback-config": files.fallback,
        "--force-config": files.force,
        **{f"--{name.replace('_', '-')}": value for name, value in flags.items()},
    }
    return [word for name, value in named.items() if value for word in (name, str(value))]


def _document(files: settings.Files) -> dict[str, Any]:
    try:
        loaded = settings.load(files)
    except BadConfig as error:
        for sentence in error.errors:
            echo(f"cri-resmgr observer: {sentence}", err=True)
        sys.exit(1)
    return observer_options(loaded.config)


def observer_options(config: Config) -> dict[str, Any]:
    """What the observer is told of a configuration (``bpf.service.options.Options``)."""
    path = str(config["relay.runtime_endpoint"])
    return {
        **{name: config[key] for name, key in _OPTIONS.items()},
        **asdict(graph_settings(config)),
        "interval_s": config.constants.affinity_interval_s,
        "openers": config.constants.affinity_openers,
        "runtime_sockets": [path] if path else list(WELL_KNOWN),
        "state_file": str(Path(config["state.directory"]) / "observer" / "graph.json"),
        "watch": str(Path(config["state.directory"]) / POLICY_FILE),
    }
