"""A node of containers with classes, a kernel with resctrl, and isolation between them; no daemon runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.config.config import engine_options, read_config
from cri_proxy.isolation.io.reconciler import Isolation
from cri_proxy.isolation.io.subjects import Subject
from cri_proxy.isolation.model import Wanted
from cri_proxy.services.services import Services
from cri_proxy.text.sources import SettingsSource
from policies.model import PlacementPreferences, Qos
from tests.daemon.parts import parts
from tests.isolation.kernel import KernelModel
from tests.machines import HYGON_7285_2S
from tests.scenes import HYGON, engine_on, make_container, make_pod, run, topology

ON: Mapping[str, Any] = {"caches": "enforce", "bandwidth": "enforce"}


#: Containers without requests may run anywhere, and so meet all others.
ANYWHERE = replace(HYGON, besteffort="machine")


class Threads:
    """What tasks are told to follow. ``rounds``: the groups and cgroups of each time."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Wanted, Mapping[str, str]]] = []
        #: How many threads each of the next rounds finds outside their group.
        self.outside: list[int] = []

    def follow(self, wanted: Wanted, containers: Mapping[str, str]) -> int:
        self.rounds.append((wanted, dict(containers)))
        return self.outside.pop(0) if self.outside else 0

    def status(self) -> Mapping[str, Any]:
        return {}


class IsolatedNode:
    """One node. ``kernel`` outlives daemons; ``restart`` has another one take over, with the records as they are."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        kernel: Optional[KernelModel] = None,
        subjects: Callable[[Services], Sequence[Subject]] = lambda services: (),
        more: Mapping[str, Any] = {},
        **isolation: Any,
    ) -> None:
        """``subjects``: makes those of each daemon. ``more``: other sections of the configuration, that stay."""
        self.folder = folder
        self.kernel = kernel or KernelModel(l3s())
        self.boot_id = "boot"
        self.now_s = 100.0
        self.services: Services = parts(folder, monkeypatch)
        self._names = count()
        self._subjects = subjects
        self._more = more
        self._configure(isolation)
        self.engine = engine_on(HYGON_7285_2S, ANYWHERE, engine_options(self.services.config))
        self.services.node_state.engine = self.engine
        self.services.node_state.note_compared()
        self._make()

    def _make(self) -> None:
        self.threads = Threads()
        self.isolation = Isolation(
            self.services,
            self.kernel,
            self.boot_id,
            self.threads,
            self._subjects(self.services),
            lambda: self.now_s,
        )

    async def begin(self) -> IsolatedNode:
        """The first round, as ``run`` begins."""
        await self.isolation.load()
        await self.isolation.round()
        return self

    async def restart(self) -> None:
        """Another daemon takes over."""
        self.isolation.close()
        self._make()
        await self.begin()

    async def look(self) -> bool:
        """A round so late that the kernel is looked at, and what was refused is tried again."""
        self.now_s += 1000.0
        return await self.isolation.round()

    def configure(self, **isolation: Any) -> None:
        """Another configuration is loaded."""
        self._configure(isolation)
        self.engine.rehost(self.engine.host, self.engine.policy, engine_options(self.services.config))
        self.isolation.reconfigured()

    def _configure(self, isolation: Mapping[str, Any]) -> None:
        """``control``: sections of other programs; ``rdt`` is the one that most tests have."""
        own = {**ON, **isolation}
        control = {**own.pop("control", {}), **({"rdt": own.pop("rdt")} if "rdt" in own else {})}
        values = {
            "state": {"directory": str(self.folder)},
            **self._more,
            "isolation": own,
            "control": control,
        }
        self.services.config = read_config([SettingsSource("test", values=values)]).config

    def start(self, qos: Qos, limit: float = 2, cls: str = "", rdt: str = "", owns: bool = False) -> str:
        """A container is made and starts; its key. ``cls``: what its annotation asks for; ``owns``: CPUs of its own."""
        key = f"c{next(self._names)}"
        ownership = "exclusive" if owns else ""
        preferences = PlacementPreferences(isolation_class=cls, rdt_class=rdt, ownership=ownership)
        asked = None if qos is Qos.BESTEFFORT else limit
        container = make_container(key, asked, qos=qos, pod=make_pod(key), preferences=preferences)
        run(self.engine, container, key)
        return key

    def protected(self, limit: float = 2) -> str:
        return self.start(Qos.GUARANTEED, limit)

    def batch(self) -> str:
        return self.start(Qos.BESTEFFORT)

    @property
    def masks(self) -> dict[int, str]:
        """What batch has of each L3 that is divided."""
        schemata = self.kernel.schemata.get("cri-resmgr.batch", {"L3": {}})
        return {number: mask for number, mask in schemata["L3"].items() if mask != "ffff"}


def l3s() -> dict[int, frozenset[int]]:
    """The L3s of the machine as the kernel numbers them."""
    return dict(
        enumerate(sorted((frozenset(each.cpus) for each in topology(HYGON_7285_2S).at("l3")), key=min))
    )
