"""What the daemon does with a file system of CDI files that does not answer."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from cri_proxy.claims.io import cdi_folder
from cri_proxy.daemon import claims_host
from cri_proxy.daemon.claims_host import ClaimsHost, FilesLate


class HangingFolder:
    """In the place of a ``CdiFolder``."""

    go = threading.Event()
    begun: list[str] = []

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, uid: str, text: Optional[str]) -> bool:
        self.begun.append(uid)
        self.go.wait()
        return False


async def test_one_thread_waits_for_a_file_system_that_hangs_however_often_files_are_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cdi_folder, "CdiFolder", HangingFolder)
    monkeypatch.setattr(claims_host, "FILES_S", 0.01)
    services: Any = SimpleNamespace(
        node_state=SimpleNamespace(engine=None),
        config={"dra.driver_name": "d"},
        health=SimpleNamespace(warn=lambda topic, sentences: None),
    )
    host = ClaimsHost(services, tmp_path, "boot")
    try:
        for number in range(20):
            with pytest.raises(FilesLate, match="has not answered"):
                await host.follow_one(f"claim-{number}")
        assert HangingFolder.begun == ["claim-0"] and "have no CDI files" in host.problem
    finally:
        HangingFolder.go.set()
    monkeypatch.setattr(claims_host, "FILES_S", 60.0)
    await host.follow_one("claim-20")
    assert HangingFolder.begun == ["claim-0", "claim-20"]
