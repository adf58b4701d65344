"""Networks as people write them, and as the kernel's program asks for them."""

from __future__ import annotations

import re
import socket
import struct

import pytest

from bpf.identity.networks import address_text, expression, parse_network
from bpf.service.options import REMOTE_NETWORKS


def is_in(text: str, networks: list[str]) -> bool:
    """What the condition in C says of an address, as C would evaluate it."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    packed = socket.inet_pton(family, text)
    whole = packed if family == socket.AF_INET6 else bytes(10) + b"\xff\xff" + packed
    # In Python & binds tighter than ==, and there are parentheses around it anyway.
    condition = expression(networks).replace("||", " or ").replace("&&", " and ")
    assert re.fullmatch(r"[a-z0-9\[\]()&= ]+", condition)
    return bool(eval(condition, {"address": struct.unpack("=4I", whole)}))


@pytest.mark.parametrize(
    ("address", "networks", "expected"),
    [
        ("10.244.1.2", ["10.244.0.0/16"], True),
        ("10.245.1.2", ["10.244.0.0/16"], False),
        ("10.244.1.2", ["192.168.0.0/16", "10.244.1.2/32"], True),
        ("10.244.1.3", ["10.244.1.2/31"], True),
        ("10.244.1.4", ["10.244.1.2/31"], False),
        ("8.8.8.8", ["0.0.0.0/0"], True),
        ("2001:db8::1", ["0.0.0.0/0"], False),
        ("2001:db8::1", ["::/0"], True),
        ("fd00:10:244:7::9", ["fd00:10:244::/56"], True),
        ("fd00:10:245:7::9", ["fd00:10:244::/56"], False),
        ("172.31.255.255", list(REMOTE_NETWORKS), True),
        ("172.32.0.0", list(REMOTE_NETWORKS), False),
        ("8.8.8.8", list(REMOTE_NETWORKS), False),
    ],
)
def test_an_address_is_in_a_network_or_not(address: str, networks: list[str], expected: bool) -> None:
    assert is_in(address, networks) == expected


@pytest.mark.parametrize(
    "text", ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/-1", "fd00::/129", "", "pods/8"]
)
def test_what_is_no_network_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network such as 10.244.0.0/16"):
        parse_network(text)


@pytest.mark.parametrize("text", ["10.244.1.2", "fd00::7", "::1"])
def test_an_address_is_written_as_people_write_it(text: str) -> None:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    packed = socket.inet_pton(family, text)
    assert address_text(packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed) == text
