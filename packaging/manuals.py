"""What is written from the program itself: the manual page, the completions, the sample configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from cri_proxy.cli.main import cli
from cri_proxy.config.documents import sample_config
from cri_proxy.version import VERSION

NAME = "cri-resmgr"
_HEAD = f""".TH CRI-RESMGR 8 "" "{NAME} {VERSION}" "System administration"
.SH NAME
{NAME} \\- places containers on L3 slices (CCX) and NUMA nodes, between kubelet and the container runtime
.SH SYNOPSIS
.B {NAME}
[\\fIOPTION\\fR]... [\\fICOMMAND\\fR [\\fIARGUMENT\\fR]...]
.SH DESCRIPTION
A CRI proxy for Kubernetes nodes with chiplet CPUs. It gives every container a cpuset inside one L3 slice, or else
one NUMA node, or else the nearest few. It also takes the flags of Intel's cri-resource-manager.
"""
_TAIL = r""".SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
Failed; a sentence on standard error says why. Of \fBdoctor\fR: there is a problem. Of \fBkubelet status\fR:
kubelet does not point at us.
.TP
.B 2
Wrong usage.
.SH FILES
.TP
.I /etc/cri-resmgr/config.yaml
The configuration; every line is commented and shows a default.
.TP
.I /etc/cri-resmgr/fallback.cfg
A configuration of Intel's cri-resource-manager, read before it.
.TP
.I /etc/default/cri-resource-manager, /etc/sysconfig/cri-resource-manager
Flags of the service: CONFIG_OPTIONS and POLICY_OPTIONS, as Intel's. Sockets and directories that commands are to find,
too, belong into config.yaml.
.TP
.I /etc/default/cri-resmgr-observer, /etc/default/cri-resmgr-agent, /etc/default/cri-resmgr-nri, /etc/default/cri-resmgr-web
OBSERVER_OPTIONS, AGENT_OPTIONS, NRI_OPTIONS and WEB_OPTIONS, flags of these services; likewise in /etc/sysconfig.
.TP
.I /var/lib/cri-resmgr
State.
.TP
.I /run/cri-resmgr.sock, /run/cri-resmgr/cri-resmgr.sock
The sockets for kubelet.
.TP
.I /run/cri-resmgr/control.sock
The socket for these commands.
.SH SEE ALSO
/usr/share/doc/cri-resmgr/docs, systemctl(1), kubelet(1)
"""


def write_all(target: Path) -> None:
    """``man/``, ``completion/`` and ``config.yaml`` below ``target``."""
    for folder in ("man", "completion"):
        (target / folder).mkdir(parents=True, exist_ok=True)
    (target / "man" / f"{NAME}.8").write_text(manual_page())
    for shell in ("bash", "zsh", "fish"):
        (target / "completion" / shell).write_text(completion(shell))
    (target / "config.yaml").write_text(sample_config())


def manual_page() -> str:
    """cri-resmgr(8), from the commands' own help."""
    context = click.Context(cli, info_name=NAME, **cli.context_settings)
    options = "".join(_options(cli, context))
    commands = "".join(
        _command(command, context, words) for command, context, words in _commands(cli, context)
    )
    which = " ".join((cli.help or "").partition("\n\n")[2].split())
    return f"{_HEAD}{_troff(which)}\n.SH OPTIONS\n{options}.SH COMMANDS\n{commands}{_TAIL}"


def _commands(
    group: click.Group, context: click.Context, words: tuple[str, ...] = ()
) -> Iterator[tuple[click.Command, click.Context, tuple[str, ...]]]:
    """Every command that is not hidden, those of groups by all their words, behind the group itself."""
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield command, inner, (*words, name)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, (*words, name))


def _command(command: click.Command, context: click.Context, words: tuple[str, ...]) -> str:
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    title = " ".join([f"\\fB{_troff(' '.join(words))}\\fR", *(f"\\fI{_troff(a)}\\fR" for a in arguments)])
    text = " ".join((command.help or "").split())
    own = "".join(_options(command, context))
    return f".SS {title}\n{_troff(text)}\n{own}"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.get_params(context):
        record = option.get_help_record(context)
        # Every command has --help; it is said once.
        is_shown = "--help" not in option.opts or command is cli
        if isinstance(option, click.Option) and record is not None and is_shown:
            yield f".TP\n.B {_troff(record[0])}\n{_troff(record[1])}\n"


def _troff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def completion(shell: str) -> str:
    """What the shell reads; click writes it, and asks the program for the words."""
    program = f"import sys; sys.argv[0] = {NAME!r}; from cri_proxy.cli.main import cli; cli()"
    environment = {**os.environ, "_CRI_RESMGR_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout
