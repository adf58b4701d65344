"""A real Chromium (Debian's, by its own driver), and the page's server as a process of its own before a daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Optional

from tests.agent import ROOT, Agent
from tests.functional.conftest import HANG_S

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
#: What keeps a browser of root's from talking to the world and from leaving anything behind.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
#: Interfaces of other tests come and go while a page is loaded.
WITHOUT_NETLINK = Path(__file__).with_name("without_netlink.py")
MODULE = "cri_proxy.view.web.io"
BY_HAND: tuple[str, ...] = (sys.executable, "-m", MODULE)


class WebProcess:
    """``cri-resmgr web`` before the daemon of an ``Agent``. ``url`` has the token."""

    def __init__(self, agent: Agent, *options: str) -> None:
        self._agent = agent
        self._options = options
        self.url_file = agent.folder / "url"
        self.stat = agent.folder / "stat"
        self.process: Optional[asyncio.subprocess.Process] = None
        #: As a service manager starts it: the command, descriptors that it gets, and environment.
        self.command = BY_HAND
        self.keep: tuple[int, ...] = ()
        self.environment: Mapping[str, str] = {}

    async def start(self, port: int = 0, listen: str = "") -> None:
        process = await self._begin(listen or f"127.0.0.1:{port}")
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), HANG_S)
        assert said.startswith(b"serving http://"), said

    async def fail(self, port: int) -> tuple[int, str]:
        """A start that cannot be: its exit code, and what it says."""
        _, error = await asyncio.wait_for(
            (await self._begin(f"127.0.0.1:{port}", stderr=asyncio.subprocess.PIPE)).communicate(), HANG_S
        )
        assert self.process is not None and self.process.returncode is not None
        return self.process.returncode, error.decode()

    async def _begin(self, listen: str, stderr: Optional[int] = None) -> asyncio.subprocess.Process:
        view = self._agent.control.parent / "view" / "view.sock"
        words = [
            "--view-socket",
            str(view),
            "--listen",
            listen,
            "--url-file",
            str(self.url_file),
        ]
        words += ["--stat", str(self.stat), "--interval", "0.2", *self._options]
        self.process = await asyncio.create_subprocess_exec(
            *self.command, *words, stdout=asyncio.subprocess.PIPE, stderr=stderr, pass_fds=self.keep,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment}, cwd=str(self._agent.folder),
        )  # fmt: skip
        return self.process

    async def kill(self) -> None:
        """As kill -9 does."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        if self.process is None:
            return 0
        if self.process.returncode is None:
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), HANG_S)

    @property
    def url(self) -> str:
        return self.url_file.read_text().strip()

    @property
    def address(self) -> str:
        return self.url.partition("/#")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def token(self) -> str:
        return self.url.partition("#token=")[2]

    def write_stat(self, busy: Mapping[int, int], total: int = 100) -> None:
        """CPUs' ticks, as in /proc/stat: busy ones of ``total``."""
        lines = [f"cpu{cpu} {ticks} 0 0 {total - ticks} 0 0 0 0 0 0\n" for cpu, ticks in sorted(busy.items())]
        beside = self.stat.with_name("stat.new")
        beside.write_text("".join(lines))
        beside.replace(self.stat)


class Browser:
    """One Chromium window. Everything is looked at by scripts in the page, as fast as it can be."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 800) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        folder.mkdir(exist_ok=True)
        chromium = folder / "chromium"
        chromium.write_text(f'#!/bin/sh\nexec {sys.executable} {WITHOUT_NETLINK} {CHROMIUM} "$@"\n')
        chromium.chmod(0o755)
        options.binary_location = str(chromium)
        for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def cdp(self, command: str, **arguments: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def theme(self, name: str) -> None:
        """What the system is said to wish, "light" or "dark"."""
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """The text of an element; "" where it is not shown."""
        return str(
            self.run(
                "const at = document.querySelector(arguments[0]); return at && !at.hidden ? at.textContent : ''",
                selector,
            )
        )

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str) -> None:
        from selenium.webdriver.common.by import By

        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def press(self, *keys: str) -> None:
        """Keys to what has the focus; names as selenium's ``Keys`` has them."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        chain = ActionChains(self.driver, duration=0)
        for key in keys:
            chain.send_keys(getattr(Keys, key) if len(key) > 1 else key)
        chain.perform()

    async def until(self, holds: Callable[[], Any], what: str) -> Any:
        """What a look at the page gives, as soon as it is something."""
        deadline = asyncio.get_running_loop().time() + HANG_S
        while not (found := holds()):
            assert asyncio.get_running_loop().time() < deadline, f"never: {what}\n{self.log()}"
            await asyncio.sleep(0.05)
        return found

    def log(self) -> str:
        """What the page has logged since the last call: refusals of the policy, errors."""
        return "\n".join(entry["message"] for entry in self.driver.get_log("browser"))

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))

    def close(self) -> None:
        self.driver.quit()


@contextmanager
def browser(folder: Path, width: int = 1280, height: int = 800) -> Iterator[Browser]:
    opened = Browser(folder, width, height)
    try:
        yield opened
    finally:
        opened.close()
