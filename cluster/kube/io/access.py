"""The API server's address and the client's credentials; files are read again when they have changed.

Tokens and certificates of nodes are renewed while a process runs: kubelet replaces both before they end.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Optional
from urllib.parse import urlsplit

from cluster.kube.kubeconfig import BadKubeconfig, Kubeconfig, read_kubeconfig

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: A kubeconfig has some KB.
MOST_BYTES = 1 << 20

_Stamp = tuple[tuple[int, int, int], ...]


class NoAccess(Exception):
    """The credentials cannot be had: a sentence."""


class Access:
    """A server and a credential. ``stamp()`` differs when connections must be made anew."""

    def __init__(self, config: Kubeconfig) -> None:
        self._config = config
        parts = urlsplit(config.server)
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.is_tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.server = config.server
        self._token = config.token
        self._token_stamp: _Stamp = ()

    @classmethod
    def in_cluster(cls, root: Path = IN_CLUSTER) -> Access:
        """As the service account of the pod that this runs in.

        :raises NoAccess: this is no pod, or it has no token.
        """
        host, port = (
            os.environ.get("KUBERNETES_SERVICE_HOST", ""),
            os.environ.get("KUBERNETES_SERVICE_PORT", ""),
        )
        if not host or not (root / "token").exists():
            raise NoAccess(
                f"this is no pod with a service account: {root}/token is not there; give a kubeconfig"
            )
        shown = f"[{host}]" if ":" in host else host
        config = Kubeconfig(
            f"https://{shown}:{port or 443}", ca_file=str(root / "ca.crt"), token_file=str(root / "token")
        )
        return cls(config)

    @classmethod
    def kubeconfig(cls, path: Path, context: str = "") -> Access:
        """As the kubeconfig says; files that it names are relative to its folder.

        :raises NoAccess: it cannot be read or is not understood.
        """
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise NoAccess(f"{path} has more than {MOST_BYTES} bytes and is no kubeconfig")
            config = read_kubeconfig(text.decode(), context)
        except BadKubeconfig as error:
            raise NoAccess(f"{path}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise NoAccess(f"{path} cannot be read: {error}") from None
        named = {
            name: str(path.parent / value)
            for name in ("ca_file", "token_file", "cert_file", "key_file")
            if (value := getattr(config, name))
        }
        return cls(replace(config, **named))  # type: ignore[arg-type]

    def token(self, is_refused: bool = False) -> str:
        """The bearer token, "" for none. ``is_refused``: the server does not take the last one; read it again.

        :raises NoAccess: its file cannot be read.
        """
        if self._config.token_file:
            stamp = self._stamp_of(self._config.token_file)
            if is_refused or stamp != self._token_stamp:
                self._token = self._read(self._config.token_file).decode(errors="replace").strip()
                self._token_stamp = stamp
        return self._token

    def stamp(self) -> _Stamp:
        """Of the files that a connection is made with."""
        config = self._config
        return self._stamp_of(config.ca_file, config.cert_file, config.key_file)

    def context(self) -> Optional[ssl.SSLContext]:
        """The TLS context of a new connection; None without TLS.

        :raises NoAccess: a file cannot be read, or is no certificate or key.
        """
        if not self.is_tls:
            return None
        config = self._config
        try:
            authority = config.ca_data or (self._read(config.ca_file) if config.ca_file else b"")
            made = ssl.create_default_context(cadata=authority.decode() if authority else None)
            if config.cert_data or config.cert_file:
                with (
                    _as_file(config.cert_data, config.cert_file) as cert,
                    _as_file(config.key_data, config.key_file or config.cert_file) as key,
                ):
                    made.load_cert_chain(cert.path, key.path)
        except (ssl.SSLError, ValueError) as error:
            raise NoAccess(f"the certificates for {self.server} are not usable: {error}") from None
        except OSError as error:
            raise NoAccess(f"the certificates for {self.server} cannot be read: {error}") from None
        return made

    @property
    def server_name(self) -> str:
        """The name that the server's certificate has."""
        return self._config.server_name or self.host

    @staticmethod
    def _stamp_of(*paths: str) -> _Stamp:
        stamps = []
        for path in paths:
            try:
                found = os.stat(path) if path else None
            except OSError:
                found = None  # it is being replaced; reading it tells the fault
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size) if found else (0, 0, 0))
        return tuple(stamps)

    @staticmethod
    def _read(path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(MOST_BYTES)
        except OSError as error:
            raise NoAccess(f"{path} cannot be read: {error.strerror}") from None


class _as_file:
    """A path for what OpenSSL reads from files only; bytes are never on a disk."""

    def __init__(self, data: bytes, path: str) -> None:
        self.path = path
        self._fd = -1
        if data:
            self._fd = os.memfd_create("pem", os.MFD_CLOEXEC)
            os.write(self._fd, data)
            self.path = f"/proc/self/fd/{self._fd}"

    def __enter__(self) -> _as_file:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
