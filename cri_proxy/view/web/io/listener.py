"""The page's socket, and the token that is good as long as it is open.

A page asks again for as long as it is open, and gives its token to whatever listens on the port. So the port must not be
free while the token is good: another process of this machine could take it, be given the token, and read the node later.
systemd keeps the socket while the unit restarts (``FileDescriptorStoreMax=``) and hands it to the next process, which goes
on with the token. Any other socket has a token of its own: a unit that was stopped, a start by hand, another address.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from bpf.kernel.notify import notify
from cri_api.socket_paths import listen_at
from cri_proxy.door import BACKLOG
from cri_proxy.unix_sockets import FIRST_FD, activated
from cri_proxy.view.web.requests import Listen, is_token

#: By which systemd knows the socket that it keeps.
_NAME = "FDNAME=page"


@contextlib.contextmanager
def listening(
    listen: Listen, url_file: Optional[Path], environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[socket.socket, str]]:
    """The socket of an address, and its token. ``url_file`` is removed where it has the token of another socket.

    :raises OSError: the address cannot be had.
    """
    listener = _handed_over(listen, environment)
    if listener is not None:
        with listener:
            yield listener, _kept(url_file) or secrets.token_urlsafe(32)
        return
    if url_file is not None:
        url_file.unlink(missing_ok=True)
    with _bound(listen) as listener:
        if not listen.path:  # a path is no other user's to take: its folder has an owner
            notify(f"FDSTORE=1\n{_NAME}", environment, [listener.fileno()])
        try:
            yield listener, secrets.token_urlsafe(32)
        finally:
            if listen.path:
                Path(listen.path).unlink(missing_ok=True)


def _handed_over(listen: Listen, environment: Mapping[str, str]) -> Optional[socket.socket]:
    """The socket of this address that systemd has kept; those of other addresses are given up."""
    given = activated(environment, os.getpid())
    os.closerange(FIRST_FD, FIRST_FD + len(given))  # these are copies
    found = None
    for one in given:
        if not listen.path and one.getsockname()[:2] == (listen.host, listen.port):
            found = one
        else:
            one.close()
    if given and found is None:
        notify(f"FDSTOREREMOVE=1\n{_NAME}", environment)
    return found


def _bound(listen: Listen) -> socket.socket:
    if listen.path:
        return listen_at(Path(listen.path), "--listen", backlog=BACKLOG)
    listener = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((listen.host, listen.port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _kept(url_file: Optional[Path]) -> str:
    """The token of the process before, "" = there is none."""
    try:
        text = "" if url_file is None else url_file.read_text()
    except FileNotFoundError:
        return ""
    token = text.strip().partition("#token=")[2]
    return token if is_token(token) else ""
