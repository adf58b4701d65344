"""The client on a real kube-apiserver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.requests import ApiError, Resource, Unreachable
from tests.cluster.kube.io.test_client import MAPS, OWN, AtAnyServer, config_map
from tests.cluster.real.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


@pytest.fixture
async def client(api_server: ControlPlane, tmp_path: Path) -> AsyncIterator[Client]:
    pair = api_server.certificate("admin", "system:masters")
    written = api_server.kubeconfig(tmp_path / "kubeconfig", certificate=pair)
    client = Client(Access.kubeconfig(written), user_agent="test")
    yield client
    await client.close()


class TestAtARealServer(AtAnyServer):
    pass


async def test_a_watch_goes_on_over_the_servers_end(api_server: ControlPlane, client: Client) -> None:
    watch = client.watch(MAPS, field_selector="metadata.name=watched")
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
