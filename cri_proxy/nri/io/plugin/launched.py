"""A plugin that a runtime has launched: it registers, and is configured, before the program is loaded.

The runtime waits 5 s from the launch for RegisterPlugin, then 2 s for the answer to each request, and kills what is
late (NRI, pkg/adaptation/plugin.go); on a busy node the daemon takes as long to be loaded. So the launcher
registers at once, and a thread goes on until the daemon takes the connection over: it keeps the requests of Configure
and Synchronize and lets each, and each event, wait for the daemon as long as it may: until Synchronize is answered, the
runtime serves no client and sends no event. What waits too long gets an empty answer: the container starts unplaced, and
is placed later. Standard library only.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Callable, NamedTuple, Optional

from cri_proxy.nri import ttrpc_frames
from cri_proxy.nri.subscription import NRI_VERSION, subscription
from cri_proxy.nri.ttrpc_frames import (
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    Begun,
    Garbage,
    Message,
    write_message,
)
from cri_proxy.services.journal import log_to_journal
from cri_proxy.text.protobuf_bytes import NotProtobuf, fields, read_varint, write_varint

#: Variables of a launched plugin (NRI, pkg/api/plugin.go).
SOCKET_VARIABLE, NAME_VARIABLE, INDEX_VARIABLE = "NRI_PLUGIN_SOCKET", "NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX"
RUNTIME_SERVICE, PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Runtime", "nri.pkg.api.v1alpha1.Plugin"
#: A host's limit of an event where it tells none (pkg/adaptation, DefaultPluginRequestTimeout), seconds.
EVENT_S = 2.0
#: The part of it after which an empty answer is sent: a late one costs the connection.
PATIENCE = 0.75
_READ_BYTES = 1 << 18
_LOOK_MS = 20
#: How long a host may take to read an answer of some twenty bytes, seconds.
_SEND_S = 1.0

Fields = dict[int, bytes]


class PendingEvent(NamedTuple):
    """An event that is not answered yet. ``until_s``: by ``time.monotonic``, when the host gives it up."""

    stream: int
    method: str
    payload: bytes
    until_s: float
    empty_s: float


class HeldReply(NamedTuple):
    """The answer to Configure or Synchronize, sent once the daemon has taken over, or at ``until_s``."""

    stream: int
    payload: bytes
    until_s: float


class Taken(NamedTuple):
    """A connection, and its requests.

    ``configure``: the request; None = it has not come. ``told``: the requests of Synchronize, the last one with
    ``more`` if there are others to come; they came ``told_s`` by ``time.monotonic``. ``waiting``: to be answered.
    ``mask``: the events that were subscribed to.
    """

    connection: socket.socket
    begun: Begun
    configure: Optional[bytes]
    told: tuple[bytes, ...]
    told_s: float
    waiting: tuple[PendingEvent, ...]
    mask: int = 0


class Launched:
    """Speaks for the plugin from ``start``, which registers it, to ``stop``."""

    def __init__(
        self,
        connection: socket.socket,
        name: str,
        index: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = connection
        self._clock = clock
        self._title = f"{index}-{name}"
        self._name, self._index = name, index
        self._begun = ttrpc_frames.begin()
        self._configure: Optional[bytes] = None
        self._told: list[bytes] = []
        self._told_s = 0.0
        self._waiting: list[PendingEvent] = []
        self._held: Optional[HeldReply] = None
        self._mask = 0
        self._event_s = EVENT_S
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="launched", daemon=True)

    def start(self) -> None:
        """Register: one message, whose reply says nothing. The rest goes on in a thread."""
        self._socket.settimeout(_SEND_S)
        register = b"".join(
            _string(n, text) for n, text in enumerate((self._name, self._index, NRI_VERSION), 1)
        )
        call = _string(1, RUNTIME_SERVICE) + _string(2, "RegisterPlugin") + _bytes(3, register)
        try:
            self._socket.sendall(write_message(RUNTIME_CONNECTION, 1, REQUEST, [call]))
        except OSError as error:
            self._end(f"the launch was missed, it does not wait any more ({error.strerror or error})")
            return
        self._begun = self._begun._replace(next_stream=3)
        self._thread.start()

    def stop(self, has_starts: bool = False) -> Taken:
        """End, and hand the connection over; the host may have closed it.

        ``has_starts``: the event before each start is wanted, which can be said if Configure is not answered yet.
        """
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._held is not None:
            payload = self._held.payload
            if has_starts and payload and self._configure is not None:
                payload = self._configured(read_configure(self._configure), has_starts)
            with contextlib.suppress(OSError):  # it has gone, which the daemon sees as well
                self._reply(self._held.stream, payload)
        told, waiting = tuple(self._told), tuple(self._waiting)
        return Taken(self._socket, self._begun, self._configure, told, self._told_s, waiting, self._mask)

    def _speak(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            while not self._is_over.is_set():
                if poll.poll(_LOOK_MS):
                    data = self._socket.recv(_READ_BYTES)
                    if not data:
                        self._end("it has closed the connection")
                        return
                    self._receive(data)
                self._answer_what_is_late()
        except OSError as error:
            self._end(error.strerror or str(error))
        except (Garbage, NotProtobuf) as error:
            self._end(f"it does not speak ttRPC: {error}")
        except Exception as error:  # a bug of ours; the daemon reaches the runtime by its socket, too
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        say(
            "warning",
            f"the runtime that launched {self._title}: {reason}; once loaded, it connects to its socket",
        )
        self._configure, self._told, self._waiting, self._held = None, [], [], None
        with contextlib.suppress(OSError):  # it has gone
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, data: bytes) -> None:
        for connection, piece in self._begun.frames.read(data):
            if connection not in self._begun.messages:
                continue
            for message in self._begun.messages[connection].read(piece):
                if connection == PLUGIN_CONNECTION and message.kind == REQUEST and message.data is not None:
                    self._serve(message, message.data)

    def _serve(self, message: Message, data: bytes) -> None:
        self._begun = self._begun._replace(last_served=message.stream)
        call = _read(data)
        method, payload = call.get(2, b"").decode(), call.get(3, b"")
        if method == "Configure":
            self._configure = payload
            told = read_configure(payload)
            reply = self._configured(told)
            # Before NRI 0.7, which tells no timeouts, the host itself may fail to start if this one is missed.
            if told.request_timeout_s:
                self._hold(message.stream, reply, call)
            else:
                self._reply(message.stream, reply)
        elif method == "Synchronize":
            self._told.append(payload)
            self._told_s = self._clock()
            if _number(_read(payload), 3):
                self._reply(message.stream, b"\x10\x01")  # SynchronizeResponse.more
            else:
                self._hold(message.stream, b"", call)
        elif method == "Shutdown":
            self._reply(message.stream, b"")
        else:
            allowed_s, now_s = self._allowed_s(call), self._clock()
            self._waiting.append(
                PendingEvent(message.stream, method, payload, now_s + allowed_s, now_s + PATIENCE * allowed_s)
            )

    def _allowed_s(self, call: Fields) -> float:
        return _number(call, 4) / 1e9 or self._event_s

    def _hold(self, stream: int, reply: bytes, call: Fields) -> None:
        self._held = HeldReply(stream, reply, self._clock() + PATIENCE * self._allowed_s(call))

    def _configured(self, told: Configure, has_starts: bool = False) -> bytes:
        self._event_s = told.request_timeout_s or EVENT_S
        self._mask = subscription(told.runtime, told.version, told.nri_version, has_starts=has_starts)
        return b"\x10" + write_varint(self._mask)  # ConfigureResponse.events

    def _answer_what_is_late(self) -> None:
        now_s = self._clock()
        if self._held is not None and self._held.until_s <= now_s:
            held, self._held = self._held, None
            self._reply(held.stream, held.payload)
        for event in [event for event in self._waiting if event.empty_s <= now_s]:
            self._waiting.remove(event)
            say("warning", f"{event.method} was answered with nothing: {self._title} is not loaded yet")
            self._reply(event.stream, b"")

    def _reply(self, stream: int, payload: bytes) -> None:
        data = _bytes(2, payload) if payload else b""
        self._socket.sendall(write_message(PLUGIN_CONNECTION, stream, RESPONSE, [data]))


class Configure(NamedTuple):
    """What Configure says of the host."""

    config: str
    runtime: str
    version: str
    request_timeout_s: float
    nri_version: str


def read_configure(payload: bytes) -> Configure:
    """:raises NotProtobuf: it cannot be read."""
    told = _read(payload)
    config, runtime, version, nri_version = (
        told.get(number, b"").decode(errors="replace") for number in (1, 2, 3, 6)
    )
    return Configure(config, runtime, version, _number(told, 5) / 1000, nri_version)


def say(level: str, sentence: str) -> None:
    """A line where the daemon's go, in the form that the journal reads."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"cri-resmgr: [{level}] {sentence}", file=sys.stderr, flush=True)


