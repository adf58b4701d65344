"""The accepting end of the self-test: joins a cgroup, accepts one connection, reads, answers. A program of its own.

A socket belongs to the cgroup that its maker is in, and one that is accepted to that of the listener.
"""

import os
import socket
import sys


def main(cgroup: str, request_bytes: int, response_bytes: int) -> None:
    """Prints the port it listens at."""
    with open(os.path.join(cgroup, "cgroup.procs"), "w", encoding="ascii") as processes:
        processes.write(str(os.getpid()))
    with socket.socket() as listener:
        listener.settimeout(10)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(10)
        while request_bytes > 0:
            received = len(connection.recv(request_bytes))
            if not received:
                sys.exit("the asking end has gone")
            request_bytes -= received
        connection.sendall(bytes(response_bytes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
