"""An API server of Kubernetes in this process: real HTTP/1.1 over TCP (or TLS), objects in memory, faults on demand.

It keeps objects the way agent, operator and plugin rely on: versions, generations, merge patch, server-side apply with
owners of fields, status subresources, selectors, pages, watches with bookmarks, 410. It defaults nothing, and validates
only what is applied to a kind that has a schema. ``tests/cluster/real`` holds the same clients against a real server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from http.client import parse_headers
from io import BytesIO
from pathlib import Path
from typing import Any, Callable, Optional
from urllib.parse import parse_qs, unquote, urlsplit

from cluster.kube.requests import Resource
from tests.cluster.declared import pruned, strange_words, undeclared
from tests.cluster.owned_fields import Conflict, Fields, applied, changed_by, flat

#: What has a status subresource: there, the object's own path does not write status.
WITH_STATUS = {
    "nodeplacements",
    "placementpolicies",
    "affinityadvices",
    "nodes",
    "pods",
    "jobs",
    "deployments",
}
_NOW = "2026-11-22T20:00:00Z"
_WORDS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
}
_WORDS.update({422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"})


@dataclass(frozen=True)
class Call:
    """One request, as it was read."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass
class Fault:
    """What goes wrong with the next ``times`` requests that match.

    ``kind``: "hang" (no answer), "refuse" (``status``, ``retry_after``), "reset" (after the request was read, nothing
    done), "lost" (done, then reset without an answer), "cut" (reset after ``size`` bytes of the body), "close" (answered
    as if the connection stayed, then closed), "garbage" (what is no HTTP), "text" (an answer that is no JSON).
    """

    kind: str
    times: int = 1
    method: str = ""
    path: str = ""
    status: int = 500
    retry_after: str = ""
    size: int = 10
    is_watch: Optional[bool] = None

    def takes(self, call: Call) -> bool:
        fits = self.method in ("", call.method) and self.path in call.path
        fits = fits and self.is_watch in (None, call.is_watch)
        if not fits or self.times == 0:
            return False
        self.times -= 1
        return True


