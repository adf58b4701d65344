"""runc on a machine that is described, not there: cpusets are written down, not done.

What it is told of CPUs and memory nodes goes to a folder laid out like their cgroup hierarchy (v1), the files replaced
at once; the rest goes to runc. containerd starts this as its runtime, by `runc` beside it: no module of ours is here.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).parent
#: The hierarchy; beside it where each container is in it.
CPUSETS = HERE / "cgroup" / "cpuset"
PLACES = HERE / "places"
#: Every cpuset that was told, in the order of time.
NOTES = HERE / "notes"


def main(words: list[str]) -> int:
    # runc's own options stand before the command, with their values.
    command = next(word for word in words if word in ("create", "update", "delete"))
    container = words[-1]
    if command == "create":
        bundle = Path(words[words.index("--bundle") + 1])
        config = json.loads((bundle / "config.json").read_text())
        path = config["linux"]["cgroupsPath"]
        told = take_cpuset(config["linux"].get("resources", {}))
        note(container, told)
        write_down(path, told)
        (bundle / "config.json").write_text(json.dumps(config))
        (PLACES / container).write_text(path)
        return subprocess.run(["runc", *words], check=False).returncode
    if command == "update":
        resources = json.load(sys.stdin)
        told = take_cpuset(resources)
        done = subprocess.run(["runc", *words], input=json.dumps(resources).encode(), check=False)
        if done.returncode == 0:
            note(container, told)
            write_down((PLACES / container).read_text(), told)
        return done.returncode
    done = subprocess.run(["runc", *words], check=False)
    if done.returncode == 0 and (PLACES / container).exists():
        shutil.rmtree(CPUSETS / (PLACES / container).read_text().lstrip("/"), ignore_errors=True)
        (PLACES / container).unlink()
    return done.returncode


def take_cpuset(resources: dict[str, Any]) -> dict[str, Optional[str]]:
    """What it says of CPUs and memory nodes, which is no longer in it afterwards."""
    cpu = resources.get("cpu") or {}
    return {name: cpu.pop(name, None) or None for name in ("cpus", "mems")}


def note(container: str, told: dict[str, Optional[str]]) -> None:
    """A line, written at once: others write here too."""
    if told["cpus"] is not None:
        with NOTES.open("ab", buffering=0) as notes:
            notes.write(f"{container} {told['cpus']}\n".encode())


def write_down(path: str, told: dict[str, Optional[str]]) -> None:
    """What it is not told of it has from its parent, the first time, and keeps later."""
    folder = CPUSETS / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for level in [*reversed(folder.parents), folder]:
        if CPUSETS not in level.parents:
            continue
        for name in ("cpus", "mems"):
            for file, parents in ((f"cpuset.{name}", f"cpuset.{name}"), (f"cpuset.effective_{name}",) * 2):
                wanted = told[name] if level == folder else None
                if wanted is None and not (level / file).exists():
                    wanted = (level.parent / parents).read_text().strip()
                if wanted is not None:
                    beside = level / f".{file}"
                    beside.write_text(f"{wanted}\n")
                    os.replace(beside, level / file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
