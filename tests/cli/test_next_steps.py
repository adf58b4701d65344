"""Every error of the command line has a next step: in all calls that tell one, and in all commands without a daemon."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cri_api.control import ControlError
from cri_proxy.cli.answers import NEXT_STEPS, next_step
from cri_proxy.cli.main import cli
from cri_proxy.kubelet.switch import CannotSwitch
from tests.agent import ROOT

MODULES = sorted((ROOT / "cri_proxy" / "cli").glob("*.py"))
#: They do not ask the daemon first, or what they do is not to be done here.
APART = {
    *("run", "agent run", "nri run", "observer run", "observer options", "simulate", "top", "web"),
    *("kubelet enable", "kubelet disable"),
}
#: For a command to get as far as asking.
ARGUMENTS = {
    "explain": ["web"],
    "release": ["web"],
    "adopt": ["web"],
    "config check": ["/nowhere/config.yaml"],
}


def calls(name: str) -> Iterator[tuple[Path, ast.Module, ast.Call]]:
    for path in MODULES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield path, tree, node


def test_an_error_that_is_told_as_a_sentence_has_a_hint_beside_it() -> None:
    for path, _, call in calls("fail"):
        if path.name == "answers.py":
            continue
        assert len(call.args) == 2, f"{path.name}:{call.lineno}"
        hint = call.args[1]
        assert not (isinstance(hint, ast.Constant) and not hint.value), f"{path.name}:{call.lineno}"


def caught_by(tree: ast.Module, call: ast.Call) -> list[str]:
    """The kinds of the handler that a call is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and any(inner is call for inner in ast.walk(node)):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            return [ast.unparse(kind).rpartition(".")[2] for kind in kinds if kind is not None]
    return []


def test_each_kind_of_error_that_is_told_has_a_next_step() -> None:
    found = set()
    for path, tree, call in calls("fail_by"):
        kinds = caught_by(tree, call)
        assert kinds or path.name == "answers.py", f"{path.name}:{call.lineno}"
        for kind in kinds:
            found.add(kind)
            owner = getattr(import_module(f"cri_proxy.cli.{path.stem}"), kind, Exception)
            # DaemonAbsent and its like are made with a hint: they cannot be made without.
            if kind not in NEXT_STEPS:
                assert "hint" in inspect.signature(owner).parameters, f"{path.name}:{call.lineno}: {kind}"
    assert {"ControlError", "DaemonAbsent", "NoRuntime", "HistoryUnusable"} <= found


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ControlError("the daemon failed"), NEXT_STEPS["ControlError"]),
        # Their own sentences say it.
        (ControlError("no container 'x' is known; see: cri-resmgr placements"), ""),
        (ControlError("most is 0, expected a whole number of 1 or more, or null"), ""),
        (ControlError("in mode off nothing is placed; first: cri-resmgr mode enforce"), ""),
        # The program's name alone is none.
        (ControlError("cri-resmgr is too old"), NEXT_STEPS["ControlError"]),
        (CannotSwitch("kubelet is not ours", "do this"), "do this"),
        (RuntimeError("unheard of"), "see: cri-resmgr doctor"),
    ],
)
def test_what_says_it_itself_is_not_told_twice(error: Exception, step: str) -> None:
    assert next_step(error) == step


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        elif command is not None:
            yield (*words, name)


@pytest.mark.parametrize("words", [w for w in commands(cli) if " ".join(w) not in APART], ids=" ".join)
def test_a_command_that_fails_without_a_daemon_says_what_to_do(words: tuple[str, ...], folder: Path) -> None:
    (folder / "config.yaml").write_text(
        f"state:\n  directory: {folder}/state\nrelay:\n  runtime_endpoint: {folder}/no.sock\n"
    )
    told = list(ARGUMENTS.get(" ".join(words), []))
    if "--config" in _options(words):
        told += ["--config", str(folder / "config.yaml")]
    result = CliRunner().invoke(cli, ["--control-socket", str(folder / "none.sock"), *words, *told])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    if result.exit_code == 1 and result.output.startswith("cri-resmgr: "):
        sentence, _, hint = result.output.partition("\n")
        assert hint.strip() or next_step(RuntimeError(sentence)) == "", result.output


def _options(words: tuple[str, ...]) -> set[str]:
    command: Any = cli
    for word in words:
        command = command.get_command(click.Context(command), word)
    return {name for option in command.params for name in option.opts}
