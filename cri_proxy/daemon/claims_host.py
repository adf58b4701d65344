"""Claims of CPUs in the daemon: whether they are prepared here, under which driver's name, and their CDI files.

The engine's records are what is true (``Life.CLAIM``); a file follows its record. A record is durable before its file is
written, and is durably gone before that is removed: whatever a kill leaves of the two, the next start brings in order by
the records. What is made of claims only is not imported where there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar
from weakref import WeakValueDictionary

from cri_api.claims import is_claim
from cri_api.waiting import wait_within
from cri_proxy.claims.report import known_parts, tell_members
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import DecisionRecord
from cri_proxy.machine_root import below
from cri_proxy.services.node_state import ENFORCE
from cri_proxy.services.services import Services
from policies.machine.topology import Topology

if TYPE_CHECKING:
    from cri_proxy.claims.devices import Hardware
    from cri_proxy.claims.io.cdi_folder import CdiFolder

Result = TypeVar("Result")

#: The commands by which pods start and end.
CALLS = ("claim-prepare", "claim-unprepare")
#: The commands about claims, whose module is imported with the first that is given (daemon/claim_commands.py).
COMMANDS = ("claim-devices", "claims", *CALLS)
#: The name under which a driver of this node has claims prepared, in the state file.
DRIVER_KEY = "dra_driver"
#: How long one look at files may take, seconds: the folder is in memory, mostly.
FILES_S = 5.0
#: The only policy that prepares claims.
POLICY = "hygon"


class FilesLate(Exception):
    """The file system does not answer."""


class ClaimsHost:
    """The claims of one daemon. ``root``: what stands for / (machine_root.py)."""

    def __init__(self, services: Services, root: Path, boot_id: str) -> None:
        self.boot_id = boot_id
        #: Why files are not as they should be, "" = they are.
        self.problem = ""
        self._services = services
        self._root = root
        self._driver = ""
        #: One change of files at a time, each to what the records say then.
        self._files = asyncio.Lock()
        #: The last of them, which may still be under way.
        self._late: Optional[asyncio.Future[Any]] = None
        #: The last entry of the engine's history that was looked at.
        self._newest = 0
        self._hardware: Optional[tuple[Topology, Hardware]] = None
        #: By UID, of claims about which something is being done.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # ------------------------------------------------------------------ whether and how

    def reason(self) -> str:
        """Why no claim is prepared here, in a sentence; "" = claims are. Without an engine it is the daemon's own."""
        services = self._services
        if not services.config["dra.enabled"]:
            return "dra.enabled is false on this node"
        policy = services.config["policy.Active"]
        if policy != POLICY:
            return f"claims of CPUs are prepared by policy.Active {POLICY}; on this node that is {policy}"
        if services.node_state.mode != ENFORCE:
            mode = services.node_state.mode
            return f"cri-resmgr is in mode {mode} on this node: it prepares claims in mode {ENFORCE} only"
        return ""

    @property
    def count(self) -> int:
        """How many claims are prepared."""
        return len(self._parts())

    @property
    def driver(self) -> str:
        """The driver's name in force: while claims are prepared that under which they were."""
        configured: str = self._services.config["dra.driver_name"]
        return (self._driver or configured) if self.count else configured

    def note_driver(self, name: str) -> None:
        """A claim is prepared under this name, which was in force before: it is kept, and written before the claim is."""
        if name != self._driver:
            self._driver = name
            self._services.store.write({}, self.kept())

    def recall(self, meta: Mapping[str, str]) -> dict[str, str]:
        """Take over what the state file says; what it is to say from now on."""
        self._driver = self._driver or meta.get(DRIVER_KEY, "")
        return self.kept()

    def kept(self) -> dict[str, str]:
        """What the state file is to say."""
        return {DRIVER_KEY: self._driver}

    def status(self) -> dict[str, Any]:
        """For the daemon's status."""
        return {
            "enabled": bool(self._services.config["dra.enabled"]),
            "reason": self.reason(),
            "driver": self.driver,
            "count": self.count,
        }

    def told(self) -> None:
        """Have warnings say what is to be known, after each change of claims or configuration."""
        configured, sentences = self._services.config["dra.driver_name"], [self.problem]
        if self.driver != configured:
            claims = "1 claim was" if self.count == 1 else f"{self.count} claims were"
            sentences.append(
                f"dra.driver_name is {configured}, and stays {self.driver} until all of its claims have ended: "
                f"{claims} prepared under that name; see: cri-resmgr claims"
            )
        self._services.health.warn("claims", filter(None, sentences))

    def note(self, records: Iterable[DecisionRecord]) -> None:
        """Have the pods of a claim hear when its CPUs are others, or fewer, by these decisions."""
        engine = self._services.node_state.engine
        for record in records:
            if record.number <= self._newest:
                continue  # it is amended
            self._newest = record.number
            keys = [key for change in record.changes for key in change.keys if is_claim(key)]
            if keys and engine is not None:
                tell_members(engine, keys)

    def _parts(self) -> dict[str, list[str]]:
        engine = self._services.node_state.engine
        return {} if engine is None else known_parts(engine)

    def turn(self, uid: str) -> asyncio.Lock:
        """For the block in which something is done about a claim: in the order of asking, one thing at a time."""
        found = self._turns.get(uid)
        if found is None:
            found = self._turns[uid] = asyncio.Lock()
        return found

    # ------------------------------------------------------------------ files

    def engaged(self, engine: Engine) -> None:
        """Another engine is at work: its records and the files are compared, beside all else."""
        self._newest = engine.newest_record
        self._services.supervisor.begin("claims", self.follow())

    async def follow(self) -> None:
        """Have a file for each claim and no other of ours. What fails is a warning, and done again with the next round."""
        from cri_proxy.claims.cdi import write_cdi
        from cri_proxy.claims.io.cdi_folder import CdiUnusable

        async with self._files:
            if self._services.node_state.engine is None:
                return
            folder, wanted = self._folder(), {uid: write_cdi(parts) for uid, parts in self._parts().items()}
            try:
                made, removed = await self._within(lambda: folder.follow(wanted))
            except (CdiUnusable, FilesLate) as error:
                self.problem = f"claims have no CDI files: {error}"
            else:
                self.problem = ""
                if made or removed:
                    self._services.log.info("CDI files of claims", written=list(made), removed=list(removed))
        self.told()

    async def follow_one(self, uid: str) -> None:
        """Have a file for one claim if it is in the records, else none.

        :raises CdiUnusable, FilesLate: it is not so.
        """
        from cri_proxy.claims.cdi import write_cdi

        async with self._files:
            folder, parts = self._folder(), self._parts().get(uid)
            await self._within(lambda: folder.put(uid, None if parts is None else write_cdi(parts)))
        self.told()

    async def try_again(self) -> None:
        """What could not be done with files before, and what became of them since: a container whose device is not
        described cannot be created."""
        if self.problem or self.count:
            await self.follow()

    def _folder(self) -> CdiFolder:
        from cri_proxy.claims.cdi import FOLDER
        from cri_proxy.claims.io.cdi_folder import CdiFolder

        return CdiFolder(below(self._root, FOLDER))

    async def _within(self, work: Callable[[], Result]) -> Result:
        """:raises FilesLate: it takes too long. It goes on, and nothing is begun before its end."""
        try:
            if self._late is not None:
                await wait_within(FILES_S, asyncio.wait((self._late,)))
            self._late = done = asyncio.get_running_loop().run_in_executor(None, work)
            return await wait_within(FILES_S, asyncio.shield(done))
        except asyncio.TimeoutError:
            # What it was at may be done after all that follows: all of it is looked at again.
            sentence = f"the file system of {self._folder().path} has not answered for {FILES_S:.0f} s"
            self.problem = f"claims have no CDI files: {sentence}"
            raise FilesLate(sentence) from None

    # ------------------------------------------------------------------ the machine

    async def hardware(self, topology: Topology) -> Hardware:
        """What devices tell beside the topology; read once a machine."""
        from cri_proxy.claims.devices import NO_HARDWARE
        from cri_proxy.claims.io.hardware import read_hardware

        if self._hardware is None or self._hardware[0] is not topology:
            source = Path(self._services.config["topology.source"])
            is_sysfs = await asyncio.to_thread(source.is_dir)
            found = await asyncio.to_thread(read_hardware, source, topology) if is_sysfs else NO_HARDWARE
            self._hardware = topology, found
        return self._hardware[1]
