"""How gRPC says that a call has ended: its status codes, and the failure of a call of our own."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Union

#: Names and values; of a name that ends in ``-bin`` the value is bytes.
Metadata = Iterable[tuple[str, Union[str, bytes]]]


class Code(IntEnum):
    """Status codes (grpc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def code_of(number: int) -> Code:
    """The code of a number; UNKNOWN of one that gRPC does not have."""
    return Code(number) if number <= Code.UNAUTHENTICATED else Code.UNKNOWN


class RpcError(Exception):
    """A call of our own has failed: ``details`` is a sentence of the server's, or of ours.

    ``in_doubt``: the server may have done what was asked; else it has said that it did not, or has never got the call.
    """

    def __init__(self, code: Code, details: str, trailers: Metadata = (), in_doubt: bool = False) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.trailers = tuple(trailers)
        self.in_doubt = in_doubt

    def __str__(self) -> str:
        return f"{self.code.name}: {self.details}"
