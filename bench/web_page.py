"""What the page of ``cri-resmgr web`` costs: ``python -m bench.web_page [FOLDER]`` (pictures go into the folder).

A real daemon before a runtime of the tests, on a described two-socket Hygon of 128 CPUs, with 300 containers and 600
edges that an observer plays, and CPUs whose load changes with each look; a real Chromium. Told is the CPU time that the
page's main thread takes (Chromium's own count: scripts, styles, layout, painting), since frames that come late on a machine
that does other work say nothing of the page; the gaps between frames beside those of an empty page; what processes take.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.figures import cpu_s, machine_line, print_row, resident_mb
from tests.agent import Agent
from tests.cri_client import CriClient, cgroup_parent
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import until
from tests.functional.support import run_pod_with, start
from tests.functional.test_affinity import MANUAL, flow
from tests.machines import HYGON_7285_2S, machine
from tests.observer import ObserverProcess
from tests.web.browser import Browser, WebProcess, browser

CONTAINERS, EDGES, AT_A_TIME, CPUS = 300, 600, 20, 128
#: So many are played: the daemon leaves out what is little beside the others of its ends.
PLAYED = 900
#: A container that many talk to, as a name server or a proxy does.
HUBS, HUB_EDGES = 3, 40
FOR_S = 10.0
SPACES = ("shop", "default", "kube-system", "monitoring", "ml", "web")
NAMES = ("cart", "api", "db", "cache", "queue", "auth", "search", "mail")


def name_of(number: int) -> str:
    return f"{NAMES[number % len(NAMES)]}-{number}"


def path_of(number: int) -> str:
    return f"{SPACES[number * 7 % 11 % len(SPACES)]}/{name_of(number)}/{name_of(number)}"


async def fill(client: CriClient, count: int = CONTAINERS) -> None:
    """Containers of several sizes and namespaces; some have CPUs of their own."""
    choose = random.Random(3)

    async def one(number: int) -> None:
        space = path_of(number).partition("/")[0]
        request = choose.choice((100, 100, 200, 250, 500))
        more: dict[str, Any] = {"cpu_request": request, "cpu_limit": request * choose.choice((1, 2, 4))}
        if number % 40 == 7:
            more = {"cpu_request": 2000, "cpu_limit": 2000, "memory_limit": 1 << 30, "qos": "guaranteed"}
            more["pod_cgroup_parent"] = cgroup_parent("guaranteed", name_of(number))
        await run_pod_with(client, name_of(number), pod_namespace=space, **more)

    for first in range(0, count, AT_A_TIME):
        await asyncio.gather(*(one(number) for number in range(first, min(count, first + AT_A_TIME))))


def flows(count: int = CONTAINERS, edges: int = PLAYED) -> list[dict[str, Any]]:
    """Pairs of all weights: most are light, some are hubs'."""
    choose = random.Random(5)
    pairs: set[tuple[int, int]] = set()
    for hub in range(min(HUBS, count // 100)):
        pairs |= {(hub, other) for other in choose.sample(range(HUBS, count), HUB_EDGES)}
    while len(pairs) < edges:
        a = choose.randrange(count)
        b = min(count - 1, max(0, a + choose.choice((-9, -3, -1, 1, 2, 5, 40, 120))))
        if a != b:
            pairs.add((min(a, b), max(a, b)))
    found, seen = [], set[int]()
    for a, b in sorted(pairs):
        rate = 10 ** choose.uniform(6, 8)
        if (
            a < HUBS and b >= HUBS
        ):  # the first pair of a hub stands out: the daemon leaves those without one out
            rate = 8e8 if a not in seen else 2e7
            seen.add(a)
        found.append(
            {**flow("a", "b"), "a": path_of(a), "b": path_of(b), "bytes_ab": rate, "bytes_ba": rate / 20}
        )
    return found


async def load(web: WebProcess, cpus: int = CPUS) -> None:
    """CPUs that are busy in their own way, for ever."""
    choose = random.Random(7)
    level = [choose.choice((5, 15, 30, 60, 90)) for _ in range(cpus // 8)]
    ticks = dict.fromkeys(range(cpus), 0)
    total = 0
    while True:
        total += 100
        for cpu in ticks:
            ticks[cpu] += min(100, max(0, level[cpu // 4 % len(level)] + choose.randrange(-12, 13)))
        web.write_stat(ticks, total)
        await asyncio.sleep(0.2)


async def main(folder: Path) -> None:
    print(machine_line())
    with tempfile.TemporaryDirectory(prefix="crb-") as temporary:
        runtime = FakeRuntime(f"{temporary}/r.sock")
        await runtime.start()
        agent = Agent(
            runtime.socket, machine(HYGON_7285_2S), {"affinity": MANUAL, "placement": {"cpus": "exclusive"}}
        )
        web = WebProcess(agent, "--interval", "1")
        loading = None
        try:
            await start(agent)
            async with CriClient(agent.socket) as client:
                await fill(client)
            async with ObserverProcess(agent, flows()):
                await until(agent, lambda d: len(d["edges"]) >= EDGES, "affinity")
                await web.start()
                loading = asyncio.ensure_future(load(web))
                with browser(Path(temporary)) as page:
                    await measure(agent, web, page, folder)
        finally:
            if loading is not None:
                loading.cancel()
            await web.stop()
            await agent.close()
            await runtime.stop()


#: The gaps between frames in so many seconds, in milliseconds, while the pointer goes over one container after another.
_FRAMES = """
const [seconds, done] = arguments, gaps = [], chips = [...document.querySelectorAll('.chip')];
let first = performance.now(), last = first, turn = 0;
function step(now) {
  gaps.push(now - last);
  last = now;
  if (++turn % 30 === 0 && chips.length)
    chips[turn % chips.length].dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
  if (now - first < 1000 * seconds) requestAnimationFrame(step);
  else done(gaps.slice(1));
}
requestAnimationFrame(step);
"""
#: A container is chosen; a step back in the timeline. One is done, drawn and laid out before the next one.
_CHOOSE = """
for (const chip of [...document.querySelectorAll('.chip')].slice(0, arguments[0])) {
  chip.click();
  window.draw_now();
  document.body.offsetHeight;
}
"""
_SCRUB = """
const scrub = document.getElementById('scrub');
for (let turn = 0; turn < arguments[0]; turn++) {
  scrub.value = Math.round(scrub.max * (1 - (turn + 1) / arguments[0]));
  scrub.dispatchEvent(new Event('input'));
  window.draw_now();
  document.body.offsetHeight;
}
"""
TURNS = 60
#: Frames are counted so often, for so long.
FRAME_TURNS, FRAME_TURN_S = 4, 3.0


#: Chromium's names, and ours; the first is all of it.
PARTS = {
    "TaskDuration": "in all",
    "ScriptDuration": "script",
    "RecalcStyleDuration": "styles",
    "LayoutDuration": "layout",
}


def task_ms(page: Browser) -> list[float]:
    """CPU time of the page's main thread so far, and of its parts."""
    found = {row["name"]: float(row["value"]) * 1000 for row in page.cdp("Performance.getMetrics")["metrics"]}
    return [found[name] for name in PARTS]


def print_task(page: Browser, what: str, began_ms: list[float], turns: int) -> None:
    print_row(what, *(f"{(now - was) / turns:.1f}" for now, was in zip(task_ms(page), began_ms)))


async def measure(agent: Agent, web: WebProcess, page: Browser, folder: Path) -> None:
    assert agent.process is not None and web.process is not None
    page.theme("light")
    page.cdp("Performance.enable", timeDomain="threadTicks")
    page.driver.get(web.url)
    lines = "return +document.getElementById('edges').dataset.lines"
    await page.until(lambda: page.count(".chip") == CONTAINERS and page.run(lines) > 0, "chips and lines")
    await asyncio.sleep(3)
    page.driver.set_script_timeout(60)
    looks = "return window.frames_ms.length"
    page.run("window.frames_ms = []")
    before, began_ms = (cpu_s(web.process.pid), cpu_s(agent.process.pid)), task_ms(page)
    await asyncio.sleep(FOR_S)
    after = cpu_s(web.process.pid), cpu_s(agent.process.pid)
    count = page.run(looks)
    print_row("main thread of the page, CPU time in ms", *PARTS.values())
    print_task(page, f"one look, drawn ({count} looks)", began_ms, count)
    for what, script in (("a container chosen, drawn", _CHOOSE), ("a step of the timeline, drawn", _SCRUB)):
        began_ms = task_ms(page)
        page.run(script, TURNS)
        print_task(page, what, began_ms, TURNS)
    page.press("ESCAPE", "ESCAPE", "l")
    print_row("gaps between frames, ms", "median", "95 %", "most", "frames a second")
    await print_gaps(page)
    print_row("% of a CPU", "page's server", "daemon, all it does", "page's server, MB")
    shares = [f"{(now - was) / FOR_S * 100:.1f}" for was, now in zip(before, after)]
    print_row("one page open", *shares, f"{resident_mb(web.process.pid):.0f}")
    logged = page.log()
    if folder != Path():
        await agent.cli("rebalance")
        await pictures(page, folder)
    print(f"logged by the page: {logged or 'nothing'}")


async def print_gaps(page: Browser) -> None:
    """Of the page, and in turns with it of an empty one: what this machine has left for any."""
    driver = page.driver
    own = driver.current_window_handle
    driver.switch_to.new_window("tab")
    windows = {"the page, and the pointer going over it": own, "an empty page": driver.current_window_handle}
    gaps: dict[str, list[float]] = {what: [] for what in windows}
    for _ in range(FRAME_TURNS):
        for what, window in windows.items():
            driver.switch_to.window(window)
            gaps[what] += await asyncio.to_thread(driver.execute_async_script, _FRAMES, FRAME_TURN_S)
    driver.close()
    driver.switch_to.window(own)
    for what, found in gaps.items():
        ordered = sorted(found)
        shown = (f"{ordered[int((len(ordered) - 1) * part)]:.1f}" for part in (0.5, 0.95, 1))
        print_row(what, *shown, f"{len(found) / FRAME_TURNS / FRAME_TURN_S:.0f}")


async def pictures(page: Browser, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    page.run("document.getElementById('stage').dispatchEvent(new PointerEvent('pointerleave'))")
    for theme in ("light", "dark"):
        page.theme(theme)
        for width, height in ((1280, 800), (800, 600), (1920, 1080)):
            page.resize(width, height)
            page.run("location.reload()")
            await page.until(lambda: page.count(".chip") == CONTAINERS, "chips")
            page.press("ESCAPE", "ESCAPE", "ESCAPE")
            await asyncio.sleep(1.5)
            page.picture(folder / f"{theme}-{width}.png")
    page.resize(1280, 800)
    page.click("#search")
    page.press(*"api-81", "ENTER")
    await asyncio.sleep(1.5)
    page.picture(folder / "dark-chosen.png")
    page.press("ESCAPE", "ESCAPE", "ESCAPE", *"[" * 40)
    await asyncio.sleep(1.5)
    page.picture(folder / "dark-past.png")
    page.press("l")
    page.theme("light")
    for number, name in enumerate(("overview", "containers", "places", "traffic", "decisions"), 1):
        page.press(str(number))
        await asyncio.sleep(0.7)
        page.picture(folder / f"light-{name}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "")))
