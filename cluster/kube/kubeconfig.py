"""A kubeconfig as kubelet, kubeadm and kubectl write it: JSON, or YAML of plain blocks. No YAML library: 30 MB are all.

What this does not understand it refuses, with the line: a credential that is guessed is none.
"""

from __future__ import annotations

import base64
import binascii
import json
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
    namespace: str = ""


#: Credentials that need a program or are not this reader's; a user with one of them is refused.
_REFUSED_USER = ("exec", "auth-provider", "username", "password", "as", "impersonate")


def read_kubeconfig(text: str, context: str = "") -> Kubeconfig:
    """One context of a kubeconfig, the current one if ``context`` is "".

    :raises BadKubeconfig: it is not understood, or lacks what is named.
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
        namespace=_text(found, "namespace", wanted),
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
    if text.lstrip().startswith("{"):
        try:
            document: Any = json.loads(text)
        except ValueError as error:
            raise BadKubeconfig(f"the kubeconfig is not JSON: {error}") from None
    else:
        lines = _Lines(text)
        document = lines.block(0) if lines.left() else None
        if lines.left():
            raise lines.refusal("the indentation fits nothing above")
    if not isinstance(document, dict):
        raise BadKubeconfig("the kubeconfig is no mapping of clusters, contexts and users")
    return document


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
            return self._below(indent + 1)
        inner = rest.strip()
        if _split(inner) is None:
            self._at += 1
            return self._scalar(inner)
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
        return key, self._below(indent + 1)

    def _below(self, least: int) -> Optional[Any]:
        return self.block(least) if self.left() and self._indent() >= least else None

    def _scalar(self, said: str) -> Any:
        if said[0] == '"':
            try:
                return json.loads(said)
            except ValueError:
                raise self.refusal("the quoted text has no plain end") from None
        if said[0] == "'":
            if len(said) < 2 or said[-1] != "'":
                raise self.refusal("the quoted text has no plain end")
            return said[1:-1].replace("''", "'")
        said = said.split(" #", 1)[0].rstrip()
        plain: dict[str, Any] = {"{}": {}, "[]": [], "null": None, "~": None, "true": True, "false": False}
        if said in plain:
            return plain[said]
        if said[0] in "|>{[&*!%@`":
            raise self.refusal(f"{said[0]!r} begins something else than a plain text")
        return said


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
