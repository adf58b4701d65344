"""The client against a server that does what servers, networks and proxies in between do."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.io import client as client_module
from cluster.kube.io.access import Access, NoAccess
from cluster.kube.io.client import Client
from cluster.kube.requests import ApiError, Resource, Unreachable
from tests.cluster.api_server import ApiServer, Fault, certificates

NODES = Resource("cri-resmgr.io", "v1alpha1", "nodeplacements")
PODS = Resource("", "v1", "pods", namespaced=True)
MAPS = Resource("", "v1", "configmaps", namespaced=True)
OWN = "default"


def placement(name: str, **parts: Any) -> dict[str, Any]:
    own = {"apiVersion": "cri-resmgr.io/v1alpha1", "kind": "NodePlacement"}
    return {**own, "metadata": {"name": name, **parts.pop("metadata", {})}, **parts}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


class Sleeps:
    """The client's waits: recorded, and over at once."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
async def client(server: ApiServer, sleeps: Sleeps, tmp_path: Path) -> AsyncIterator[Client]:
    access = Access.kubeconfig(server.kubeconfig(tmp_path / "kubeconfig"))
    client = Client(access, user_agent="one", sleep=sleeps, random01=lambda: 0.0)
    yield client
    await client.close()


# --- objects


async def test_what_is_created_is_read_listed_and_deleted(server, client) -> None:
    made = await client.create(NODES, placement("n", spec={"mode": "observe"}))
    assert (await client.get(NODES, "n"))["spec"] == {"mode": "observe"}
    assert [each["metadata"]["name"] for each in (await client.list(NODES))["items"]] == ["n"]
    with pytest.raises(ApiError) as refused:
        await client.delete(NODES, "n", uid="another")
    assert refused.value.status == 409
    await client.delete(NODES, "n", uid=made["metadata"]["uid"])
    with pytest.raises(ApiError) as refused:
        await client.get(NODES, "n")
    assert (refused.value.status, refused.value.reason) == (404, "NotFound")


class AtAnyServer:
    """What holds of this server and of a real one. ``client``: of a server with the namespace ``default``."""

    async def test_what_a_manager_no_longer_applies_is_gone_and_the_others_fields_stay(self, client) -> None:
        await client.apply(MAPS, "shared", config_map("shared", a="1", b="1"), manager="one", namespace=OWN)
        await client.apply(MAPS, "shared", config_map("shared", c="1"), manager="two", namespace=OWN)
        found = await client.apply(MAPS, "shared", config_map("shared", a="2"), manager="one", namespace=OWN)
        assert found["data"] == {"a": "2", "c": "1"}

    async def test_a_conflict_is_told_unless_forced(self, client) -> None:
        await client.apply(MAPS, "fought", config_map("fought", a="1"), manager="one", namespace=OWN)
        other = config_map("fought", a="2")
        with pytest.raises(ApiError) as refused:
            await client.apply(MAPS, "fought", other, manager="two", namespace=OWN, force=False)
        assert (refused.value.status, refused.value.reason) == (409, "Conflict")
        found = await client.apply(MAPS, "fought", other, manager="two", namespace=OWN)
        assert found["data"] == {"a": "2"}

    async def test_a_list_of_pages_is_whole(self, client) -> None:
        pages = [f"page-{number}" for number in range(7)]
        for name in pages:
            await client.create(MAPS, config_map(name), OWN)
        found = await client.list(MAPS, limit=2)
        names = [each["metadata"]["name"] for each in found["items"]]
        assert [name for name in names if name in pages] == pages


class TestAtThisServer(AtAnyServer):
    pass


async def test_conditions_of_two_managers_stand_side_by_side(client) -> None:
    await client.create(NODES, placement("n"))
    for manager, kind in (("one", "Ready"), ("two", "ConfigApplied")):
        conditions = [{"type": kind, "status": "True"}]
        found = await client.apply(
            NODES,
            "n",
            placement("n", status={"conditions": conditions}),
            manager=manager,
            subresource="status",
        )
    assert sorted(each["type"] for each in found["status"]["conditions"]) == ["ConfigApplied", "Ready"]


async def test_a_status_changes_no_generation_and_a_spec_no_status(client) -> None:
    await client.create(NODES, placement("n", spec={"mode": "observe"}))
    body = placement("n", status={"mode": "observe"}, spec={"mode": "lost"})
    found = await client.apply(NODES, "n", body, manager="one", subresource="status")
    assert (found["spec"]["mode"], found["metadata"]["generation"]) == ("observe", 1)
    found = await client.patch(NODES, "n", {"spec": {"mode": "enforce"}, "status": {"mode": "lost"}})
    assert (found["status"]["mode"], found["metadata"]["generation"]) == ("observe", 2)


