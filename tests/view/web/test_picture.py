"""The picture in a real Chromium, of named machines: what colours, words and lines say, and that nothing covers anything.

The server is the page's own; what it asks is a stand-in for the view socket, which has one snapshot.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

import pytest

from cri_proxy.affinity.report import edge_rows
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.report import explain
from cri_proxy.view.snapshot import NodeSnapshot, read_snapshot
from cri_proxy.view.web.io.server import Feed, PageServer
from policies.affinity.graph.traffic import traffic_of
from policies.machine.cpus import format_cpus
from policies.machine.topology_json import write_topology
from tests.claim_scenes import having, prepare
from tests.functional.conftest import HANG_S
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO, machine
from tests.scenes import TOPOLOGY_AWARE, engine_on, make_container, make_pod, run
from tests.view.nodes import busy_engine, edges_of, fills_of, report_of, steady_loads
from tests.view.web.browser import CHROMIUM, DRIVER, Browser, browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromium-driver (Debian packages)"
)
pytest.importorskip("selenium")

TOKEN = "t" * 43
#: As generated names are: what tells them apart is at both ends.
LONG = ("recommendation-service", "checkout-payment-gateway", "user-timeline-redis", "home-timeline-cache")


@dataclass
class OneSnapshot:
    """What a view socket answers of an engine. ``report`` may be changed between two looks; ``loads`` as well."""

    engine: Engine
    machine_name: str
    edges: int = 0
    loads: Mapping[int, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.report = report_of(self.engine)

    async def look(self, *, with_moves: bool) -> NodeSnapshot:
        rows = []
        if self.edges:
            rows = edge_rows(self.engine, traffic_of(1, edges_of(self.engine, self.edges), {}).listed)
        return read_snapshot(self.report, {"edges": rows, "observer": {}}, {}, self.loads)

    async def ask_part(self, command: str, **_: Any) -> tuple[dict[str, Any], str]:
        if command == "topology":
            return write_topology(machine(self.machine_name)), ""
        return {"newest": 1, "entries": [], "before": None}, ""

    async def ask(self, command: str, **arguments: Any) -> Any:
        return explain(self.engine, arguments["container"], 0.0)

    def forget(self) -> None:
        pass


@contextmanager
def served(view: Any) -> Iterator[str]:
    """The page's server in a thread of its own, as the browser is asked from the test's: its address with the token."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: dict[str, Any] = {}

    async def serve() -> None:
        feed = Feed(view, 0.1)
        server = PageServer(socket.create_server(("127.0.0.1", 0)), TOKEN, view, feed)
        await server.start()
        found["url"], found["end"] = f"{server.address}#token={TOKEN}", asyncio.Event()
        running = asyncio.ensure_future(feed.run())
        ready.set()
        await found["end"].wait()
        running.cancel()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(HANG_S)
        yield found["url"]
    finally:
        loop.call_soon_threadsafe(found["end"].set)
        thread.join(HANG_S)
        loop.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@contextmanager
def shown(window: Browser, view: OneSnapshot, size: tuple[int, int] = (1280, 800)) -> Iterator[Browser]:
    """The page of a snapshot; it may not say a word to the console."""
    with served(view) as url:
        window.resize(*size)
        window.theme("light")
        window.driver.get("about:blank")
        window.log()
        window.driver.get(url)
        yield window
        logged = window.log()
        window.driver.get("about:blank")
        assert logged == ""


def crowded(count: int = 8) -> OneSnapshot:
    """``count`` containers with long names in one L3, as after a rebalance; the other L3s have one each."""
    engine = engine_on(HYGON_7285_2S, settings=TOPOLOGY_AWARE)
    for number in range(count + 15):
        pod = make_pod(f"{LONG[number % 4]}-7d9c5b8f4-{number:05d}", namespace=("shop", "data")[number % 2])
        run(engine, make_container("server", pod=pod, limit=1, request=0.1), f"{number:064x}")
    view = OneSnapshot(engine, HYGON_7285_2S, edges=20, loads=steady_loads(engine.host.topology))
    l3s = [zone for zone in view.report["zones"] if zone["type"] == "L3"]
    for number, row in enumerate(view.report["placements"]):
        zone = l3s[max(0, number - count + 1)]
        row.update(zone=zone["name"], cpus=zone["cpus"], level="ccx")
    return view