#: This process's own. The launcher starts it, the front end takes its connection.
_current: Optional[Launched] = None


def begin_with(descriptor: int, name: str, index: str) -> None:
    """Register on the connection that a runtime has given; again: nothing.

    :raises OSError: the descriptor is no socket.
    """
    global _current
    if _current is not None:
        return
    log_to_journal("cri-resmgr")
    say("info", f"launched by a runtime as {index}-{name}")
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    _current = Launched(connection, name, index)
    _current.start()


def begin(environment: Mapping[str, str]) -> None:
    """Register if a runtime has launched this process.

    :raises OSError: the descriptor it names is no socket.
    """
    descriptor = environment.get(SOCKET_VARIABLE, "")
    if descriptor.isdecimal():
        name, index = environment.get(NAME_VARIABLE, "cri-resmgr"), environment.get(INDEX_VARIABLE, "10")
        begin_with(int(descriptor), name, index)


def told_config() -> str:
    """The plugin's configuration, as far as the runtime has told it."""
    given = _current._configure if _current is not None else None
    return "" if given is None else read_configure(given).config


def take(has_starts: bool = False) -> Optional[Taken]:
    """End, and hand the connection over; None = there is none. Again: none. ``has_starts``: as for ``Launched.stop``."""
    global _current
    launched, _current = _current, None
    return None if launched is None else launched.stop(has_starts)


def _read(message: bytes) -> Fields:
    """The fields of a message by their numbers; of several the last one.

    :raises NotProtobuf: it cannot be read.
    """
    return {field.number: message[field.value : field.end] for field in fields(message)}


def _number(read: Fields, number: int) -> int:
    return read_varint(read[number], 0)[0] if number in read else 0


def _bytes(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


def _string(number: int, text: str) -> bytes:
    return _bytes(number, text.encode())
