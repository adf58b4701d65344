"""``kubectl cri_resmgr``: the fleet as its NodePlacements and PlacementPolicies tell of it. Standard library.

They are read by ``kubectl get --raw``: so every login that kubectl knows works, and no agent, node or pod is asked, nor
disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Callable, Optional, TypeVar, Union

from cluster.api.names import (
    AFFINITY_ADVICE,
    AFFINITY_ADVICES,
    CURRENT,
    DEGRADED,
    GROUP,
    NODE_PLACEMENT,
    NODE_PLACEMENTS,
    PLACEMENT_POLICIES,
    READY,
    VERSION,
)
from cluster.api.reader import Fields, Skipped, read
from cluster.claims import DRIVER, claim_row, claims_text
from cluster.kube.document import read_json
from cluster.kube.requests import Resource, path, target
from cluster.rollouts import node_row as mode_row
from cluster.rollouts import policy_row, rollout_text
from cri_api.printable import printable, printable_document, printable_lines
from policies.machine.cpus import BadCpuList, parse_cpus
from policies.machine.domain_names import domain_text

PLACEMENTS = Resource(GROUP, VERSION, NODE_PLACEMENTS)
POLICIES = Resource(GROUP, VERSION, PLACEMENT_POLICIES)
ADVICES = Resource(GROUP, VERSION, AFFINITY_ADVICES)
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)

#: Objects read at a time: a NodePlacement may have 200 KB, and each page is a process and perhaps a login.
PAGE = 100
WIDTH = 80
Document = Mapping[str, Any]
Value = TypeVar("Value")


class CommandError(Exception):
    """One sentence, and what to do."""


# ---------------------------------------------------------------- output: values in, values out


def condition(status: Fields, kind: str) -> str:
    """Of a NodePlacement's status: True, False or Unknown, which is also what it lacks."""
    found = (each.text("status") for each in status.rows("conditions") if each.text("type") == kind)
    return next(found, "Unknown")


def node_row(found: Document) -> dict[str, Any]:
    """One node in a line. CPUs in milli-CPUs, over its sockets. ``Unreadable``, as all that read an object here."""
    whole = Fields(found)
    status = whole.fields("status")
    counts, policy = status.fields("counts"), status.fields("policy")
    sockets = [zone for zone in status.rows("zones") if not zone.text("parent", "")]
    return {
        "node": _node(whole),
        "ready": condition(status, READY),
        "degraded": condition(status, DEGRADED),
        "mode": status.text("mode", ""),
        "frontEnd": status.text("frontEnd", ""),
        "containers": counts.number("placements", 0),
        "unplaced": counts.number("unplaced", 0),
        "chargedMilliCpus": sum(zone.number("chargedMilliCpus", 0) for zone in sockets),
        "allocatableMilliCpus": sum(zone.number("allocatableMilliCpus", 0) for zone in sockets),
        "exclusiveCpus": sum(_count_of_cpus(zone, "exclusiveCpus") for zone in sockets),
        "policy": policy.text("name", ""),
        "policyState": policy.text("state", ""),
    }


def _node(whole: Fields) -> str:
    return whole.fields("metadata").text("name")


def _count_of_cpus(zone: Fields, key: str) -> int:
    text = zone.text(key, "")
    try:
        return len(parse_cpus(text))
    except BadCpuList:
        raise zone.wrong(key, text, "CPUs such as 0-3,8") from None


def placement_rows(found: Document, namespace: str = "") -> list[dict[str, Any]]:
    """The containers of one node, of one namespace unless that is ""."""
    whole = Fields(found)
    node, rows = _node(whole), map(_container, whole.fields("status").rows("placements"))
    return [{"node": node, **row} for row in rows if namespace in ("", row.get("namespace"))]


def _container(row: Fields) -> dict[str, Any]:
    row.flag("exclusive", False)
    return _typed(row, "namespace", "pod", "container", "level", "cpus", "mems", "state", "zone", "why")


