"""Which files and units a package has, whatever its kind."""

from __future__ import annotations

import configparser
from collections.abc import Iterable

from tests.packaging.kinds import ask
from tests.packaging.roots import REPOSITORY

PROGRAMS = (
    "/usr/bin/cri-resmgr",
    "/usr/bin/kubectl-cri_resmgr",
    "/usr/lib/cri-resmgr/bin/python",
    "/usr/lib/cri-resmgr/pyvenv.cfg",
    "/usr/lib/cri-resmgr/maintain",
    "/usr/lib/cri-resmgr/nri/10-cri-resmgr",
    "/etc/cri-resmgr/config.yaml",
    "/etc/cri-resmgr/fallback.cfg.sample",
    "/usr/share/cri-resmgr/affinity.proto",
    "/usr/share/cri-resmgr/chart/Chart.yaml",
    "/usr/share/cri-resmgr/chart/templates/base-operator-deployment.yaml",
    "/usr/share/cri-resmgr/chart/crds/placementpolicies.yaml",
    "/usr/share/man/man8/cri-resmgr.8.gz",
    "/usr/share/bash-completion/completions/cri-resmgr",
    "/usr/share/fish/vendor_completions.d/cri-resmgr.fish",
    "/usr/share/doc/cri-resmgr/config.yaml.sample",
    "/usr/share/doc/cri-resmgr/README.md",
    "/usr/share/doc/cri-resmgr/docs/operations.md",
    "/usr/share/doc/cri-resmgr/monitoring/alerts.yaml",
    "/usr/share/doc/cri-resmgr/monitoring/dashboard.json",
)
UNITS = (
    "/usr/lib/systemd/system/cri-resource-manager.service",
    "/usr/lib/systemd/system/cri-resource-manager.socket",
    "/usr/lib/systemd/system/cri-resmgr-observer.service",
    "/usr/lib/systemd/system/cri-resmgr-agent.service",
    "/usr/lib/systemd/system/cri-resmgr-nri@.service",
    "/usr/lib/systemd/system/cri-resmgr-nri.service",
    "/usr/lib/systemd/system/cri-resmgr-web.service",
)
#: What an installation begins with.
SOCKET_AND_SERVICE = "cri-resource-manager.socket cri-resource-manager.service"
#: What a first installation asks of systemd.
FRESH = [f"--no-reload preset {SOCKET_AND_SERVICE}", "daemon-reload", "stop cri-resource-manager.service"]
#: A unit of kubelet that points it at us, and that `kubelet enable` has not written: its name, its text.
KUBELET_BY_HAND = (
    "/usr/lib/systemd/system/kubelet.service",
    "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix:///var/run/cri-resmgr.sock\n",
)
STATE = "/var/lib/cri-resmgr"
#: Nothing lies elsewhere.
FOLDERS = (
    "/usr/bin/cri-resmgr/",
    "/usr/bin/kubectl-cri_resmgr/",
    "/usr/lib/cri-resmgr/",
    "/usr/lib/systemd/system/",
    "/usr/lib/sysusers.d/",
    "/etc/cri-resmgr/",
    "/usr/share/cri-resmgr/",
    "/usr/share/man/man8/",
    "/usr/share/bash-completion/completions/",
    "/usr/share/zsh/",
    "/usr/share/fish/vendor_completions.d/",
    "/usr/share/doc/cri-resmgr/",
    "/usr/share/licenses/cri-resmgr/",
    "/usr/share/lintian/overrides/",
    "/var/lib/cri-resmgr/",
)


def elsewhere(names: Iterable[str]) -> list[str]:
    """Those of a package's files that are neither in these folders nor on the way to them."""
    return [
        name
        for name in names
        if name and not any((name + "/").startswith(f) or f.startswith(name + "/") for f in FOLDERS)
    ]


def _our_packages() -> tuple[str, ...]:
    settings = configparser.ConfigParser()
    settings.read(REPOSITORY / "setup.cfg")
    return tuple(pattern.rstrip("*") for pattern in settings["options.packages.find"]["include"].split())


#: Python packages, as the wheel has them.
OUR_PACKAGES = _our_packages()


def in_git(*names: str) -> set[str]:
    """The files that git has at or below these names."""
    return set(ask("git", "-C", str(REPOSITORY), "ls-files", "--", *names).splitlines())


def ours(names: Iterable[str]) -> set[str]:
    """Those of files below a ``site-packages`` that are to be in git: what protoc, Python and
    packaging make is not."""
    return {
        name
        for name in names
        if name.partition("/")[0] in OUR_PACKAGES
        and not name.endswith(("_pb2.py", "_pb2.pyi", "/allowed_options.py", ".pyc", ".so", "/"))
    }
