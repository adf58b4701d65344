"""The control plane of these tests itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.real.control_plane import ControlPlane, Refused

pytestmark = pytest.mark.cluster

NAMESPACE = "/api/v1/namespaces/default"


def test_a_service_accounts_token_may_what_its_roles_say(api_server: ControlPlane) -> None:
    account = {"metadata": {"name": "reader"}}
    api_server.ask("POST", f"{NAMESPACE}/serviceaccounts", account)
    token = api_server.account_token("default", "reader")
    with pytest.raises(Refused) as refused:
        api_server.ask("GET", f"{NAMESPACE}/configmaps", token=token)
    assert refused.value.code == 403
    assert "system:serviceaccount:default:reader" in refused.value.status["message"]


def test_a_kubeconfig_has_a_certificate_or_a_token(api_server: ControlPlane, folder: Path) -> None:
    pair = api_server.certificate("system:node:n1", "system:nodes")
    written = api_server.kubeconfig(folder / "kubeconfig", certificate=pair)
    assert str(pair[0]) in written.read_text()
    assert written.stat().st_mode & 0o077 == 0