async def test_a_version_in_a_patch_is_a_precondition(client) -> None:
    made = await client.create(NODES, placement("n"))
    version = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    await client.patch(NODES, "n", {**version, "spec": {"mode": "observe"}})
    with pytest.raises(ApiError) as refused:
        await client.patch(NODES, "n", {**version, "spec": {"mode": "enforce"}})
    assert refused.value.status == 409


async def test_an_answer_of_metadata_has_nothing_else(client) -> None:
    await client.create(NODES, placement("n", spec={"mode": "observe"}))
    found = await client.get(NODES, "n", metadata_only=True)
    assert found["metadata"]["name"] == "n"
    assert "spec" not in found


async def test_pages_of_a_version_that_is_gone_are_read_anew(server, client) -> None:
    for number in range(5):
        server.put(NODES, placement(f"n{number}"))
    read = []

    def keep(found: dict[str, Any]) -> str:
        read.append(found)
        if len(read) == 3:
            server.put(NODES, placement("late"))
            server.compact()
        return str(found["metadata"]["name"])

    found = await client.list(NODES, limit=3, keep=keep)
    assert found["items"] == ["late", "n0", "n1", "n2", "n3", "n4"]


async def test_a_selector_reaches_the_server(server, client) -> None:
    for name in "ab":
        server.put(PODS, {"metadata": {"name": name, "namespace": "ns"}})
    found = await client.list(PODS, field_selector="metadata.name!=a")
    assert [each["metadata"]["name"] for each in found["items"]] == ["b"]


# --- connections


async def test_requests_share_a_connection(server, client) -> None:
    server.put(NODES, placement("n"))
    for _ in range(3):
        await client.get(NODES, "n")
    assert server.connections == 1


async def test_requests_at_once_do_not_mix_their_answers(server, client) -> None:
    for number in range(20):
        server.put(NODES, placement(f"n{number}"))
    found = await asyncio.gather(*(client.get(NODES, f"n{number}") for number in range(20)))
    assert [each["metadata"]["name"] for each in found] == [f"n{number}" for number in range(20)]


@pytest.mark.parametrize("kind", ["close", "none"])
async def test_a_connection_that_was_closed_while_idle_costs_nothing(server, client, kind) -> None:
    server.put(NODES, placement("n"))
    server.faults.append(Fault(kind))
    await client.get(NODES, "n")
    server.close_idle()
    await client.get(NODES, "n")
    await client.patch(NODES, "n", {"spec": {"mode": "observe"}})
    assert server.connections == 2


async def test_a_lost_answer_of_an_apply_is_asked_for_again(server, client) -> None:
    server.put(NODES, placement("n"))
    await client.get(NODES, "n")
    server.faults.append(Fault("lost", method="PATCH"))
    found = await client.apply(NODES, "n", placement("n", spec={"mode": "observe"}), manager="one")
    assert found["spec"] == {"mode": "observe"}


async def test_a_lost_answer_of_a_create_is_not(server, client) -> None:
    await client.list(NODES)
    server.faults.append(Fault("lost", method="POST"))
    with pytest.raises(Unreachable):
        await client.create(NODES, placement("n"))
    assert [call.method for call in server.calls] == ["GET", "POST"]
    assert server.object(NODES, "n") is not None


@pytest.mark.parametrize("kind", ["reset", "cut", "garbage", "text"])
async def test_after_a_broken_answer_the_next_request_is_well(server, client, kind) -> None:
    server.put(NODES, placement("n"))
    server.faults.append(Fault(kind))
    with pytest.raises(Unreachable):
        await client.get(NODES, "n")
    assert client.problem or kind == "text"
    assert (await client.get(NODES, "n"))["metadata"]["name"] == "n"
    assert client.problem == ""


async def test_a_server_that_hangs_is_given_up(server, client, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "REQUEST_S", 0.2)
    server.put(NODES, placement("n"))
    server.faults.append(Fault("hang"))
    with pytest.raises(Unreachable, match="has not answered within"):
        await client.get(NODES, "n")
    monkeypatch.undo()
    await client.get(NODES, "n")


async def test_a_cancelled_request_leaves_no_answer_to_the_next(server, client) -> None:
    server.put(NODES, placement("a"))
    server.put(NODES, placement("b"))
    server.faults.append(Fault("hang"))
    asked = asyncio.ensure_future(client.get(NODES, "a"))
    await server.called(lambda call: True)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await client.get(NODES, "b"))["metadata"]["name"] == "b"


async def test_an_answer_that_is_too_large_is_not_read(server, client, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "MOST_BYTES", 100_000)
    server.put(NODES, placement("n", spec={"text": "x" * 200_000}))
    with pytest.raises(Unreachable, match="larger than 100000 bytes"):
        await client.get(NODES, "n")


