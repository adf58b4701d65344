"""Which requests are answered, and why the others are not: the page's own, by a name of this machine, with the token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.view.web.requests import HEADERS, Listen, Refused, admit, is_token, read_listen, read_request

TOKEN = "t" * 43


def head(*lines: str, first: str = "GET /api/events HTTP/1.1") -> bytes:
    return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


def status_of(*lines: str, first: str = "GET /api/events HTTP/1.1", host: str = "127.0.0.1:8895") -> int:
    """The status of a refusal; 200 = it is let in."""
    hosts = [f"Host: {host}"] if host else []
    try:
        admit(read_request(head(*hosts, *lines, first=first)), TOKEN)
    except Refused as refused:
        assert str(refused).endswith(".") and TOKEN not in str(refused)
        return refused.status
    return 200


WITH = f"Authorization: Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((WITH,), 200),
        ((f"authorization:   bearer   {TOKEN}  ",), 200),
        ((), 401),
        (("Authorization: Bearer ",), 401),
        ((f"Authorization: Bearer {TOKEN[:-1]}",), 401),
        ((f"Authorization: Bearer {TOKEN}x",), 401),
        ((f"Authorization: Basic {TOKEN}",), 401),
        (("Authorization: Bearer \xff\xfe",), 401),
        ((WITH, WITH), 400),
        ((WITH, "Cookie: token=" + TOKEN), 200),
    ],
)
def test_what_is_of_the_node_needs_the_token_in_its_header(lines: tuple[str, ...], status: int) -> None:
    assert status_of(*lines) == status


def test_a_token_in_the_address_is_none() -> None:
    assert status_of(first=f"GET /api/events?token={TOKEN} HTTP/1.1") == 401


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.0.0.1:1", "127.8.8.8:80", "[::1]:8895"]
)
def test_names_of_loopback_are_answered_with_any_port(host: str) -> None:
    assert status_of(WITH, host=host) == 200
    assert status_of(first="GET / HTTP/1.1", host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8895", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1:8895",
     "127.0.0.1@evil.example", "[::2]", "0.0.0.0", "127.1", "localhost:", "localhost:x"],
)  # fmt: skip
def test_any_other_name_is_refused_as_one_that_was_bound_anew(host: str) -> None:
    assert status_of(WITH, host=host) == 403
    assert status_of(first="GET / HTTP/1.1", host=host) == 403


def test_host_may_be_there_once() -> None:
    assert status_of(WITH, "Host: evil.example") == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Origin: http://127.0.0.1:8895", 200),
        ("Origin: http://evil.example", 403),
        ("Origin: null", 403),
        ("Origin: https://127.0.0.1:8895", 403),
        ("Origin: http://127.0.0.1:8896", 403),
        ("Origin: http://localhost:8895", 403),
        ("Sec-Fetch-Site: same-origin", 200),
        ("Sec-Fetch-Site: none", 200),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
    ],
)
def test_other_origins_are_refused_with_and_without_the_token(line: str, status: int) -> None:
    assert status_of(WITH, line) == status
    assert status_of(line, first="GET /app.js HTTP/1.1") == status


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "MODE"]
)
def test_every_method_that_could_write_is_refused(method: str) -> None:
    assert status_of(WITH, first=f"{method} /api/explain HTTP/1.1") == 405


@pytest.mark.parametrize("line", ["Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: x"])
def test_bodies_are_refused(line: str) -> None:
    assert status_of(WITH, line) == 400


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("GET http://evil.example/ HTTP/1.1", 400),
        ("GET //evil.example/ HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("GET / HTTP/2.0", 400),
        ("GET  / HTTP/1.1", 400),
        ("GET /", 400),
        ("", 400),
        (f"GET /{'x' * 3000} HTTP/1.1", 414),
        ("GET /api/explain?" + "&".join(f"a{n}=1" for n in range(99)) + " HTTP/1.1", 400),
    ],
)
def test_what_is_no_request_is_refused(first: str, status: int) -> None:
    assert status_of(WITH, first=first) == status


@pytest.mark.parametrize("line", ["no colon", " folded: x", "name : x", "\x00: x"])
def test_a_header_that_is_none_is_refused(line: str) -> None:
    assert status_of(WITH, line) == 400


@given(st.binary(max_size=200))
def test_rubbish_is_refused_with_a_status(rubbish: bytes) -> None:
    with pytest.raises(Refused) as refused:
        admit(read_request(rubbish + b"\r\n\r\n"), TOKEN)
    assert 400 <= refused.value.status < 500


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline() -> None:
    policy = {part.split()[0]: part.split()[1:] for part in HEADERS["Content-Security-Policy"].split("; ")}
    assert (
        policy["default-src"]
        == policy["base-uri"]
        == policy["form-action"]
        == policy["frame-ancestors"]
        == ["'none'"]
    )
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == ["'self'"]
    assert "Access-Control-Allow-Origin" not in HEADERS


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:8895", Listen("127.0.0.1", 8895)),
        ("localhost:0", Listen("127.0.0.1", 0)),
        ("[::1]:80", Listen("::1", 80)),
        ("unix:/run/x/web.sock", Listen(path="/run/x/web.sock")),
    ],
)
def test_it_listens_on_loopback_or_on_a_unix_socket(text: str, listen: Listen) -> None:
    assert read_listen(text) == listen


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:80", ":80", "10.0.0.1:80", "[::]:80", "127.0.0.1", "node:80", "unix:x", "", "127.0.0.1:70000"],
)
def test_it_listens_nowhere_else(text: str) -> None:
    with pytest.raises(ValueError, match="expected a loopback address with a port"):
        read_listen(text)


def test_tokens_are_long() -> None:
    assert is_token(TOKEN) and not is_token("short") and not is_token("x" * 30 + "\n")