def _typed(row: Fields, *texts: str) -> dict[str, Any]:
    """A row with all that its agent tells, of which these are texts."""
    return {**row.found, **{key: row.text(key) for key in texts if key in row}}


def explained(found: Document, namespace: str, pod: str, container: str = "") -> list[dict[str, Any]]:
    """The containers of a pod on one node, with its overrides and the groups that talk to them."""

    def is_meant(row: Document) -> bool:
        return (row.get("namespace"), row.get("pod")) == (namespace, pod) and container in (
            "",
            row.get("container"),
        )

    status = Fields(found).fields("status")
    told = [_group(group) for group in status.rows("affinityGroups")]
    old = [each.text("message", "") for each in status.rows("conditions") if each.text("type") == CURRENT]
    rows = []
    for row in filter(is_meant, placement_rows(found)):
        own = row.get("container")
        groups = [
            group
            for group in told
            if any(is_meant(each) and each.get("container") == own for each in group["members"])
        ]
        rows.append({**row, "affinityGroups": groups, "old": old})
    return rows


def _group(group: Fields) -> dict[str, Any]:
    group.flag("together", False)
    members = [_typed(member, "namespace", "pod", "container") for member in group.rows("members")]
    rate = group.number("bytesPerSecond", 0)
    return {**_typed(group, "zone", "whyNot"), "members": members, "bytesPerSecond": rate}


def complaints(found: Document) -> list[dict[str, str]]:
    """The faults of a node, errors first: its conditions, its policy, its doctor's findings; or that it is unreadable."""
    told = read(found, _complaints)
    if isinstance(told, Skipped):
        return [{"node": told.name, "severity": "error", "check": "NodePlacement", "message": told.sentence}]
    return told