class Refused(Exception):
    """An answer that is a Status."""

    def __init__(self, status: int, message: str, reason: str = "", causes: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.status, self.reason, self.causes = status, reason or _WORDS.get(status, ""), causes


_Key = tuple[str, str]


@dataclass
class _Kind:
    """All objects of a plural, by namespace and name, with the owners of their fields."""

    objects: dict[_Key, dict[str, Any]] = field(default_factory=dict)
    fields: dict[_Key, Fields] = field(default_factory=dict)


@dataclass(frozen=True)
class _Change:
    version: int
    where: tuple[str, str]  # group, plural
    key: _Key
    before: Optional[dict[str, Any]]
    after: Optional[dict[str, Any]]


@dataclass(frozen=True)
class _Where:
    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str

    @property
    def kind(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def key(self) -> _Key:
        return self.namespace, self.name


class ApiServer:
    """``async with ApiServer() as server``; ``server.url`` is where, ``server.kubeconfig(path)`` writes how.

    ``calls``: all requests, in order. ``faults``: see Fault. ``missing``: plurals that are not served (no CRD).
    ``schemas``: by plural; what is applied there and is not in the schema is refused, or dropped (``drops``: plurals).
    ``tokens``: if given, bearer tokens that are taken. ``refuse``: a function of a Call; its text is a 403.
    """

    def __init__(self, tls: Optional[ssl.SSLContext] = None) -> None:
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.missing: set[str] = set()
        self.schemas: dict[str, Mapping[str, Any]] = {}
        self.drops: set[str] = set()
        self.tokens: Optional[set[str]] = None
        self.refuse: Callable[[Call], str] = lambda call: ""
        self.connections = 0
        self._tls = tls
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._version = 100
        self._compacted = 100
        self._changes: list[_Change] = []
        self._news = asyncio.Condition()
        self._open: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._round = 0  # of watches: those of an older one end
        self._bookmarks = 0
        self._server: Optional[asyncio.AbstractServer] = None
        self.port = 0

    # --- life

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Also after ``stop()``: the same port, the same objects."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls, limit=1 << 24
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """No connection is taken any more, and those that are open are reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._open):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, user: Optional[Mapping[str, str]] = None, ca_file: str = "") -> Path:
        """Write one for ``user`` (as its "users" entry has it); the path."""
        cluster = {"server": self.url, **({"certificate-authority": ca_file} if ca_file else {})}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "test", "user": dict(user or {"token": "t"})}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        return path

    # --- what tests do beside requests

    def put(self, resource: Resource, body: Mapping[str, Any], manager: str = "test") -> dict[str, Any]:
        """Make or replace a whole object, status included; as stored."""
        meta = body["metadata"]
        where = _Where(
            resource.group, resource.version, resource.plural, meta.get("namespace", ""), meta["name"], ""
        )
        return deepcopy(self._store(where, deepcopy(dict(body)), manager, is_whole=True))

    def object(self, resource: Resource, name: str, namespace: str = "") -> Optional[dict[str, Any]]:
        """As stored; None if there is none."""
        kind = self._kinds.get((resource.group, resource.plural), _Kind())
        return deepcopy(kind.objects.get((namespace, name)))

    def objects(self, resource: Resource) -> list[dict[str, Any]]:
        kind = self._kinds.get((resource.group, resource.plural), _Kind())
        return [deepcopy(found) for _, found in sorted(kind.objects.items())]

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        self._remove(_Where(resource.group, resource.version, resource.plural, namespace, name, ""))

    def compact(self) -> None:
        """Older versions are gone: watches from them, and pages of older lists, get 410."""
        self._compacted = self._version
        self._changes.clear()

    def touch(self) -> None:
        """The version goes on by something that has nothing to do with anything."""
        self._version += 1

    def restore(self, version: int) -> None:
        """As after a restore from a backup of that version: it counts from there again, and watches have ended."""
        self._version = version
        self._changes.clear()
        self.end_watches()

    def bookmark(self) -> None:
        """To all watches."""
        self._bookmarks += 1
        self._tell()

    def end_watches(self) -> None:
        """All watches end as they do after their time."""
        self._round += 1
        self._tell()

    def close_idle(self) -> None:
        """Connections that wait for a request are closed, without a word."""
        for writer in self._open - self._busy:
            writer.close()

    async def called(
        self, takes: Callable[[Call], bool], count: int = 1, within_s: float = 60.0
    ) -> list[Call]:
        """Wait until so many calls that ``takes`` takes have come; they."""

        async def wait() -> list[Call]:
            async with self._news:
                await self._news.wait_for(lambda: sum(map(takes, self.calls)) >= count)
            return [call for call in self.calls if takes(call)]

        return await asyncio.wait_for(wait(), within_s)

    async def until(self, is_so: Callable[[], Any], within_s: float = 60.0) -> Any:
        """Wait until ``is_so``, looked at after each call and each change; what it says."""

        async def wait() -> Any:
            async with self._news:
                return await self._news.wait_for(is_so)

        return await asyncio.wait_for(wait(), within_s)

    # --- HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        self.connections += 1
        try:
            while True:
                call = await _read(reader)
                self._busy.add(writer)
                self.calls.append(call)
                self._tell()
                if not await self._answer(call, writer):
                    break
                self._busy.discard(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.discard(writer)
            self._busy.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, call: Call, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays."""
        fault = next((each for each in self.faults if each.takes(call)), Fault("none"))
        if fault.kind == "hang":
            await asyncio.Event().wait()
        if fault.kind == "reset":
            writer.transport.abort()
            return False
        if fault.kind in ("garbage", "text"):
            said = (
                b"<html>"
                if fault.kind == "garbage"
                else b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
            )
            writer.write(said + b"\r\n\r\n" * (fault.kind == "garbage"))
            await writer.drain()
            return fault.kind == "text"
        try:
            if fault.kind == "refuse":
                raise Refused(fault.status, "a fault of the test")
            where = self._admit(call)
            if call.is_watch:
                return await self._watch(call, where, writer, fault)
            status, said = 200, self._do(call, where)
        except Refused as error:
            status, said = error.status, _status(error)
        if fault.kind == "lost":
            writer.transport.abort()
            return False
        if "PartialObjectMetadata" in call.headers.get("accept", "") and status == 200:
            said = _metadata_only(said)
        body = json.dumps(said).encode()
        lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        if fault.retry_after:
            lines.append(f"Retry-After: {fault.retry_after}")
        head = "\r\n".join([*lines, "", ""]).encode()
        if fault.kind == "cut":
            writer.write(head + body[: fault.size])
            await writer.drain()
            writer.close()
            return False
        writer.write(head + body)
        await writer.drain()
        return fault.kind != "close"

    def _admit(self, call: Call) -> _Where:
        token = call.headers.get("authorization", "")[len("Bearer ") :]
        if self.tokens is not None and token not in self.tokens:
            raise Refused(401, "Unauthorized")
        if why := self.refuse(call):
            raise Refused(403, why)
        where = _where(call.path)
        if where is None or where.plural in self.missing:
            raise Refused(404, "the server could not find the requested resource")
        return where

    # --- requests

    def _do(self, call: Call, where: _Where) -> dict[str, Any]:
        if call.method == "GET":
            return self._get(where) if where.name else self._list(call, where)
        if call.method == "POST":
            return self._create(call, where)
        if call.method == "DELETE":
            return self._delete(call, where)
        if call.method not in ("PATCH", "PUT"):
            raise Refused(405, "the server does not allow this method on the requested resource")
        manager = call.query.get("fieldManager") or call.headers.get("user-agent", "").split("/")[0]
        if call.headers.get("content-type", "").startswith("application/apply-patch"):
            return self._apply(call, where, manager)
        found = self._found(where)
        self._precondition(found, call.body)
        wanted = deepcopy(call.body) if call.method == "PUT" else _merged(found, call.body)
        return deepcopy(self._store(where, wanted, manager))

    def _get(self, where: _Where) -> dict[str, Any]:
        found = self._found(where)
        if where.subresource == "scale":
            labels = found.get("spec", {}).get("selector", {}).get("matchLabels", {})
            selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            return {"kind": "Scale", "apiVersion": "autoscaling/v1", "status": {"selector": selector}}
        return deepcopy(found)

    def _list(self, call: Call, where: _Where) -> dict[str, Any]:
        version, first = self._version, 0
        if token := call.query.get("continue"):
            version, first = json.loads(base64.b64decode(token))
            if version < self._compacted:
                raise Refused(410, "The provided continue parameter is too old")
        fits = _selector(call.query, where.namespace)
        objects = self._kinds.get(where.kind, _Kind()).objects
        found = [each for _, each in sorted(objects.items()) if fits(each)]
        limit = int(call.query.get("limit") or 0) or len(found)
        meta = {"resourceVersion": str(version)}
        if first + limit < len(found):
            meta["continue"] = base64.b64encode(json.dumps([version, first + limit]).encode()).decode()
        # A list's items have no kind, as in a real server's answer.
        items = deepcopy(found[first : first + limit])
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}

    def _create(self, call: Call, where: _Where) -> dict[str, Any]:
        meta = call.body.setdefault("metadata", {})
        name = meta.get("name") or f"{meta.get('generateName', '')}{self._version}"
        at = _Where(where.group, where.version, where.plural, where.namespace, name, "")
        if at.key in self._kinds.get(at.kind, _Kind()).objects:
            raise Refused(409, f'{at.plural} "{name}" already exists', "AlreadyExists")
        if at.plural in WITH_STATUS:
            call.body.pop("status", None)
        manager = call.query.get("fieldManager") or call.headers.get("user-agent", "").split("/")[0]
        return deepcopy(self._store(at, deepcopy(call.body), manager))

    def _delete(self, call: Call, where: _Where) -> dict[str, Any]:
        found = self._found(where)
        uid = ((call.body or {}).get("preconditions") or {}).get("uid")
        if uid and uid != found["metadata"]["uid"]:
            raise Refused(409, f"the UID in the precondition ({uid}) does not match")
        self._remove(where)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _apply(self, call: Call, where: _Where, manager: str) -> dict[str, Any]:
        kind = self._kinds.setdefault(where.kind, _Kind())
        found = kind.objects.get(where.key)
        if found is None and where.subresource:
            raise self._not_found(where)
        self._precondition(found or {}, call.body)
        self._declared(call.body, where)
        fields = kind.fields.get(where.key, {})
        owner = f"{manager}/{where.subresource}"
        try:
            wanted, owners = applied(
                _part(found or {}, where),
                fields,
                _part(call.body, where),
                owner,
                call.query.get("force") == "true",
            )
        except Conflict as error:
            raise Refused(409, str(error)) from None
        body = {name: value for name, value in call.body.items() if name in ("apiVersion", "kind")}
        written = _part(found or {}, where)
        others = {name: value for name, value in (found or body).items() if name not in written}
        return deepcopy(self._store(where, {**others, **wanted}, manager, owners))

    def _declared(self, body: dict[str, Any], where: _Where) -> None:
        schema = self.schemas.get(where.plural)
        if schema is None:
            return
        if where.plural in self.drops:
            body["status"] = pruned(body.get("status", {}), schema["properties"]["status"])
        shown = {name: value for name, value in body.items() if name != "metadata"}
        lines = [f"{path}: field not declared in schema" for path in undeclared(shown, schema)]
        if lines:
            said = lines[0] if len(lines) == 1 else "\n  ".join(["errors:", *lines])
            raise Refused(500, f"failed to create typed patch object (/{where.name}): {said}")
        causes = list(strange_words(shown.get("status"), schema["properties"]["status"], "status"))
        if causes:
            raise Refused(422, f'"{where.name}" is invalid', causes=causes)

    # --- objects

    def _found(self, where: _Where) -> dict[str, Any]:
        found = self._kinds.get(where.kind, _Kind()).objects.get(where.key)
        if found is None:
            raise self._not_found(where)
        return found

    @staticmethod
    def _not_found(where: _Where) -> Refused:
        group = f".{where.group}" if where.group else ""
        return Refused(404, f'{where.plural}{group} "{where.name}" not found')

    @staticmethod
    def _precondition(found: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version and version != found.get("metadata", {}).get("resourceVersion"):
            raise Refused(
                409, "the object has been modified; please apply your changes to the latest version"
            )

    def _store(
        self,
        where: _Where,
        wanted: dict[str, Any],
        manager: str,
        owners: Optional[Fields] = None,
        is_whole: bool = False,
    ) -> dict[str, Any]:
        """What the subresource may write of ``wanted`` becomes the object; a write that changes nothing is none."""
        kind = self._kinds.setdefault(where.kind, _Kind())
        before = kind.objects.get(where.key)
        old = before or {}
        if where.subresource == "status":
            wanted = {**old, "status": wanted.get("status", {})}
        elif where.plural in WITH_STATUS and before is not None and not is_whole:
            wanted = {**wanted, **({"status": old["status"]} if "status" in old else {})}
            if "status" not in old:
                wanted.pop("status", None)
        kept = {name: value for name, value in old.get("metadata", {}).items() if name in _SERVERS}
        given = {name: value for name, value in wanted.get("metadata", {}).items() if name not in _SERVERS}
        wanted["metadata"] = {**given, **kept, "name": where.name}
        if where.namespace:
            wanted["metadata"]["namespace"] = where.namespace
        fields = kind.fields.get(where.key, {}) if owners is None else owners
        if owners is None:
            fields = changed_by(old, wanted, fields, f"{manager}/{where.subresource}")
        kind.fields[where.key] = fields
        managers = sorted({name for owned in fields.values() for name in owned})
        if before is not None and flat(before) == flat(wanted):
            return before
        self._version += 1
        meta = wanted["metadata"]
        if before is None:
            meta.update(uid=f"uid-{self._version}", creationTimestamp=_NOW, generation=1)
        elif _spec_of(before) != _spec_of(wanted):
            meta["generation"] = int(meta.get("generation", 1)) + 1
        meta["resourceVersion"] = str(self._version)
        meta["managedFields"] = [
            {"manager": name.split("/")[0], **({"subresource": "status"} if name.endswith("/status") else {})}
            for name in managers
        ]
        kind.objects[where.key] = wanted
        self._changed(where, before, wanted)
        return wanted

    def _remove(self, where: _Where) -> None:
        kind = self._kinds[where.kind]
        before = kind.objects.pop(where.key)
        kind.fields.pop(where.key, None)
        self._version += 1
        self._changed(where, before, None)

    def _changed(
        self, where: _Where, before: Optional[dict[str, Any]], after: Optional[dict[str, Any]]
    ) -> None:
        change = _Change(self._version, where.kind, where.key, deepcopy(before), deepcopy(after))
        self._changes.append(change)
        self._tell()

    def _tell(self) -> None:
        task = asyncio.ensure_future(self._tell_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_all(self) -> None:
        async with self._news:
            self._news.notify_all()

    # --- watches

    async def _watch(self, call: Call, where: _Where, writer: asyncio.StreamWriter, fault: Fault) -> bool:
        fits = _selector(call.query, where.namespace)
        at = int(call.query.get("resourceVersion") or self._version)
        own_round, bookmarks = self._round, self._bookmarks
        as_metadata = "PartialObjectMetadata" in call.headers.get("accept", "")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        while True:
            if at < self._compacted:
                gone = _status(Refused(410, f"too old resource version: {at} ({self._compacted})"))
                _send(writer, {"type": "ERROR", "object": gone})
                break
            for change in [each for each in self._changes if each.version > at and each.where == where.kind]:
                at = change.version
                if event := _event(change, fits):
                    event["object"] = _metadata_only(event["object"]) if as_metadata else event["object"]
                    if fault.kind == "cut":
                        line = json.dumps(event).encode()[: fault.size]
                        writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                        await writer.drain()
                        writer.close()
                        return False
                    _send(writer, event)
            if bookmarks != self._bookmarks:
                bookmarks, at = self._bookmarks, self._version
                if call.query.get("allowWatchBookmarks") == "true":
                    _send(
                        writer,
                        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}},
                    )
            if own_round != self._round:
                break
            await writer.drain()
            seen = (own_round, bookmarks)
            async with self._news:
                await self._news.wait_for(
                    lambda at=at, seen=seen: (
                        self._is_news(at, where) or seen != (self._round, self._bookmarks)
                    )
                )
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _is_news(self, at: int, where: _Where) -> bool:
        newer = (each.version > at and each.where == where.kind for each in self._changes)
        return at < self._compacted or any(newer)


#: Metadata that the server alone writes.
_SERVERS = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}


