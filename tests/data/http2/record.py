"""Records what gRPC clients and servers say to each other, as the files of this folder; see README.md.

    .venv/bin/python -m tests.data.http2.record

The captures of containerd and of ctr, its client, need root and Debian's packages; without them theirs stay as they are.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import grpc
import grpc.aio

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CHANNEL_OPTIONS, CriClient
from tests.e2e.containerd import Containerd, missing
from tests.fake_runtime import FakeRuntime

FOLDER = Path(__file__).parent
SERVICE = "/runtime.v1.RuntimeService"
VERSION, CREATE, EVENTS = f"{SERVICE}/Version", f"{SERVICE}/CreateContainer", f"{SERVICE}/GetContainerEvents"
ECHO = "/a.b/Unknown"
LARGE = bytes(range(250)) * 600  # 150 kB: more than a window and than a frame
#: Header tables of other sizes, no bandwidth estimate, large frames and windows, metadata that is not base64.
OPTIONS = (
    ("grpc.http2.hpack_table_size.decoder", 65_536),
    ("grpc.http2.hpack_table_size.encoder", 512),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 1 << 17),
    ("grpc.http2.true_binary", 1),
    ("grpc.primary_user_agent", "iSulad/2.1"),
)

#: Whose bytes, and the bytes.
Chunks = list[tuple[str, bytes]]
Scenario = Callable[[Any, FakeRuntime], Awaitable[None]]


class Tap:
    """Passes connections on from ``path`` to ``target`` and writes down what comes, in its order."""

    def __init__(self, path: str, target: str) -> None:
        self.connections: list[Chunks] = []
        self._path = path
        self._target = target

    async def __aenter__(self) -> Tap:
        self._server = await asyncio.start_unix_server(self._connected, self._path)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        os.unlink(self._path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: Chunks = []
        self.connections.append(chunks)
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(self._target)
        await asyncio.gather(
            self._copy("client", reader, upstream_writer, chunks),
            self._copy("runtime", upstream_reader, writer, chunks),
        )

    async def _copy(
        self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chunks: Chunks
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                chunks.append((who, data))
                writer.write(data)
        writer.close()


# ---------------------------------------------------------------------- what is called

METADATA = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("x-bin", b"\0\xff"))


async def ended(call: Any) -> None:
    """Read a call to its end, whatever that is."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        while await call.read() is not grpc.aio.EOF:
            pass


async def unary(channel: Any, runtime: FakeRuntime) -> None:
    for number in range(4):
        metadata = (*METADATA, ("x-number", str(number % 2)))
        await ended(channel.unary_stream(VERSION)(b"", metadata=metadata, timeout=100 + number))


