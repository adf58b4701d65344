"""``kubectl cri_resmgr``: the fleet as its NodePlacements tell of it, and the way back. One file, standard library.

Everything but ``uninstall`` reads NodePlacements only: no agent, node or pod is asked, so nothing here can disturb one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from cluster.api.names import (
    DEGRADED,
    FRONT_END_LABEL,
    GROUP,
    INSTALLED_LABEL,
    INSTALLING_LABEL,
    NAMESPACE,
    NODE_PLACEMENTS,
    OPERATOR,
    READY,
    VERSION,
)
from cluster.installer.job import UNINSTALL, job_name, termination_sentence, uninstall_job
from cluster.kube.errors import ApiError, Unreachable
from cluster.kube.io.access import Access, NoAccess
from cluster.kube.io.client import Client
from cluster.kube.requests import Resource
from cri_api.waiting import wait_within
from policies.machine.cpus import parse_cpus

PLACEMENTS = Resource(GROUP, VERSION, NODE_PLACEMENTS)
NODES = Resource("", "v1", "nodes")
JOBS = Resource("batch", "v1", "jobs", namespaced=True)
PODS = Resource("", "v1", "pods", namespaced=True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)

#: NodePlacements read at a time: each may have 200 KB.
PAGE = 20
WIDTH = 80
Document = Mapping[str, Any]


class CommandError(Exception):
    """One sentence, and what to do."""


# ---------------------------------------------------------------- what is shown: values in, values out


def condition(found: Document, kind: str) -> str:
    """Of a NodePlacement: True, False or Unknown, which is also what it lacks."""
    for each in found.get("status", {}).get("conditions") or ():
        if each.get("type") == kind:
            return str(each.get("status"))
    return "Unknown"


def node_row(found: Document) -> dict[str, Any]:
    """One node in a line. CPUs in milli-CPUs, over its sockets."""
    status = found.get("status") or {}
    whole = [zone for zone in status.get("zones") or () if not zone.get("parent")]
    exclusive = (parse_cpus(str(zone.get("exclusiveCpus") or "")) for zone in whole)
    return {
        "node": found["metadata"]["name"],
        "ready": condition(found, READY),
        "degraded": condition(found, DEGRADED),
        "mode": status.get("mode", ""),
        "frontEnd": status.get("frontEnd", ""),
        "containers": (status.get("counts") or {}).get("placements", 0),
        "unplaced": (status.get("counts") or {}).get("unplaced", 0),
        "chargedMilliCpus": sum(zone.get("chargedMilliCpus", 0) for zone in whole),
        "allocatableMilliCpus": sum(zone.get("allocatableMilliCpus", 0) for zone in whole),
        "exclusiveCpus": sum(len(cpus) for cpus in exclusive),
        "policy": (status.get("policy") or {}).get("name", ""),
        "policyState": (status.get("policy") or {}).get("state", ""),
    }


def placement_rows(found: Document, namespace: str = "") -> list[dict[str, Any]]:
    """The containers of one node, of one namespace unless that is ""."""
    node = found["metadata"]["name"]
    rows = (found.get("status") or {}).get("placements") or ()
    return [{"node": node, **row} for row in rows if namespace in ("", row.get("namespace"))]


def explained(found: Document, namespace: str, pod: str, container: str = "") -> list[dict[str, Any]]:
    """The containers of a pod on one node, with its overrides and the groups that talk to them."""
    status = found.get("status") or {}

    def is_meant(row: Document) -> bool:
        return (row.get("namespace"), row.get("pod")) == (namespace, pod) and container in (
            "",
            row.get("container"),
        )

    rows = []
    for row in filter(is_meant, placement_rows(found)):
        own = row.get("container")
        groups = [
            group
            for group in status.get("affinityGroups") or ()
            if any(is_meant(each) and each.get("container") == own for each in group.get("members") or ())
        ]
        rows.append({**row, "affinityGroups": groups})
    return rows


def complaints(found: Document) -> list[dict[str, str]]:
    """What is wrong with a node, errors first: its conditions, its policy, what its doctor has found."""
    status = found.get("status") or {}
    node = found["metadata"]["name"]
    told: list[tuple[str, str, str]] = []
    for each in status.get("conditions") or ():
        wanted = "False" if each.get("type") == DEGRADED else "True"
        if each.get("status") != wanted:
            told.append(
                ("error", str(each.get("type")), str(each.get("message") or each.get("reason") or ""))
            )
    if not status.get("conditions"):
        told.append(("error", READY, "its agent has written nothing: is it running?"))
    policy = status.get("policy") or {}
    if policy.get("state") in ("Refused", "TakenBack"):
        told.append(("error", f"policy {policy.get('name', '')}", str(policy.get("message", ""))))
    for each in (status.get("doctor") or {}).get("problems") or ():
        said = str(each.get("message", ""))
        hint = f" ({each['hint']})" if each.get("hint") else ""
        told.append((str(each.get("severity", "error")), str(each.get("check", "")), said + hint))
    told.sort(key=lambda one: one[0] != "error")
    return [{"node": node, "severity": how, "check": what, "message": said} for how, what, said in told]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; the last one runs on. The first row is the head."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def cpus_text(milli: int) -> str:
    """7500 as 7.5."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


