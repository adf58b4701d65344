"""Test support: the real daemon as a process of its own, on temporary paths.

``Agent`` writes a configuration, starts ``python -m cri_proxy run``, waits until it is ready (by the notify
socket, as systemd would), talks to it through the real command line, and kills it in every way tests need.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from cri_proxy import machine_root
from cri_proxy.config import constants
from policies.machine.topology import TopologyData
from policies.machine.topology_json import write_topology

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 60.0
_PROGRAM = (sys.executable, "-m", "cri_proxy")
#: What starts a daemon of each front end, and what follows ``run``.
FRONT_ENDS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "proxy": (_PROGRAM, ()),
    "nri": ((*_PROGRAM, "nri"), ()),
    "standalone": (_PROGRAM, ("--standalone",)),
}


def merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested configurations; ``extra`` wins key by key."""
    result = dict(base)
    for key, value in extra.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, Mapping) else value
    return result


def kubelet_gives(folder: Path, uid: str, container: str, cpus: str) -> None:
    """Write, as kubelet does before it asks for a container, that these CPUs are its own; "": none are any more.

    ``folder``: of an agent.
    """
    path = folder / "kubelet" / "cpu_manager_state"
    path.parent.mkdir(exist_ok=True)
    entries = json.loads(path.read_text())["entries"] if path.exists() else {}
    pod = {**entries.get(uid, {}), container: cpus}
    entries[uid] = {name: own for name, own in pod.items() if own}
    state = {"policyName": "static", "defaultCpuSet": "", "entries": entries, "checksum": 0}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.rename(path)


