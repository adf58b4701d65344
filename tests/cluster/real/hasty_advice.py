"""The operator with five rounds of advice a second: ``python -m tests.cluster.real.hasty_advice``."""

from __future__ import annotations

import sys

from cluster.operator.__main__ import main
from cluster.operator.io import advices

EVERY_S = 0.2

if __name__ == "__main__":
    advices.EVERY_S = EVERY_S
    sys.exit(main(sys.argv[1:]))
