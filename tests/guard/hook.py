"""Notes what this Python opens of the machine's own; every Python of a test run executes this as it starts.

Only ``sys`` and ``os``, which are there anyway: tests count what a start imports. The environment says where to write
and which folders are meant: LOG, then FOLDER=DEVICE.INODE, parted by colons. A Python whose /run is another folder, in
a mount namespace or chroot of its own, is told apart by the inode.
"""

import os
import sys

VARIABLE = "CRI_RESMGR_GUARD"
#: Events of ``sys.audit``, and how many of their first arguments are paths.
PATHS = {
    "open": 1, "os.listdir": 1, "os.scandir": 1, "os.chdir": 1, "os.mkdir": 1, "os.rmdir": 1, "os.remove": 1,
    "os.rename": 2, "os.link": 2, "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1, "os.setxattr": 1,
    "os.stat": 1, "sqlite3.connect": 1,
}  # fmt: skip
#: Those whose second argument is a path: of a link the new name, of a socket the address.
SECOND = ("os.symlink", "socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg")


class Stat:
    """``os.stat``, of which there is no event: what is looked for in vain here is found on another machine.

    No function: pathlib before Python 3.10 has it as an attribute of a class, and would bind it.
    """

    def __init__(self, real, seen):
        self._real, self._seen = real, seen
        for abilities in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
            if real in abilities:
                abilities.add(self)

    def __call__(self, path, **how):
        self._seen("os.stat", (path,))
        return self._real(path, **how)


def install(told):
    log, *folders = told.split(":")
    identities = dict(folder.split("=") for folder in folders)

    def seen(event, arguments):
        if event in PATHS:
            paths = arguments[: PATHS[event]]
        elif event in SECOND:
            paths = arguments[1:2]
        else:
            return
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):  # not a descriptor, nor an address of IP
                text = os.fsdecode(path)
                if "/cri-resmgr" in text and (found := of_the_machine(text)):
                    note(event, found)

    def of_the_machine(text):
        """The path with its folder's links followed, if that is something of ours on the machine; else ""."""
        above, name = os.path.split(text.rstrip("/").replace("\0", ""))
        path = os.path.join(os.path.realpath(above), name)
        for folder, identity in identities.items():
            ours = path[len(folder) + 1 :].split("/")[0]
            if path.startswith(f"{folder}/cri-resmgr") and os.path.isdir(folder):
                here = os.stat(folder)
                if f"{here.st_dev}.{here.st_ino}" == identity and not is_mounted(f"{folder}/{ours}"):
                    return path
        return ""

    def is_mounted(path):
        """In a mount namespace, what is the machine's may lie under what is the test's."""
        with open("/proc/self/mountinfo") as lines:
            return any(line.split(" ")[4] == path for line in lines)

    def note(event, path):
        command = " ".join(getattr(sys, "orig_argv", sys.argv))
        test = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        line = f"{event} {path} in {test}: {os.getpid()} {command[:300]}"
        with open(log, "a") as file:
            file.write(line.replace("\n", " ") + "\n")

    sys.addaudithook(seen)
    os.stat = Stat(os.stat, seen)


def begin():
    """Watch this process, if the environment says so and it is not watched yet."""
    told = os.environ.get(VARIABLE, "")
    begun = sys.__dict__.setdefault("cri_resmgr_guards", set())
    if told and told not in begun:
        begun.add(told)
        install(told)


begin()
