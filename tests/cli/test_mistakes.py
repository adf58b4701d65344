"""What a person gets wrong is answered with what, where, and the next step; help says whole sentences."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cri_proxy.cli.main import cli
from tests.agent import ROOT
from tests.machines import HYGON_7285_2S, machine

SHOP = str(ROOT / "demo" / "shop.json")


def said(*words: str) -> tuple[int, str]:
    """Exit code and what is printed. ``web`` and ``run`` never get as far as to become another program."""
    result = CliRunner().invoke(cli, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


# ---------------------------------------------------------------------- help


def groups(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from groups(command, (*words, name))
        else:
            yield (*words, name), command


@pytest.mark.parametrize("words", [words for words, _ in groups(cli)], ids=" ".join)
def test_help_ends_no_sentence_in_dots(words: tuple[str, ...]) -> None:
    command = dict(groups(cli))[words]
    code, out = said(*words, "--help")
    assert code == 0
    lines = out.splitlines()[1:]  # the first is the usage
    assert [line for line in lines if line.endswith(("…", "..."))] == []
    if isinstance(command, click.Group):
        listed = " ".join(out.partition("Commands:")[2].split())
        for name in command.list_commands(click.Context(command)):
            found: Any = command.get_command(click.Context(command), name)
            if not found.hidden:
                first = " ".join((found.help or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")
                assert first.split("? ")[0] in listed, name


# ---------------------------------------------------------------------- mistakes


def test_a_configuration_whose_machine_is_not_there_is_not_good(tmp_path: Path) -> None:
    file, described = tmp_path / "c.yaml", tmp_path / "machine.json"
    file.write_text("log:\n  level: info\ntopology:\n  source: /nope\n")
    assert said("config", "check", str(file)) == (
        1,
        f"{file}:4: topology.source is /nope: No such file or directory; expected a sysfs directory or a JSON topology "
        "(cri-resmgr topology --json prints one)\n",
    )
    file.write_text(
        f"topology:\n  source: {described}\npolicy:\n  ReservedResources: {{CPU: 'cpuset:0,127'}}\n"
    )
    described.write_text("[]")
    code, out = said("config", "check", str(file))
    assert (code, out.startswith(f"{file}:2: topology.source is {described}: ")) == (1, True)
    # CPUs are those of the machine that it names, not of this one.
    from policies.machine.topology_json import write_topology

    described.write_text(json.dumps(write_topology(machine(HYGON_7285_2S))))
    assert said("config", "check", str(file)) == (0, f"{file}: good\n")
    file.write_text(file.read_text().replace("0,127", "0,128"))
    code, out = said("config", "check", str(file))
    assert (code, "128" in out) == (1, True)


@pytest.mark.parametrize("listen", [":99999", "127.0.0.1:99999", "8895", "0.0.0.0:8895", "unix:x", ""])
def test_a_page_is_served_on_loopback_only(listen: str) -> None:
    code, out = said("web", "--listen", listen)
    assert code == 2
    assert (
        f"Invalid value for '--listen': {listen!r}, expected a loopback address with a port, such as" in out
    )


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_page_without_a_daemon_says_what_it_waits_for(
    is_bound: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: become.append(words))
    path = folder / "v.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        if is_bound:
            listener.bind(str(path))
            listener.listen()
        code, out = said("web", "--view-socket", str(path))
    assert (code, len(become)) == (0, 1)
    waits = f"nothing serves {path}; systemctl start cri-resource-manager"
    assert out == (
        "" if is_bound else f"warning: the page is empty as long as the daemon does not answer: {waits}\n"
    )


def test_a_scenario_is_replayed_on_a_machine_that_is_named() -> None:
    code, out = said("simulate", SHOP)
    assert code == 2
    assert "say on which machine, by --topology: /sys is this one; cri-resmgr topology --json > FILE" in out


def test_a_scenario_that_is_not_there_is_a_sentence() -> None:
    assert said("simulate", "--topology", str(ROOT / "demo" / "hygon.json"), "/nope") == (
        2,
        "cri-resmgr: /nope: No such file or directory; expected a JSON list of steps; docs/policies.md has them\n",
    )


@pytest.mark.parametrize("words", [("enable",), ("enable", "--dry-run"), ("enable", "--force")], ids=" ".join)
def test_where_no_kubelet_is_none_is_pointed_at_us(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    config = tmp_path / "c.yaml"
    config.write_text(f"state:\n  directory: {tmp_path}/state\ncontrol:\n  socket: {tmp_path}/c.sock\n")
    places = ("--root", str(tmp_path), "--proc", str(tmp_path / "proc"), "--config", str(config))
    code, out = said("kubelet", *places, *words)
    assert code == 1
    assert out.startswith(
        "cri-resmgr: no kubelet runs here, and none of its files is here, such as /var/lib/kubelet/"
    )
    assert "\n  start kubelet, then: cri-resmgr kubelet enable --restart; " in out


@pytest.mark.parametrize("command", ["doctor", "kubelet status", "release --all", "reset-policy", "history"])
def test_a_configuration_that_is_named_and_not_there_is_not_replaced_by_another(command: str) -> None:
    group, *rest = command.split()
    code, out = said(group, "--config", "/nope", *rest)
    assert (code, "Invalid value for '--config': /nope: No such file or directory" in out) == (2, True), out
