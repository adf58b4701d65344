"""A file system that hangs when it is told to: FUSE by hand, in front of a folder, for tests about disks.

``python -m tests.hanging_disk MOUNT FOLDER`` mounts, says "ready" and obeys the lines on its standard input: "hang"
(no request is answered any more), "go" (all are again, those that wait too). Each is answered by the same word. It
unmounts when its input ends; should it be killed the kernel fails what waits, so nothing waits for ever.

A program that touches the mount while it hangs cannot be interrupted but by SIGKILL: tests look into FOLDER instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parent.parent
_MAX_WRITE = 1 << 16
_DETACH = 2
# include/uapi/linux/fuse.h: the version we speak, and the sizes of requests' heads.
_MAJOR, _MINOR, _BIG_WRITES = 7, 31, 1 << 5
_HEAD = struct.Struct("<IIQQIIII")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_TIMES = struct.Struct("<QQII")
_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
_MODE, _SIZE = 1 << 0, 1 << 3


def _fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Server:
    """Serves one mount. Inodes are given by path; a file that is open is known by its descriptor."""

    def __init__(self, device: int, folder: Path) -> None:
        self._device = device
        self._paths = {1: str(folder)}
        self._handlers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 9: self._mkdir, 10: self._unlink, 11: self._rmdir,
            12: self._rename, 14: self._open, 15: self._read, 16: self._write, 17: self._statfs, 18: self._release,
            20: self._fsync, 26: self._init, 27: self._opendir, 28: self._readdir,
            29: lambda node, body: b"", 30: self._fsync, 35: self._create, 45: self._rename2,
        }  # fmt: skip

    def serve_one(self) -> None:
        """Read a request and answer it.

        :raises OSError: it was unmounted.
        """
        request = os.read(self._device, _MAX_WRITE + 4096)
        _, code, unique, node, *_ = _HEAD.unpack_from(request)
        if code in (2, 36, 42):  # forgotten, interrupted: without an answer
            return
        try:
            answer = self._handlers.get(code, self._unknown)(node, request[_HEAD.size :])
            number = 0
        except OSError as error:
            answer, number = b"", error.errno or errno.EIO
        with contextlib.suppress(FileNotFoundError):  # what asked has been killed
            os.write(self._device, struct.pack("<IiQ", 16 + len(answer), -number, unique) + answer)

    def _unknown(self, node: int, body: bytes) -> bytes:
        """Also of the flush at each close: the end of a process would wait for that."""
        raise _fail(errno.ENOSYS)

    def _init(self, node: int, body: bytes) -> bytes:
        return struct.pack(
            "<IIIIHHIIHHI28x", _MAJOR, _MINOR, 1 << 16, _BIG_WRITES, 8, 8, _MAX_WRITE, 1, 0, 0, 0
        )

    # ------------------------------------------------------------------ names

    def _child(self, node: int, name: bytes) -> str:
        return os.path.join(self._paths[node], name.rstrip(b"\0").decode())

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(os.lstat(path))
        node = next((n for n, known in self._paths.items() if known == path), 0) or max(self._paths) + 1
        self._paths[node] = path
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", body)
        os.mkdir(path := self._child(node, body[8:]), mode)
        return self._entry(path)

    def _gone(self, path: str) -> bytes:
        for node in [n for n, known in self._paths.items() if known == path]:
            del self._paths[node]
        return b""

    def _unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(path := self._child(node, body))
        return self._gone(path)

    def _rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(path := self._child(node, body))
        return self._gone(path)

    def _rename(self, node: int, body: bytes, head: int = 8) -> bytes:
        (target_node,) = struct.unpack_from("<Q", body)
        old, new = body[head:].split(b"\0")[:2]
        source, target = self._child(node, old), self._child(target_node, new)
        os.rename(source, target)
        self._gone(target)
        for known in [n for n, path in self._paths.items() if path == source]:
            self._paths[known] = target
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, head=16)

    # ------------------------------------------------------------------ attributes

    def _attributes(self, s: os.stat_result) -> bytes:
        times = [int(t) for t in (s.st_atime, s.st_mtime, s.st_ctime)]
        return _ATTR.pack(
            s.st_ino, s.st_size, s.st_blocks, *times, 0, 0, 0, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0
        )  # fmt: skip

    def _getattr(self, node: int, body: bytes) -> bytes:
        path = self._paths.get(node)
        if path is None:
            raise _fail(errno.ENOENT)
        return struct.pack("<QII", 0, 0, 0) + self._attributes(os.lstat(path))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, *rest = _SETATTR.unpack_from(body)
        if valid & _MODE:
            os.chmod(self._paths[node], rest[8] & 0o7777)
        if valid & _SIZE:
            os.truncate(self._paths[node], size)
        return self._getattr(node, body)

    def _statfs(self, node: int, body: bytes) -> bytes:
        s = os.statvfs(self._paths[1])
        return struct.pack(
            "<QQQQQIIII24x", s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, 255, s.f_frsize, 0
        )  # fmt: skip

    # ------------------------------------------------------------------ files

    def _open(self, node: int, body: bytes) -> bytes:
        flags, _ = struct.unpack_from("<II", body)
        return struct.pack("<QII", os.open(self._paths[node], flags & ~os.O_CREAT), 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode, _, _ = struct.unpack_from("<IIII", body)
        path = self._child(node, body[16:])
        descriptor = os.open(path, flags | os.O_CREAT, mode)
        return self._entry(path) + struct.pack("<QII", descriptor, 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        descriptor, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(descriptor, size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        descriptor, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(descriptor, body[40 : 40 + size], offset), 0)

    def _release(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _fsync(self, node: int, body: bytes) -> bytes:
        return b""

    def _opendir(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        names = [".", "..", *sorted(os.listdir(self._paths[node]))]
        answer = b""
        for number, name in enumerate(names[offset:], offset + 1):
            text = name.encode()
            entry = struct.pack("<QQII", number, number, len(text), 0) + text
            entry += b"\0" * (-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def main(mount: Path, folder: Path) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hanging", os.fsencode(mount), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    server, hangs = Server(device, folder), False
    try:
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([0] if hangs else [0, device], [], [])
            if 0 in ready:
                word = os.read(0, 100).decode().strip()
                if not word:
                    return
                hangs = word == "hang"
                print(word, flush=True)
            elif device in ready:
                server.serve_one()
    finally:
        libc.umount2(os.fsencode(mount), _DETACH)


class HangingDisk:
    """Mounted at ``path`` while the context is open; ``folder`` has the same files, and never hangs."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        words = [sys.executable, "-m", "tests.hanging_disk", str(path), str(folder)]
        self._server = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self._server.stdout is not None
        assert self._server.stdout.readline().strip() == word

    def _say(self, word: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{word}\n")
        self._server.stdin.flush()
        self._expect(word)

    def hang(self) -> None:
        self._say("hang")

    def go(self) -> None:
        self._say("go")

    def close(self) -> None:
        self._server.communicate()  # its input ends


@contextlib.contextmanager
def hanging_disk(path: Path, folder: Path) -> Iterator[HangingDisk]:
    path.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    disk = HangingDisk(path, folder)
    try:
        yield disk
    finally:
        disk.close()


def is_possible() -> bool:
    """Whether file systems of one's own can be mounted here."""
    return os.geteuid() == 0 and os.path.exists("/dev/fuse")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
