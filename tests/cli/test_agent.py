"""`cri-resmgr agent run`: what the agent's process is told of the daemon's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def told(folder: Path, *options: str) -> list[str]:
    """The arguments that the agent's module was started with: one in its place shows them."""
    (folder / "cluster").mkdir()
    (folder / "cluster" / "__init__.py").touch()
    (folder / "cluster" / "agent.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    config = folder / "config.yaml"
    settings = {"control": {"socket": "/x/c.sock"}, "kubelet": {"directory": "/x/kubelet"}}
    config.write_text(json.dumps(settings))  # JSON is YAML
    words = [sys.executable, "-m", "cri_proxy", "agent", "run", "--config", str(config), *options]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_agent_is_told_of_the_daemons_sockets_and_of_kubelets_folder(tmp_path: Path) -> None:
    found = told(tmp_path, "--period", "3")
    assert {"--control-socket=/x/c.sock", "--kubelet-dir=/x/kubelet"} <= set(found)
    assert found[-2:] == ["--period", "3"]


def test_an_agent_that_only_reports_has_no_control_socket(tmp_path: Path) -> None:
    found = told(tmp_path, "--report-only")
    assert not [each for each in found if each.startswith("--control-socket")]
    assert [each for each in found if each.startswith("--view-socket")]