def top_text(rows: Iterable[Document]) -> str:
    """The nodes, those that are not well first."""
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
                    str(row.get("state") or "-"),
                )
                for row in sorted(rows, key=lambda row: (row["node"], path_of(row)))
            ),
        ]
    )


def path_of(row: Document) -> str:
    """NAMESPACE/POD/CONTAINER."""
    return "/".join(str(row.get(key, "")) for key in ("namespace", "pod", "container"))


def explain_text(rows: Iterable[Document]) -> str:
    return "\n\n".join(_explain_one(row) for row in rows)


def _explain_one(row: Document) -> str:
    said = [path_of(row)]
    said += _labelled("node", str(row["node"]))
    said += _labelled("cpus", f"{row.get('cpus') or 'any'}{' (exclusive)' if row.get('exclusive') else ''}")
    said += _labelled("memory of", f"NUMA {row['mems']}" if row.get("mems") else "any NUMA node")
    said += _labelled("place", " ".join(str(row[key]) for key in ("level", "zone") if row.get(key)) or "none")
    said += _labelled("state", str(row.get("state") or "unknown"))
    said += _labelled("why", str(row.get("why") or "its agent gives no reason"))
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
    """What is wrong, by node; one line if nothing is."""
    bad = len({each["node"] for each in told})
    lines: list[str] = []
    for each in told:
        begin = f"{each['node']}: {each['severity']}: {each['check']}: "
        lines += textwrap.wrap(begin + each["message"], WIDTH, subsequent_indent="    ")
    lines.append(f"{nodes - bad} of {nodes} nodes are well" if nodes else "no node has a NodePlacement")
    return "\n".join(lines)


def image_of(operator: Document) -> str:
    """The image that the operator of this cluster installs nodes with; "" if it installs none."""
    for container in operator["spec"]["template"]["spec"]["containers"]:
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        for at, word in enumerate(words):
            if word.startswith("--installer-image="):
                return str(word.partition("=")[2])
            if word == "--installer-image" and at + 1 < len(words):
                return str(words[at + 1])
    return ""


def end_of(job: Document) -> str:
    """Complete, Failed, or "" while it runs."""
    for each in (job.get("status") or {}).get("conditions") or ():
        if each.get("status") == "True" and each.get("type") in ("Complete", "Failed"):
            return str(each["type"])
    return ""


# ---------------------------------------------------------------- commands


async def top(client: Client, options: argparse.Namespace) -> int:
    rows = await _placements(client, options.node, node_row)
    return _show(options, rows, top_text)


async def placements(client: Client, options: argparse.Namespace) -> int:
    found = await _placements(client, options.node, lambda one: placement_rows(one, options.namespace))
    return _show(options, [row for rows in found for row in rows], placements_text)


async def explain(client: Client, options: argparse.Namespace) -> int:
    namespace = options.namespace or client_namespace(options)
    found = await _placements(
        client, options.node, lambda one: explained(one, namespace, options.pod, options.container)
    )
    rows = [row for each in found for row in each]
    if not rows:
        wanted = "/".join(part for part in (namespace, options.pod, options.container) if part)
        raise CommandError(
            f"no node tells of {wanted}: is it running, and in the namespace {namespace!r} "
            "(-n)? An agent tells of new pods within some ten seconds"
        )
    return _show(options, rows, explain_text)


