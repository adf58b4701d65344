"""Unix sockets between real containers, of one pod and of two."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.identity.attribution import Attribution
from bpf.sources.peer_search import find_unix_peers
from bpf.sources.samples import pair
from tests.bpf.pods import Host, Talker, container_id, needs_hybrid, pod_uid

pytestmark = needs_hybrid


@pytest.fixture(params=["v2", "v1"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(v2=request.param == "v2")
    yield made
    made.close()


def connect(client: Talker, server: Talker, path: str, kind: str) -> None:
    server.do(f"import socket; s = socket.socket(socket.AF_UNIX, socket.{kind}); s.bind({path!r})")
    if kind != "SOCK_DGRAM":
        server.do("s.listen()")
    client.do(f"import socket; c = socket.socket(socket.AF_UNIX, socket.{kind}); c.connect({path!r})")
    if kind != "SOCK_DGRAM":
        server.do("a = s.accept()[0]")


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_SEQPACKET", "SOCK_DGRAM"])
def test_two_pods_with_a_unix_socket_between_them_are_peers(host: Host, tmp_path: Path, kind: str) -> None:
    ids = [container_id() for _ in range(3)]
    talkers = [host.start(container, pod_uid(), host.namespace()) for container in ids]
    connect(talkers[0], talkers[1], f"/tmp/{ids[0]}", kind)
    attribution = Attribution(host.root(tmp_path))
    assert find_unix_peers(attribution) == {pair(ids[0], ids[1])}
    assert find_unix_peers(attribution, among={ids[0], ids[2]}) == frozenset()
    talkers[0].do("c.close()")
    if kind != "SOCK_DGRAM":
        talkers[1].do("a.close()")
    assert find_unix_peers(attribution) == frozenset()
    Path(f"/tmp/{ids[0]}").unlink()


def test_a_socket_that_was_handed_to_another_container_is_that_ones(host: Host, tmp_path: Path) -> None:
    ids = sorted(container_id() for _ in range(2))
    uid = pod_uid()
    parent, other = (host.start(container, uid) for container in ids)
    path = f"/tmp/{ids[0]}"
    connect(parent, other, path, "SOCK_STREAM")
    # A pair made in one process: one half goes to the other container.
    parent.do("x, y = socket.socketpair(); socket.send_fds(c, [b'1'], [y.fileno()]); y.close()")
    other.do("_, fds, _, _ = socket.recv_fds(a, 1, 1)")
    parent.do("c.close()")
    other.do("a.close()")
    assert find_unix_peers(Attribution(host.root(tmp_path))) == {(ids[0], ids[1])}
    Path(path).unlink()


def test_a_socket_to_the_hosts_own_makes_no_pair(host: Host, tmp_path: Path) -> None:
    container = container_id()
    talker = host.start(container, pod_uid())
    path = f"/tmp/{container}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        talker.do(f"import socket; c = socket.socket(socket.AF_UNIX); c.connect({path!r})")
        assert find_unix_peers(Attribution(host.root(tmp_path))) == frozenset()
    Path(path).unlink()


def test_no_more_files_are_looked_at_than_asked_for(host: Host, tmp_path: Path) -> None:
    ids = [container_id() for _ in range(2)]
    talkers = [host.start(container, pod_uid()) for container in ids]
    connect(talkers[0], talkers[1], f"/tmp/{ids[0]}", "SOCK_STREAM")
    attribution = Attribution(host.root(tmp_path))
    assert find_unix_peers(attribution, most_descriptors=1) == frozenset()
    Path(f"/tmp/{ids[0]}").unlink()


#: One of a few sees a connection.
MOST_LOOKS = 1000
#: Connects for each request, again and again, until told to end.
CALL_ANEW = """
import socket, threading
goes_on = True
def call_anew(path):
    while goes_on:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(b"?")
            assert connection.recv(1)
"""
ANSWER_EACH = """
import socket, threading
def answer_each(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    def answer():
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(connection.recv(1))
    threading.Thread(target=answer, daemon=True).start()
"""


@pytest.mark.parametrize("name", ["a file", "an abstract name"])
def test_a_connection_for_each_request_makes_a_pair_with_what_can_reach_the_listener(
    host: Host, tmp_path: Path, name: str
) -> None:
    client, server, apart = (container_id() for _ in range(3))
    netns, other_netns = host.namespace(), host.namespace()
    talkers = {
        container: host.start(container, pod_uid(), namespace)
        for container, namespace in ((client, netns), (server, netns), (apart, other_netns))
    }
    path = f"\0{server}" if name == "an abstract name" else f"/tmp/{server}"
    # A folder of its own where the socket's is, as a container has that does not mount the volume.
    host.run(f"nsenter -m -t {talkers[apart].pid} mount -t tmpfs none /tmp")
    talkers[server].do(f"{ANSWER_EACH}\nanswer_each({path!r})")
    talkers[client].do(
        f"{CALL_ANEW}\ncaller = threading.Thread(target=call_anew, args=({path!r},)); caller.start()"
    )
    attribution = Attribution(host.root(tmp_path))
    looks = (find_unix_peers(attribution) for _ in range(MOST_LOOKS))
    assert next(filter(None, looks), frozenset()) == {pair(client, server)}
    talkers[client].do("goes_on = False; caller.join()")
