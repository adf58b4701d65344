"""The operator with a fraction of its patience: ``python -m tests.cluster.real.hasty_operator``, as ``cluster.operator``."""

from __future__ import annotations

import sys

from cluster.operator import rollout
from cluster.operator.__main__ import main

ANSWER_S = 5.0

if __name__ == "__main__":
    rollout.ANSWER_S = ANSWER_S
    sys.exit(main(sys.argv[1:]))
