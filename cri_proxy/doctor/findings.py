"""Findings: what ``cri-resmgr doctor`` says of a node, each a verdict, a sentence and what to do. As text, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from cri_api.printable import printable
from policies.frozen import frozen

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
VERDICTS = (OK, NOTE, WARNING, PROBLEM)
#: How long a look at the node may take, seconds: all of it takes half a second; what hangs (a file system) is left.
EXAMINE_S = 5.0


@frozen
class Finding:
    """``topic`` groups; ``check`` is a stable name for scripts; ``hint``: what to type or set, "" if nothing."""

    topic: str
    check: str
    verdict: str
    sentence: str
    hint: str = ""


def finding(check: str, verdict: str, sentence: str, hint: str = "") -> Finding:
    """What a check yields; its topic is that of the check in the table of checks (``diagnose``)."""
    return Finding("", check, verdict, sentence, hint)


def ok(check: str, sentence: str, hint: str = "") -> Finding:
    return finding(check, OK, sentence, hint)


def note(check: str, sentence: str, hint: str = "") -> Finding:
    return finding(check, NOTE, sentence, hint)


def warning(check: str, sentence: str, hint: str = "") -> Finding:
    return finding(check, WARNING, sentence, hint)


def problem(check: str, sentence: str, hint: str = "") -> Finding:
    return finding(check, PROBLEM, sentence, hint)


def worst(findings: Iterable[Finding]) -> str:
    """The worst verdict; "ok" of none."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default=OK)


def summary(findings: Sequence[Finding]) -> str:
    """One line: how many problems, and the first of them."""
    problems = [f for f in findings if f.verdict == PROBLEM]
    warnings = sum(f.verdict == WARNING for f in findings)
    rest = _count(warnings, "warning") if warnings else ""
    if problems:
        return f"{_count(len(problems), 'problem')}{rest and ', ' + rest}: {problems[0].sentence}"
    return f"no problem, {rest}" if rest else "all is well"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def findings_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """For ``--json``."""
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in reversed(VERDICTS)}
    return {
        "verdict": worst(findings),
        "summary": summary(findings),
        "counts": counts,
        "findings": [asdict(finding) for finding in findings],
    }


def findings_text(findings: Sequence[Finding]) -> str:
    """For the terminal: the line that matters first, then all by topic, in the order they were found."""
    lines = [f"cri-resmgr doctor: {printable(summary(findings))}"]
    for topic in dict.fromkeys(finding.topic for finding in findings):
        lines += ["", topic]
        for finding in findings:
            if finding.topic == topic:
                shown = finding.verdict if finding.verdict in (OK, NOTE) else finding.verdict.upper()
                lines.append(f"  {shown:<8} {printable(finding.sentence)}")
                arrows = ["-> ", *["   "] * finding.hint.count("\n")]
                lines += [f"           {a}{line}" for a, line in zip(arrows, finding.hint.splitlines())]
    return "\n".join(lines)
