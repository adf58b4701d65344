"""Compiles C files with bcc, in a child, and keeps what came out: the next start needs no compiler.

A program depends on no struct of the kernel and refers to no address, so the instructions serve again as they are. They
are kept all the same with all that bcc was given and the kernel's release, as bcc asks the kernel what it can. A kept file
is used only if that is the same, and if it is root's alone and whole; the kernel's verifier then sees it like any other.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional

from bpf.kernel import syscalls
from bpf.service.json_file import write_json
from bpf.service.log import log
from bpf.service.options import SYSTEM_PYTHON
from bpf.sources.samples import ProviderLate, ProviderLost

STUB_TREE = Path(__file__).with_name("stub")
_CHILD = Path(__file__).with_name("compile_child.py")
#: A compile takes 0.15 s of a fast CPU; with cold caches on a crowded node it was seen to take 120 s.
_LONGEST_S = 600.0
#: Three programs, two of them in two ways; as much again for the kernel before and other options. 100 KB each.
_MOST_KEPT = 10
_FORMAT = 1


@dataclass(frozen=True)
class Compiled:
    """``maps``: what each is made with, in the order in which instructions name them; ``programs``: instructions by name;
    ``types``: BTF of the entries of sockets' storage."""

    maps: Sequence[Mapping[str, Any]]
    programs: Mapping[str, bytes]
    types: bytes


@dataclass(frozen=True)
class _Child:
    asked: str
    process: subprocess.Popen[bytes]
    answer: IO[bytes]
    said: IO[bytes]
    started_s: float

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.answer.close()
        self.said.close()


class Compiler:
    """bcc for the observer: one compile at a time. Close it at the end. Not safe to use from two threads at once.

    ``python``: one that has bcc. ``folder``: where results are kept, "" = nowhere. ``patience_s``: a compile that takes
    longer goes on in the background, and is asked for again.
    """

    def __init__(self, python: str = SYSTEM_PYTHON, folder: str = "", patience_s: float = _LONGEST_S) -> None:
        self._python = python
        self._kept = Kept(folder)
        self._patience_s = patience_s
        self._child: Optional[_Child] = None

    def compile(self, text: str, defines: Mapping[str, object], programs: Sequence[str]) -> Compiled:
        """The programs of a C text.

        :raises ProviderLate: bcc is at work on it, or on another one: ask again.
        :raises ProviderLost: no bcc, no permission, or it refuses; one sentence says which.
        """
        request = {
            "text": text,
            "include": str(STUB_TREE),
            "cflags": [f"-D{name}={value}" for name, value in defines.items()],
            "bpf_number": syscalls.BPF_NUMBER,
            "programs": list(programs),
        }
        asked = _text([_FORMAT, *os.uname(), request, _stub()])
        kept = self._kept.read(asked)
        if kept is None:
            kept = self._result(asked, request)
            self._kept.write(asked, kept)
        return _parse(kept)

    def close(self) -> None:
        """End a compile that is still at work."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _result(self, asked: str, request: Mapping[str, object]) -> dict[str, Any]:
        if self._child is not None and self._child.asked != asked:
            if self._child.process.poll() is None and self._left_s(self._child, _LONGEST_S) > 0:
                raise ProviderLate("bcc is still compiling another program")
            self.close()  # nothing asks for it any more
        if self._child is None:
            self._child = self._start(asked, request)
        child = self._child
        try:
            child.process.wait(self._left_s(child, self._patience_s))
        except subprocess.TimeoutExpired:
            if self._left_s(child, _LONGEST_S) > 0:
                raise ProviderLate(
                    f"bcc is still compiling the program ({time.monotonic() - child.started_s:.0f} s)"
                ) from None
            self.close()
            raise ProviderLost(f"bcc did not finish within {_LONGEST_S:.0f} s") from None
        try:
            return self._answer(child)
        finally:
            self.close()

    @staticmethod
    def _left_s(child: _Child, most_s: float) -> float:
        return max(0.0, child.started_s + most_s - time.monotonic())

    def _start(self, asked: str, request: Mapping[str, object]) -> _Child:
        answer, said, question = (os.fdopen(os.memfd_create("bpf"), "w+b") for _ in range(3))
        with question:
            question.write(json.dumps(request).encode())
            question.seek(0)
            # -I: neither our packages nor the environment's settings reach the system's Python.
            command = [self._python, "-I", str(_CHILD), str(answer.fileno())]
            try:
                process = subprocess.Popen(
                    command, pass_fds=[answer.fileno()], stdin=question, stdout=said, stderr=subprocess.STDOUT
                )
            except OSError as error:
                answer.close()
                said.close()
                raise ProviderLost(f"{self._python} cannot be run: {error.strerror}") from None
        return _Child(asked, process, answer, said, time.monotonic())

    def _answer(self, child: _Child) -> dict[str, Any]:
        child.said.seek(0)
        child.answer.seek(0)
        said, raw = child.said.read().decode(errors="replace"), child.answer.read()
        try:
            answer: dict[str, Any] = json.loads(raw)
        except ValueError:
            answer = {}
        if child.process.returncode != 0 or not answer:
            log("debug", "bcc failed", output=said)
            raise ProviderLost(_failure(answer, said, child.process.returncode, self._python))
        return answer


class Kept:
    """Results on disk, a file each, named by the sum of what was compiled. ``folder`` "": nothing is kept."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read(self, asked: str) -> Optional[dict[str, Any]]:
        """What was written; None: nothing that can be used. What is damaged is removed."""
        if not self._folder:
            return None
        path = self._path(asked)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(fd, encoding="utf-8") as file:
                status = os.fstat(fd)
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                    raise ValueError("others than root may read or write it")
                document = json.load(file)
                os.utime(fd)
            result: dict[str, Any] = document["result"]
            if document["sum"] != _sum(_text(result)):
                raise ValueError("its sum is wrong")
            if document["asked"] != asked:
                return None  # another one with the same name
            _parse(result)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log("warning", "a compiled program is not used", file=path, reason=error)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        return result

    def write(self, asked: str, result: dict[str, Any]) -> None:
        """Keep a result; those used least lately go. A disk that takes it not is told of, and does no harm."""
        if not self._folder:
            return
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            path = self._path(asked)
            write_json(path, {"asked": asked, "sum": _sum(_text(result)), "result": result})
            others = [other for other in Path(self._folder).iterdir() if str(other) != path]
            for other in sorted(others, key=lambda each: each.lstat().st_mtime_ns)[: -(_MOST_KEPT - 1)]:
                other.unlink()
        except OSError as error:
            log("warning", "a compiled program is not kept", reason=error)

    def _path(self, asked: str) -> str:
        return os.path.join(self._folder, f"{_sum(asked):08x}.json")


