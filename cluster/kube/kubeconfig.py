"""A kubeconfig as kubelet, kubeadm and k3s write it: JSON, or YAML of blocks and flow style. No YAML library: 30 MB are all.

What this does not understand it refuses, with the line: a credential that is guessed is none.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any, Optional


class BadKubeconfig(Exception):
    """One sentence that names the place."""


@dataclass(frozen=True)
class Kubeconfig:
    """One context: where, and as what. Files are paths as written; ``*_data`` are PEM bytes."""

    server: str
    ca_file: str = ""
    ca_data: bytes = b""
    server_name: str = ""
    token: str = ""
    token_file: str = ""
    cert_file: str = ""
    cert_data: bytes = b""
    key_file: str = ""
    key_data: bytes = b""


#: Credentials that need a program or are not this reader's; a user with one of them is refused.
_REFUSED_USER = ("exec", "auth-provider", "username", "password", "as", "impersonate")


def read_kubeconfig(text: str, context: str = "") -> Kubeconfig:
    """One context of a kubeconfig, the current one if ``context`` is "".

    :raises BadKubeconfig: it is not understood, or lacks a part that it names.
    """
    document = _parse(text)
    wanted = context or _text(document, "current-context", "the kubeconfig")
    if not wanted:
        raise BadKubeconfig("the kubeconfig has no current-context; give one of its contexts by name")
    found = _named(document, "contexts", "context", wanted)
    cluster_name, user_name = _text(found, "cluster", wanted), _text(found, "user", wanted)
    cluster = _named(document, "clusters", "cluster", cluster_name)
    user = _named(document, "users", "user", user_name) if user_name else {}
    for key in _REFUSED_USER:
        if user.get(key):
            raise BadKubeconfig(
                f"user {user_name!r} of the kubeconfig has {key!r}, which is not supported; "
                "give it a token, a tokenFile or a client certificate"
            )
    if cluster.get("insecure-skip-tls-verify") in (True, "true"):
        raise BadKubeconfig(
            f"cluster {cluster_name!r} of the kubeconfig has insecure-skip-tls-verify; "
            "give it the certificate-authority of the server"
        )
    server = _text(cluster, "server", cluster_name)
    if not server.startswith(("https://", "http://")):
        raise BadKubeconfig(f"server {server!r} of cluster {cluster_name!r} is no http or https URL")
    return Kubeconfig(
        server=server.rstrip("/"),
        ca_file=_text(cluster, "certificate-authority", cluster_name),
        ca_data=_data(cluster, "certificate-authority-data", cluster_name),
        server_name=_text(cluster, "tls-server-name", cluster_name),
        token=_text(user, "token", user_name),
        token_file=_text(user, "tokenFile", user_name),
        cert_file=_text(user, "client-certificate", user_name),
        cert_data=_data(user, "client-certificate-data", user_name),
        key_file=_text(user, "client-key", user_name),
        key_data=_data(user, "client-key-data", user_name),
    )


def _named(document: dict[str, Any], key: str, inner: str, name: str) -> dict[str, Any]:
    entries = document.get(key) or []
    if isinstance(entries, list):
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                found = entry.get(inner) or {}
                if isinstance(found, dict):
                    return found
    raise BadKubeconfig(f"the kubeconfig has no {inner} {name!r}")


def _text(values: dict[str, Any], key: str, place: str) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadKubeconfig(f"{key} of {place!r} in the kubeconfig is {value!r}, not a text")
    return value


def _data(values: dict[str, Any], key: str, place: str) -> bytes:
    try:
        return base64.b64decode(_text(values, key, place), validate=True)
    except binascii.Error:
        raise BadKubeconfig(f"{key} of {place!r} in the kubeconfig is not base64") from None


def _parse(text: str) -> dict[str, Any]:
    document: Any = None
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(text)
    if document is None:
        lines = _Lines(text)
        document = lines.below(0)
        if lines.left():
            raise lines.refusal("the indentation fits nothing above")
    if not isinstance(document, dict):
        raise BadKubeconfig("the kubeconfig is no mapping of clusters, contexts and users")
    return document


#: Brackets in brackets: a kubeconfig has four.
_MOST_DEPTH = 16
_PUNCTUATION = frozenset("{}[],:")
_PLAIN: dict[str, Any] = {"null": None, "~": None, "true": True, "false": False}
#: What flow style is made of: blanks and comments, punctuation, texts in quotes, plain texts.
_FLOW = re.compile(
    r"""\s+ | (?<=\s)\#.*
    | (?P<token>[{}\[\],:]
    | "(?:[^"\\]|\\.)*"
    | '(?:[^']|'')*'
    | [^\s{}\[\],:"'#&*!|>%@`](?:[^{}\[\],:#]|:(?![\s{}\[\],]|$)|(?<=\S)\#)*)""",
    re.VERBOSE,
)


def _scalar_of(said: str) -> Any:
    """:raises ValueError: the quotes do not fit."""
    if said[0] == '"':
        return json.loads(said)
    if said[0] == "'":
        if len(said) < 2 or said[-1] != "'":
            raise ValueError
        return said[1:-1].replace("''", "'")
    return _PLAIN.get(said, said)