async def doctor(client: Client, options: argparse.Namespace) -> int:
    found = await _placements(client, options.node, complaints)
    told = [each for one in found for each in one]
    _show(options, told, lambda rows: doctor_text(list(rows), len(found)))
    return 1 if any(each["severity"] == "error" for each in told) else 0


async def uninstall(client: Client, options: argparse.Namespace) -> int:
    """Node by node: the operator is told to leave it alone, the Job takes everything back, the labels go."""
    if not options.node and not options.all:
        raise CommandError("give --node NODE (as often as wanted) or --all")
    image = options.image or await _image(client, options.install_namespace)
    listed = await client.list(NODES, label_selector="" if options.node else INSTALLED_LABEL)
    names = sorted(each["metadata"]["name"] for each in listed["items"])
    if unknown := sorted(set(options.node) - set(names)):
        raise CommandError(f"the cluster has no node {unknown[0]!r}")
    wanted = list(options.node) or names
    if not wanted:
        print("No node is labelled as installed; nothing is to be taken back.")
        return 0
    if not options.yes:
        raise CommandError(
            f"this gives kubelet back to the runtime and removes the package on {', '.join(wanted)}; "
            "say --yes to do it"
        )
    for node in wanted:
        sentence = await _uninstall_one(client, node, image, options.install_namespace, options.timeout)
        print(f"{node}: {sentence or 'taken back'}", flush=True)
    return 0


async def _uninstall_one(client: Client, node: str, image: str, namespace: str, timeout_s: float) -> str:
    # 1. Without this label the operator would install it again.
    await _label(client, node, {FRONT_END_LABEL: None, INSTALLING_LABEL: "uninstall"})
    # 2. One Job a node: of an earlier attempt nothing may be left.
    name = job_name(UNINSTALL, node)
    async with _watched(client, name, namespace) as jobs:
        async for job in jobs:
            if job is None:
                await client.create(JOBS, uninstall_job(node, image, namespace=namespace), namespace)
                break
            if "deletionTimestamp" not in job["metadata"]:
                with contextlib.suppress(ApiError):  # it went by itself
                    await client.delete(JOBS, name, namespace, propagation="Background")

        # 3. Until it has ended.
        async def ended() -> str:
            async for job in jobs:
                if job is not None and (end := end_of(job)):
                    return end
            return ""

        try:
            end = await wait_within(timeout_s, ended())
        except asyncio.TimeoutError:
            raise CommandError(
                f"{node}: the Job {name} in namespace {namespace} has not ended within {timeout_s:.0f} s; "
                f"see: kubectl -n {namespace} describe job {name}"
            ) from None
    pods = await client.list(PODS, namespace, label_selector=f"job-name={name}")
    sentence = next(filter(None, map(termination_sentence, pods["items"])), "")
    if end == "Failed":
        raise CommandError(
            f"{node}: {sentence or 'the Job has failed without a word'}; what is not taken back is kept on the "
            f"node for the next attempt; see: kubectl -n {namespace} logs job/{name}"
        )
    await _label(client, node, {INSTALLED_LABEL: None, INSTALLING_LABEL: None})
    return sentence


@contextlib.asynccontextmanager
async def _watched(client: Client, name: str, namespace: str) -> Any:
    """One Job as it changes; None where there is none."""
    watch = client.watch(JOBS, namespace=namespace, field_selector=f"metadata.name={name}")

    async def states() -> Any:
        async for event in watch:
            if event.kind == "SYNC":
                yield event.object[0] if event.object else None
            else:
                yield None if event.kind == "DELETED" else event.object

    try:
        yield states()
    finally:
        await watch.aclose()


async def _label(client: Client, node: str, labels: Mapping[str, Optional[str]]) -> None:
    await client.patch(NODES, node, {"metadata": {"labels": dict(labels)}})


async def _image(client: Client, namespace: str) -> str:
    try:
        image = image_of(await client.get(DEPLOYMENTS, OPERATOR, namespace))
    except ApiError as error:
        if error.status != 404:
            raise
        image = ""
    if not image:
        raise CommandError(
            f"no operator in namespace {namespace} tells what nodes were installed with; give --image, as in "
            "its --installer-image"
        )
    return image


