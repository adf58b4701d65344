"""Kubeconfigs as kubeadm, kubelet and kubectl write them, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest
import yaml

from cluster.kube.kubeconfig import BadKubeconfig, Kubeconfig, _parse, read_kubeconfig

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

K3S = """\
apiVersion: v1
clusters:
- cluster:
    server: https://127.0.0.1:6444
    certificate-authority: /var/lib/rancher/k3s/agent/server-ca.crt
  name: local
contexts:
- context:
    cluster: local
    namespace: default
    user: user
  name: Default
current-context: Default
kind: Config
preferences: {}
users:
- name: user
  user:
    client-certificate: /var/lib/rancher/k3s/agent/client-kubelet.crt
    client-key: /var/lib/rancher/k3s/agent/client-kubelet.key
"""

FLOW = """\
# two clusters
apiVersion: v1
kind: Config
current-context: "one"
clusters: [{name: other, cluster: {}}, {name: one,
  cluster: {server: https://10.0.0.1:6443, "certificate-authority":'/ca #1.crt'}}]  # the second
contexts:
  - {name: one, context: {cluster: one, user: "a, b", extensions: [],}}
users:
  [ # one
    {name: 'a, b', user: {tokenFile: /etc/a token, exec: ~, password: }},  # on a disk
  ]
preferences: {colors: true # and no more
  }
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
        server="https://10.0.0.1:6443", ca_data=b"-----BEGIN CERTIFICATE-----\n", cert_file=pem, key_file=pem
    )


def test_what_k3s_writes_for_kubelet_is_read() -> None:
    folder = "/var/lib/rancher/k3s/agent"
    assert read_kubeconfig(K3S) == Kubeconfig(
        server="https://127.0.0.1:6444",
        ca_file=f"{folder}/server-ca.crt",
        cert_file=f"{folder}/client-kubelet.crt",
        key_file=f"{folder}/client-kubelet.key",
    )


@pytest.mark.parametrize("text", [KUBEADM, K3S, FLOW], ids=["kubeadm", "k3s", "flow style"])
def test_what_is_read_is_what_yaml_says(text: str) -> None:
    assert _parse(text) == yaml.safe_load(text)


def test_flow_style_is_read_over_lines() -> None:
    expected = Kubeconfig("https://10.0.0.1:6443", ca_file="/ca #1.crt", token_file="/etc/a token")
    assert read_kubeconfig(FLOW) == expected
    assert read_kubeconfig("---\n{" + "kind: Config, " + document(tokenFile="t")[1:]) == (
        Kubeconfig("https://s:6443", token_file="t")
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
    "brackets that stay open": (FLOW.replace("  ]\n", ""), "its brackets are not closed"),
    "a bracket too many": (FLOW.replace("  ]\n", "  ]]\n"), "it is no flow style"),
    "brackets that do not fit": (FLOW.replace("extensions: []", "extensions: [}"), "no flow style"),
    "a key without a colon": (FLOW.replace("cluster: one, ", "cluster:one, "), "line 8 of the kubeconfig"),
    "a key twice": (FLOW.replace('user: "a, b"', "cluster: two"), "line 8 of the kubeconfig"),
    "an anchor": (FLOW.replace("preferences: {", "preferences: {a: &b 1, "), "it is no flow style"),
    "brackets without an end": ("a: " + "[" * 100_000, "too many brackets"),
    "JSON without an end": ('{"a":' + "[" * 100_000, "too many brackets"),
    "a tab": (KUBEADM.replace("    server", "\tserver"), "a tab indents it"),
    "an unverified server": (
        KUBEADM.replace(f"certificate-authority-data: {CA}", "insecure-skip-tls-verify: true"),
        "insecure-skip-tls-verify",
    ),
    "half a mapping": ("{", "its brackets are not closed"),
    "nothing": ("", "no mapping"),
    "a list": ("- a\n- b\n", "no mapping"),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_understood_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadKubeconfig) as refused:
        read_kubeconfig(text)
    assert sentence in str(refused.value)
