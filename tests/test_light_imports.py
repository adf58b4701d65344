"""What the daemon does not use is not imported with it, and can be had later."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from cri_proxy import light_imports
from tests.agent import ROOT

LIGHTLY = """
import gc, sys
from cri_proxy import light_imports
with light_imports.lightly():
    import asyncio, hashlib, structlog
    assert not gc.isenabled()
left_out = [name for name in ("ssl", "_ssl", "rich", "_hashlib") if sys.modules.get(name)]
assert gc.isenabled() and left_out == [], left_out
assert hashlib.sha256(b"abc").hexdigest().startswith("ba7816bf8f01cfea") and "sha512" in hashlib.algorithms_available
assert asyncio.sslproto.ssl is None
import ssl, http.client
assert http.client.HTTPSConnection and ssl.create_default_context
"""
FOREIGN_HASHES = """
import sys
from cri_proxy import light_imports
light_imports.OWN_HASHES = ("_md5", "_no_such_hashes")
with light_imports.lightly():
    import hashlib
assert sys.modules["_hashlib"]
"""
LATER = """
import sys
from cri_proxy import light_imports
with light_imports.lightly():
    from google.protobuf import json_format
    from cri_api import runtime_v1_pb2 as cri
assert "google.protobuf.text_format" not in sys.modules and light_imports._Later not in sys.meta_path
message = cri.VersionRequest(version="v1")
assert cri.VersionRequest.FromString(message.SerializeToString()) == message
assert json_format.MessageToDict(message) == {"version": "v1"} and str(message).split() == ["version:", '"v1"']
from google.protobuf import text_format
from google.protobuf.internal import python_message
assert text_format.Parse('version: "v1"', cri.VersionRequest()) == message and python_message.GeneratedProtocolMessageType
"""
IN_USE = """
import ssl, sys
from cri_proxy import light_imports
with light_imports.lightly():
    import asyncio
assert asyncio.sslproto.ssl is ssl is sys.modules["ssl"]
"""
UVLOOP = """
import sys
from cri_proxy import light_imports
with light_imports.lightly():
    import asyncio
with light_imports.without_tls():
    import uvloop
assert "ssl" not in sys.modules and "_ssl" not in sys.modules
async def echo(path):
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_unix_server(answer, path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"said\\n")
    assert await reader.read() == b"said\\n"
    writer.close()
    server.close()
import tempfile
with tempfile.TemporaryDirectory() as folder:
    uvloop.run(echo(folder + "/s"))
import ssl
assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED
"""


@pytest.mark.parametrize(
    "code",
    [LIGHTLY, FOREIGN_HASHES, IN_USE, LATER, UVLOOP],
    ids=[
        "can be had later",
        "hashes of OpenSSL alone",
        "in use already",
        "loaded where it is used",
        "uvloop's TLS",
    ],
)
def test_a_process_that_stays_leaves_out_what_it_does_not_use(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_what_is_left_out_can_be_had_after_a_failure() -> None:
    with pytest.raises(RuntimeError), light_imports.lightly():
        raise RuntimeError
    gc.unfreeze()
    assert gc.isenabled() and sys.modules.get("rich", 0) is not None