def _spec_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("metadata", "status")}


def _part(body: Mapping[str, Any], where: _Where) -> dict[str, Any]:
    """What an apply at that path can own."""
    if where.subresource == "status":
        return {"status": body.get("status", {})}
    left = {name: value for name, value in body.items() if name not in ("apiVersion", "kind", "metadata")}
    if where.plural in WITH_STATUS:
        left.pop("status", None)
    hidden = {*_SERVERS, "name", "namespace"}
    meta = {name: value for name, value in (body.get("metadata") or {}).items() if name not in hidden}
    return {**left, "metadata": meta}


async def _read(reader: asyncio.StreamReader) -> Call:
    head = await reader.readuntil(b"\r\n\r\n")
    line, _, rest = head.partition(b"\r\n")
    method, asked, _ = line.decode().split(" ", 2)
    headers = {name.lower(): value for name, value in parse_headers(BytesIO(rest)).items()}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(asked)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Call(method, parts.path, query, headers, json.loads(body) if body else None)


def _where(path: str) -> Optional[_Where]:
    words = [unquote(word) for word in path.strip("/").split("/")]
    group, words = ("", words[1:]) if words[0] == "api" else (words[1] if len(words) > 1 else "", words[2:])
    if len(words) < 2:
        return None
    version, *rest = words
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", ""][:3]
    return _Where(group, version, plural, namespace, name, subresource)


