"""The page in a real Chromium, of a real daemon: what is shown, searched, chosen, looked back at; themes, keys, a daemon
that goes and comes back, a token that is wrong. Nothing of it is logged by the browser: its policy is kept."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.support import new_agent, start
from tests.functional.test_affinity import MANUAL, create, edges, flow
from tests.observer import ObserverProcess
from tests.view.web.browser import CHROMIUM, DRIVER, Browser, WebProcess, browser
from tests.view.web.unit import Manager, Unit

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromium-driver (Debian packages)"
)
pytest.importorskip("selenium")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest_asyncio.fixture
async def observer(runtime: FakeRuntime) -> AsyncIterator[ObserverProcess]:
    """Of a daemon on a two-socket Hygon with three containers, two of which talk across L3s."""
    async with new_agent(runtime, **MANUAL) as agent:
        await start(agent)
        async with CriClient(agent.socket) as client, ObserverProcess(agent, [flow("api", "db")]) as process:
            for name in ("api", "db", "other"):
                await create(client, name)
            await edges(agent)
            yield process


@pytest.fixture
def talking(observer: ObserverProcess) -> Agent:
    return observer.agent


@pytest_asyncio.fixture
async def web(talking: Agent) -> AsyncIterator[WebProcess]:
    """As a unit: its token outlives a restart."""
    manager = Manager(talking.folder)
    process = Unit(talking, manager)
    process.write_stat(dict.fromkeys(range(128), 0))
    await process.start()
    yield process
    await process.stop()
    manager.close()


@pytest_asyncio.fixture
async def page(window: Browser, web: WebProcess) -> AsyncIterator[Browser]:
    """The page as it is opened, with all that is there drawn."""
    window.resize(1280, 800)
    window.theme("light")
    window.driver.get("about:blank")
    window.driver.get(web.url)
    window.run("localStorage.clear()")
    await window.until(lambda: window.count(".chip") == 3 and _lines(window) == 1, "three chips and a line")
    yield window
    logged = window.log()
    window.driver.get("about:blank")  # it would go on asking
    assert logged == ""


def _lines(page: Browser) -> int:
    return int(page.run("return +document.getElementById('edges').dataset.lines || 0"))


def _chip(name: str) -> str:
    return f".chip[aria-label^='default/{name}/app']"


def _box_of(page: Browser, name: str) -> str:
    """The title of the box that a container is drawn in."""
    return str(
        page.run(
            "return document.querySelector(arguments[0]).closest('.box').querySelector('.head b').textContent",
            _chip(name),
        )
    )


async def test_the_machine_is_boxes_in_boxes_and_containers_are_searched_and_explained_by_keys(
    page: Browser, web: WebProcess
) -> None:
    assert [page.count(f".depth{depth}") for depth in range(3)] == [2, 8, 16]
    assert (page.count(".core"), page.count("#machine .cpu")) == (64, 128)
    assert page.text("#link-text") == "live" and "enforce · hygon" in page.text("#node")
    assert _box_of(page, "api") == "l3-0"
    web.write_stat({cpu: 100 if cpu in (0, 64) else 0 for cpu in range(128)}, total=200)
    await page.until(lambda: page.text("[aria-label^='l3-0:'] .load") == "25 %", "the load")
    assert (
        page.run("return document.querySelector('[data-cpu=\"64\"]').style.getPropertyValue('--load')") == "1"
    )
    # Beside each picture a table; the token is in no address any more.
    for key, rows in (("2", 3), ("3", 26), ("4", 1), ("5", 3)):
        page.press(key)
        await page.until(lambda rows=rows: page.count("#view tbody tr") == rows, f"table {key}")
    assert page.run("return location.href") == web.address + "/"
    await _search_by_keys(page)


async def _search_by_keys(page: Browser) -> None:
    page.press("/", *"api")
    await page.until(
        lambda: page.count(".chip.dim") == 2 and page.text("#found") == "1 of 3 containers", "the search"
    )
    page.press("ENTER")
    await page.until(lambda: "2 CPUs wanted" in page.text(".reason"), "the reason")
    await page.until(
        lambda: "default/db/app" in page.text("#view") and "create" in page.text("#view"), "explain"
    )
    assert page.count(".chip.chosen") == 1 and page.count(".chip.peer") == 1
    page.press("ESCAPE", "ESCAPE")
    await page.until(lambda: not page.count(".chip.chosen, .chip.dim"), "nothing chosen")
    # From the picture's one stop to the next container, and Enter.
    page.run("document.querySelector(arguments[0]).focus()", _chip("api"))
    page.press("ARROW_RIGHT")
    assert page.run("return document.activeElement.getAttribute('aria-label')").startswith("default/")
    assert page.text("#tip").startswith("default/")
    page.press("ENTER")
    await page.until(lambda: page.count(".chip.chosen") == 1, "chosen")
    page.press("?")
    await page.until(lambda: page.run("return document.getElementById('help').open"), "help")
    page.press("ESCAPE")


async def test_only_some_namespaces_are_shown_and_lines_can_be_left_out(
    page: Browser, talking: Agent
) -> None:
    async with CriClient(talking.socket) as client:
        await create(client, "dns", namespace="kube-system")
    await page.until(lambda: page.count("#namespaces button") == 2, "a namespace more")
    page.click("[data-space='kube-system']")
    await page.until(lambda: page.count(".chip.dim") == 3 and _lines(page) == 0, "the others are dim")
    page.click("[data-space='kube-system']")
    await page.until(lambda: page.count(".chip.dim") == 0 and _lines(page) == 1, "all")
    page.press("e")
    await page.until(lambda: _lines(page) == 0, "no lines")
    await _themes_and_sizes(page)


async def test_what_moved_is_told_with_its_reason_and_the_time_can_be_gone_back(
    page: Browser, talking: Agent
) -> None:
    before = {name: _box_of(page, name) for name in ("api", "db")}
    assert before["api"] != before["db"]
    code, _, error = await talking.cli("rebalance")
    assert code == 0, error
    await page.until(lambda: _box_of(page, "api") == _box_of(page, "db"), "they are together")
    page.press("1")
    await page.until(lambda: "to be near default/" in page.text("#view"), "the reason of the move")
    # Back before the move, then to when only the first was there.
    page.press("[", "[")
    await page.until(lambda: {name: _box_of(page, name) for name in before} == before, "where they were")
    page.run(
        "const scrub = document.getElementById('scrub'); scrub.value = 0; scrub.dispatchEvent(new Event('input'))"
    )
    await page.until(lambda: page.count(".chip") == 1, "the first alone")
    assert "create default/api/app" in page.text("#moment")
    assert page.run("return document.getElementById('scrub').getAttribute('aria-valuetext')").startswith(
        "decision 1 of 4"
    )
    # What is new meanwhile does not take the look back away.
    async with CriClient(talking.socket) as client:
        await create(client, "late")
    await page.until(
        lambda: page.run("return document.getElementById('scrub').max") == "5", "a decision more"
    )
    assert page.count(".chip") == 1
    page.press("l")
    await page.until(lambda: page.count(".chip") == 4 and _box_of(page, "api") == _box_of(page, "db"), "now")


async def test_a_daemon_and_a_server_that_go_and_come_back(
    page: Browser, talking: Agent, web: WebProcess
) -> None:
    await talking.kill()
    await page.until(lambda: "The daemon is not running" in page.text("#banner"), "the daemon is away")
    assert page.count(".chip") == 3  # what was last seen
    assert re.search(r"What is shown is of \d\d:\d\d:\d\d; it is asked again", page.text("#banner"))
    assert _is_grey(page, "#picture") and _is_grey(page, "#panel")
    await talking.start()
    await page.until(lambda: page.text("#link-text") == "live" and not page.text("#banner"), "live again")
    port = web.port
    await web.stop()
    await page.until(
        lambda: "no connection" in page.text("#link-text") or "lost" in page.text("#link-text"), "no server"
    )
    await page.until(lambda: "The page's server is not heard" in page.text("#banner"), "since when")
    assert _is_grey(page, "#picture")
    await web.start(port)
    await page.until(lambda: page.text("#link-text") == "live", "live by itself")
    assert not _is_grey(page, "#picture") and not page.text("#banner")
    page.log()  # the browser's own word on a connection that was refused


async def test_traffic_of_a_killed_observer_is_grey_and_says_since_when_and_why(
    page: Browser, observer: ObserverProcess
) -> None:
    page.click("#tab-traffic")
    await page.until(lambda: "MB/s" in page.text("#view"), "its figures")
    assert "(old)" not in page.text("#view") and not page.text("#banner")
    await observer.end(signal.SIGKILL)
    await page.until(
        lambda: re.search(r"Traffic is of \d\d:\d\d:\d\d: (the|no) observer", page.text("#banner")), "why"
    )
    assert _is_grey(page, "#edges") and not _is_grey(page, "#picture")
    assert "MB/s (old)" in page.text("#view") and page.count(".chip") == 3
    await observer.start()
    await page.until(lambda: not page.text("#banner") and "(old)" not in page.text("#view"), "news")
    assert not _is_grey(page, "#edges")


async def test_containers_of_a_runtime_that_is_gone_are_grey(page: Browser, runtime: FakeRuntime) -> None:
    assert not _is_grey(page, ".chips")
    await runtime.stop()
    await page.until(lambda: "Containers' states are of " in page.text("#banner"), "since when")
    assert "the runtime is not there" in page.text("#banner") and _is_grey(page, ".chips")
    await runtime.start()
    await page.until(lambda: not page.text("#banner"), "it is back")


async def test_a_server_that_says_nothing_any_more_is_away(page: Browser, web: WebProcess) -> None:
    """Its connection stays open; the time that passes meanwhile is made up."""
    assert web.process is not None
    web.process.send_signal(signal.SIGSTOP)
    try:
        page.run("const now = performance.now.bind(performance); performance.now = () => now() + 30000")
        await page.until(lambda: "nothing is heard" in page.text("#banner"), "silence is told")
        assert _is_grey(page, "#picture")
    finally:
        web.process.send_signal(signal.SIGCONT)
    await page.until(lambda: page.text("#link-text") == "live", "live again")


def _is_grey(page: Browser, selector: str) -> bool:
    script = "return getComputedStyle(document.querySelector(arguments[0])).filter"
    return "grayscale" in str(page.run(script, selector))


async def _themes_and_sizes(page: Browser) -> None:
    """Themes follow the system and the key; in a small window only the picture scrolls."""
    back = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(back)
    page.theme("dark")
    await page.until(lambda: page.run(back) != light, "dark")
    page.press("t")
    await page.until(lambda: page.run(back) == light, "light by the key")
    page.press("p")  # tables lie over the picture where there is little room
    outside = (
        "return [...document.querySelectorAll('header *, #timeline *, .legend, #stage')].filter((at) => "
        "at.offsetParent && at.getBoundingClientRect().right > innerWidth + 1).map((at) => at.id || at.className)"
    )
    for width, height in ((800, 600), (480, 600)):
        page.resize(width, height)
        await page.until(lambda: not page.run(outside), f"all within {width}: {page.run(outside)}")
    page.run("localStorage.clear()")


async def test_a_wrong_token_is_refused_and_the_right_one_opens(window: Browser, web: WebProcess) -> None:
    window.driver.get("about:blank")
    window.driver.get(web.address + "/#token=" + "x" * 43)
    await window.until(lambda: "not the token" in window.text("#gate-said"), "refused")
    assert window.count(".chip") == 0
    window.run("document.getElementById('token').focus()")
    window.press(*web.token, "ENTER")
    await window.until(lambda: window.count(".chip") == 3, "opened")
    # A page of another origin gets nothing, with the token or without.
    window.driver.get("data:text/html,<p>elsewhere")
    window.driver.set_script_timeout(30)
    script = (
        "const [url, headers, done] = arguments;"
        "fetch(url, {headers}).then((answer) => done(answer.status), () => done('refused'))"
    )
    for headers in ({}, {"Authorization": f"Bearer {web.token}"}):
        assert (
            window.driver.execute_async_script(script, f"{web.address}/api/explain?container=web", headers)
            == "refused"
        )
    window.log()