async def _drawn(page: Browser, chips: Optional[int] = None) -> None:
    await page.until(
        lambda: page.count("#machine .box") and (chips is None or page.count(".chip") == chips), "the picture"
    )


def _rect(page: Browser, selector: str) -> list[float]:
    script = "const r = document.querySelector(arguments[0]).getBoundingClientRect(); return [r.x, r.y, r.width, r.height]"
    return list(page.run(script, selector))


#: Lightness (OKLab), relative luminance of a box and of its words, and whether it is hatched.
_LOOK = """
const at = document.querySelector(`[aria-label^='${arguments[0]}:']`), style = getComputedStyle(at);
const pen = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const lit = (colour) => {
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const linear = (c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((c) => linear(c / 255));
  const l = Math.cbrt(.4122 * r + .5363 * g + .0514 * b);
  const m = Math.cbrt(.2119 * r + .6807 * g + .1074 * b);
  const s = Math.cbrt(.0883 * r + .2817 * g + .63 * b);
  return [.2105 * l + .7936 * m - .0041 * s, .2126 * r + .7152 * g + .0722 * b];
};
const words = getComputedStyle(at.querySelector('.asked')).color;
return [...lit(style.backgroundColor), lit(words)[1], style.backgroundImage !== 'none'];
"""
#: Of each chip of a box: whether all of it is to be seen, its end, the width of its beginning, its text.
_NAMES = """
const box = document.querySelector(`[aria-label^='${arguments[0]}:'] .chips`), seen = box.getBoundingClientRect();
return [...box.children].map((chip) => {
  const at = chip.getBoundingClientRect(), back = chip.querySelector('.back').getBoundingClientRect();
  const isSeen = at.bottom <= seen.bottom + 1 && back.right <= at.right && back.left >= at.left;
  return [isSeen, chip.querySelector('.back').textContent, chip.querySelector('.front').clientWidth, chip.textContent];
});
"""
#: Pixels of lines under names, loads and requests.
_INK = """
const canvas = document.getElementById('edges'), origin = canvas.getBoundingClientRect();
const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
pen.drawImage(canvas, 0, 0);
let found = 0;
for (const at of document.querySelectorAll('.head > *, .chip')) {
  const r = at.getBoundingClientRect(), box = at.closest('.chips')?.getBoundingClientRect() ?? r;
  const top = Math.max(r.top, box.top), low = Math.min(r.bottom, box.bottom);
  if (r.width < 1 || low - top < 1) continue;
  const data = pen.getImageData(r.x - origin.x, top - origin.y, r.width, low - top).data;
  for (let at = 3; at < data.length; at += 4) if (data[at]) found++;
}
return found;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_load_is_a_scale_of_lightness_with_a_number_and_a_hatch_from_90_percent(
    window: Browser, theme: str
) -> None:
    engine = busy_engine(HYGON_7285_2S, 4)
    parts = (0.0, 0.23, 0.46, 0.7, 0.89, 0.9, 0.98)
    view = OneSnapshot(engine, HYGON_7285_2S)
    l3s = {f"l3-{n}": frozenset(range(n * 4, n * 4 + 4)) for n in range(len(parts))}
    view.loads = {
        cpu: part for part, cpus in zip(parts, l3s.values()) for cpu in (*cpus, *(one + 64 for one in cpus))
    }
    with shown(window, view) as page:
        page.theme(theme)
        await page.until(
            lambda: page.run("return document.documentElement.dataset.theme") == theme, "the theme"
        )
        await page.until(lambda: page.text("[aria-label^='l3-6:'] .load") == "98 %", "the loads")
        looks = [page.run(_LOOK, name) for name in l3s]
        labels = [
            page.run(f"return document.querySelector(\"[aria-label^='{name}:']\").ariaLabel") for name in l3s
        ]
        view.loads = {**view.loads, **dict.fromkeys((*l3s["l3-2"], *(one + 64 for one in l3s["l3-2"])), 0.47)}
        await page.until(
            lambda: page.count("[aria-label^='l3-2: load 47 %']"), "the label follows the load alone"
        )
        assert page.text("#scale") == "load, measured"
    lightness = [look[0] for look in looks]
    # Without any hue: one direction, steps that are seen, 46 % far from 98 %.
    assert lightness in (sorted(lightness), sorted(lightness, reverse=True))
    assert abs(lightness[2] - lightness[6]) > 0.1 and abs(lightness[0] - lightness[2]) > 0.08
    assert [look[3] for look in looks] == [part >= 0.9 for part in parts]
    for look in looks:
        bright, dim = sorted(look[1:3], reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5  # WCAG 1.4.3
    for label, part in zip(labels, parts):
        assert f"load {round(part * 100)} %" in label and "CPUs requested" in label


async def test_where_no_load_is_measured_the_colour_is_what_requests_fill_and_the_legend_says_so(
    window: Browser,
) -> None:
    view = OneSnapshot(busy_engine(HYGON_7285_2S, 20), HYGON_7285_2S)
    with shown(window, view) as page:
        await page.until(lambda: "filled by requests" in page.text("#scale"), "the legend")
        zone = next(zone for zone in view.report["zones"] if zone["type"] == "L3")
        part = round(100 * zone["charged_milli_cpus"] / zone["allocatable_milli_cpus"])
        assert part > 0 and page.text("[aria-label^='l3-0:'] .load") == f"{part} %"
        assert page.count(f"[aria-label^='l3-0: {part} % filled by requests, load not measured']") == 1


async def test_eight_containers_of_one_box_keep_names_that_are_read_and_no_line_crosses_a_word(
    window: Browser,
) -> None:
    with shown(window, crowded()) as page:
        await _drawn(page, 23)
        await page.until(lambda: page.run("return +document.getElementById('edges').dataset.lines"), "lines")
        names = page.run(_NAMES, "l3-0")
        assert len(names) == 8
        for is_seen, end, beginning, text in names:
            # The number at the end, and a beginning of some letters.
            assert is_seen and end.isdigit() and text.endswith(end) and beginning >= 20, names
        assert page.run(_INK) == 0
        page.run("document.querySelector('.chip').focus()")  # each of its lines, strong
        assert page.run(_INK) == 0


async def test_a_box_with_more_than_it_shows_says_how_many_and_scrolls(window: Browser) -> None:
    with shown(window, crowded(20)) as page:
        await _drawn(page, 35)
        assert page.text("[aria-label^='l3-0:'] .more") == "20 ▾" and not page.text(
            "[aria-label^='l3-1:'] .more"
        )
        last = ".chip[aria-label*='-00019/']"
        page.run("document.querySelector(arguments[0]).scrollIntoView()", last)
        x, y, wide, high = _rect(page, last)
        found = page.run(
            "return document.elementFromPoint(arguments[0], arguments[1]).closest('.chip').ariaLabel",
            x + wide / 2,
            y + high / 2,
        )
        assert "-00019/" in found
        # One that is chosen in a table is scrolled to.
        page.press("2")
        await page.until(lambda: page.count("#view tbody tr") == 35, "the table")
        first = ".chip[aria-label*='-00000/']"
        page.run(
            "[...document.querySelectorAll('#view .link')].find((at) => at.textContent.includes('-00000/')).click()"
        )
        await page.until(lambda: page.count(first + ".chosen"), "chosen")
        box = _rect(page, "[aria-label^='l3-0:'] .chips")
        assert box[1] - 1 <= _rect(page, first)[1] <= box[1] + box[3]
        await page.until(lambda: page.run(_INK) == 0, "lines are drawn anew after scrolling")


async def test_an_l3_that_is_monitored_shows_whose_lines_fill_it(window: Browser) -> None:
    view = crowded(3)
    view.report["caches"] = fills_of(view.engine)
    row = next(row for row in view.report["caches"] if row["l3"] == "l3-0")
    ids = [one["container_id"] for one in view.report["placements"]]
    row["containers"] = [{"id": ids[0], "bytes": 4 << 20, "bytes_per_s": None}]
    row["containers"] += [{"id": ids[1], "bytes": 1 << 20, "bytes_per_s": None}]
    with shown(window, view) as page:
        await _drawn(page, 18)
        await page.until(lambda: page.count("[aria-label^='l3-0:'] .fill i") == 3, "the bar")
        bar = _rect(page, "[aria-label^='l3-0:'] .fill")
        parts = page.run(
            "return [...document.querySelectorAll(arguments[0])].map((at) => at.getBoundingClientRect().width)",
            "[aria-label^='l3-0:'] .fill i",
        )
        assert [round(8 * part / bar[2]) for part in parts] == [4, 1, 1]
        label = page.run("return document.querySelector(arguments[0]).ariaLabel", "[aria-label^='l3-0:']")
        assert ", 6 / 8 MiB of the L3 filled, " in label
        page.run(
            "document.querySelector(arguments[0]).dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))",
            "[aria-label^='l3-0:'] .fill",
        )
        told = page.run("return [...document.querySelectorAll('#tip p')].map((at) => at.textContent)")
        assert told[0] == "6 / 8 MiB filled" and told[-1] == "1 MiB others"
        assert [line.split()[0] for line in told[1:-1]] == ["4", "1"]
        page.press("3")
        await page.until(lambda: "6 / 8 MiB" in page.text("#view"), "the table")
        # It is gone with the monitoring.
        view.report["caches"] = []
        await page.until(lambda: not page.count(".leaf .fill:not([hidden])"), "no bar")


async def test_an_l3_that_isolation_divides_says_between_what_and_what_batch_has(window: Browser) -> None:
    view = crowded(3)
    row = {
        "l3": 0,
        "protected": 2,
        "batch": 1,
        "batch_has": "5 ways (1f)",
        "step": "step 2 of 3; it has helped",
    }
    view.report["isolation"] = {"l3s": [row]}
    with shown(window, view) as page:
        await _drawn(page, 18)
        shown_marks = ".divided:not([hidden])"
        await page.until(lambda: page.count(shown_marks) == 1, "the mark")
        page.run(
            "document.querySelector(arguments[0]).dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))",
            f"[aria-label^='l3-0:'] {shown_marks}",
        )
        told = page.run("return [...document.querySelectorAll('#tip p')].map((at) => at.textContent)")
        assert told == ["protected: 2, batch: 1", "batch has 5 ways (1f)", "step 2 of 3; it has helped"]
        box, head = (_rect(page, f"[aria-label^='l3-0:']{below}") for below in ("", " .divided"))
        assert head[0] + head[2] <= box[0] + box[2], "the mark is in its box"
        view.report["isolation"] = None
        await page.until(lambda: not page.count(shown_marks), "no mark")


async def test_a_search_says_how_many_of_how_many_and_filters_all_that_is_beside_it(window: Browser) -> None:
    with shown(window, crowded()) as page:
        await _drawn(page, 23)
        page.press("/", *"redis")
        await page.until(lambda: page.text("#found") == "6 of 23 containers", "the search")
        assert page.text(".tile b") == "6 of 23"
        assert page.text("#namespaces") == "data 0 of 11shop 6 of 12"
        page.press("ESCAPE", "3")
        await page.until(lambda: page.text("caption").startswith("26 places"), "all places")
        page.press("/", *"00022")
        await page.until(
            lambda: page.text("caption").startswith("3 of 26 places"), "those that hold what is found"
        )
        page.run("document.activeElement.blur()")
        for key, caption in (("2", "1 of 23 containers"), ("4", " pairs that exchange")):
            page.press(key)
            await page.until(lambda caption=caption: caption in page.text("caption, .note"), caption)
        page.run("document.getElementById('search').value = ''")


async def test_a_warning_that_comes_and_goes_leaves_the_picture_where_it_is(window: Browser) -> None:
    view = crowded()
    with shown(window, view) as page:
        await _drawn(page, 23)
        boxes = (
            "return [...document.querySelectorAll('.box')]"
            ".map((at) => JSON.stringify(at.getBoundingClientRect())).join()"
        )
        before = page.run(boxes)
        long = "the state file cannot be written: no space is left on the device; free some of it, " * 4
        view.report = {**view.report, "degraded": {"state": long}, "warnings": ["another one"]}
        await page.until(lambda: "no space is left" in page.text("#banner"), "the warning")
        assert page.run(boxes) == before
        page.run("document.getElementById('banner').focus()")  # all of it, over the picture
        assert page.run(
            "const at = document.getElementById('banner'); return at.scrollWidth <= at.clientWidth"
        )
        assert page.run(boxes) == before


async def test_a_container_of_a_node_and_an_l3_says_which_l3s_it_has(window: Browser) -> None:
    engine = engine_on(HYGON_7285_2S)
    for number, limit in enumerate((24, 16, 100)):
        run(engine, make_container("app", pod=make_pod(f"wide-{number}"), limit=limit), f"{number:064x}")
    with shown(window, OneSnapshot(engine, HYGON_7285_2S)) as page:
        await _drawn(page, 3)
        held = sorted(
            page.run("return [...document.querySelectorAll('.chip')].map((chip) => chip.textContent)")
        )
        assert held[0] == "wide-0 l3-0 – l3-2" and held[1] == "wide-1"
        page.run("document.querySelector(\".chip[aria-label*='wide-0']\").focus()")
        await page.until(lambda: page.count(".leaf.holds") == 3, "its L3s are outlined")


async def test_an_empty_node_says_the_next_command(window: Browser) -> None:
    with shown(window, OneSnapshot(busy_engine(HYGON_7285_2S, 0), HYGON_7285_2S)) as page:
        await page.until(lambda: "cri-resmgr doctor" in page.text("#empty"), "what is next")


async def test_on_a_phone_the_picture_comes_first_and_has_most_of_the_room(window: Browser) -> None:
    for view in (crowded(), OneSnapshot(busy_engine(VM_NO_CACHE_INFO, 6), VM_NO_CACHE_INFO)):
        with shown(window, view, (390, 844)) as page:
            await _drawn(page)
            _, top, _, high = _rect(page, "#stage")
            assert top < 80 and high > 844 * 0.55
            for below in ("#search", "#namespaces", "#scrub", "#lines"):
                assert _rect(page, below)[1] >= top + high
            assert page.run("return document.documentElement.scrollWidth") <= 390
            # Names, not squares: what has no room is scrolled to.
            assert not page.count("[data-density='squares']")
            assert (
                page.run(
                    "return Math.min(...[...document.querySelectorAll('.chip')].map((chip) => chip.clientWidth))"
                )
                > 30
            )


async def test_a_container_with_a_claim_says_which_cpus_are_the_claims(window: Browser) -> None:
    engine = engine_on(HYGON_7285_2S)
    prepare(engine, "a")
    run(engine, having("app", "a"), "a" * 64)
    with shown(window, OneSnapshot(engine, HYGON_7285_2S)) as page:
        await _drawn(page, 1)
        page.run("document.querySelector('.chip').click()")
        await page.until(lambda: "Claims" in page.text("#view"), "its claims")
        own = format_cpus(engine.grants["a" * 64].placement.claimed)
        assert f"CPUs {own} of l3-0" in page.text("#view")
        assert f"{own}, with its claims' other containers" in page.text("#view")