def _merged(found: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = deepcopy(found) if isinstance(found, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _selector(query: Mapping[str, str], namespace: str) -> Callable[[Mapping[str, Any]], bool]:
    terms = [term for term in query.get("fieldSelector", "").split(",") if term]

    def fits(found: Mapping[str, Any]) -> bool:
        meta = found["metadata"]
        if namespace and meta.get("namespace") != namespace:
            return False
        return all(_has_field(found, term) for term in terms)

    return fits


def _has_field(found: Mapping[str, Any], term: str) -> bool:
    path, negated, value = re.fullmatch(r"([^=!]+)(!?)==?(.*)", term).groups()  # type: ignore[union-attr]
    at: Any = found
    for word in path.split("."):
        at = at.get(word, {}) if isinstance(at, Mapping) else {}
    return (str(at or "") == value) != bool(negated)


def _event(change: _Change, fits: Callable[[Mapping[str, Any]], bool]) -> Optional[dict[str, Any]]:
    """As that watch sees it: an object that no longer fits is deleted for it."""
    was = change.before is not None and fits(change.before)
    if change.after is not None and fits(change.after):
        return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
    if not was:
        return None
    last = deepcopy(change.after or change.before or {})
    last["metadata"]["resourceVersion"] = str(change.version)
    return {"type": "DELETED", "object": last}


def _send(writer: asyncio.StreamWriter, event: Mapping[str, Any]) -> None:
    """A line, in two chunks: a reader that takes a chunk for a line is wrong."""
    line = json.dumps(event).encode() + b"\n"
    half = len(line) // 2
    for piece in (line[:half], line[half:]):
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def _metadata_only(said: dict[str, Any]) -> dict[str, Any]:
    if "items" in said:
        return {
            **said,
            "kind": "PartialObjectMetadataList",
            "items": [_metadata_only(each) for each in said["items"]],
        }
    if said.get("kind") == "Status":
        return said
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": said["metadata"]}


def _status(error: Refused) -> dict[str, Any]:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    details = {"details": {"causes": list(error.causes)}} if error.causes else {}
    return {**said, **details, "message": str(error), "reason": error.reason, "code": error.status}


def certificates(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key; made by openssl."""
    cert, key = folder / "server.crt", folder / "server.key"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*words.split(), *names], check=True, capture_output=True)
    return cert, key
