"""Screen and page ask the view socket the same way, and say in their own words why there is no answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from cri_proxy.view.io.daemon import Away, ViewSocket
from cri_proxy.view.top.screen import AWAY as SCREENS
from cri_proxy.view.web.io.server import AWAY as PAGES


@pytest.mark.parametrize("sentences", [SCREENS, PAGES])
async def test_an_answer_that_does_not_come_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Mapping[str, str]
) -> None:
    path = tmp_path / "view.sock"
    view = ViewSocket(path, sentences)

    async def said() -> str:
        with pytest.raises(Away) as away:
            await view.ask("report")
        return str(away.value)

    async def close_one(listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(listener)
        with connection:
            await loop.sock_recv(connection, 4096)

    assert await said() == sentences["absent"].format(path=path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        sentence, _ = await asyncio.gather(said(), close_one(listener))
        assert sentence == sentences["closed"]
        monkeypatch.setattr("cri_proxy.view.io.daemon.ANSWER_S", 0.05)
        assert await said() == sentences["late"].format(seconds=0)


def test_a_cpu_whose_ticks_stand_still_is_as_busy_as_before(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    view = ViewSocket(tmp_path / "view.sock", PAGES, stat)
    known = []
    for text in ("cpu0 0 0 0 100 0 0 0 0", "cpu0 50 0 0 150 0 0 0 0", "cpu0 50 0 0 150 0 0 0 0", ""):
        stat.write_text(f"{text}\n")
        known.append(view._loads())
    assert known == [{}, {0: 0.5}, {0: 0.5}, {}]
