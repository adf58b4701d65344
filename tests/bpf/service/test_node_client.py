"""The client of docs/affinity.md for Node, as it stands there, against an observer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from cri_api import affinity_pb2 as pb
from tests.bpf.observer import WAIT_S, ObserverProcess, call
from tests.bpf.service.page import REPOSITORY, examples
from tests.bpf.service.tls import NAME, channel, make_certificates, observer_over_tcp

#: Where packages put it; here it is taken from the sources.
INSTALLED = "/usr/share/cri-resmgr/affinity.proto"
EDGE = "  shop/db/pg shop/web/nginx "
#: Far more than it takes until a change of the options shows.
MOST_MESSAGES = 600
NO_NETWORK = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's program, with its modules beside it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    install, text = examples("From Node")
    folder = tmp_path_factory.mktemp("node")
    folder.joinpath("package.json").write_text('{"private": true}')
    settings = {"prefer_offline": "true", "audit": "false", "fund": "false", "update_notifier": "false"}
    environment = {**os.environ, **{f"npm_config_{name}": value for name, value in settings.items()}}
    done = subprocess.run(
        install.split(), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode and any(word in done.stderr for word in NO_NETWORK):
        pytest.skip("npm's registry is not reached")
    assert done.returncode == 0, done.stderr
    assert INSTALLED in text
    program = folder / "graph.js"
    program.write_text(text.replace(INSTALLED, str(REPOSITORY / "cri_api/affinity.proto")))
    return program


def printed(program: Path, *arguments: str) -> Iterator[list[str]]:
    """What it prints for each message: the line about it, and one for each edge. Ended with the iterator."""
    command = ["node", str(program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            block: list[str] = []
            for line in process.stdout:
                assert line.startswith(("version ", "  ")), line + process.stdout.read()
                if line.startswith("version ") and block:
                    yield block
                    block = []
                block.append(line.rstrip("\n"))
        finally:
            process.kill()


def test_it_follows_the_graph(program: Path, folder: Path) -> None:
    observer, options = ObserverProcess(folder), folder / "options.json"
    options.write_text(json.dumps(observer.options))
    observer.start(f"@{options}")
    try:
        observer.graph()
        is_seen = False
        for about, *edges in islice(printed(program, f"unix:{observer.socket}"), MOST_MESSAGES):
            assert [edge.rpartition(" ")[0] + " " for edge in edges] in ([EDGE], [])
            assert about.endswith(f", by replay: {len(edges)} edges")
            if edges and not is_seen:
                is_seen = True
                options.write_text(json.dumps({**observer.options, "least_weight": 1e12}))
                os.kill(observer.pid, signal.SIGHUP)
            if is_seen and not edges:
                break
        else:
            pytest.fail("the edge was not seen to come and go")
    finally:
        observer.close()


def test_it_says_in_a_sentence_that_there_is_no_observer(program: Path, folder: Path) -> None:
    command = ["node", str(program), f"unix:{folder}/affinity.sock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("UNAVAILABLE: ")


def test_it_goes_over_tcp_with_a_certificate_and_not_without(program: Path, folder: Path) -> None:
    certificates = folder / "certificates"
    make_certificates(certificates)
    observer, port = observer_over_tcp(folder, certificates)
    observer.start()
    try:
        with channel(port, certificates, "client") as connected:
            call(connected, "GetGraph", pb.GetGraphRequest(), pb.Graph)
        (about, *_) = next(printed(program, f"{NAME}:{port}", str(certificates)))
        assert ", by replay: " in about
        done = subprocess.run(
            ["node", str(program), f"{NAME}:{port}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert (done.returncode, done.stdout) == (1, "")
    finally:
        observer.close()