def _stub() -> dict[str, str]:
    """The files that programs include, by name."""
    return {str(path.relative_to(STUB_TREE)): path.read_text() for path in sorted(STUB_TREE.rglob("*.h"))}


def _text(document: object) -> str:
    return json.dumps(document, sort_keys=True)


def _sum(text: str) -> int:
    """Against damage, not against malice: the folder is root's. hashlib would take 3 MB of memory."""
    return zlib.crc32(text.encode())


def _parse(result: Mapping[str, Any]) -> Compiled:
    programs = {name: base64.b64decode(code, validate=True) for name, code in result["programs"].items()}
    return Compiled(result["maps"], programs, base64.b64decode(result["types"], validate=True))


def _failure(answer: Mapping[str, Any], output: str, code: int, python: str) -> str:
    """Why the child failed, in one sentence."""
    step, reason = answer.get("failed", ""), answer.get("reason", "")
    if step == "bcc":
        return f"{python} has no bcc ({reason}); Debian, Ubuntu: python3-bpfcc; RHEL: python3-bcc; openEuler: one of the two"
    if step == "compile" and "could not open bpf map" in output:
        # bcc makes the maps while it compiles.
        said = _first_with(output, "could not open bpf map").rpartition("error: ")[2]
        return f"the kernel makes no BPF maps: {said} (CAP_BPF or CAP_SYS_ADMIN, seccomp filters)"
    if step == "compile":
        return f"bcc does not compile the program: {_first_with(output, 'error') or reason}"
    if step == "describe":
        return f"the kernel does not tell of the maps that bcc has made: {reason}"
    last = output.strip().splitlines()[-1:] or ["no message"]
    return f"{python} ended with {code} while bcc was at work: {last[0]}"


def _first_with(output: str, word: str) -> str:
    return next((line.strip() for line in output.splitlines() if word in line), "")
