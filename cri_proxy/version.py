"""The version, in one place besides setup.cfg (a test compares them), and where a package puts its documents."""

VERSION = "0.1.0"
#: The pages that hints name.
DOCUMENTS = "/usr/share/doc/cri-resmgr/docs"
