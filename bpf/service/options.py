"""The observer's options: JSON on the command line, or in a file that it reads again on SIGHUP."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from bpf.identity.networks import expression
from policies.affinity.graph.graph import GraphSettings

SYSTEM_PYTHON = "/usr/bin/python3"
PROVIDERS = ("auto", "ebpf", "sock_diag", "declared")
#: Addresses that pods have: private ones, and addresses that providers of networks give.
REMOTE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
WITHIN = ("node", "namespace", "owner")
_OF_GRAPH = tuple(field.name for field in fields(GraphSettings))
#: A compiled class has its fields' defaults in its objects only.
_GRAPH = GraphSettings()


class BadOptions(Exception):
    """The observer cannot start with these. The message is one sentence."""


@dataclass(frozen=True)
class Options:
    """See the options ``affinity.*``; the rest says where things are. "" = not there, not wanted.

    ``runtime_sockets``: the first that answers names the containers. ``state_file``: where the graph is kept; beside it is
    what bcc has compiled. ``python``: the interpreter that has bcc. ``compile_patience_s``: so long may a start wait for it.
    ``reload``: a command that prints these options anew. ``watch``: a file whose change has them read anew, as SIGHUP has:
    the cluster's policy, which may not be there; "": none.
    """

    socket: str = "/var/run/cri-resmgr/affinity.sock"
    listen: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    provider: str = "auto"
    interval_s: float = 10.0
    half_life_s: float = _GRAPH.half_life_s
    message_lines: float = _GRAPH.message_lines
    least_weight: float = _GRAPH.least_weight
    least_share: float = _GRAPH.least_share
    most_weight: float = _GRAPH.most_weight
    within: str = _GRAPH.within
    remote_networks: tuple[str, ...] = REMOTE_NETWORKS
    openers: float = 0.0
    runtime_sockets: tuple[str, ...] = ()
    cgroup_root: str = "/sys/fs/cgroup"
    proc: str = "/proc"
    sysfs: str = "/sys"
    state_file: str = "/var/lib/cri-resmgr/observer/graph.json"
    python: str = SYSTEM_PYTHON
    compile_patience_s: float = 1.0
    reload: tuple[str, ...] = ()
    watch: str = ""

    @property
    def graph(self) -> GraphSettings:
        """The graph's settings."""
        return GraphSettings(**{name: getattr(self, name) for name in _OF_GRAPH})

    def live_part_of(self, newer: Options) -> Options:
        """These with what of ``newer`` needs no restart."""
        return replace(self, **{name: getattr(newer, name) for name in (*_OF_GRAPH, "interval_s")})


def read_options(argument: str) -> Options:
    """Options from ``JSON`` or ``@FILE``; absent ones have their defaults.

    :raises BadOptions: one sentence that names the option, its value and the expected one.
    """
    text, place = argument, "--options"
    if argument.startswith("@"):
        place = argument[1:]
        try:
            with open(place, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadOptions(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_options(text, place)


def parse_options(text: str, place: str) -> Options:
    """Options from JSON. :raises BadOptions: as ``read_options``."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadOptions(f"{place}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadOptions(f"{place}: expected a JSON object")
    known = {field.name: field.default for field in fields(Options)}
    unknown = sorted(document.keys() - known.keys())
    if unknown:
        raise BadOptions(f"{place}: there is no option {unknown[0]!r}; there are {', '.join(sorted(known))}")
    values = {
        name: _read(name, value, known[name], place) for name, value in document.items() if value is not None
    }
    options = Options(**values)
    _check(options, place)
    return options


def _read(name: str, value: Any, default: Any, place: str) -> Any:
    if isinstance(default, str):
        if isinstance(value, str):
            return value
        raise BadOptions(f"{place}, {name}: {json.dumps(value)} is not a string")
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return tuple(value)
        raise BadOptions(f"{place}, {name}: {json.dumps(value)} is not a list of strings")
    if is_amount(value):
        return float(value)
    raise BadOptions(f"{place}, {name}: {json.dumps(value)} is not a number of 0 or more")


def is_amount(value: Any) -> bool:
    """Whether a value of JSON is a number of 0 or more, and finite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _check(options: Options, place: str) -> None:
    for name, allowed in (("provider", PROVIDERS), ("within", WITHIN)):
        if getattr(options, name) not in allowed:
            raise BadOptions(
                f"{place}, {name}: {getattr(options, name)!r} is not one of {', '.join(allowed)}"
            )
    for name in ("interval_s", "half_life_s"):
        if getattr(options, name) <= 0:
            raise BadOptions(f"{place}, {name}: {getattr(options, name):g} is not more than 0")
    try:
        expression(options.remote_networks)
    except ValueError as error:
        raise BadOptions(f"{place}, remote_networks: {error}") from None
    if not options.socket:
        raise BadOptions(f"{place}, socket: a path is needed")
    if options.listen:
        _check_listen(options, place)


def _check_listen(options: Options, place: str) -> None:
    """Over TCP the service is never without certificates: it tells what talks to what."""
    host, colon, port = options.listen.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise BadOptions(f"{place}, listen: {options.listen!r} is not HOST:PORT")
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        if not getattr(options, name):
            raise BadOptions(
                f"{place}, {name}: serving {options.listen} needs it; TCP is with mutual TLS only"
            )
