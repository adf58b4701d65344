"""critest, the CRI's own acceptance tests, on containerd 2: each case ends the same past our daemon and through it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cri_tools.side import DIRECT, THROUGH, Outcome, run
from tests.e2e.containerd import missing

pytestmark = [
    pytest.mark.cri_tools,
    pytest.mark.skipif(missing() != "", reason=missing()),
    pytest.mark.asyncio(loop_scope="module"),
]

#: What cannot pass here, and why; it fails on both sides.
CANNOT_PASS = {
    "[k8s.io] Image Manager / public image with digest should be pulled and removed [Conformance]": (
        "an image of others, named by its digest"
    ),
    "[k8s.io] Security Context / bucket / runtime should support MaskedPaths": (
        "the shell of Debian's busybox runs ls itself, whatever covers /bin/ls"
    ),
    "[k8s.io] Security Context / UserNamespaces / when Host idmap mount support is needed / "
    "runtime should support NamespaceMode_POD": "runc may not change a mount's propagation in a user namespace here",
}
#: What is skipped, by how its name begins, and why.
SKIPPED = {
    "[k8s.io] AppArmor / ": "the kernel has it off",
    "[k8s.io] NRI / ": "test_critest_nri.py has them",
    "[k8s.io] Image Volume [Feature:ImageVolume] / should return image digest": "containerd 2.4 does not report it",
    "[k8s.io] PodSandbox / benchmark ": "a benchmark",
    "[k8s.io] Container / benchmark ": "a benchmark",
    "[k8s.io] Image / benchmark ": "a benchmark",
}
#: Of 138; less would say that something keeps all of a kind from running.
AT_LEAST_PASS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcomes() -> AsyncIterator[Mapping[str, Outcome]]:
    """By side: what came of all cases."""
    folder = Path(tempfile.mkdtemp(prefix="crt-"))
    try:
        ended = await asyncio.gather(*(run(side, folder / side) for side in (DIRECT, THROUGH)))
        yield dict(zip((DIRECT, THROUGH), ended))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_each_case_ends_the_same(outcomes: Mapping[str, Outcome]) -> None:
    direct, through = outcomes[DIRECT].cases, outcomes[THROUGH].cases
    assert set(direct) == set(through)
    differ = {
        name: {DIRECT: direct[name], THROUGH: through[name]}
        for name in direct
        if direct[name][0] != through[name][0]
    }
    assert differ == {}, outcomes[THROUGH].said


async def test_only_what_cannot_pass_here_does_not(outcomes: Mapping[str, Outcome]) -> None:
    for outcome in outcomes.values():
        assert {name: outcome.cases[name] for name in outcome.names("failed") - set(CANNOT_PASS)} == {}
        assert [name for name in outcome.names("skipped") if not name.startswith(tuple(SKIPPED))] == []
        assert len(outcome.names("passed")) >= AT_LEAST_PASS


async def test_the_daemon_placed_the_containers_and_stayed_whole(outcomes: Mapping[str, Outcome]) -> None:
    status = outcomes[THROUGH].status
    assert (status["degraded"], status["invariants"]) == ({}, [])
    assert not [name for name in status["counters"] if "failed_open" in name]
