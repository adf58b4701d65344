"""The ways in which kubelet is configured, as the files of a host: what distributions and kubeadm leave behind."""

from __future__ import annotations

from dataclasses import dataclass

CONTAINERD = "unix:///run/containerd/containerd.sock"
OLD = "unix:///var/run/containerd/containerd.sock"
ISULAD = "unix:///var/run/isulad.sock"
UNIT = "/usr/lib/systemd/system/kubelet.service"
DROP_IN = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
CONFIG = "/var/lib/kubelet/config.yaml"
FLAGS_ENV = "/var/lib/kubelet/kubeadm-flags.env"
INSTANCE = "/var/lib/kubelet/instance-config.yaml"

PACKAGE_UNIT = "[Unit]\nDescription=kubelet\n\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n"
SETTINGS = "apiVersion: kubelet.config.k8s.io/v1beta1\ncgroupDriver: systemd  # as the runtime\nkind: KubeletConfiguration\n"


def kubeadm_drop_in(extra_file: str = "/etc/default/kubelet") -> str:
    return f"""# Note: This dropin only works with kubeadm
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/b.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
# --container-runtime-endpoint=unix:///run/commented.sock
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-{extra_file}
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""


KUBEADM = {UNIT: PACKAGE_UNIT, DROP_IN: kubeadm_drop_in(), CONFIG: SETTINGS}


@dataclass(frozen=True)
class Tree:
    """``files`` by path; ``endpoint`` and ``place`` as found; ``changed``: the files an enable may touch."""

    files: dict[str, str]
    endpoint: str
    place: str
    changed: tuple[str, ...]


def flags_env(flags: str) -> str:
    return f'KUBELET_KUBEADM_ARGS="{flags} --pod-infra-container-image=registry.k8s.io/pause:3.9"\n'


TREES = {
    "kubeadm, flags file": Tree(
        {**KUBEADM, FLAGS_ENV: flags_env(f"--container-runtime=remote --container-runtime-endpoint={OLD}")},
        OLD, f"{FLAGS_ENV}:1", (FLAGS_ENV,),
    ),
    "kubeadm, flags file, CRLF and no last newline": Tree(
        {**KUBEADM, FLAGS_ENV: f"# kubeadm\r\nKUBELET_KUBEADM_ARGS='--container-runtime-endpoint {OLD}'"},
        OLD, f"{FLAGS_ENV}:2", (FLAGS_ENV,),
    ),
    "kubeadm, config file": Tree(
        {**KUBEADM, CONFIG: f"# ours\n{SETTINGS}containerRuntimeEndpoint: {CONTAINERD}   # why\nx: [1, 2]\n"},
        CONTAINERD, f"{CONFIG}:5", (CONFIG,),
    ),
    "kubeadm, config file, quoted, CRLF, no last newline": Tree(
        {**KUBEADM, CONFIG: f"a: 1\r\n'containerRuntimeEndpoint':  '{CONTAINERD}'"},
        CONTAINERD, f"{CONFIG}:2", (CONFIG,),
    ),
    "kubeadm, instance-config": Tree(
        {**KUBEADM, CONFIG: f"{SETTINGS}containerRuntimeEndpoint: {OLD}\n",
         INSTANCE: f"apiVersion: kubelet.config.k8s.io/v1beta1\ncontainerRuntimeEndpoint: {OLD}\n"},
        OLD, f"{CONFIG}:4", (CONFIG, INSTANCE),
    ),
    "drop-in, the flag inline": Tree(
        {UNIT: PACKAGE_UNIT, "/etc/systemd/system/kubelet.service.d/20-cri.conf":
         f"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --v=2 \\\n  --container-runtime-endpoint={OLD} \\\n  --x=y\n"},
        OLD, "/etc/systemd/system/kubelet.service.d/20-cri.conf:4",
        ("/etc/systemd/system/kubelet.service.d/20-cri.conf",),
    ),
    "drop-in, the flag quoted and continued": Tree(
        {UNIT: PACKAGE_UNIT, "/etc/systemd/system/kubelet.service.d/20-cri.conf":
         f'[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  "--container-runtime-endpoint={OLD}" --x="y z"'},
        OLD, "/etc/systemd/system/kubelet.service.d/20-cri.conf:4",
        ("/etc/systemd/system/kubelet.service.d/20-cri.conf",),
    ),
    "drop-in, an Environment line": Tree(
        {**KUBEADM, "/etc/systemd/system/kubelet.service.d/0-containerd.conf":
         f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--v=1 --container-runtime-endpoint={OLD}" "A=b"\n'},
        OLD, "/etc/systemd/system/kubelet.service.d/0-containerd.conf:2",
        ("/etc/systemd/system/kubelet.service.d/0-containerd.conf",),
    ),
    "drop-in, a variable of its own": Tree(
        {UNIT: "[Service]\nEnvironment=CRI_SOCKET=" + OLD
         + "\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=${CRI_SOCKET} --v=2\n"},
        OLD, f"{UNIT}:2", (UNIT,),
    ),
    "sysconfig": Tree(
        {UNIT: PACKAGE_UNIT, DROP_IN: kubeadm_drop_in("/etc/sysconfig/kubelet"), CONFIG: SETTINGS,
         "/etc/sysconfig/kubelet": f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={OLD} --v=2\n"},
        OLD, "/etc/sysconfig/kubelet:1", ("/etc/sysconfig/kubelet",),
    ),
    "openEuler's kubernetes-node": Tree(
        {UNIT: "[Service]\nEnvironmentFile=-/etc/kubernetes/config\nEnvironmentFile=-/etc/kubernetes/kubelet\n"
         "ExecStart=/usr/bin/kubelet $KUBE_LOGTOSTDERR $KUBELET_ARGS\n",
         "/etc/kubernetes/config": 'KUBE_LOGTOSTDERR="--logtostderr=true"\n',
         "/etc/kubernetes/kubelet": '# Add your own!\nKUBELET_ARGS="--cgroup-driver=systemd --fail-swap-on=false"\n'},
        CONTAINERD, "default", ("/etc/kubernetes/kubelet",),
    ),
    "openEuler's kubernetes-node, iSulad": Tree(
        {UNIT: "[Service]\nEnvironmentFile=-/etc/kubernetes/config\nEnvironmentFile=-/etc/kubernetes/kubelet\n"
         "ExecStart=/usr/bin/kubelet $KUBE_LOGTOSTDERR $KUBELET_ARGS\n",
         "/etc/kubernetes/config": 'KUBE_LOGTOSTDERR="--logtostderr=true"\n',
         "/etc/kubernetes/kubelet": 'KUBELET_ARGS="--container-runtime=remote '
         f'--container-runtime-endpoint={ISULAD} --cgroup-driver=systemd"\n'},
        ISULAD, "/etc/kubernetes/kubelet:1", ("/etc/kubernetes/kubelet",),
    ),
    "kubeadm, iSulad": Tree(
        {**KUBEADM, FLAGS_ENV:
         f'KUBELET_KUBEADM_ARGS="--container-runtime=remote --container-runtime-endpoint={ISULAD}"\n'},
        ISULAD, f"{FLAGS_ENV}:1", (FLAGS_ENV,),
    ),
    "default, with other flags": Tree(
        {**KUBEADM, "/etc/default/kubelet": '\n# mine\nKUBELET_EXTRA_ARGS="--node-ip=10.0.0.1"'},
        CONTAINERD, "default", ("/etc/default/kubelet",),
    ),
    "default, an empty variable": Tree(
        {**KUBEADM, "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=\n"},
        CONTAINERD, "default", ("/etc/default/kubelet",),
    ),
    "default, without the variable or a last newline": Tree(
        {**KUBEADM, "/etc/default/kubelet": "# nothing here"},
        CONTAINERD, "default", ("/etc/default/kubelet",),
    ),
    "config-dir": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k/kubelet.yaml --config-dir=/etc/k/kubelet.d/\n",
         "/etc/k/kubelet.yaml": f"containerRuntimeEndpoint: {OLD}\n",
         "/etc/k/kubelet.d/10-a.conf": "containerRuntimeEndpoint: unix:///run/a.sock\n",
         "/etc/k/kubelet.d/90-b.conf": f'kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "{CONTAINERD}"\n',
         "/etc/k/kubelet.d/95-c.yaml": "containerRuntimeEndpoint: unix:///run/not-read.sock\n"},
        CONTAINERD, "/etc/k/kubelet.d/90-b.conf:2", ("/etc/k/kubelet.d/90-b.conf",),
    ),
    "flag and config file": Tree(
        {**KUBEADM, FLAGS_ENV: flags_env(f"--container-runtime-endpoint={OLD}"),
         CONFIG: f"{SETTINGS}containerRuntimeEndpoint: unix:///run/other.sock\n"},
        OLD, f"{FLAGS_ENV}:1", (FLAGS_ENV,),
    ),
    "nothing set, kubeadm": Tree(KUBEADM, CONTAINERD, "default", ("/etc/default/kubelet",)),
    "nothing set, config file only": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n", "/etc/k.yaml": f"---\n# mine\n{SETTINGS}"},
        CONTAINERD, "default", ("/etc/k.yaml",),
    ),
    "nothing set, JSON": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config /etc/k.json\n", "/etc/k.json": '{"kind": "K",\n "a": 1}'},
        CONTAINERD, "default", ("/etc/k.json",),
    ),
    "set to nothing": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n",
         "/etc/k.yaml": 'containerRuntimeEndpoint: ""\nkind: KubeletConfiguration\n'},
        CONTAINERD, "default", ("/etc/k.yaml",),
    ),
    "set to null": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n",
         "/etc/k.yaml": "containerRuntimeEndpoint:\nkind: KubeletConfiguration\n"},
        CONTAINERD, "default", ("/etc/k.yaml",),
    ),
    "ExecStart with comments between its lines": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet \\\n  --v=2 \\\n# for the old runtime:\n"
         f"  --container-runtime-endpoint={OLD} \\\r\n  ; --container-runtime-endpoint=unix:///run/not.sock\r\n  --x=y\n"},
        OLD, f"{UNIT}:5", (UNIT,),
    ),
    "a variable that is one word": Tree(
        {UNIT: "[Service]\nEnvironment=CRI=--container-runtime-endpoint=" + OLD
         + "\nExecStart=/usr/bin/kubelet ${CRI} ${KUBELET_EXTRA_ARGS}\n"},
        OLD, f"{UNIT}:2", (UNIT,),
    ),
    "nothing set, a variable that is one word already": Tree(
        {UNIT: "[Service]\nEnvironmentFile=/etc/default/kubelet\n"
         "ExecStart=/usr/bin/kubelet --config=/etc/k.yaml ${KUBELET_EXTRA_ARGS}\n",
         "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=--v=2\n", "/etc/k.yaml": SETTINGS},
        CONTAINERD, "default", ("/etc/k.yaml",),
    ),
    "nothing set, an assignment without quotes in a unit": Tree(
        {UNIT: "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--node-ip=10.0.0.1 A=b\n"
         "ExecStart=/usr/bin/kubelet --config=/etc/k.yaml $KUBELET_EXTRA_ARGS\n", "/etc/k.yaml": SETTINGS},
        CONTAINERD, "default", (UNIT,),
    ),
    "nothing set, an assignment that systemd ignores": Tree(
        {UNIT: "[Service]\nEnvironmentFile=/etc/default/kubelet\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n",
         "/etc/default/kubelet": "export KUBELET_EXTRA_ARGS=--v=2\n"},
        CONTAINERD, "default", ("/etc/default/kubelet",),
    ),
    "environment files by a pattern": Tree(
        {UNIT: "[Service]\nEnvironmentFile=-/etc/kubelet.d/*.env\nExecStart=/usr/bin/kubelet $KUBELET_ARGS\n",
         "/etc/kubelet.d/a.env": "KUBELET_ARGS=--container-runtime-endpoint=unix:///run/a.sock\n",
         "/etc/kubelet.d/b.env": f"KUBELET_ARGS=--container-runtime-endpoint={OLD}\n",
         "/etc/kubelet.d/x/c.env": "KUBELET_ARGS=--container-runtime-endpoint=unix:///run/c.sock\n"},
        OLD, "/etc/kubelet.d/b.env:1", ("/etc/kubelet.d/b.env",),
    ),
    "--config by a variable": Tree(
        {UNIT: "[Service]\nEnvironment=K=/etc\nExecStart=/usr/bin/kubelet --config=${K}/k.yaml\n",
         "/etc/k.yaml": f"containerRuntimeEndpoint: {OLD}\n"},
        OLD, "/etc/k.yaml:1", ("/etc/k.yaml",),
    ),
    "nothing set, JSON with tabs": Tree(
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.json\n",
         "/etc/k.json": '{\n\t"kind": "K",\n\t"a":\t[1]\n}\n'},
        CONTAINERD, "default", ("/etc/k.json",),
    ),
    "a separate image endpoint": Tree(
        {**KUBEADM, CONFIG: f"{SETTINGS}containerRuntimeEndpoint: {OLD}\nimageServiceEndpoint: unix:///run/i.sock\n"},
        OLD, f"{CONFIG}:4", (CONFIG,),
    ),
}  # fmt: skip
#: These start kubelet themselves: nothing is changed, it is said what to type.
RANCHER = {
    "k3s": Tree(
        {"/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server\n"},
        "unix:///run/k3s/containerd/containerd.sock", "default", (),
    ),
    "rke2": Tree(
        {"/etc/rancher/rke2/config.yaml": "kubelet-arg:\n  - v=2\n  - container-runtime-endpoint=unix:///run/x.sock\n"},
        "unix:///run/x.sock", "/etc/rancher/rke2/config.yaml:3", (),
    ),
    "k3s, on its command line": Tree(
        {"/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n"
         "\t'--kubelet-arg=v=2' \\\n\t'--kubelet-arg=container-runtime-endpoint=unix:///run/x.sock' \\\n",
         "/etc/rancher/k3s/config.yaml": "container-runtime-endpoint: unix:///run/own.sock\n"},
        "unix:///run/x.sock", "/etc/systemd/system/k3s.service:5", (),
    ),
    "k3s, an agent's endpoint of its own": Tree(
        {"/etc/systemd/system/k3s-agent.service":
         "[Service]\nExecStart=/usr/local/bin/k3s agent --container-runtime-endpoint unix:///run/x.sock\n"},
        "unix:///run/x.sock", "/etc/systemd/system/k3s-agent.service:2", (),
    ),
    "k3s, one argument that is no list": Tree(
        {"/etc/rancher/k3s/config.yaml": 'kubelet-arg: "container-runtime-endpoint=unix:///run/x.sock"\n'},
        "unix:///run/x.sock", "/etc/rancher/k3s/config.yaml:1", (),
    ),
    "rke2, a later file adds it": Tree(
        {"/etc/rancher/rke2/config.yaml": "kubelet-arg: [v=2]\n",
         "/etc/rancher/rke2/config.yaml.d/1.yaml": "kubelet-arg+: ['container-runtime-endpoint=unix:///run/x.sock']\n"},
        "unix:///run/x.sock", "/etc/rancher/rke2/config.yaml.d/1.yaml:1", (),
    ),
    "rke2, a later file takes its place": Tree(
        {"/etc/rancher/rke2/config.yaml": "kubelet-arg: [container-runtime-endpoint=unix:///run/x.sock]\n",
         "/etc/rancher/rke2/config.yaml.d/1.yaml": "kubelet-arg: [v=2]\n"},
        "unix:///run/k3s/containerd/containerd.sock", "default", (),
    ),
}  # fmt: skip
