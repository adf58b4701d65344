"""JSON as a server sends it, also where one object in it is nested deeper than a parser goes. Pure.

A server keeps objects of 10,000 levels (sigs.k8s.io/json), Python reads some 1,000. A list must not be lost for one of
its items: what is below ``DEEPEST`` is then null, which is still deeper than any reader takes (``cluster.api.reader``).
"""

from __future__ import annotations

import json
import re
from typing import Any, Union

#: Levels that are kept, of an object in a list or in an event of a watch.
DEEPEST = 100
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def read_json(text: Union[bytes, str]) -> Any:
    """The value of a JSON text.

    :raises ValueError: it is none.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text.encode() if isinstance(text, str) else bytes(text)))


def _shallow(text: bytes) -> bytes:
    """The text with null for each list and mapping below ``DEEPEST``."""
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        character = text[token.start() : token.start() + 1]
        if character in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(text[begin : token.start()])
        elif character in b"]}":
            if depth == DEEPEST + 1:
                kept.append(b"null")
                begin = token.end()
            depth -= 1
    return b"".join([*kept, text[begin:]])