def _complaints(found: Document) -> list[dict[str, str]]:
    whole = Fields(found)
    status = whole.fields("status")
    told: list[tuple[str, str, str]] = []
    for each in status.rows("conditions"):
        kind, holds = each.text("type"), each.text("status")
        if holds != ("False" if kind == DEGRADED else "True"):
            severity = "warning" if kind == CURRENT else "error"
            told.append((severity, kind, each.text("message", "") or each.text("reason", "")))
    if "conditions" not in status:
        told.append(("error", READY, "its agent has written nothing: is it running?"))
    policy = status.fields("policy")
    if policy.text("state", "") in ("Refused", "TakenBack"):
        told.append(("error", f"policy {policy.text('name', '')}", policy.text("message", "")))
    for each in status.fields("doctor").rows("problems"):
        hint = f" ({each.text('hint')})" if each.text("hint", "") else ""
        told.append((each.text("severity", "error"), each.text("check", ""), each.text("message", "") + hint))
    told.sort(key=lambda one: one[0] != "error")
    node = _node(whole)
    return [
        {"node": node, "severity": severity, "check": check, "message": said}
        for severity, check, said in told
    ]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; the last one runs on. The first row is the head."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def cpus_text(milli: int) -> str:
    """7500 as 7.5."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


def top_text(rows: Iterable[Document]) -> str:
    """The nodes, unwell ones first."""
    head = ("NODE", "READY", "DEGRADED", "MODE", "CONTAINERS", "CPUS", "EXCLUSIVE", "POLICY")
    ordered = sorted(rows, key=lambda row: (row["ready"] == "True", row["degraded"] == "False", row["node"]))
    return table(
        [
            head,
            *(
                (
                    row["node"],
                    row["ready"],
                    row["degraded"],
                    row["mode"] or "-",
                    f"{row['containers']}" + (f" ({row['unplaced']} unplaced)" if row["unplaced"] else ""),
                    f"{cpus_text(row['chargedMilliCpus'])}/{cpus_text(row['allocatableMilliCpus'])}",
                    str(row["exclusiveCpus"]),
                    f"{row['policy']} {row['policyState']}".strip() or "-",
                )
                for row in ordered
            ),
        ]
    )


def placements_text(rows: Iterable[Document]) -> str:
    head = ("NODE", "CONTAINER", "LEVEL", "CPUS", "MEMS", "STATE")
    return table(
        [
            head,
            *(
                (
                    row["node"],
                    path_of(row),
                    str(row.get("level") or "-"),
                    str(row.get("cpus") or "-"),
                    str(row.get("mems") or "-"),
                    state_text(row) or "-",
                )
                for row in sorted(rows, key=lambda row: (row["node"], path_of(row)))
            ),
        ]
    )


def path_of(row: Document) -> str:
    """NAMESPACE/POD/CONTAINER."""
    return "/".join(str(row.get(key, "")) for key in ("namespace", "pod", "container"))


def state_text(row: Document) -> str:
    """``foreign``, as NodePlacement has it, says too little."""
    state = str(row.get("state") or "")
    return "modified externally" if state == "foreign" else state


def explain_text(rows: Iterable[Document]) -> str:
    return "\n\n".join(_explain_one(row) for row in rows)


def _explain_one(row: Document) -> str:
    said = [path_of(row)]
    said += _labelled("node", str(row["node"]))
    said += _labelled("cpus", f"{row.get('cpus') or 'any'}{' (exclusive)' if row.get('exclusive') else ''}")
    said += _labelled("memory of", f"NUMA {row['mems']}" if row.get("mems") else "any NUMA node")
    # An agent of an older version writes node-0.
    place = str(row.get("level") or ""), domain_text(str(row.get("zone") or ""))
    said += _labelled("place", " ".join(filter(None, place)) or "none")
    said += _labelled("state", state_text(row) or "unknown")
    said += _labelled("why", str(row.get("why") or "its agent gives no reason"))
    for text in row.get("old") or ():
        said += _labelled("old", text)
    for group in row.get("affinityGroups") or ():
        peers = ", ".join(
            path_of(each) for each in group.get("members") or () if path_of(each) != path_of(row)
        )
        rate = f"{group.get('bytesPerSecond', 0):,} bytes/s"
        why_not = f"apart: {group.get('whyNot') or 'no reason given'}"
        said += _labelled("talks to", f"{peers}, {rate}, {'together' if group.get('together') else why_not}")
    return "\n".join(said)


def _labelled(label: str, text: str) -> list[str]:
    indent = " " * 14
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {label:<12}", subsequent_indent=indent)


def doctor_text(told: Sequence[Document], nodes: int) -> str:
    """The faults by node; one line if there are none."""
    bad = len({each["node"] for each in told})
    lines: list[str] = []
    for each in told:
        begin = f"{each['node']}: {each['severity']}: {each['check']}: "
        lines += textwrap.wrap(begin + each["message"], WIDTH, subsequent_indent="    ")
    lines.append(f"{nodes - bad} of {nodes} nodes are well" if nodes else "no node has a NodePlacement")
    return "\n".join(lines)


def advice_row(found: Document) -> dict[str, Any]:
    """One AffinityAdvice. ``Unreadable``, as all that read an object here."""
    whole = Fields(found)
    status = whole.fields("status")
    target_ = status.fields("target")
    return {
        "name": whole.fields("metadata").text("name"),
        "followers": [f"{row.text('namespace')}/{row.text('name')}" for row in status.rows("followers")],
        "target": f"{target_.text('namespace', '')}/{target_.text('name', '')}",
        "remoteBytesPerSecond": status.number("remoteBytesPerSecond", 0),
        "bytesPerSecond": status.number("bytesPerSecond", 0),
        "reason": status.text("reason", ""),
    }


def followers(found: Document) -> list[tuple[tuple[str, str, str], Document]]:
    """The owners that follow one AffinityAdvice, with the parts of a pod's spec by which they do."""
    rows = Fields(found).fields("status").rows("followers")
    parts = ("term", "apart", "spread")
    return [
        (
            (row.text("kind"), row.text("namespace"), row.text("name")),
            {part: row.fields(part).found for part in parts},
        )
        for row in rows
    ]