async def test_a_refusal_says_how_long_to_wait(server, client) -> None:
    server.faults.append(Fault("refuse", status=429, retry_after="7"))
    with pytest.raises(ApiError) as refused:
        await client.list(NODES)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 7.0)


async def test_bytes_are_counted_both_ways(server, client) -> None:
    server.put(NODES, placement("n", spec={"text": "x" * 50_000}))
    await client.get(NODES, "n")
    assert 50_000 < client.bytes_received < 52_000
    assert 100 < client.bytes_sent < 400


async def test_a_server_that_is_not_there_is_unreachable(client, server) -> None:
    await server.stop()
    with pytest.raises(Unreachable, match="cannot be reached"):
        await client.list(NODES)


# --- credentials


async def test_a_renewed_token_is_taken_without_a_failure(server, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    access = Access.kubeconfig(server.kubeconfig(tmp_path / "k", {"tokenFile": str(token)}))
    client = Client(access, user_agent="one")
    server.tokens = {"first"}
    await client.list(NODES)
    server.tokens = {"second"}
    renewed = tmp_path / "renewed"
    renewed.write_text("second\n")
    os.replace(renewed, token)
    await client.list(NODES)
    assert [call.headers["authorization"] for call in server.calls] == ["Bearer first", "Bearer second"]
    await client.close()


async def test_a_token_file_that_is_gone_is_a_sentence(server, tmp_path) -> None:
    access = Access.kubeconfig(server.kubeconfig(tmp_path / "k", {"tokenFile": "gone"}))
    client = Client(access, user_agent="one")
    with pytest.raises(NoAccess, match="gone cannot be read: No such file"):
        await client.list(NODES)
    await client.close()


async def test_a_servers_certificate_is_checked_against_the_authority(tmp_path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    cert, key = certificates(tmp_path / "own")
    other, _ = certificates(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with ApiServer(context) as server:
        kubeconfig = server.kubeconfig(tmp_path / "k", ca_file=str(cert))
        client = Client(Access.kubeconfig(kubeconfig), user_agent="one")
        assert (await client.list(NODES))["items"] == []
        await client.close()
        kubeconfig = server.kubeconfig(tmp_path / "k", ca_file=str(other))
        client = Client(Access.kubeconfig(kubeconfig), user_agent="one")
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.list(NODES)
        await client.close()


async def test_a_renewed_client_certificate_is_shown_to_the_server(tmp_path) -> None:
    for name in ("own", "first", "second"):
        (tmp_path / name).mkdir()
    cert, key = certificates(tmp_path / "own")
    pairs = {name: certificates(tmp_path / name) for name in ("first", "second")}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pairs["second"][0])
    used = tmp_path / "client.pem"
    used.write_bytes(b"".join(path.read_bytes() for path in pairs["first"]))
    async with ApiServer(context) as server:
        user = {"client-certificate": str(used), "client-key": str(used)}
        access = Access.kubeconfig(server.kubeconfig(tmp_path / "k", user, str(cert)))
        client = Client(access, user_agent="one")
        with pytest.raises(Unreachable):
            await client.list(NODES)
        renewed = tmp_path / "renewed.pem"
        renewed.write_bytes(b"".join(path.read_bytes() for path in pairs["second"]))
        os.replace(renewed, used)
        assert (await client.list(NODES))["items"] == []
        await client.close()


# --- watches


async def test_a_watch_begins_with_all_there_is_and_goes_on(server, client) -> None:
    server.put(NODES, placement("a"))
    watch = client.watch(NODES)
    first = await watch.__anext__()
    assert (first.kind, [each["metadata"]["name"] for each in first.object]) == ("SYNC", ["a"])
    server.put(NODES, placement("b"))
    server.put(NODES, placement("b", spec={"mode": "observe"}))
    server.remove(NODES, "a")
    news = [await watch.__anext__() for _ in range(3)]
    assert [(each.kind, each.object["metadata"]["name"]) for each in news] == [
        ("ADDED", "b"),
        ("MODIFIED", "b"),
        ("DELETED", "a"),
    ]
    await watch.aclose()


async def test_a_watch_that_ends_goes_on_from_the_bookmark(server, client) -> None:
    server.put(NODES, placement("a"))
    watch = client.watch(NODES)
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch)
    server.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
    server.bookmark()
    server.end_watches()
    again = (await server.called(lambda call: call.is_watch, 2))[1]
    marked = server.object(PODS, "p", "ns")
    assert marked is not None
    assert again.query["resourceVersion"] == marked["metadata"]["resourceVersion"]
    server.put(NODES, placement("b"))
    assert (await following).kind == "ADDED"
    # All of it once; then only whether the server still counts from there.
    assert [call.query.get("limit") for call in server.calls if not call.is_watch] == ["500", "1"]
    await watch.aclose()


async def test_a_server_that_was_restored_from_a_backup_is_listed_again(server, client) -> None:
    server.put(NODES, placement("a"))
    server.put(NODES, placement("b"))
    watch = client.watch(NODES)
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch)
    server.remove(NODES, "b")
    assert (await following).kind == "DELETED"
    following = asyncio.ensure_future(watch.__anext__())
    server.restore(1)
    news = await following
    assert (news.kind, [each["metadata"]["name"] for each in news.object]) == ("SYNC", ["a"])
    await watch.aclose()