class Agent:
    """One daemon in one folder. ``runtime`` is the runtime's socket; ``topology`` a machine or a path.

    ``front_end``: of FRONT_ENDS; one of NRI needs the setting ``nri.plugin.socket``.
    """

    def __init__(
        self,
        runtime: Union[str, Path],
        topology: Union[TopologyData, Path, None] = None,
        config: Optional[Mapping[str, Any]] = None,
        folder: Optional[Path] = None,
        front_end: str = "proxy",
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="cra-"))
        self.front_end = front_end
        self.socket = str(self.folder / "k.sock")
        #: What kubelet's configuration names.
        self.for_kubelet = self.socket if front_end == "proxy" else str(runtime)
        self.control = self.folder / "c.sock"
        self.state = self.folder / "state"
        self.config_file = self.folder / "config.yaml"
        self.log_file = self.folder / "log"
        self.process: Optional[asyncio.subprocess.Process] = None
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._notify.bind(str(self.folder / "n.sock"))
        self.messages: list[str] = []
        (self.folder / "cgroup").mkdir(exist_ok=True)
        source: Union[str, Path] = "/sys"
        if isinstance(topology, TopologyData):
            source = self.folder / "topology.json"
            source.write_text(json.dumps(write_topology(topology)))
        elif topology is not None:
            source = topology
        #: The constants that differ in this daemon's process; slow periodic work is off so that nothing happens unasked.
        self.constants: dict[str, Any] = {
            "topology_interval_s": 3600,
            "reconcile_interval_s": 3600,
            "reconcile_poll_s": 3600,
        }
        #: What every test's daemon is configured to.
        self.config: dict[str, Any] = {
            "relay": {"socket": self.socket, "extra_sockets": [], "runtime_endpoint": str(runtime)},
            "state": {"directory": str(self.state)},
            "control": {"socket": str(self.control)},
            "topology": {"source": str(source), "cgroup_root": str(self.folder / "cgroup")},
            "kubelet": {"directory": str(self.folder / "kubelet")},
            # No observer of the machine's own is listened to.
            "affinity": {"socket": str(self.folder / "a.sock")},
            # Nor are plugins of the machine's; tests about plugins set ``host``.
            "nri": {"host": "off", "socket": str(self.folder / "nri" / "n.sock"), "plugin_path": ""},
        }
        self.write_config(config or {})

    def write_config(self, extra: Mapping[str, Any]) -> None:
        """Change settings; what was set before stays. ``constants`` are those of the next start."""
        settings = dict(extra)
        self.constants |= settings.pop("constants", {})
        self.config = merged(self.config, settings)
        self.config_file.write_text(json.dumps(self.config))  # JSON is YAML

    def write_topology(self, topology: TopologyData) -> None:
        """Make the machine another one; a daemon that runs notices it with its next look."""
        beside = self.folder / "topology.new"
        beside.write_text(json.dumps(write_topology(topology)))
        beside.replace(self.folder / "topology.json")

    # ------------------------------------------------------------------ life

    async def start(
        self,
        *arguments: str,
        environment: Optional[Mapping[str, str]] = None,
        ready: bool = True,
        command: Sequence[str] = (),
        keep: Sequence[int] = (),
    ) -> None:
        """Start the daemon and wait for READY. ``arguments`` follow ``run``; ``keep``: descriptors it inherits."""
        self.receive_all()  # what the one before has said
        program, words = FRONT_ENDS[self.front_end]
        env = {
            **os.environ,
            "NOTIFY_SOCKET": str(self.folder / "n.sock"),
            "PYTHONPATH": str(ROOT),
            # What is not configured, or cannot be read, is not the machine's either.
            machine_root.VARIABLE: str(self.folder / "root"),
            constants.VARIABLE: json.dumps(self.constants),
            **(environment or {}),
        }
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(command or program), "run", "--config", str(self.config_file), *words, *arguments,
                stdout=log, stderr=log, env=env, cwd=str(self.folder), pass_fds=keep,
            )  # fmt: skip
        if ready:
            await self.wait_notified("READY=1")

    async def wait_notified(self, text: str) -> str:
        """The next message to the service manager that contains ``text``.

        :raises AssertionError: the daemon ended, or nothing came in time; with its log.
        """
        loop = asyncio.get_running_loop()
        received = asyncio.ensure_future(self._receive(loop, text))
        assert self.process is not None
        ended = asyncio.ensure_future(self.process.wait())
        done, pending = await asyncio.wait(
            {received, ended}, timeout=READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if received not in done:
            raise AssertionError(f"no {text!r} from the daemon:\n{self.log()}")
        return received.result()

    def receive_all(self) -> None:
        """Add what was sent to the service manager so far to ``messages``."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.messages.append(self._notify.recv(65536).decode())

    def last_status(self) -> str:
        """What the service manager was told last that it should show."""
        self.receive_all()
        told = [message.partition("STATUS=")[2] for message in self.messages if "STATUS=" in message]
        return told[-1] if told else ""

    async def _receive(self, loop: asyncio.AbstractEventLoop, text: str) -> str:
        while True:
            message = (await loop.sock_recv(self._notify, 65536)).decode()
            self.messages.append(message)
            if text in message:
                return message

    def log(self) -> str:
        """What is written by now. A thread writes it: it is whole once the daemon has ended in order."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    async def logged(self, text: str, count: int = 1) -> list[str]:
        """The lines of the log that contain ``text``, once there are ``count``; those before them are written then too.

        :raises AssertionError: they did not come in time; with the log.
        """
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while True:
            whole, _, _ = self.log().rpartition("\n")
            lines = [line for line in whole.splitlines() if text in line]
            if len(lines) >= count:
                return lines
            assert asyncio.get_running_loop().time() < deadline, f"no {text!r} in the log:\n{self.log()}"
            await asyncio.sleep(0.01)

    async def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), READY_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def reload(self) -> None:
        """SIGHUP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    async def close(self) -> None:
        """Kill what runs, remove the folder."""
        if self.process is not None and self.process.returncode is None:
            await self.kill()
        self._notify.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def __aenter__(self) -> Agent:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ the command line

    async def cli(self, *words: str) -> tuple[int, str, str]:
        """Run ``cri-resmgr WORDS`` against this daemon: exit code, stdout, stderr."""
        env = {
            **os.environ, "PYTHONPATH": str(ROOT), machine_root.VARIABLE: str(self.folder / "root")
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cri_proxy", "--control-socket", str(self.control), *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def ask(self, *words: str) -> Any:
        """The JSON answer of a command that must succeed."""
        code, out, err = await self.cli(*words, "--json")
        assert code == 0, err
        return json.loads(out)
