"""What a pod's create takes where pods follow advice: ``python -m bench.advice_cost`` (root; `make peers`).

A real kube-apiserver with the policy of packaging/cluster/follow-advice, and 10, 100 and 1,000 advices: with the label that
the operator gives to the strongest, 32 at most, and with it on all of them, as without that bound. A create is a dry run:
all of admission, and nothing kept. Pods take turns: of a namespace without the label, of one with it and of an owner without
advice, and of one with advice. ``ADVICE_CREATES``: of each.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import machine_line, print_row
from cluster.operator.advice import FOLLOW_LABEL, MOST_FOLLOWED, Owner
from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane
from tests.cluster.real.follow import ADVICES, MERGE, advices, followed, pod_of, policy_in_force
from tests.cluster.real.kubectl import Kubectl
from tests.peers.programs import CLUSTER, find

CREATES = int(os.environ.get("ADVICE_CREATES", "40"))
SHOP = "advised"
WEB = Owner("Deployment", SHOP, "web")
OWNERS = {
    "no label": WEB._replace(namespace="default"),
    "label, no advice": WEB._replace(name="none"),
    "follows": WEB,
}


class Connection:
    """One that is kept: a handshake for each create would be most of it."""

    def __init__(self, api: ControlPlane) -> None:
        context = ssl.create_default_context(cafile=str(api.ca))
        self._connection = http.client.HTTPSConnection(api.address, api.port, context=context)

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": kind}
        self._connection.request(method, path, json.dumps(body), headers)
        answer = self._connection.getresponse()
        said = json.loads(answer.read())
        assert answer.status < 300, said
        return said

    def create(self, owner: Owner) -> dict[str, Any]:
        return dict(self.ask("POST", f"/api/v1/namespaces/{owner.namespace}/pods?dryRun=All", pod_of(owner)))


def main() -> None:
    print(machine_line())
    programs = find(*CLUSTER)
    folder = Path(tempfile.mkdtemp(prefix="crk-"))
    with ControlPlane(folder, programs["etcd"], programs["kube-apiserver"]) as api:
        api.start_controllers(programs["kube-controller-manager"], programs["kube-scheduler"])
        kubectl = Kubectl(programs["kubectl"], api)
        kubectl.apply_crds()
        with policy_in_force(api, kubectl, SHOP):
            measure(Connection(api))


def measure(connection: Connection) -> None:
    print_row("advices", "evaluated", *(f"{name}: ms, median; 95 %" for name in OWNERS))
    print_row(*["---"] * (2 + len(OWNERS)))
    [(first, strongest)] = advices({(WEB, Owner("StatefulSet", SHOP, "db")): 9_000_000}).items()
    write(connection, first, strongest, True)
    others = iter(range(1, 1000))
    written = [first]
    for count in (10, 100, 1000):
        while len(written) < count:
            number = next(others)
            pair = Owner("Deployment", SHOP, f"web-{number}"), Owner("StatefulSet", SHOP, f"db-{number}")
            [(name, advice)] = advices({pair: 2_000_000}).items()
            write(connection, name, advice, len(written) < MOST_FOLLOWED)
            written.append(name)
        row(connection, count, min(count, MOST_FOLLOWED))
        if count > MOST_FOLLOWED:
            label(connection, written[MOST_FOLLOWED:], "true")
            row(connection, count, count)
            label(connection, written[MOST_FOLLOWED:], None)


def write(connection: Connection, name: str, advice: Mapping[str, Any], follow: bool) -> None:
    labels = {FOLLOW_LABEL: "true"} if follow else {}
    head = {key: value for key, value in advice.items() if key != "status"}
    connection.ask("POST", ADVICES, {**head, "metadata": {"name": name, "labels": labels}})
    connection.ask("PATCH", f"{ADVICES}/{name}/status", {"status": advice["status"]}, MERGE)


def label(connection: Connection, names: list[str], value: Any) -> None:
    for name in names:
        connection.ask("PATCH", f"{ADVICES}/{name}", {"metadata": {"labels": {FOLLOW_LABEL: value}}}, MERGE)


def row(connection: Connection, advices_: int, evaluated: int) -> None:
    until_followed(connection)
    times: dict[str, list[float]] = {name: [] for name in OWNERS}
    for _ in range(CREATES):
        for name, owner in OWNERS.items():
            began = time.perf_counter()
            connection.create(owner)
            times[name].append((time.perf_counter() - began) * 1000)
    cells = (
        f"{statistics.median(each):.1f}; {statistics.quantiles(each, n=20)[-1]:.1f}"
        for each in times.values()
    )
    print_row(str(advices_), str(evaluated), *cells)


def until_followed(connection: Connection) -> None:
    """The server's own list of advices is a moment behind."""
    deadline = time.monotonic() + 60
    while not followed(connection.create(WEB)):
        assert time.monotonic() < deadline, "no advice is followed"


if __name__ == "__main__":
    main()