async def _placements(client: Client, nodes: Sequence[str], keep: Callable[[Document], Any]) -> list[Any]:
    """What ``keep`` makes of each NodePlacement, a page at a time."""
    try:
        if nodes:
            return [keep(await client.get(PLACEMENTS, node)) for node in nodes]
        return list((await client.list(PLACEMENTS, limit=PAGE, keep=keep))["items"])
    except ApiError as error:
        if error.status != 404:
            raise
        if error.reason == "NotFound" and nodes and "nodeplacements" in error.message:
            raise CommandError(
                f"{error.message}; the nodes that have one: kubectl get nodeplacements"
            ) from None
        raise CommandError(
            "this cluster does not know NodePlacements: kubectl apply -k packaging/cluster/crds, then the agents"
        ) from None


def _show(options: argparse.Namespace, rows: Sequence[Any], text: Callable[[Iterable[Any]], str]) -> int:
    print(json.dumps(rows, indent=2) if options.output == "json" else text(rows))
    return 0


# ---------------------------------------------------------------- command line


def client_namespace(options: argparse.Namespace) -> str:
    return str(options.access.namespace or "default")


def access_of(options: argparse.Namespace) -> Access:
    """As kubectl finds it: --kubeconfig, $KUBECONFIG (its first file that is there), ~/.kube/config, the pod's own."""
    for path in _kubeconfigs(options.kubeconfig):
        if options.kubeconfig or path.exists():
            return Access.kubeconfig(path, options.context)
    return Access.in_cluster()


def _kubeconfigs(given: Optional[Path]) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    named = os.environ.get("KUBECONFIG", "")
    yield from (Path(each) for each in named.split(os.pathsep) if each)
    if not named:
        yield Path("~/.kube/config").expanduser()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="kubectl cri_resmgr", description="Where the containers of a fleet run, and why."
    )
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kubeconfig", type=Path, help="default: $KUBECONFIG, then ~/.kube/config")
    common.add_argument("--context", default="", help="of the kubeconfig; default: its current one")
    reading = argparse.ArgumentParser(add_help=False, parents=[common])
    reading.add_argument("-o", "--output", choices=("text", "json"), default="text")
    reading.add_argument("--node", action="append", default=[], help="only this node; may be repeated")

    def add(name: str, run: Any, said: str, parent: argparse.ArgumentParser) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=said, description=said, parents=[parent])
        found.set_defaults(run=run)
        return found

    add("top", top, "One line a node; those that are not well come first.", reading)
    one = add("placements", placements, "Where every container runs.", reading)
    one.add_argument("-n", "--namespace", default="", help="only this one")
    one = add("explain", explain, "Why the containers of a pod are where they are.", reading)
    one.add_argument("pod", metavar="POD")
    one.add_argument("-n", "--namespace", default="", help="default: the kubeconfig's, or default")
    one.add_argument("-c", "--container", default="", help="only this one")
    said = "What is wrong, on every node; exit code 1 if an error is among it."
    add("doctor", doctor, said, reading)
    said = "Take back, node by node, what the installer has done: kubelet, units, package."
    one = add("uninstall", uninstall, said, common)
    one.add_argument("--node", action="append", default=[], help="this node; may be repeated")
    one.add_argument("--all", action="store_true", help="every node that is labelled as installed")
    one.add_argument("--yes", action="store_true", help="do it")
    one.add_argument("--image", default="", help="of the installer; default: the operator's")
    one.add_argument("--install-namespace", default=NAMESPACE, help=f"of the Jobs; default: {NAMESPACE}")
    one.add_argument("--timeout", type=float, default=900.0, help="seconds for one node; default: 900")
    return made


async def _run(options: argparse.Namespace) -> int:
    client = Client(options.access, user_agent="kubectl-cri_resmgr")
    try:
        return int(await options.run(client, options))
    finally:
        await client.close()


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Exit codes: 0 done, 1 a sentence on stderr says why not (or ``doctor`` has found an error), 2 wrong usage."""
    options = parser().parse_args(arguments)
    try:
        options.access = access_of(options)
        return asyncio.run(_run(options))
    except ApiError as error:
        hint = "; your account needs that right" if error.status == 403 else ""
        print(f"error: the API server refuses: {error.message or error}{hint}", file=sys.stderr)
    except (CommandError, NoAccess, Unreachable) as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt:
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
