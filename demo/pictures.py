"""The pictures of the page in README.md: ``python -m demo.pictures docs/pictures`` makes them anew, in a real Chromium.

What they show is the scene of ``demo.affinity`` after its plan, with some containers of other kinds: the real daemon,
observer and page, on a described machine. How busy CPUs are is made up from what is requested of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from cri_proxy import control
from demo.affinity import all_seen, create
from demo.affinity_scene import flows, services
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine
from tests.observer import QUICK, ObserverProcess
from tests.view.web.browser import Browser, WebProcess, browser

#: Of other kinds than the services: name, milli-CPUs requested, CPU limit.
OTHERS = (("postgres-0", 8000, 16), ("spark-7c6d8f-driver", 9000, 24), ("model-0", 3000, 4))
#: What requests leave of a CPU's time to be busy, more or less.
BUSY = (0.55, 1.25)


async def _create_other(client: CriClient, name: str, milli: int, limit: int) -> None:
    uid = f"uid-{name}"
    pod = await client.run_pod(name, uid=uid, namespace="data", cgroup_parent=cgroup_parent("burstable", uid))
    container = await client.create(
        pod, "main", cpu_request=milli, cpu_limit=limit * 1000, memory_limit=4 << 30
    )
    await client.start(container)


def _busy(placements: list[dict[str, Any]]) -> dict[int, int]:
    """Ticks of a hundred by CPU."""
    choose = random.Random(7)
    found = dict.fromkeys(range(128), 0.02)
    for row in placements:
        cpus = parse_cpus(row["cpus"])
        for cpu in cpus:
            found[cpu] += row["cpu_request_milli"] / 1000 / len(cpus) * choose.uniform(*BUSY)
    return {cpu: min(99, round(100 * part)) for cpu, part in found.items()}


async def _let_time_pass(web: WebProcess, busy: dict[int, int]) -> None:
    for second in itertools.count(1):
        web.write_stat({cpu: ticks * second for cpu, ticks in busy.items()}, total=100 * second)
        await asyncio.sleep(0.1)


async def _look(page: Browser, web: WebProcess, count: int, theme: str, picture: Path) -> None:
    page.theme(theme)
    page.driver.get("about:blank")
    page.driver.get(web.url)
    await page.until(lambda: page.count(".chip") == count, "all containers")
    await page.until(lambda: page.text(".tile:nth-child(2) b") != "–", "a load")
    await page.until(
        lambda: page.run("return +document.getElementById('edges').dataset.lines"), "the traffic"
    )
    page.picture(picture)


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="cra-") as name, browser(Path(name)) as page:
        async with FakeRuntime(str(Path(name) / "r.sock")) as runtime:
            config = {"affinity": {"rebalance": "manual", "cooldown": "1ms"}, "constants": QUICK}
            agent = Agent(runtime.socket, topology=machine(HYGON_7285_2S), config=config)
            async with agent, CriClient(agent.socket) as client:
                for other in OTHERS:
                    await _create_other(client, *other)
                for service in services():
                    await create(client, service)
                async with ObserverProcess(agent, flows()):
                    await all_seen(agent)
                    await asyncio.to_thread(control.ask, agent.control, "rebalance", {})
                    placements = await asyncio.to_thread(control.ask, agent.control, "placements", {})
                    web = WebProcess(agent)
                    time = asyncio.ensure_future(_let_time_pass(web, _busy(placements)))
                    await web.start()
                    try:
                        for theme in ("light", "dark"):
                            picture = folder / f"page-{theme}.png"
                            await _look(page, web, len(placements), theme, picture)
                    finally:
                        time.cancel()
                        await web.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
