"""Kubeconfigs as kubeadm, kubelet and kubectl write them, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest

from cluster.kube.kubeconfig import BadKubeconfig, Kubeconfig, read_kubeconfig

CA = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()

KUBEADM = f"""\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {CA}
    server: https://10.0.0.1:6443
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
preferences: {{}}
users:
- name: default-auth
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
"""

BY_HAND = """\
# two clusters
apiVersion: v1
kind: Config
current-context: "one"
clusters:
  - name: one
    cluster: {server: x}
"""


def document(**user: object) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": "https://s:6443/"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }
    )


def test_what_kubeadm_writes_for_kubelet_is_read() -> None:
    pem = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    assert read_kubeconfig(KUBEADM) == Kubeconfig(
        server="https://10.0.0.1:6443",
        ca_data=b"-----BEGIN CERTIFICATE-----\n",
        cert_file=pem,
        key_file=pem,
        namespace="default",
    )


def test_json_is_read_and_a_slash_at_the_end_of_the_server_goes() -> None:
    assert read_kubeconfig(document(tokenFile="t")) == Kubeconfig("https://s:6443", token_file="t")


REFUSED = {
    "a program": (document(**{"exec": {"command": "aws"}}), "'exec', which is not supported"),
    "a password": (document(username="u", password="p"), "'username', which is not supported"),
    "another context": (KUBEADM.replace("current-context: d", "current-context: e"), "no context 'eefault"),
    "no server": (KUBEADM.replace("https://10.0.0.1:6443", "10.0.0.1"), "'10.0.0.1' of cluster"),
    "no base64": (KUBEADM.replace(CA, "*?*"), "line 4 of the kubeconfig is not understood"),
    "half base64": (KUBEADM.replace(CA, "abc"), "is not base64"),
    "flow style": (BY_HAND, "line 7 of the kubeconfig is not understood"),
    "a tab": (KUBEADM.replace("    server", "\tserver"), "a tab indents it"),
    "an unverified server": (
        KUBEADM.replace(f"certificate-authority-data: {CA}", "insecure-skip-tls-verify: true"),
        "insecure-skip-tls-verify",
    ),
    "no JSON": ("{", "is not JSON"),
    "nothing": ("", "no mapping"),
    "a list": ("- a\n- b\n", "no mapping"),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_understood_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadKubeconfig) as refused:
        read_kubeconfig(text)
    assert sentence in str(refused.value)
