"""The parts of a daemon as it makes them, with nothing read yet: no runtime, an engine of the tests', a disk that keeps
nothing and a log that can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.config.config import read_config
from cri_proxy.metrics import Metrics
from cri_proxy.runtime import RuntimeClient
from cri_proxy.services.services import Health, Services, make_parts
from cri_proxy.text.sources import SettingsSource
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on


class Log:
    """What was logged, without the fields."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def _add(self, event: str, **_: Any) -> None:
        self.events.append(event)

    debug = info = warning = error = _add


def parts(folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Mapping[str, Any]) -> Services:
    """``config``: sections of a configuration. The runtime is connected until a test says otherwise."""
    log: Any = Log()
    values = {"state": {"directory": str(folder)}, "control": {"socket": str(folder / "c.sock")}, **config}
    metrics = Metrics("test")
    health = Health(metrics, log, lambda: "enforce")
    runtime = RuntimeClient(str(folder / "none.sock"))
    monkeypatch.setattr(RuntimeClient, "is_connected", True)
    made = read_config([SettingsSource("test", values=values)]).config
    services = make_parts(made, log, metrics, health, runtime)
    services.node_state.engine = engine_on(HYGON_7285_2S)
    services.store.later = lambda work, done=None: work()  # type: ignore[assignment,method-assign]
    return services
