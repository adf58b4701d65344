"""Which requests the page's server answers: a head's bytes in, what is asked or why it is refused out. Pure.

It serves loopback only, but a browser on this machine runs programs of other sites. What keeps them out:

- Only GET and HEAD are answered, and nothing behind them changes anything.
- The name in Host is one of loopback: a name of elsewhere that resolves to 127.0.0.1 (DNS rebinding) is refused.
- Origin and Sec-Fetch-Site, where a browser sends them, say that the page itself asks.
- What is of the node needs the token, in a header that no other origin's page can have a browser send.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

#: Past these a head is none of a browser's.
MOST_HEAD, MOST_TARGET = 16 * 1024, 2048
#: Of 128 bits or more.
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")
_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
#: With any port: a tunnel (ssh -L) may have another one than the server.
_LOOPBACK = re.compile(r"(localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
#: Headers that may be there once.
_ONCE = ("host", "origin", "authorization", "sec-fetch-site")

#: On every answer: nothing from elsewhere, nothing inline, in no frame, kept nowhere.
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "Cache-Control": "no-store",
    }
)

EVENTS, EXPLAIN = "/api/events", "/api/explain"


class Refused(Exception):
    """A request that is not answered: the status, and one sentence for the client."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers


@dataclass(frozen=True)
class Request:
    """What a client asks. ``headers``: names in lower case. ``query``: the first value of each."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_head(self) -> bool:
        return self.method == "HEAD"

    @property
    def keeps_open(self) -> bool:
        return "close" not in self.headers.get("connection", "").lower()


def read_request(head: bytes) -> Request:
    """A request's head, up to and with its empty line (RFC 9112).

    :raises Refused: it is none.
    """
    first, *lines = head[:-4].split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise Refused(400, "The first line is none of an HTTP/1.1 request.")
    if len(found[2]) > MOST_TARGET:
        raise Refused(414, f"The address is longer than {MOST_TARGET} bytes.")
    headers: dict[str, str] = {}
    for line in lines:
        pair = _FIELD.fullmatch(line)
        if pair is None:
            raise Refused(400, "A header is none.")
        name, value = pair[1].decode("ascii").lower(), pair[2].decode("latin-1")
        if name in headers and name in _ONCE:
            raise Refused(400, f"The header {name} is there more than once.")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    try:
        target = urlsplit(found[2].decode("ascii"))
        query = {name: values[0] for name, values in parse_qs(target.query, max_num_fields=8).items()}
    except ValueError:
        raise Refused(400, "The address is none.") from None
    if target.scheme or target.netloc or not target.path.startswith("/"):
        raise Refused(400, "The address is none of this server.")
    return Request(found[1].decode("ascii"), target.path, query, headers)


def admit(request: Request, token: str) -> None:
    """Check that a request is one of the page's own.

    :raises Refused: it is not; nothing of the node was looked at.
    """
    headers = request.headers
    # 1. It has come by a name of this machine.
    host = headers.get("host", "")
    if not _LOOPBACK.fullmatch(host):
        raise Refused(403, "Host names no loopback address: open http://127.0.0.1 or http://localhost.")
    # 2. It changes nothing.
    if request.method not in ("GET", "HEAD"):
        raise Refused(
            405, "Only GET and HEAD are answered: nothing can be changed here.", {"Allow": "GET, HEAD"}
        )
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refused(400, "A request here has no body.")
    # 3. No other site's page has sent it.
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        raise Refused(403, "Another origin has sent this request.")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refused(403, "Another site has sent this request.")
    # 4. What is of the node needs the token.
    if request.path.startswith("/api/") and not has_token(headers, token):
        raise Refused(401, "The token is missing or is another one.", {"WWW-Authenticate": "Bearer"})


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Whether a request has the token, compared in a time that says nothing about it."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode("ascii"))
    return is_same and scheme.lower() == "bearer"


def is_token(text: str) -> bool:
    """Whether a text can be a token."""
    return _TOKEN.fullmatch(text) is not None


# ---------------------------------------------------------------------- where it is served


@dataclass(frozen=True)
class Listen:
    """Where the page is served: a loopback address and port, or a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""


def read_listen(text: str) -> Listen:
    """``127.0.0.1:8895``, ``[::1]:8895``, ``localhost:8895`` or ``unix:/run/x.sock``.

    localhost is 127.0.0.1 here: by its name a browser would try ``[::1]`` too, where another process may listen.

    :raises ValueError: a sentence; also for an address of a network.
    """
    if text.startswith("unix:/"):
        return Listen(path=text[5:])
    found = _LOOPBACK.fullmatch(text)
    if found is None or found[2] is None or int(found[2][1:]) > 65_535:
        raise ValueError(
            f"--listen is {text!r}, expected a loopback address with a port, such as 127.0.0.1:8895, or unix:/PATH; "
            "from elsewhere: ssh -L 8895:127.0.0.1:8895 NODE"
        )
    host = "127.0.0.1" if found[1].lower() == "localhost" else found[1].strip("[]")
    return Listen(host, int(found[2][1:]))
