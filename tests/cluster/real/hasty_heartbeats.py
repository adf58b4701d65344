"""Agents and operator whose heartbeats are quick: ``python -m tests.cluster.real.hasty_heartbeats agent`` (or ``operator``),
as ``cluster.agent`` and ``cluster.operator``.
"""

from __future__ import annotations

import sys

from cluster.agent import __main__ as agent
from cluster.agent.io import reporter
from cluster.operator import __main__ as operator
from cluster.operator import heartbeats
from cluster.operator.io import pulse

AGENT, OPERATOR = (("tests.cluster.real.hasty_heartbeats", program) for program in ("agent", "operator"))

if __name__ == "__main__":
    reporter.RENEW_S = pulse.LOOK_S = 0.5
    heartbeats.SILENT_S = 5.0
    program = agent if sys.argv[1] == "agent" else operator
    sys.exit(program.main(sys.argv[2:]))
