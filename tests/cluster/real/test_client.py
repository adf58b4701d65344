"""The client on a real kube-apiserver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.errors import ApiError, Unreachable
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.requests import Resource
from tests.cluster.real.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

MAPS = Resource("", "v1", "configmaps", namespaced=True)
OWN = "default"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.fixture
async def client(api_server: ControlPlane, tmp_path: Path) -> AsyncIterator[Client]:
    pair = api_server.certificate("admin", "system:masters")
    written = api_server.kubeconfig(tmp_path / "kubeconfig", certificate=pair)
    client = Client(Access.kubeconfig(written), user_agent="test")
    yield client
    await client.close()


async def test_what_a_manager_no_longer_applies_is_gone_and_the_others_fields_stay(client: Client) -> None:
    await client.apply(MAPS, "shared", config_map("shared", a="1", b="1"), manager="one", namespace=OWN)
    await client.apply(MAPS, "shared", config_map("shared", c="1"), manager="two", namespace=OWN)
    found = await client.apply(MAPS, "shared", config_map("shared", a="2"), manager="one", namespace=OWN)
    assert found["data"] == {"a": "2", "c": "1"}


async def test_a_conflict_is_told_unless_forced(client: Client) -> None:
    await client.apply(MAPS, "fought", config_map("fought", a="1"), manager="one", namespace=OWN)
    with pytest.raises(ApiError) as refused:
        await client.apply(
            MAPS, "fought", config_map("fought", a="2"), manager="two", namespace=OWN, force=False
        )
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")


async def test_a_list_of_pages_is_whole(client: Client) -> None:
    for number in range(7):
        await client.create(MAPS, config_map(f"page-{number}"), OWN)
    found = await client.list(MAPS, OWN, limit=2)
    names = {each["metadata"]["name"] for each in found["items"]}
    assert {f"page-{number}" for number in range(7)} <= names


async def test_a_watch_goes_on_over_the_servers_end(api_server: ControlPlane, client: Client) -> None:
    watch = client.watch(MAPS, namespace=OWN, field_selector="metadata.name=watched")
    assert (await watch.__anext__()).kind == "SYNC"
    await client.create(MAPS, config_map("watched", a="1"), OWN)
    assert (await watch.__anext__())[0] == "ADDED"
    await asyncio.to_thread(api_server.stop_server)
    with pytest.raises(Unreachable):
        await client.get(MAPS, "watched", OWN)
    await asyncio.to_thread(api_server.start_server)
    await client.patch(MAPS, "watched", {"data": {"a": "2"}}, namespace=OWN)
    while (news := await watch.__anext__()).kind == "SYNC":
        assert len(news.object) == 1
        if news.object[0]["data"] == {"a": "2"}:
            break
    else:
        assert (news.kind, news.object["data"]) == ("MODIFIED", {"a": "2"})
    await watch.aclose()


async def test_a_renewed_token_is_taken_without_a_failure(api_server: ControlPlane, tmp_path: Path) -> None:
    for name in ("first", "second"):
        api_server.ask("POST", f"/api/v1/namespaces/{OWN}/serviceaccounts", {"metadata": {"name": name}})
    token = tmp_path / "token"
    token.write_text(api_server.account_token(OWN, "first"))
    written = api_server.kubeconfig(tmp_path / "kubeconfig", token="x")
    written.write_text(written.read_text().replace('"token": "x"', f'"tokenFile": "{token}"'))
    client = Client(Access.kubeconfig(written), user_agent="test")
    try:
        assert await spoken_as(client) == f"system:serviceaccount:{OWN}:first"
        renewed = tmp_path / "renewed"
        renewed.write_text(api_server.account_token(OWN, "second"))
        os.replace(renewed, token)
        assert await spoken_as(client) == f"system:serviceaccount:{OWN}:second"
    finally:
        await client.close()


async def spoken_as(client: Client) -> str:
    with pytest.raises(ApiError) as refused:
        await client.get(Resource("", "v1", "nodes"), "n")
    return str(refused.value.message).split('"')[3]
