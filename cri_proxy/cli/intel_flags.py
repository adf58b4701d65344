"""The flags of cri-resource-manager's daemon that ``run`` has not: accepted or refused, and what holds instead.

Accepted is what changes no container's place by being left out. Refused is what would serve though it was not meant to, or
would place otherwise than it asks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType

import click

from cri_proxy.cli.output import echo
from policies.frozen import frozen


@frozen
class IntelFlag:
    """``says``: a clause that says what holds here; ``ours``: the flag that it is read as."""

    says: str
    takes_value: bool = True
    is_refused: bool = False
    ours: str = ""


def _ignored(says: str, *names: str, takes_value: bool = True) -> dict[str, IntelFlag]:
    return dict.fromkeys(names, IntelFlag(says, takes_value))


def _refused(says: str, *names: str) -> dict[str, IntelFlag]:
    return dict.fromkeys(names, IntelFlag(says, is_refused=True))


#: By name, without dashes.
INTEL_FLAGS: Mapping[str, IntelFlag] = MappingProxyType(
    {
        "relay-dir": IntelFlag("is read as --state-dir", ours="--state-dir"),
        **_ignored(
            "any runtime that serves CRI is served", "allow-untested-runtimes", takes_value=False
        ),
        **_ignored("the cluster's agent asks the control socket", "agent-socket", "config-socket"),
        **_ignored("the service manager knows the process", "pid-file"),
        **_ignored("SIGHUP reads the configuration again", "force-config-signal"),
        **_ignored("a new policy moves only what has to move", "disable-policy-switch", takes_value=False),
        **_ignored("metrics are counted when they are read; metrics.listen", "metrics-interval"),
        **_ignored("affinity.rebalance says what is moved", "rebalance-interval"),
        **_ignored("the page is a program of its own, cri-resmgr web", "disable-ui", takes_value=False),
        **_ignored("the page is a program of its own, cri-resmgr web", "external-visualizers"),
        **_ignored(
            "log.level and log.format say what is logged",
            *("v", "vmodule", "stderrthreshold", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size"),
        ),
        **_ignored(
            "log.level and log.format say what is logged",
            *("logtostderr", "alsologtostderr", "one_output", "skip_headers", "skip_log_headers"),
            "add_dir_header",
            takes_value=False,
        ),
        **_refused("type: cri-resmgr config show", "print-config"),
        # None of theirs, and often looked for.
        **_refused("relay.mode: observe decides and changes nothing", "dry-run"),
        **_refused("docs/policies.md has the policies", "list-policies"),
        **_refused("type: cri-resmgr config cluster-policy --clear", "reset-config"),
        **_refused("set topology.source to the sys folder below that root", "host-root"),
        **_refused(
            "set topology.cgroup_root", "cgroup-mount", "cgroup-v2-dir", "kubelet-cgroup-root", "cgroup-path"
        ),
    }
)  # fmt: skip


def double_dashes(args: Sequence[str]) -> list[str]:
    """Go's ``-flag`` as ``--flag``."""
    return ["-" + a if a.startswith("-") and not a.startswith("--") and len(a) > 2 else a for a in args]


def intel_arguments(args: Sequence[str], known: Container[str]) -> list[str]:
    """Arguments of ``run``, as Intel's units have them too: those flags that are not ``known`` go, with a warning.

    A flag that is neither known nor Intel's stays: it is refused with all that is wrong in a command line.

    :raises click.UsageError: a flag of Intel's that is refused, or misses its value.
    """
    kept: list[str] = []
    words = iter(zip(args, double_dashes(args)))
    for given, word in words:
        name, equals, value = word.partition("=")
        flag = INTEL_FLAGS.get(name.lstrip("-")) if name.startswith("-") and name not in known else None
        if flag is None:
            kept.append(word)
            continue
        told = given.partition("=")[0]
        if flag.is_refused:
            raise click.UsageError(f"{told} is no flag here: {flag.says}")
        if flag.takes_value and not equals:
            value = next(words, (None, None))[0] or ""
        if flag.takes_value and not value:
            raise click.UsageError(f"Option {told!r} requires an argument.")
        if flag.ours:
            kept.append(f"{flag.ours}={value}")
        echo(f"warning: {told} {'' if flag.ours else 'is ignored: '}{flag.says}", err=True)
    return kept
