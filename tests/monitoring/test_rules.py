"""Each alert fires after its time on what it is about, and on nothing else: Prometheus' own promtool evaluates them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus import ALERTS, programs, rules

NODE = 'instance="node-1",job="cri-resmgr"'
#: A daemon on which all is well, minute by minute for two hours; counters that have counted long ago.
WELL = {
    f"up{{{NODE}}}": "1x120",
    f'cri_resmgr_mode{{{NODE},mode="enforce"}}': "1x120",
    f"cri_resmgr_degraded{{{NODE}}}": "0x120",
    f'cri_resmgr_failed_open_total{{{NODE},reason="bug"}}': "7x120",
    f'cri_resmgr_start_failures_total{{{NODE},next_create="placed"}}': "7x120",
    f'cri_resmgr_drift_total{{{NODE},result="repaired"}}': "7x120",
    f'cri_resmgr_drift_total{{{NODE},result="resized"}}': "0+9x120",
    f'cri_resmgr_containers{{{NODE},stance="placed"}}': "9x120",
    f'cri_resmgr_updates_total{{{NODE},result="failed"}}': "7x120",
    f'cri_resmgr_updates_total{{{NODE},result="sent"}}': "0+9x120",
    f"cri_resmgr_tickets_in_doubt{{{NODE}}}": "0x120",
    f"cri_resmgr_state_unsaved{{{NODE}}}": "0x120",
}
#: What is otherwise, by alert: a series that takes the place of the one of its name, or is there besides; when it
#: has fired (minutes), when it has not yet or no more, and the labels by which it is told.
WRONG: dict[str, tuple[str, str, int, tuple[int, ...], str]] = {
    "CriResmgrDown": (f"up{{{NODE}}}", "1x9 0x60", 13, (11,), ""),
    "CriResmgrNowhere": (f"up{{{NODE}}}", "1x9 stale", 21, (18,), 'job="cri-resmgr"'),
    "CriResmgrNotEnforcing": (f'cri_resmgr_mode{{{NODE},mode="enforce"}}', "1x9 0x60", 26, (24,), 'mode="enforce"'),
    "CriResmgrDegraded": (f"cri_resmgr_degraded{{{NODE}}}", "0x9 1x60", 16, (14,), ""),
    "CriResmgrFailedOpen": (
        f'cri_resmgr_failed_open_total{{{NODE},reason="bug"}}', "7x9 8x60", 12, (9, 30), 'reason="bug"',
    ),
    # Also where the daemon has been started anew just before.
    "CriResmgrStartsFail": (
        f'cri_resmgr_start_failures_total{{{NODE},next_create="placed"}}', "7x5 0 0 0 1x60", 12, (8, 30),
        'next_create="placed"',
    ),
    # Three of one container are the usual end as foreign.
    "CriResmgrDrift": (
        f'cri_resmgr_drift_total{{{NODE},result="repaired"}}', "7x9 10x9 11x90", 22, (15, 90), 'result="repaired"',
    ),
    "CriResmgrForeign": (f'cri_resmgr_containers{{{NODE},stance="foreign"}}', "_x9 1x60", 15, (13,), 'stance="foreign"'),
    "CriResmgrUpdatesFail": (
        f'cri_resmgr_updates_total{{{NODE},result="failed"}}', "7x9 8x60", 16, (14, 40), 'result="failed"',
    ),
    "CriResmgrInDoubt": (f"cri_resmgr_tickets_in_doubt{{{NODE}}}", "0x9 1x60", 21, (18,), ""),
    "CriResmgrStateUnsaved": (f"cri_resmgr_state_unsaved{{{NODE}}}", "0x9 3x60", 16, (14,), ""),
}  # fmt: skip


def labels_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def expected(alert: str, labels: dict[str, str]) -> dict[str, Any]:
    def filled(text: str) -> str:
        return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)

    told = {key: filled(text) for key, text in rules()[alert].get("annotations", {}).items()}
    return {"exp_labels": labels, "exp_annotations": told}


def case(series: dict[str, str], checks: list[dict[str, Any]]) -> dict[str, Any]:
    listed = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": listed, "alert_rule_test": checks}


def run(folder: Path, tests: list[dict[str, Any]]) -> None:
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run([programs() / "promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert set(WRONG) == set(rules())


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for name, rule in rules().items():
        assert set(rule["annotations"]) == {"summary", "description"}, name


def test_the_rules_are_well_formed() -> None:
    done = subprocess.run([programs() / "promtool", "check", "rules", ALERTS], capture_output=True, text=True)
    assert done.returncode == 0 and f"SUCCESS: {len(rules())} rules found" in done.stdout, (
        done.stdout + done.stderr
    )


def test_none_fires_while_all_is_well(tmp_path: Path) -> None:
    quiet = [{"eval_time": f"{at}m", "alertname": name} for name in rules() for at in (5, 20, 100)]
    run(tmp_path, [case(WELL, quiet)])


@pytest.mark.parametrize("alert", WRONG)
def test_an_alert_fires_after_its_time_and_not_before(alert: str, tmp_path: Path) -> None:
    series, values, fires_at, silent_at, told_by = WRONG[alert]
    node = {} if alert == "CriResmgrNowhere" else labels_of(NODE)
    firing = expected(alert, {**node, **labels_of(told_by)})
    checks = [{"eval_time": f"{fires_at}m", "alertname": alert, "exp_alerts": [firing]}]
    checks += [{"eval_time": f"{at}m", "alertname": alert} for at in silent_at]
    # Nor does another.
    others = [name for name in rules() if name not in (alert, "CriResmgrDown")]
    checks += [{"eval_time": f"{fires_at}m", "alertname": name} for name in others]
    run(tmp_path, [case({**WELL, series: values}, checks)])
