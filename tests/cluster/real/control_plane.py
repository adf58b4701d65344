"""A control plane of the tests' own: etcd, kube-apiserver and its controllers as processes on loopback, in one folder.

Nothing of it is left after `close`. All calls block; in a test whose event loop must go on, use
`asyncio.to_thread(control_plane.start)`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from cluster.kube.document import read_json

START_TIMEOUT_S = 180.0  # against 7 s on two idle CPUs
END_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 60.0
ADMIN_TOKEN = "admin-of-the-tests"
SERVICE_CIDR = "10.233.0.0/24"
#: The service ``kubernetes``, as which pods know the server: the first of that network.
SERVICE_ADDRESS = "10.233.0.1"
LOOPBACK = "127.0.0.1"
ETCD_URL = "unix://etcd.sock:1"
#: An hour, seconds: the least that a server mints a token for is ten minutes.
TOKEN_S = 3600


class Refused(AssertionError):
    """The server's answer where another was expected: its code and its status object."""

    def __init__(self, code: int, status: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {status.get('message')}")
        self.code = code
        self.status = status


class ControlPlane:
    """``etcd``, ``kube_apiserver``: programs. ``url`` and the credentials stay the same over restarts.

    ``address``: where the server listens, an address of this machine; ``port`` 0: a free one. ``gates``: the server's
    feature gates as its option has them, "" = as they are by default; ``flags``: more of the server's options.
    """

    def __init__(
        self,
        folder: Path,
        etcd: Path,
        kube_apiserver: Path,
        *,
        address: str = LOOPBACK,
        port: int = 0,
        gates: str = "",
        flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._etcd_program = etcd
        self._server_program = kube_apiserver
        self.address = address
        self._flags = [*flags, *([f"--feature-gates={gates}"] if gates else [])]
        self.port = port or free_port()
        self.url = f"https://{address}:{self.port}"
        self.ca = folder / "ca.crt"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._make_credentials()

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- life

    def start(self) -> None:
        """Start what does not run, and wait until the server is ready."""
        try:
            self._start_etcd()
            self.start_server()
        except BaseException:
            self.close()
            raise

    def start_server(self) -> None:
        """Start kube-apiserver and wait until it is ready; etcd runs.

        :raises AssertionError: it ended, or is not ready in time; with the end of its log.
        """
        self.spawn(
            "kube-apiserver",
            str(self._server_program),
            f"--etcd-servers={ETCD_URL}",
            f"--bind-address={self.address}",
            f"--secure-port={self.port}",
            # The endpoints of the service `kubernetes`: loopback is refused there, and nothing goes there.
            "--advertise-address=192.0.2.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={self.folder}/server.crt",
            f"--tls-private-key-file={self.folder}/server.key",
            f"--client-ca-file={self.ca}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/accounts.key",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            "--api-audiences=https://kubernetes.default.svc",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            "--allow-privileged=true",
            *self._flags,
        )
        self.wait("kube-apiserver", self.is_ready)

    def start_controllers(self, manager: Path, scheduler: Path) -> None:
        """Start kube-controller-manager and kube-scheduler, and wait until pods can be made; the server runs.

        :raises AssertionError: one of them ended, or it took too long; with the end of its log.
        """
        kubeconfig = self.kubeconfig(self.folder / "admin.kubeconfig", token=ADMIN_TOKEN)
        common = (
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--authentication-skip-lookup=true",
            f"--cert-dir={self.folder}",
        )
        self.spawn(
            "kube-controller-manager",
            str(manager),
            *common,
            f"--secure-port={free_port()}",
            f"--service-account-private-key-file={self.folder}/accounts.key",
            f"--root-ca-file={self.ca}",
        )
        self.spawn("kube-scheduler", str(scheduler), *common, f"--secure-port={free_port()}")

        def has_account() -> bool:
            try:
                self.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
            except Refused:
                return False
            return True

        self.wait("kube-controller-manager", has_account)

    def stop_server(self, number: int = signal.SIGKILL) -> None:
        """End kube-apiserver; etcd keeps the objects. `start_server` brings it back."""
        self.end("kube-apiserver", number)

    def close(self) -> None:
        """End everything, last started first, and remove the folder."""
        for name in reversed(list(self._processes)):
            self.end(name, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def spawn(self, name: str, *command: str) -> None:
        """Start a process that ends with this control plane; its log is ``NAME.log``."""
        if name in self._processes and self._processes[name].poll() is None:
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            process.wait(END_TIMEOUT_S)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def resident_bytes(self, name: str) -> int:
        """What a process of it has resident now."""
        lines = Path(f"/proc/{self._processes[name].pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024

    def wait(self, name: str, is_done: Callable[[], bool]) -> None:
        """Until it is done.

        :raises AssertionError: the process has ended, or it took too long; with the end of its log.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_done():
            ended = self._processes[name].poll()
            if ended is not None or time.monotonic() > deadline:
                why = "not in time" if ended is None else f"ended with {ended}"
                raise AssertionError(f"{name} {why}:\n" + "\n".join(self.log(name).splitlines()[-40:]))
            time.sleep(0.1)

    def _start_etcd(self) -> None:
        # etcd takes a host and a port only; these are names of sockets, in the folder that it is started in.
        peers = "unix://peers.sock:1"
        self.spawn(
            "etcd",
            str(self._etcd_program),
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )
        self.wait("etcd", lambda: "ready to serve client requests" in self.log("etcd"))

    def is_ready(self) -> bool:
        """What the server says of itself."""
        try:
            with self._open("GET", "/readyz", None, {}) as answer:
                return bool(answer.read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False

    # --- requests, past any client of the product

    def ask(
        self,
        method: str,
        path: str,
        body: Union[Mapping[str, Any], bytes, None] = None,
        *,
        token: str = ADMIN_TOKEN,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """The server's answer to one request, by default the administrator's. ``body``: JSON, or a text that is sent as
        it is.

        :raises Refused: another code than 2xx.
        """
        try:
            with self._open(method, path, body, {"Content-Type": content_type}, token) as answer:
                return dict(read_json(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read()
            try:
                status = json.loads(said)
            except ValueError:
                status = {"message": said.decode(errors="replace")}
            raise Refused(error.code, status) from None

    def size(self, path: str) -> int:
        """The bytes of an object as the server sends it, what it has added included."""
        with self._open("GET", path, None, {}) as answer:
            return len(answer.read())

    def _open(
        self,
        method: str,
        path: str,
        body: Union[Mapping[str, Any], bytes, None],
        headers: Mapping[str, str],
        token: str = ADMIN_TOKEN,
    ) -> Any:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, content, {"Authorization": f"Bearer {token}", **headers}, method=method
        )
        context = ssl.create_default_context(cafile=str(self.ca))
        return urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context)

    # --- who may what

    def account_token(self, namespace: str, name: str, *, pod: str = "") -> str:
        """A token of a service account; ``pod``: bound to this pod of the same namespace, as kubelet asks for it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_S}
        if pod:
            metadata = self.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": metadata["uid"]}
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.ask("POST", path, wanted)["status"]["token"])

    def certificate(self, user: str, *groups: str) -> tuple[Path, Path]:
        """A client's certificate and key of this user, signed by the authority that the server believes."""
        name = user.replace(":", "-").replace("/", "-")
        if not (self.folder / f"{name}.crt").exists():
            self._sign(name, "".join(f"/O={group}" for group in groups) + f"/CN={user}", "clientAuth", "")
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def kubeconfig(
        self, path: Path, *, token: str = "", certificate: Sequence[Path] = (), url: str = ""
    ) -> Path:
        """Write a kubeconfig for the bearer of a token or of a certificate and key; ``url``: another way there."""
        user: dict[str, Any] = {"token": token}
        if certificate:
            user = {"client-certificate": str(certificate[0]), "client-key": str(certificate[1])}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": url or self.url, "certificate-authority": str(self.ca)}}
            ],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path

    def _make_credentials(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests",
            "-keyout", "ca.key", "-out", "ca.crt",
        )  # fmt: skip
        self._sign(
            "server",
            "/CN=kube-apiserver",
            "serverAuth",
            f"subjectAltName=IP:{self.address},IP:{LOOPBACK},DNS:localhost\n",
        )
        self._openssl("genrsa", "-out", "accounts.key", "2048")
        tokens = self.folder / "tokens.csv"
        tokens.touch(0o600)
        tokens.write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')

    def _sign(self, name: str, subject: str, usage: str, more: str) -> None:
        (self.folder / f"{name}.ext").write_text(f"extendedKeyUsage={usage}\n{more}")
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject,
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip

    def _openssl(self, *words: str) -> None:
        subprocess.run(("openssl", *words), cwd=self.folder, capture_output=True, check=True, timeout=120)


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