async def intercepted(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script("CreateContainer", reply=b"the id", trailing_metadata=(("x-node", "n1"),))
    for number in range(3):
        await ended(channel.unary_stream(CREATE)(b"create %d" % number, metadata=METADATA))
        await ended(channel.unary_stream(VERSION)(b""))


async def large(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script("CreateContainer", reply=LARGE)
    for method in (ECHO, CREATE, ECHO):
        await ended(channel.unary_stream(method)(LARGE))


async def server_stream(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script(
        "GetContainerEvents", reply=tuple(b"event %d " % n * (1 + n % 3 * 3000) for n in range(30))
    )
    await ended(channel.unary_stream(EVENTS)(b"all"))


async def messages_both_ways(channel: Any, runtime: FakeRuntime) -> None:
    for method in (ECHO, CREATE):
        runtime.script("CreateContainer", reply=(b"one", b"two"))
        call = channel.stream_stream(method)()
        for size in (3, 0, 20_000, 5):
            await call.write(b"m" * size)
        await call.done_writing()
        await ended(call)


async def cancelled(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script("CreateContainer", then_hang=True)
    create, events = channel.unary_stream(CREATE)(b"create"), channel.unary_stream(EVENTS)(b"")
    await runtime.wait_for_call("CreateContainer")
    await runtime.wait_until(lambda: runtime.subscribers == 1)
    await ended(channel.unary_stream(f"{SERVICE}/RunPodSandbox")(b""))
    await events.read()
    create.cancel()
    events.cancel()
    await ended(create)
    await ended(channel.unary_stream(VERSION)(b""))


async def deadline(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script("CreateContainer", then_hang=True)
    await ended(channel.unary_stream(CREATE)(b"create", timeout=0.2))
    await ended(channel.unary_stream(VERSION)(b""))


async def errors(channel: Any, runtime: FakeRuntime) -> None:
    details = (("x-details-bin", b"\x08\x05"), ("x-more", "text"))
    for method in ("CreateContainer", "Version"):
        runtime.script(method, error=(5, "größer als 100%\n", details), initial_metadata=(("x-first", "1"),))
        for _ in range(2):
            await ended(channel.unary_stream(f"{SERVICE}/{method}")(b"", metadata=METADATA))


async def trailers_only(channel: Any, runtime: FakeRuntime) -> None:
    for code in (9, 2, 12):
        for method in ("CreateContainer", "Version"):
            runtime.scripts.clear()
            runtime.script(method, error=(code, f"error {code}"))
            await ended(channel.unary_stream(f"{SERVICE}/{method}")(b""))


async def parallel(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script("CreateContainer", reply=b"the id")

    async def one(number: int) -> None:
        method = (CREATE, VERSION, ECHO, EVENTS)[number % 4]
        await ended(channel.unary_stream(method)(b"q" * 2000 * number, metadata=(("x-n", str(number)),)))

    runtime.script("GetContainerEvents", reply=(b"event", b"another" * 1000))
    await asyncio.gather(*(one(number) for number in range(16)))


async def compressed(channel: Any, runtime: FakeRuntime) -> None:
    runtime.script("CreateContainer", reply=b"the id")
    for method in (CREATE, ECHO):
        for size in (10, 50_000):
            await ended(channel.unary_stream(method)(b"m" * size, compression=grpc.Compression.Gzip))


async def the_runtime_stops(channel: Any, runtime: FakeRuntime) -> None:
    await ended(channel.unary_stream(VERSION)(b""))
    runtime.script("Version", then_hang=True)
    call = channel.unary_stream(VERSION)(b"")
    await runtime.wait_until(lambda: len(runtime.calls_of("Version")) == 2)
    await runtime.stop()
    await ended(call)


SCENARIOS: list[Scenario] = [
    unary,
    intercepted,
    large,
    server_stream,
    messages_both_ways,
    cancelled,
    deadline,
    errors,
    trailers_only,
    parallel,
    compressed,
    the_runtime_stops,
]


# ---------------------------------------------------------------------- who calls whom


@contextlib.asynccontextmanager
async def channel_to(path: str, options: Any = ()) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=(*CHANNEL_OPTIONS, *options)) as channel:
        yield channel


async def record_python(folder: str, options: Any) -> dict[str, Chunks]:
    """grpc-python with itself, which is grpc's C core on both sides."""
    found = {}
    for scenario in SCENARIOS:
        runtime = FakeRuntime(f"{folder}/r.sock")
        await runtime.start()
        async with Tap(f"{folder}/t.sock", runtime.socket) as tap:
            async with channel_to(f"{folder}/t.sock", options) as channel:
                await scenario(channel, runtime)
            await runtime.stop()
            [found[scenario.__name__]] = tap.connections[:1]
    return found


async def record_containerd(folder: str, containerd: Containerd) -> dict[str, Chunks]:
    """grpc-python with containerd, which is grpc-go."""
    async with Tap(f"{folder}/t.sock", str(containerd.socket)) as tap:
        async with CriClient(f"{folder}/t.sock") as client:
            for _ in range(3):
                await client.call_bytes(VERSION, b"", metadata=METADATA)
                await client.call_bytes(f"{SERVICE}/StartContainer", b"\n\x06nobody")
            create = cri.CreateContainerRequest(pod_sandbox_id="nobody")
            create.config.annotations["large"] = LARGE.hex()
            await client.call_bytes(CREATE, create.SerializeToString())
            await client.call_bytes(ECHO, b"x")
            await client.call_bytes("/runtime.v1.ImageService/ListImages", b"")
            events = client._channel.unary_stream(EVENTS)(b"")
            await client.call_bytes(VERSION, b"")
            events.cancel()
            await client.call_bytes(f"{SERVICE}/Status", b"\x08\x01")
        return {"calls": tap.connections[0]}


async def record_ctr(folder: str, containerd: Containerd) -> dict[str, Chunks]:
    """grpc-go with itself: containerd's own client."""

    async def ctr(*arguments: str, said: bytes = b"") -> bytes:
        process = await asyncio.create_subprocess_exec(
            "ctr", "--address", f"{folder}/t.sock", "--namespace", "k8s.io", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return (await process.communicate(said))[0]

    found = {}
    async with Tap(f"{folder}/t.sock", str(containerd.socket)) as tap:
        digest = ""
        for name, arguments in {
            "version": ["version"],
            "content_ingest": ["content", "ingest", "large"],
            "content_ls": ["content", "ls", "--quiet"],
            "content_get": ["content", "get"],
            "an_error": ["containers", "info", "nobody"],
            "plugins": ["plugins", "ls"],
        }.items():
            tap.connections.clear()
            said = await ctr(*arguments, *([digest] if name == "content_get" else []), said=LARGE)
            if name == "content_ls":
                digest = next(
                    line
                    for line in said.decode().split()
                    if line == f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
                )
            found[name] = tap.connections[0]
    return found


def write(name: str, captures: dict[str, Chunks]) -> None:
    """The same bytes for the same captures: no time of day is in the file."""
    shown = {
        title: [[who, base64.b64encode(data).decode()] for who, data in chunks]
        for title, chunks in captures.items()
    }
    raw = json.dumps(shown, indent=0).encode()
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(raw, mtime=0))
    print(f"{name}: {sum(len(data) for chunks in captures.values() for _, data in chunks)} bytes")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="crr-") as folder:
        write("grpc-python", await record_python(folder, ()))
        write("grpc-python-options", await record_python(folder, OPTIONS))
        if sentence := missing():
            print(sentence)
            return
        with Containerd(Path(folder) / "c", images=Path(folder)) as containerd:
            write("grpc-python-containerd", await record_containerd(folder, containerd))
            write("ctr-containerd", await record_ctr(folder, containerd))


if __name__ == "__main__":
    asyncio.run(main())