def patches(of_all: Iterable[tuple[tuple[str, str, str], Document]]) -> list[dict[str, Any]]:
    """For each owner that follows advices, the part of its object by which its pods do."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for owner, parts in of_all:
        spec = found.setdefault(
            owner,
            {
                "affinity": {
                    "podAffinity": {_PREFERRED: []},
                    "podAntiAffinity": {_PREFERRED: [parts["apart"]]},
                },
                "topologySpreadConstraints": [parts["spread"]],
            },
        )
        spec["affinity"]["podAffinity"][_PREFERRED].append(parts["term"])
    return [
        {"kind": kind, "namespace": namespace, "name": name, "patch": {"spec": {"template": {"spec": spec}}}}
        for (kind, namespace, name), spec in sorted(found.items(), key=lambda item: item[0])
    ]


_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def advices_text(rows: Iterable[Document]) -> str:
    head = ("ADVICE", "FOLLOWERS", "TARGET", "BETWEEN NODES", "ON ONE NODE")
    return table(
        [
            head,
            *(
                (
                    row["name"],
                    ",".join(row["followers"]) or "-",
                    row["target"],
                    f"{row['remoteBytesPerSecond']:,} bytes/s",
                    f"{row['bytesPerSecond']:,} bytes/s",
                )
                for row in rows
            ),
        ]
    )


def patches_text(rows: Iterable[Document]) -> str:
    """A command of a shell for each."""
    return "\n".join(
        shlex.join(
            [
                *("kubectl", "-n", row["namespace"], "patch", row["kind"].lower(), row["name"]),
                *("--type=strategic", "--patch", json.dumps(row["patch"])),
            ]
        )
        for row in rows
    )


# ---------------------------------------------------------------- kubectl


class KubectlFailed(CommandError):
    """In kubectl's own words; "" where it has said them already."""