async def test_the_one_object_of_a_watch_is_read_again_whenever_the_watch_begins_again(
    server, client
) -> None:
    server.put(NODES, placement("a"))
    watch = client.watch(NODES, field_selector="metadata.name=a")
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch)
    server.end_watches()
    assert (await following).kind == "SYNC"
    await watch.aclose()


async def test_a_version_that_is_gone_begins_anew(server, client, sleeps) -> None:
    watch = client.watch(NODES)
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch)
    await server.stop()
    server.put(NODES, placement("late"))
    server.touch()
    server.compact()
    await server.start()
    news = await following
    assert (news.kind, [each["metadata"]["name"] for each in news.object]) == ("SYNC", ["late"])
    await watch.aclose()


@pytest.mark.parametrize("fault", [Fault("cut", is_watch=True), Fault("reset", is_watch=True)])
async def test_news_that_were_cut_off_are_told_once_whole(server, client, fault) -> None:
    server.faults.append(fault)
    watch = client.watch(NODES)
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch)
    server.put(NODES, placement("a", spec={"mode": "observe"}))
    news = await following
    assert (news.kind, news.object["spec"]) == ("ADDED", {"mode": "observe"})
    await watch.aclose()


async def test_an_object_of_megabytes_comes_whole(server, client) -> None:
    watch = client.watch(NODES)
    await watch.__anext__()
    server.put(NODES, placement("a", spec={"text": "é" * 3_000_000}))
    assert len((await watch.__anext__()).object["spec"]["text"]) == 3_000_000
    await watch.aclose()


async def test_a_server_that_refuses_is_asked_less_and_less(server, client, sleeps) -> None:
    server.faults += [Fault("refuse", status=500, times=4), Fault("refuse", status=429, retry_after="90")]
    watch = client.watch(NODES)
    assert (await watch.__anext__()).kind == "SYNC"
    assert sleeps.seconds == [0.5, 1.0, 2.0, 4.0, 90.0]
    assert client.problem == ""
    await watch.aclose()


async def test_a_silent_watch_is_given_up(server, client, sleeps, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "WATCH_S", (0, 0))
    monkeypatch.setattr(client_module, "_SILENCE_S", 0.2)
    watch = client.watch(NODES)
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch, 2)
    assert "says nothing more" in client.problem or sleeps.seconds
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await watch.aclose()


async def test_a_watch_keeps_only_what_is_asked_of_an_object(server, client) -> None:
    for number in range(5):
        server.put(NODES, placement(f"n{number}", spec={"mode": str(number)}))
    watch = client.watch(NODES, keep=lambda found: found["spec"]["mode"], limit=2)
    assert (await watch.__anext__()).object == ["0", "1", "2", "3", "4"]
    server.put(NODES, placement("n0", spec={"mode": "new"}))
    assert (await watch.__anext__()).object == "new"
    await watch.aclose()


async def test_a_watch_of_metadata_has_nothing_else(server, client) -> None:
    server.put(NODES, placement("a", spec={"mode": "observe"}))
    watch = client.watch(NODES, metadata_only=True)
    assert "spec" not in (await watch.__anext__()).object[0]
    server.put(NODES, placement("a", spec={"mode": "enforce"}))
    news = await watch.__anext__()
    assert (news.kind, "spec" in news.object, news.object["metadata"]["generation"]) == ("MODIFIED", False, 2)
    await watch.aclose()


async def test_a_watch_of_one_object_hears_of_no_other(server, client) -> None:
    watch = client.watch(NODES, field_selector="metadata.name=a")
    await watch.__anext__()
    server.put(NODES, placement("b"))
    server.put(NODES, placement("a"))
    assert (await watch.__anext__()).object["metadata"]["name"] == "a"
    await watch.aclose()


async def test_a_closed_watch_leaves_no_connection(server, client) -> None:
    watch = client.watch(NODES)
    await watch.__anext__()
    following = asyncio.ensure_future(watch.__anext__())
    await server.called(lambda call: call.is_watch)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await watch.aclose()
    assert client._watches == set()
