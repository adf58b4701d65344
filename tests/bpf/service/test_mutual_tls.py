"""The service over TCP: for clients with a certificate of the authority that was set, and for no others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api import affinity_pb2 as pb
from tests.bpf.observer import WAIT_S, ObserverProcess, call, watch
from tests.bpf.service.tls import NAME, channel, make_certificates, observer_over_tcp


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the page, and others: in ``stranger`` of another authority, in ``lent`` one that a client has signed."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    make_certificates(folder / "stranger")
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=lent -keyout lent.key -out lent.csr"
    sign = "openssl x509 -req -in lent.csr -CA client.pem -CAkey client.key -CAcreateserial -out lent.pem"
    for command in (new, sign):
        made = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    with (folder / "lent.pem").open("a") as chain:
        chain.write((folder / "client.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, certificates: Path
) -> Iterator[tuple[ObserverProcess, int]]:
    """An observer, and the port it serves."""
    observer, port = observer_over_tcp(tmp_path_factory.mktemp("observer"), certificates)
    observer.start()
    with channel(port, certificates, "client") as connected:
        call(connected, "GetGraph", pb.GetGraphRequest(), pb.Graph)
    yield observer, port
    observer.close()


def test_a_client_with_a_certificate_is_answered(
    served: tuple[ObserverProcess, int], certificates: Path
) -> None:
    _, port = served
    with channel(port, certificates, "client") as connected:
        assert call(connected, "GetGraph", pb.GetGraphRequest(), pb.Graph).status.provider == "replay"
        deltas = watch(connected)
        assert next(deltas).is_whole
        deltas.cancel()


REFUSED = {
    "without a certificate": "",
    "with a certificate of another authority": "stranger/client",
    "with the observer's own, which is for servers": "server",
    "with one that a client has signed": "lent",
}


@pytest.mark.parametrize("certificate", REFUSED.values(), ids=REFUSED.keys())
def test_no_other_client_is_answered(
    served: tuple[ObserverProcess, int], certificates: Path, certificate: str
) -> None:
    observer, port = served
    logged = observer.errors.stat().st_size
    with channel(port, certificates, certificate) as connected:
        assert refusal(connected).code() is grpc.StatusCode.UNAVAILABLE
    assert observer.graph().status.provider == "replay"
    assert "Traceback" not in observer.errors.read_text()[logged:]


def refusal(connected: grpc.Channel) -> Any:
    """What a call ends with."""
    with pytest.raises(grpc.RpcError) as refused:
        connected.unary_unary("/cri_resmgr.affinity.v1.Affinity/GetGraph")(b"", timeout=WAIT_S)
    return refused.value


def test_without_tls_there_is_no_answer(served: tuple[ObserverProcess, int]) -> None:
    _, port = served
    with grpc.insecure_channel(f"{NAME}:{port}") as plain:
        assert refusal(plain).code() is grpc.StatusCode.UNAVAILABLE


def test_a_client_refuses_an_observer_of_another_authority(
    served: tuple[ObserverProcess, int], certificates: Path
) -> None:
    _, port = served
    with channel(port, certificates, "client", authority="stranger/ca") as connected:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(connected).details()


def test_the_pages_certificates_pass_a_strict_verification(certificates: Path) -> None:
    # As Python 3.13 and later demand it.
    for name, purpose in (("server", "sslserver"), ("client", "sslclient")):
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-CAfile",
            "ca.pem",
            "-purpose",
            purpose,
            f"{name}.pem",
        ]
        done = subprocess.run(command, cwd=certificates, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
