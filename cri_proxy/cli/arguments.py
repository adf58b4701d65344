"""What a command line stands for: which command, in which module. Decides nothing else."""

from __future__ import annotations

import os
import stat
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import click

from cri_proxy.cli.intel_flags import intel_arguments
from cri_proxy.config.io import files as settings

Command = TypeVar("Command", bound=Callable[..., Any])
#: Commands with a module of their own: it is loaded when one is asked for, which a start of the daemon does not wait for.
ELSEWHERE = {
    "affinity": "cri_proxy.cli.affinity",
    "agent": "cri_proxy.cli.agent",
    "claims": "cri_proxy.cli.claims",
    "doctor": "cri_proxy.cli.doctor",
    "history": "cri_proxy.cli.history",
    "kubelet": "cri_proxy.cli.kubelet",
    "nri": "cri_proxy.cli.nri",
    "observer": "cri_proxy.cli.observer",
    "rebalance": "cri_proxy.cli.affinity",
    "isolation": "cri_proxy.cli.isolation",
    "top": "cri_proxy.cli.view",
    "web": "cri_proxy.cli.view",
}


#: A path as it is typed: what opens it says what is wrong with it, and click would say less.
ANY_PATH = click.Path(path_type=Path, readable=False)


class FileThatIsThere(click.Path):
    """A path to a file; where none is found it is said whether it is missing or may not be looked at."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> Any:
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        try:
            if stat.S_ISDIR(os.stat(path).st_mode):
                self.fail(f"{path} is a directory, expected a file", param, ctx)
        except OSError as error:
            self.fail(f"{path}: {error.strerror}", param, ctx)
        return path


#: Our configuration, for a command that works without the daemon.
config_option = click.option(
    "--config",
    "config_file",
    type=FileThatIsThere(),
    metavar="FILE",
    help=f"Our configuration, if it is not in its place ({settings.CONFIG}).",
)


def configured(command: Command) -> Command:
    """The options by which a program that runs finds its configuration."""
    for decorate in (
        click.option("--force-config", type=ANY_PATH, help="Read after everything else."),
        click.option(
            "--fallback-config", type=ANY_PATH, help=f"Read before it (default {settings.FALLBACK})."
        ),
        click.option(
            "--config", "config_file", type=ANY_PATH, help=f"Configuration file (default {settings.CONFIG})."
        ),
    ):
        command = decorate(command)
    return command


#: Of the programs that place containers.
with_first_mode = click.option(
    "--first-mode",
    type=click.Choice(["enforce", "observe"]),
    help="Where nothing sets relay.mode: the mode of a node on which none has run before. What ran goes on as it did.",
)


class Commands(click.Group):
    """A group whose help has the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(limit=1000)) for name, one in found if one and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class RunByDefault(Commands):
    """A group that is ``run`` when no subcommand is named, and understands Go's ``-flag=value``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if cmd_name in ELSEWHERE and cmd_name not in self.commands:
            self.add_command(getattr(import_module(ELSEWHERE[cmd_name]), cmd_name))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell asks what may follow: nothing does yet
            return super().parse_args(ctx, args)
        at = 0
        while at < len(args) and args[at].split("=", 1)[0] == "--control-socket":
            at += 1 if "=" in args[at] else 2
        first = args[at] if at < len(args) else ""
        run = self.commands["run"]
        known = {name for option in run.params for name in option.opts}
        if first == "run":
            args = [*args[: at + 1], *intel_arguments(args[at + 1 :], known)]
        elif first in ("-version", "-help"):
            args = ["-" + first]
        elif not first or (first.startswith("-") and first not in ("--help", "-h", "--version")):
            args = ["run", *intel_arguments(args, known)]
        return super().parse_args(ctx, args)