def _flow_value(tokens: list[str]) -> Any:
    """The value that the tokens begin with; they are taken away.

    :raises ValueError, IndexError: they are none.
    """
    token = tokens.pop(0)
    if token == "[":
        listed = []
        while tokens[0] != "]":
            listed.append(_flow_value(tokens))
            _take_comma(tokens, "]")
        tokens.pop(0)
        return listed
    if token == "{":
        values: dict[str, Any] = {}
        while tokens[0] != "}":
            key = _scalar_of(tokens[0]) if tokens[0][0] in "\"'" else tokens[0]
            if key in values or key in _PUNCTUATION or tokens[1] != ":":
                raise ValueError
            del tokens[:2]
            values[key] = None if tokens[0] in (",", "}") else _flow_value(tokens)
            _take_comma(tokens, "}")
        tokens.pop(0)
        return values
    if token in _PUNCTUATION:
        raise ValueError
    return _scalar_of(token)


def _take_comma(tokens: list[str], end: str) -> None:
    if tokens[0] == ",":
        tokens.pop(0)
    elif tokens[0] != end:
        raise ValueError


class _Lines:
    """The lines that say something, and how far they have been read."""

    def __init__(self, text: str) -> None:
        numbered = enumerate(text.splitlines(), 1)
        said = [
            (number, line.rstrip()) for number, line in numbered if line.strip() and line.strip() != "---"
        ]
        self._lines = [(number, line) for number, line in said if not line.lstrip().startswith("#")]
        self._at = 0

    def left(self) -> bool:
        return self._at < len(self._lines)

    def refusal(self, why: str) -> BadKubeconfig:
        number, line = self._lines[min(self._at, len(self._lines) - 1)]
        return BadKubeconfig(
            f"line {number} of the kubeconfig is not understood, {why}: {line.strip()[:60]!r}"
        )

    def _indent(self) -> int:
        line = self._lines[self._at][1]
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise self.refusal("a tab indents it")
        return len(line) - len(line.lstrip())

    def block(self, least: int) -> Any:
        """A mapping or a list whose lines are indented alike, by ``least`` or more."""
        indent = self._indent()
        if indent < least:
            raise self.refusal("it is indented too little")
        is_list = self._is_item()
        values: Any = [] if is_list else {}
        while self.left() and self._indent() == indent and self._is_item() == is_list:
            if is_list:
                values.append(self._item(indent))
            else:
                key, value = self._pair(indent)
                if key in values:
                    raise BadKubeconfig(f"the kubeconfig has {key!r} twice in one place")
                values[key] = value
        if self.left() and self._indent() > indent:
            raise self.refusal("it is indented too much")
        return values

    def _is_item(self) -> bool:
        said = self._lines[self._at][1].lstrip()
        return said == "-" or said.startswith("- ")

    def _item(self, indent: int) -> Any:
        number, line = self._lines[self._at]
        rest = line[indent + 1 :]
        if not rest.strip():
            self._at += 1
            return self.below(indent + 1)
        inner = rest.strip()
        if inner[0] in "{[" or _split(inner) is None:
            value = self._scalar(inner)
            self._at += 1
            return value
        # "- key: value" begins a mapping whose other keys stand below this one.
        self._lines[self._at] = (number, " " * (indent + 1) + rest)
        return self.block(indent + 1)

    def _pair(self, indent: int) -> tuple[str, Any]:
        split = _split(self._lines[self._at][1].strip())
        if split is None:
            raise self.refusal("no key")
        key, rest = split
        if rest:
            value = self._scalar(rest)
            self._at += 1
            return key, value
        self._at += 1
        # A list may stand as far left as its key.
        if self.left() and self._indent() == indent and self._is_item():
            return key, self.block(indent)
        return key, self.below(indent + 1)

    def below(self, least: int) -> Any:
        """The value indented by ``least`` or more; None = there is none."""
        if not self.left() or self._indent() < least:
            return None
        said = self._lines[self._at][1].strip()
        if said[0] not in "{[":
            return self.block(least)
        value = self._scalar(said)
        self._at += 1
        return value

    def _scalar(self, said: str) -> Any:
        """The value that begins with ``said``; the line that it ends in is the next one."""
        if said[0] in "{[":
            return self._flow(said)
        if said[0] not in "\"'":
            said = said.split(" #", 1)[0].rstrip()
        if said[0] in "|>&*!%@`":
            raise self.refusal(f"{said[0]!r} begins something else than a plain text")
        try:
            return _scalar_of(said)
        except ValueError:
            raise self.refusal("the quoted text has no plain end") from None

    def _flow(self, said: str) -> Any:
        tokens: list[str] = []
        depth = at = 0
        while True:
            while found := _FLOW.match(said, at):
                at = found.end()
                if token := (found["token"] or "").strip():
                    depth += (token in ("{", "[")) - (token in ("}", "]"))
                    tokens.append(token)
                if depth > _MOST_DEPTH:
                    raise self.refusal("it has too many brackets")
            if at < len(said):
                raise self.refusal("it is no flow style")
            if depth <= 0:
                break
            if self._at + 1 == len(self._lines):
                raise self.refusal("its brackets are not closed")
            self._at += 1
            said, at = self._lines[self._at][1], 0
        try:
            value = _flow_value(tokens)
        except (ValueError, IndexError):
            value, tokens = None, ["?"]
        if tokens:
            raise self.refusal("it is no flow style")
        return value


def _split(said: str) -> Optional[tuple[str, str]]:
    """Key and what follows it, of ``key: value`` or ``key:``; a quoted key loses its quotes."""
    if said[0] in "\"'":
        end = said.find(said[0], 1)
        key, rest = said[1:end], said[end + 1 :]
        return (key, rest[1:].strip()) if end > 0 and (rest == ":" or rest.startswith(": ")) else None
    if said.endswith(":") and ": " not in said:
        return said[:-1], ""
    key, colon, rest = said.partition(": ")
    return (key, rest.strip()) if colon else None
