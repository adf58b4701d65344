"""What ``cri-resmgr doctor`` says of a virtual machine: that its pass-through is right, or what is not shown."""

from __future__ import annotations

import json
from typing import Any

from tests.vm.guest.installation import run
from tests.vm.guest.node import Node

VIRTUAL = "virtual machine"
#: By machine: checks that warn, and of what.
_WARNINGS = {
    "documented": {},
    "no-topoext": {"smt": "topoext is missing", "cache": "one L3 of 8 cores is shown for each NUMA node"},
    "no-topology": {
        "sockets": "each of the 8 vCPUs is a socket",
        "smt": "no SMT siblings",
        "cache": "each vCPU has an L3 to itself",
    },
    "no-threads": {"smt": "no SMT siblings", "cache": "one L3 of 8 cores is shown for the whole machine"},
}
#: By number of vCPUs: what the hints say.
_RIGHT = {
    8: "-smp 8,sockets=1,dies=1,cores=4,threads=2",
    16: "-smp 16,sockets=1,dies=2,cores=4,threads=2",
}
#: It gives the runtime a fifth of its patience, which under emulation may be too little while others use the CPUs.
TRIES = 3
#: Reading all of it takes half a second, and twenty times as long under emulation.
PATIENCE_S = "30"


async def doctor_says_that_all_of_the_host_is_shown(node: Node) -> None:
    found = _findings()
    assert [one for one in found if one["topic"] == VIRTUAL and one["verdict"] != "ok"] == []
    assert "virtual" in [one["check"] for one in found if one["topic"] == VIRTUAL]


async def doctor_says_that_smt_siblings_are_not_shown(node: Node) -> None:
    siblings = [one for one in _findings() if (one["topic"], one["check"]) == (VIRTUAL, "smt")]
    assert [one["verdict"] for one in siblings] == ["warning"]
    assert "topoext" in siblings[0]["hint"]


async def doctor_names_what_is_not_shown(node: Node) -> None:
    """Of a machine as docs/vm.md wants it nothing, of the others what was left out."""
    virtual = [one for one in _findings() if one["topic"] == VIRTUAL]
    warned = {one["check"]: one["sentence"] for one in virtual if one["verdict"] == "warning"}
    wanted = _WARNINGS[node.shape.name]
    assert warned.keys() == wanted.keys(), warned
    for check, words in wanted.items():
        assert words in warned[check]
    hints = [one["hint"] for one in virtual if one["check"] in wanted]
    assert all(_RIGHT[node.shape.cpus] in hint for hint in hints), hints


def _findings() -> list[dict[str, Any]]:
    """All it says, once it finds no problem but that no kubelet runs here."""
    for _ in range(TRIES):
        done = run("cri-resmgr", "doctor", "--json", "--timeout", PATIENCE_S, check=False)
        assert done.stdout, done.stderr
        if "has not answered within" not in done.stdout:
            break
    told = json.loads(done.stdout)
    print(told["summary"])
    found: list[dict[str, Any]] = told["findings"]
    for one in found:
        if one["verdict"] not in ("ok", "note"):
            print(one["topic"], one["check"], one["verdict"], one["sentence"], sep=": ")
    assert [one for one in found if one["verdict"] == "problem" and one["topic"] != "kubelet"] == []
    return found
