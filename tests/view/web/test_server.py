"""The page's server as a process: files, events, refusals; bounds on clients; a daemon that goes and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from cri_proxy.view.web.io.server import MODULES, MOST_CONNECTIONS, MOST_PAGES
from cri_proxy.view.web.requests import HEADERS, MOST_HEAD
from tests.agent import ROOT, Agent
from tests.cri_client import CriClient
from tests.functional.conftest import HANG_S, ask
from tests.functional.support import eventually, run_pod_with
from tests.view.web.browser import WebProcess


class Client:
    """A connection to the server."""

    def __init__(self, web: WebProcess) -> None:
        self._web = web

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._web.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    def send(self, path: str, *headers: str, method: str = "GET", token: bool = True) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._web.port}", *headers]
        if token:
            lines.append(f"Authorization: Bearer {self._web.token}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names as they were sent."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), HANG_S)
        first, *lines = head.decode().split("\r\n")[:-2]
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines)

    async def ask(self, path: str, *headers: str, **how: Any) -> tuple[int, dict[str, str], bytes]:
        self.send(path, *headers, **how)
        status, found = await self.head()
        length = 0 if how.get("method") == "HEAD" else int(found["Content-Length"])
        return status, found, await asyncio.wait_for(self.reader.readexactly(length), HANG_S)

    async def event(self) -> tuple[str, dict[str, Any]]:
        """The next event."""
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\n\n"), HANG_S)).decode()
        found = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", lines)
        assert found is not None, lines
        return found[1], json.loads(found[2])

    async def until(self, name: str) -> dict[str, Any]:
        while True:
            found, data = await self.event()
            if found == name:
                return data


async def test_the_files_of_the_page_are_served_with_a_policy_that_they_keep(web: WebProcess) -> None:
    async with Client(web) as client:
        folder = resources.files("cri_proxy.view.web") / "static"
        assert {f"{name}.js" for name in MODULES} == {
            one.name for one in folder.iterdir() if one.name.endswith(".js")
        }
        modules = [(f"/{name}.js", "text/javascript") for name in MODULES]
        for path, kind in (("/", "text/html"), ("/app.css", "text/css"), *modules):
            status, headers, body = await client.ask(path, token=False)
            assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
            assert {name: headers[name] for name in HEADERS} == dict(HEADERS)
            # Nothing inline, nothing from elsewhere, nothing that is no text.
            text = body.decode()
            assert not re.search(
                r"https?://|//[a-z]+\.|<style|<script>|\son[a-z]+=|innerHTML|style=|@import|url\(", text
            )
        assert (await client.ask("/", method="HEAD", token=False))[0] == 200
        assert (await client.ask("/favicon.ico", token=False))[0] == 204


async def test_what_the_page_is_told_needs_the_token_and_other_origins_are_refused(web: WebProcess) -> None:
    async with Client(web) as client:
        status, _, answer = await client.ask("/api/explain?container=default/web/web")
        assert status == 200 and json.loads(answer)["containers"][0]["why"].startswith("2 CPUs wanted")
    for query, expected in (("container=nothing", 404), ("", 400), ("container=" + "x" * 900, 400)):
        async with Client(web) as client:
            assert (await client.ask(f"/api/explain?{query}"))[0] == expected
    for path in ("/api/events", "/api/explain?container=web", "/api/nothing"):
        async with Client(web) as client:
            status, headers, body = await client.ask(path, token=False)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert b"web" not in body
        async with Client(web) as client:
            status, headers, _ = await client.ask(path, "Origin: http://evil.example")
            assert status == 403 and not [name for name in headers if name.startswith("Access-Control")]


async def test_writes_names_bound_anew_and_long_heads_are_refused_and_nothing_is_changed(
    web: WebProcess, busy: Agent
) -> None:
    before = await ask(busy, "placements")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        async with Client(web) as client:
            status, headers, _ = await client.ask("/api/explain?container=web", method=method)
            assert (status, headers["Allow"], headers["Connection"]) == (405, "GET, HEAD", "close")
    assert await ask(busy, "placements") == before
    for head, status in (
        (b"GET / HTTP/1.1\r\nHost: evil.example", 403),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (MOST_HEAD + 1), 431),
        (b"\x16\x03\x01", 400),
    ):
        async with Client(web) as client:
            client.writer.write(head + b"\r\n\r\n")
            assert (await client.head())[0] == status


async def test_a_page_gets_all_and_then_what_changes(web: WebProcess, busy: Agent) -> None:
    web.write_stat(dict.fromkeys(range(128), 0))
    async with Client(web) as client, CriClient(busy.socket) as kubelet:
        client.send("/api/events")
        status, headers = await client.head()
        assert (status, headers["Content-Type"], headers["Cache-Control"]) == (
            200,
            "text/event-stream",
            "no-store",
        )
        state = await client.until("state")
        [(_, row)] = state["containers"].items()
        assert (row["pod"], row["box"], row["own"]) == ("web", "l3-0", False)
        assert len(state["machine"]["cores"]) == 64 and [
            d["operation"] for d in state["decisions"].values()
        ] == ["create"]
        web.write_stat({cpu: 50 if cpu < 4 else 0 for cpu in range(128)}, total=200)
        while "cpus" not in (change := (await client.until("delta")).get("set", {})):
            pass
        assert change["cpus"]["0"] == 0.5 and change["zones"]["l3-0"]["load"] == 0.25
        _, added = await run_pod_with(kubelet, "db", cpu_limit=1000)
        while added not in (await client.until("delta")).get("set", {}).get("containers", {}):
            pass
        await kubelet.stop(added)
        await kubelet.remove(added)
        while added not in (await client.until("delta")).get("gone", {}).get("containers", []):
            pass


async def test_a_daemon_that_is_away_is_told_until_it_is_back(web: WebProcess, busy: Agent) -> None:
    async with Client(web) as client:
        client.send("/api/events")
        await client.head()
        first = await client.until("state")
        await busy.kill()
        assert (await client.until("trouble"))["text"].startswith("The daemon is not running")
        # A page that comes meanwhile has what was last seen, and the trouble.
        async with Client(web) as other:
            other.send("/api/events")
            await other.head()
            assert (await other.event())[0] == "state" and (await other.event())[0] == "trouble"
        async with Client(web) as other:
            assert (await other.ask("/api/explain?container=web"))[0] == 503
        await busy.start()
        while "node" not in (change := (await client.until("delta")).get("set", {})):
            pass
        assert change["node"].get("instance", first["node"]["instance"]) != first["node"]["instance"]


async def test_pages_and_connections_are_bounded_and_closed_ones_make_room(web: WebProcess) -> None:
    pages = [await Client(web).__aenter__() for _ in range(MOST_PAGES)]
    try:
        for page in pages:
            page.send("/api/events")
            assert (await page.head())[0] == 200
        async with Client(web) as client:
            assert (await client.ask("/api/events"))[0] == 503
        pages.pop().writer.close()

        async def has_room() -> bool:
            async with Client(web) as client:
                client.send("/api/events")
                return (await client.head())[0] == 200

        await eventually(has_room, "room for another page")
    finally:
        for page in pages:
            page.writer.close()
    await _connections_are_bounded(web)


async def _connections_are_bounded(web: WebProcess) -> None:
    async def is_served() -> bool:
        try:
            async with Client(web) as client:
                return (await client.ask("/", token=False))[0] == 200
        except (ConnectionError, asyncio.IncompleteReadError):
            return False

    async def is_refused() -> bool:
        # Anew each time: the server closes those that have been idle.
        idle = [socket.create_connection(("127.0.0.1", web.port)) for _ in range(MOST_CONNECTIONS)]
        try:
            return not await is_served()
        finally:
            for one in idle:
                one.close()

    await eventually(is_refused, "the bound")
    await eventually(is_served, "served again")


def test_a_page_that_does_not_read_is_closed() -> None:
    """With a bound of nothing, as if what waits for it were past it."""
    from cri_proxy.view.web.io.server import OpenPage

    class Transport:
        def __init__(self) -> None:
            self.is_aborted = False

        def get_write_buffer_size(self) -> int:
            return 1 << 30

        def abort(self) -> None:
            self.is_aborted = True

    class Writer:
        transport = Transport()

        def write(self, event: bytes) -> None:
            raise AssertionError("more is kept for a page that does not read")

    writer: Any = Writer()
    OpenPage(writer).send(b"event")
    assert writer.transport.is_aborted


async def test_the_file_with_the_token_is_its_owners_alone(web: WebProcess) -> None:
    assert stat.S_IMODE(web.url_file.stat().st_mode) == 0o600
    assert len(web.token) >= 43


async def test_by_hand_it_prints_the_address_and_serves_a_unix_socket(busy: Agent) -> None:
    path = busy.folder / "w.sock"
    words = [
        sys.executable,
        "-m",
        "cri_proxy",
        "--control-socket",
        str(busy.control),
        "web",
        "--listen",
        f"unix:{path}",
    ]
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert process.stdout is not None
        said = (await asyncio.wait_for(process.stdout.readline(), HANG_S)).decode()
        token = said.strip().partition("http://127.0.0.1:8895/#token=")[2]
        assert len(token) == 43
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(
            f"GET /api/explain?container=web HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    finally:
        process.terminate()
        await process.wait()
    assert not path.exists()


async def test_it_refuses_to_serve_a_network_and_prints_the_address_of_the_unit(tmp_path: Path) -> None:
    async def web(*words: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cri_proxy", "--control-socket", str(tmp_path / "c.sock"), "web", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        out, error = await asyncio.wait_for(process.communicate(), HANG_S)
        return process.returncode or 0, out.decode(), error.decode()

    code, _, error = await web("--listen", "0.0.0.0:8895")
    assert code != 0 and "expected a loopback address with a port" in error
    code, _, error = await web("--url", "--url-file", str(tmp_path / "url"))
    assert code == 1 and "systemctl start cri-resmgr-web" in error
    (tmp_path / "url").write_text("http://127.0.0.1:8895/#token=x\n")
    assert (await web("--url", "--url-file", str(tmp_path / "url")))[:2] == (
        0,
        "http://127.0.0.1:8895/#token=x\n",
    )
