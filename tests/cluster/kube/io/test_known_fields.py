"""Writes to a server whose schema is older than the program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api.crds import definitions
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.known_fields import WHOLE_AGAIN_S, KnownFields
from cluster.kube.requests import ApiError, Resource, Unreachable
from tests.cluster.api_server import ApiServer, Fault
from tests.cluster.declared import older, schema_of

NODES = Resource("cri-resmgr.io", "v1alpha1", "nodeplacements")
DEFINITION = definitions()[0]
STATUS = {
    "mode": "enforce",
    "version": "2",
    "frozen": False,
    "doctor": {"errors": 0, "warnings": 0},
    "placements": [{"pod": "a", "demand": "l3", "zone": "l3-0"}, {"pod": "b", "zone": "l3-1"}],
    "policy": {"name": "p", "state": "TakenBack"},
}
BODY = {"apiVersion": "cri-resmgr.io/v1alpha1", "kind": "NodePlacement", "metadata": {"name": "n"}}
LACKING = ("status.frozen", "status.version", "status.doctor.warnings", "status.placements.demand")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        running.put(NODES, BODY)
        yield running


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def known(server: ApiServer, tmp_path: Path, time: Time) -> AsyncIterator[KnownFields]:
    client = Client(Access.kubeconfig(server.kubeconfig(tmp_path / "kubeconfig")), user_agent="one")
    yield KnownFields(client, NODES, {}, time)
    await client.close()


def keep_back(server: ApiServer, *paths: str, **words: Any) -> None:
    server.schemas["nodeplacements"] = schema_of(older(DEFINITION, *paths, **words))


async def write(known: KnownFields) -> None:
    await known.apply("n", {**BODY, "status": STATUS}, manager="one", subresource="status")


def status(server: ApiServer) -> dict[str, Any]:
    found = server.object(NODES, "n") or {}
    return dict(found.get("status") or {})


async def test_a_schema_that_knows_all_gets_all_in_one_request(server, known) -> None:
    keep_back(server)
    await write(known)
    assert (status(server), known.left_out, len(server.calls)) == (STATUS, (), 1)


async def test_what_an_older_schema_knows_is_written_and_the_rest_is_told(server, known) -> None:
    keep_back(server, *LACKING, words={"status.policy.state": "TakenBack"})
    await write(known)
    assert status(server) == {
        "mode": "enforce",
        "doctor": {"errors": 0},
        "placements": [{"pod": "a", "zone": "l3-0"}, {"pod": "b", "zone": "l3-1"}],
        "policy": {"name": "p"},
    }
    assert known.left_out == tuple(sorted([*LACKING, "status.policy.state TakenBack"]))


async def test_the_next_write_asks_once_and_the_whole_is_tried_again_later(server, known, time) -> None:
    keep_back(server, *LACKING)
    await write(known)
    server.calls.clear()
    await write(known)
    assert len(server.calls) == 1
    keep_back(server)
    time.now_s += WHOLE_AGAIN_S
    assert known.is_old()
    await write(known)
    assert (status(server), known.left_out, known.is_old()) == (STATUS, (), False)


async def test_a_try_that_is_refused_again_is_not_repeated_at_once(server, known, time) -> None:
    keep_back(server, *LACKING)
    await write(known)
    time.now_s += WHOLE_AGAIN_S
    await write(known)
    assert not known.is_old()


@pytest.mark.parametrize("kind", ["refuse", "reset"])
async def test_what_is_about_something_else_is_raised_and_what_is_known_stays(
    server, known, time, kind
) -> None:
    keep_back(server, *LACKING)
    await write(known)
    time.now_s += WHOLE_AGAIN_S
    server.faults.append(Fault(kind, times=2))
    with pytest.raises((ApiError, Unreachable)):
        await write(known)
    assert known.left_out == tuple(sorted(LACKING))