class Kubectl:
    """The kubectl on PATH, with the words that name the cluster.

    :raises CommandError: there is none.
    """

    def __init__(self, cluster: Sequence[str]) -> None:
        found = shutil.which("kubectl")
        if found is None:
            raise CommandError("there is no kubectl in $PATH, by which this command asks the API server")
        self._command = [found, *cluster]

    def get(self, where: str) -> dict[str, Any]:
        """The API server's answer at a path.

        :raises KubectlFailed: it refuses, cannot be reached, or the login fails.
        :raises CommandError: what answers is no API server.
        """
        try:
            return dict(printable_document(read_json(self._run("get", "--raw", where))))
        except (ValueError, TypeError):
            sentence = f"what answers at {where} is no JSON object: does the kubeconfig name an API server"
            raise CommandError(f"{sentence}? see: kubectl cluster-info") from None

    def namespace(self) -> str:
        """The one of the context."""
        words = ("config", "view", "--minify", "--output=jsonpath={.contexts[0].context.namespace}")
        try:
            return self._run(*words).decode() or "default"
        except KubectlFailed:  # in a pod there is no kubeconfig
            return "default"

    def _run(self, *words: str) -> bytes:
        with subprocess.Popen(
            [*self._command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as run:
            assert run.stdout is not None and run.stderr is not None
            refused: list[bytes] = []
            # A login may have something to ask: that is shown as it comes.
            told = threading.Thread(target=_tell, args=(run.stderr, refused))
            told.start()
            said = run.stdout.read()
            told.join()
        if run.returncode != 0:
            raise KubectlFailed(b"".join(refused).decode(errors="replace").strip())
        return said


def _tell(errors: IO[bytes], refused: list[bytes]) -> None:
    """Pass on what kubectl says, but for the sentence with which it fails."""
    while said := os.read(errors.fileno(), 1 << 16):
        if said.lower().startswith(b"error"):
            refused.append(said)
        else:
            sys.stderr.write(said.decode(errors="replace"))
            sys.stderr.flush()


# ---------------------------------------------------------------- commands


def top(kubectl: Kubectl, options: argparse.Namespace) -> int:
    rows = _readable(_placements(kubectl, options.node, lambda one: read(one, node_row)))
    return _show(options, rows, top_text)


def placements(kubectl: Kubectl, options: argparse.Namespace) -> int:
    def rows_of(one: Document) -> list[dict[str, Any]]:
        return placement_rows(one, options.namespace)

    found = _readable(_placements(kubectl, options.node, lambda one: read(one, rows_of)))
    return _show(options, [row for rows in found for row in rows], placements_text)


def explain(kubectl: Kubectl, options: argparse.Namespace) -> int:
    namespace = options.namespace or kubectl.namespace()

    def rows_of(one: Document) -> list[dict[str, Any]]:
        return explained(one, namespace, options.pod, options.container)

    found = _readable(_placements(kubectl, options.node, lambda one: read(one, rows_of)))
    rows = [row for each in found for row in each]
    if not rows:
        wanted = "/".join(part for part in (namespace, options.pod, options.container) if part)
        raise CommandError(
            f"no node tells of {wanted}: is it running, and in the namespace {namespace!r} "
            "(-n)? An agent tells of new pods within some ten seconds"
        )
    return _show(options, rows, explain_text)


def rollout(kubectl: Kubectl, options: argparse.Namespace) -> int:
    nodes = _placements(kubectl, options.node, mode_row)
    policies = [policy_row(each) for each in kubectl.get(path(POLICIES)).get("items") or ()]
    if options.output == "json":
        said = json.dumps({"policies": policies, "nodes": nodes}, indent=2)
    else:
        said = rollout_text(policies, nodes, table, WIDTH)
    print(printable_lines(said))
    return 0


def claims(kubectl: Kubectl, options: argparse.Namespace) -> int:
    def row_of(one: Document) -> Optional[dict[str, Any]]:
        return claim_row(one, options.driver)

    try:
        found = _pages(kubectl, lambda one: read(one, row_of), path(CLAIMS, namespace=options.namespace))
    except KubectlFailed as failed:
        if "(NotFound)" not in str(failed):
            raise
        raise CommandError(
            "this cluster does not know ResourceClaims of resource.k8s.io/v1: Kubernetes 1.34 or later has them"
        ) from None
    rows = [row for row in _readable(found, "ResourceClaim") if row is not None]
    shown = [row for row in rows if not options.node or row["node"] in options.node]
    return _show(options, shown, lambda rows: claims_text(rows, table))


def advice(kubectl: Kubectl, options: argparse.Namespace) -> int:
    found = kubectl.get(path(ADVICES)).get("items") or ()
    if options.patch:
        of_all = _readable((read(each, followers) for each in found), AFFINITY_ADVICE)
        return _show(options, patches(row for rows in of_all for row in rows), patches_text)
    return _show(
        options, _readable((read(each, advice_row) for each in found), AFFINITY_ADVICE), advices_text
    )


def doctor(kubectl: Kubectl, options: argparse.Namespace) -> int:
    found = _placements(kubectl, options.node, complaints)
    told = [each for one in found for each in one]
    _show(options, told, lambda rows: doctor_text(list(rows), len(found)))
    return 1 if any(each["severity"] == "error" for each in told) else 0


def _readable(found: Iterable[Union[Value, Skipped]], kind: str = NODE_PLACEMENT) -> list[Value]:
    """Those that could be read; of each other one it is said on stderr that it is left out, and why."""
    values: list[Value] = []
    for each in found:
        if isinstance(each, Skipped):
            sentence = f"warning: {each.name} is left out, as its {kind} cannot be read: {each.sentence}"
            print(printable(sentence), file=sys.stderr)
        else:
            values.append(each)
    return values


def _placements(kubectl: Kubectl, nodes: Sequence[str], keep: Callable[[Document], Any]) -> list[Any]:
    """The result of ``keep`` for each NodePlacement."""
    try:
        if nodes:
            return [keep(kubectl.get(path(PLACEMENTS, node))) for node in nodes]
        return _pages(kubectl, keep, path(PLACEMENTS))
    except KubectlFailed as failed:
        if "(NotFound)" not in str(failed):
            raise
        if NODE_PLACEMENTS in str(failed):
            sentence = str(failed).partition(": ")[2]
            raise CommandError(f"{sentence}; the nodes that have one: kubectl get nodeplacements") from None
        raise CommandError(
            "this cluster does not know NodePlacements: kubectl apply -k packaging/cluster/crds, then the agents"
        ) from None


def _pages(kubectl: Kubectl, keep: Callable[[Document], Any], where: str) -> list[Any]:
    """The result of ``keep`` for each object of a list."""
    kept: list[Any] = []
    token, begins_anew = "", False
    while True:
        try:
            page = kubectl.get(target(where, {"limit": str(PAGE), "continue": token}))
        except KubectlFailed as failed:
            if "(Expired)" not in str(failed) or not token or begins_anew:
                raise
            # The server has forgotten the version that the pages are of: once more from the first.
            kept, token, begins_anew = [], "", True
            continue
        kept += map(keep, page.get("items") or ())
        token = Fields(page).fields("metadata").text("continue", "")
        if not token:
            return kept


def _show(options: argparse.Namespace, rows: Sequence[Any], text: Callable[[Iterable[Any]], str]) -> int:
    print(printable_lines(json.dumps(rows, indent=2) if options.output == "json" else text(rows)))
    return 0


# ---------------------------------------------------------------- command line


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="kubectl cri_resmgr", description="Where the containers of a fleet run, and why."
    )
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("--kubeconfig", default="", metavar="FILE", help="handed on to kubectl")
    reading.add_argument("--context", default="", help="handed on to kubectl")
    reading.add_argument("-o", "--output", choices=("text", "json"), default="text")
    of_nodes = argparse.ArgumentParser(add_help=False, parents=[reading])
    of_nodes.add_argument("--node", action="append", default=[], help="only this node; may be repeated")

    def add(
        name: str, run: Any, said: str, kind: argparse.ArgumentParser = of_nodes
    ) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=said, description=said, parents=[kind])
        found.set_defaults(run=run)
        return found

    add("top", top, "One line a node; those that are not well come first.")
    one = add("placements", placements, "Where every container runs.")
    one.add_argument("-n", "--namespace", default="", help="only this one")
    one = add("explain", explain, "Why the containers of a pod are where they are.")
    one.add_argument("pod", metavar="POD")
    one.add_argument("-n", "--namespace", default="", help="default: the context's, or default")
    one.add_argument("-c", "--container", default="", help="only this one")
    one = add("claims", claims, "Which claims of CPUs there are, on which node, and for which pods.")
    one.add_argument("-n", "--namespace", default="", help="only this one")
    one.add_argument("--driver", default=DRIVER, help=f"dra.driver_name of the nodes; default: {DRIVER}")
    add("rollout", rollout, "How far policies are, and how many nodes are in which mode, and why.")
    one = add("advice", advice, "Owners of pods that would gain from one node.", reading)
    one.add_argument(
        "--patch",
        action="store_true",
        help="commands by which new pods of these owners follow; nothing is run",
    )
    add("doctor", doctor, "What is wrong, on every node; exit code 1 if an error is among it.")
    return made


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Exit codes: 0 done, 1 a sentence on stderr says why not (or ``doctor`` has found an error), 2 wrong usage."""
    options = parser().parse_args(arguments)
    given = {"--kubeconfig": options.kubeconfig, "--context": options.context}
    try:
        kubectl = Kubectl([f"{name}={value}" for name, value in given.items() if value])
        return int(options.run(kubectl, options))
    except KubectlFailed as failed:
        if str(failed):
            print(printable_lines(failed), file=sys.stderr)
    except CommandError as error:
        print(printable_lines(f"error: {error}"), file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt:
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
