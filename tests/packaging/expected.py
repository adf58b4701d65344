"""Which files a package has, whatever its kind."""

PROGRAMS = (
    "/usr/bin/cri-resmgr",
    "/usr/lib/cri-resmgr/bin/python",
    "/usr/lib/cri-resmgr/pyvenv.cfg",
    "/usr/lib/cri-resmgr/maintain",
    "/usr/lib/cri-resmgr/nri/10-cri-resmgr",
    "/etc/cri-resmgr/config.yaml",
    "/etc/cri-resmgr/fallback.cfg.sample",
    "/usr/share/man/man8/cri-resmgr.8.gz",
    "/usr/share/bash-completion/completions/cri-resmgr",
    "/usr/share/doc/cri-resmgr/config.yaml.sample",
    "/usr/share/doc/cri-resmgr/README.md",
    "/usr/share/doc/cri-resmgr/operations.md",
)
UNITS = (
    "/usr/lib/systemd/system/cri-resource-manager.service",
    "/usr/lib/systemd/system/cri-resource-manager.socket",
    "/usr/lib/systemd/system/cri-resmgr-observer.service",
    "/usr/lib/systemd/system/cri-resmgr-nri@.service",
    "/usr/lib/systemd/system/cri-resmgr-nri.service",
)
STATE = "/var/lib/cri-resmgr"
#: Nothing lies elsewhere.
FOLDERS = (
    "/usr/bin/cri-resmgr/",
    "/usr/lib/cri-resmgr/",
    "/usr/lib/systemd/system/",
    "/etc/cri-resmgr/",
    "/usr/share/man/man8/",
    "/usr/share/bash-completion/completions/",
    "/usr/share/zsh/",
    "/usr/share/doc/cri-resmgr/",
    "/usr/share/licenses/cri-resmgr/",
    "/usr/share/lintian/overrides/",
    "/var/lib/cri-resmgr/",
)
