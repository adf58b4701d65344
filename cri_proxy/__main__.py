"""``python -m cri_proxy`` is ``cri-resmgr``."""

from cri_proxy.launcher import main

main()
