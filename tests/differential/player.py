"""The child of a differential run: plays scenarios through the simulator of one checkout.

python player.py CHECKOUT     reads a JSON object a line from stdin, writes one a line to stdout

The first line is machines by name, as ``cri-resmgr topology --json`` prints them; each that follows is a scenario. This
file is the differential's own; everything that it imports besides is the checkout's, which is what it is for. It needs
``Simulation`` and ``read_scenario`` of the simulator, ``read_config``, and ``read_topology``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main(checkout: Path) -> None:
    # Before an environment's own installation, which may be of another checkout; in the place of this file's folder.
    sys.path[0] = str(checkout)
    import cri_proxy
    import policies

    for package in (cri_proxy, policies):
        if checkout not in Path(package.__file__ or "").parents:
            sys.exit(f"differential: {package.__name__} is of {package.__file__}, and not of {checkout}")

    from cri_proxy.config.config import read_config
    from cri_proxy.simulator.replay import BadScenario, Simulation, read_scenario
    from cri_proxy.text.sources import SettingsSource
    from policies.machine.topology_json import read_topology

    def config(text: str) -> Any:
        return read_config([SettingsSource("scenario", text)]).config

    def play(scenario: dict[str, Any]) -> list[dict[str, Any]]:
        """An object a step: ``line`` and ``state``; ``unfit``, why it cannot be run; ``crash``, a last traceback."""
        files = scenario["files"]
        steps = read_scenario(scenario["steps"])
        simulation = Simulation(
            machines[scenario["machine"]], config(scenario["config"]), lambda name: config(files[name])
        )
        found: list[dict[str, Any]] = []
        for step in steps:
            try:
                line = simulation.run(step)
                found.append({"line": line, "state": simulation.run(state)})
            except BadScenario as error:
                found.append({"unfit": str(error)})
            except Exception:
                found.append({"crash": traceback.format_exc()})
                break
        return found

    [state] = read_scenario([{"op": "state"}])
    # What prints to stdout must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    machines = {name: read_topology(data) for name, data in json.loads(sys.stdin.readline()).items()}
    for text in sys.stdin:
        answers.write(json.dumps(play(json.loads(text))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
