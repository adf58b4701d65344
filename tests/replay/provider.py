"""Plays samples from a file.

The file is JSON lines; empty lines and those that start with ``#`` are skipped. One line is one sample, in order::

    {"at": 10, "seconds": 10, "flows": [{"a": "web", "b": "db", "kind": "tcp", "bytes_ab": 5e6, "bytes_ba": 1e5,
     "messages": 2000}], "remotes": [{"a": "web", "address": "10.244.7.3", "bytes": 1e6}]}

``at``: seconds after the start at which the sample ends; without it, ``seconds`` after the one before.
``seconds``: how long it took (default: since the one before; 10 for the first). Of a flow all but ``a`` and ``b``
have defaults. ``remotes``: what was exchanged with addresses of other nodes. A line may also, or only, name endpoints::

    {"endpoints": {"web": {"namespace": "shop", "pod": "web-7d4b9c6f5-x2x7k", "container": "nginx",
     "pod_uid": "...", "labels": {"pod-template-hash": "7d4b9c6f5"}}}}

An endpoint that is called ``namespace/pod/container`` needs no such line: it becomes the id of the container that
the runtime lists under this name, as soon as there is one. ``{"repeat": true}`` as the last line starts again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from bpf.identity.identities import Identities
from bpf.service.options import is_amount
from bpf.sources.samples import KINDS, Flow, ProviderLost, RemoteFlow, Sample
from policies.affinity.graph.graph import EndpointIdentity, Graph
from policies.affinity.pull.owners import owner_of

DEFAULT_SECONDS = 10.0
_LINE_KEYS = {"at", "seconds", "flows", "remotes", "endpoints", "repeat"}
_AMOUNTS = ("bytes_ab", "bytes_ba", "messages")
_NAMES = ("namespace", "pod", "container", "pod_uid")


@dataclass
class Recording:
    """What a replay file holds."""

    samples: list[Sample] = field(default_factory=list)
    endpoints: dict[str, EndpointIdentity] = field(default_factory=dict)
    repeats: bool = False

    @property
    def length_s(self) -> float:
        return self.samples[-1].at_s if self.samples else 0.0


def read_recording(path: str) -> Recording:
    """Read a file.

    :raises ProviderLost: it cannot be read; the sentence names the line.
    """
    recording = Recording()
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and not line.startswith("#"):
                    _read_line(recording, line, f"{path}, line {number}")
    except OSError as error:
        raise ProviderLost(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProviderLost(f"{path} is not UTF-8 text; expected JSON lines") from None
    return recording


class ReplayProvider:
    """Plays a recording, ``speed`` times as fast as it was; a flow's bytes stay, so its rates are ``speed`` times."""

    name = "replay"

    def __init__(self, path: str, now_s: float, speed: float = 1.0) -> None:
        self._recording = read_recording(path)
        self._speed = speed
        self._started_s = self._last_s = now_s
        self._played = self._samples()
        self._next = next(self._played, None)
        self._counters = {"replayed": 0}
        self.detail = f"plays {path}: {len(self._recording.samples)} samples"

    @property
    def endpoints(self) -> Mapping[str, EndpointIdentity]:
        """Those that the file names."""
        return self._recording.endpoints

    def sample(self, now_s: float) -> Sample:
        """All samples whose time has come, as one. Its length is the real time since the last call."""
        flows: list[Flow] = []
        remotes: list[RemoteFlow] = []
        while self._next is not None and self._next.at_s <= (now_s - self._started_s) * self._speed:
            flows += self._next.flows
            remotes += self._next.remotes
            self._counters["replayed"] += 1
            self._next = next(self._played, None)
        seconds, self._last_s = now_s - self._last_s, now_s
        return Sample(now_s, seconds, tuple(flows), dict(self._counters), tuple(remotes))

    def close(self) -> None:
        self._next = None

    def _samples(self) -> Iterator[Sample]:
        length_s, offset_s = self._recording.length_s, 0.0
        while True:
            for sample in self._recording.samples:
                yield replace(sample, at_s=sample.at_s + offset_s)
            offset_s += length_s
            if not self._recording.repeats or length_s <= 0:
                return


def _read_line(recording: Recording, line: str, place: str) -> None:
    try:
        document = json.loads(line)
    except ValueError:
        raise ProviderLost(f"{place}: not JSON") from None
    if not isinstance(document, dict) or not document.keys() <= _LINE_KEYS:
        raise ProviderLost(f"{place}: expected an object with {', '.join(sorted(_LINE_KEYS))} only")
    for name, told in _object(document.get("endpoints", {}), f"{place}, endpoints").items():
        recording.endpoints[name] = _identity(name, _object(told, f"{place}, endpoint {name}"))
    recording.repeats = recording.repeats or document.get("repeat") is True
    if "flows" in document or "remotes" in document:
        recording.samples.append(_sample(document, recording.length_s, place))


