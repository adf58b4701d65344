"""What the doctor hears of CDI devices from a real runtime, where claims of CPUs are on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.doctor.checks.claims import check_claims
from cri_proxy.doctor.facts import ClaimFacts, Facts
from cri_proxy.doctor.findings import OK, PROBLEM
from cri_proxy.doctor.io import parts
from tests.e2e.runtime import RealRuntime

pytestmark = pytest.mark.containerd


async def test_a_runtime_that_knows_no_cdi_devices_is_a_problem_and_one_that_does_is_none(
    runtime: RealRuntime, tmp_path: Path
) -> None:
    config = read_config([SettingsSource("c.yaml", "dra: {enabled: true}")]).config
    places = parts.Places(tmp_path, Path("/proc"), config, tmp_path / "c.sock", answer_s=20.0)
    facts = await asyncio.to_thread(parts.read_runtime_facts, places, str(runtime.socket))
    assert facts.problem == ""
    [found] = check_claims(Facts(runtime=facts, claims=ClaimFacts(True, "cpu.cri-resmgr.io")))
    if runtime.knows_cdi():
        # Since 2.2 containerd has no switch for it, and says nothing; nor has CRI-O.
        assert (found.verdict, facts.gives_cdi) == (OK, True if "v1.7" in facts.version else None)
    else:
        assert (found.check, found.verdict) == ("claims-cdi", PROBLEM)
        assert "knows no CDI devices" in found.sentence
