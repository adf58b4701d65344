"""The diagnosis of a node: facts in, findings out. A check that fails by itself is a finding, and the others go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Callable

from cri_proxy.doctor.checks.daemon import (
    check_config,
    check_containers,
    check_daemon,
    check_state,
    check_traffic,
)
from cri_proxy.doctor.checks.kubelet import check_kubelet
from cri_proxy.doctor.checks.machine import check_kernel, check_machine
from cri_proxy.doctor.checks.node import (
    check_cgroups,
    check_others,
    check_runtime,
    check_units,
)
from cri_proxy.doctor.checks.virtual import check_virtual
from cri_proxy.doctor.facts import Facts
from cri_proxy.doctor.findings import WARNING, Finding

Check = Callable[[Facts], Iterable[Finding]]

#: The checks by their topics, in the order they are shown.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("configuration", check_config),
    ("daemon", check_daemon),
    ("runtime", check_runtime),
    ("kubelet", check_kubelet),
    ("machine", check_machine),
    ("machine", check_kernel),
    ("virtual machine", check_virtual),
    ("cgroups", check_cgroups),
    ("state", check_state),
    ("containers", check_containers),
    ("traffic", check_traffic),
    ("others", check_others),
    ("units", check_units),
)
_REPORT = "report this with the output of: cri-resmgr doctor --json"


def diagnose(facts: Facts, checks: Iterable[tuple[str, Check]] = CHECKS) -> list[Finding]:
    """All findings, by topic; what could not be found out is one, too."""
    found: list[Finding] = []
    topics = []
    for topic, check in checks:
        topics.append(topic)
        try:
            found.extend(replace(one, topic=topic) for one in check(facts))
        except Exception as error:
            sentence = f"this could not be judged: {type(error).__name__}: {error}"
            found.append(Finding(topic, "doctor", WARNING, sentence, _REPORT))
    for topic, sentence in facts.failures.items():
        topics.append(topic)
        found.append(Finding(topic, "doctor", WARNING, sentence))
    return sorted(found, key=lambda finding: topics.index(finding.topic))