def _sample(document: Mapping[str, Any], before_s: float, place: str) -> Sample:
    length = _amount(document.get("seconds", DEFAULT_SECONDS), f"{place}, seconds")
    at_s = _amount(document.get("at", before_s + length), f"{place}, at")
    if at_s < before_s:
        raise ProviderLost(f"{place}, at: {at_s:g} is before the sample above it, which ends at {before_s:g}")
    rows = {name: document.get(name, []) for name in ("flows", "remotes")}
    for name, listed in rows.items():
        if not isinstance(listed, list):
            raise ProviderLost(f"{place}, {name}: expected a list")
    flows = [_flow(flow, f"{place}, flow {number}") for number, flow in enumerate(rows["flows"], 1)]
    remotes = [_remote(each, f"{place}, remote {number}") for number, each in enumerate(rows["remotes"], 1)]
    return Sample(at_s, float(document.get("seconds", at_s - before_s)), tuple(flows), remotes=tuple(remotes))


def _remote(document: Any, place: str) -> RemoteFlow:
    told = _object(document, place)
    a, address = told.get("a"), told.get("address")
    if told.keys() - {"a", "address", "bytes"} or not (isinstance(a, str) and isinstance(address, str)):
        raise ProviderLost(f"{place}: expected a, address and bytes")
    return RemoteFlow(a, address, int(_amount(told.get("bytes", 0), f"{place}, bytes")))


def _flow(document: Any, place: str) -> Flow:
    told = _object(document, place)
    unknown = told.keys() - {"a", "b", "kind", *_AMOUNTS}
    if unknown:
        raise ProviderLost(
            f"{place}: {min(unknown)!r} is not known; expected a, b, kind, {', '.join(_AMOUNTS)}"
        )
    for end in ("a", "b"):
        if not isinstance(told.get(end), str) or not told[end]:
            raise ProviderLost(f"{place}, {end}: {told.get(end)!r} is not the name of an endpoint")
    kind = told.get("kind", "tcp")
    if kind not in KINDS:
        raise ProviderLost(f"{place}, kind: {kind!r} is not one of {', '.join(KINDS)}")
    amounts = {key: int(_amount(told.get(key, 0), f"{place}, {key}")) for key in _AMOUNTS}
    return Flow(told["a"], told["b"], kind, **amounts)


def _identity(name: str, told: Mapping[str, Any]) -> EndpointIdentity:
    names = {key: str(told.get(key, "")) for key in _NAMES}
    labels = {str(key): str(value) for key, value in dict(told.get("labels") or {}).items()}
    owner = owner_of(names["namespace"], names["pod"], labels, names["container"])
    return EndpointIdentity(name, owner=owner, **names)


def identity_of_name(name: str) -> Optional[EndpointIdentity]:
    """The container of an endpoint called ``namespace/pod/container``; None = it is called otherwise."""
    parts = name.split("/")
    if len(parts) != len(("namespace", "pod", "container")) or not all(parts):
        return None
    namespace, pod, container = parts
    return EndpointIdentity(name, "", namespace, pod, container, owner_of(namespace, pod, {}, container))


def _object(document: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise ProviderLost(f"{place}: expected an object, not {json.dumps(document)}")
    return document


def _amount(value: Any, place: str) -> float:
    if not is_amount(value):
        raise ProviderLost(f"{place}: {json.dumps(value)} is not a number of 0 or more")
    return float(value)


def named(
    provider: ReplayProvider, flows: Sequence[Flow], identities: Identities, graph: Graph
) -> tuple[Sequence[Flow], Mapping[str, EndpointIdentity]]:
    """Names of containers become ids; known are the runtime's containers, the file's, and those that a name tells."""
    resolve = identities.resolve
    flows = [replace(flow, a=resolve(flow.a), b=resolve(flow.b)) for flow in flows]
    known = dict(identities.by_id)
    for name in {end for flow in flows for end in (flow.a, flow.b)} | provider.endpoints.keys():
        identity = provider.endpoints.get(name) or graph.endpoints.get(name) or identity_of_name(name)
        if identity is not None:
            known.setdefault(name, identity)
    for name, identity in graph.endpoints.items():
        if "/" in name and resolve(name) == name:
            known.setdefault(name, identity)
    return flows, known
