// The node as a picture: what is drawn when, and what keys and pointers do.

import { choose, explain } from "/container.js";
import { drawLines, repaint } from "/lines.js";
import { chips, placeChips, shown } from "/chips.js";
import { arrange, boxes, buildMachine, colour, leavesOf, measure } from "/machine.js";
import { forgetPast, loadsAt } from "/past.js";
import { draw, drawnBy, known, looks, matches, old, view } from "/state.js";
import { follow, link, trouble } from "/stream.js";
import { TABLES, drawPanel, openPanel } from "/tables.js";
import { drawTimeline, show, stepBy } from "/timeline.js";
import { $, clock, element, natural, path, percent } from "/words.js";

function frame(changed) {
  drawHead();
  if (!known) return;
  if (changed.past) forgetPast();
  if (changed.machine) buildMachine();
  if (changed.machine || changed.chips || (changed.past && view.at >= 0)) placeChips();
  else if (changed.room) measure();
  colour();
  outline();
  if (changed.machine || changed.chips || changed.lines || changed.past || changed.room) drawLines();
  if (changed.past || changed.moment) drawTimeline();
  drawPanel();
}

drawnBy(frame);

function drawHead() {
  const node = known?.node ?? { host: "cri-resmgr", degraded: [], warnings: [] };
  const text = [node.host, node.mode, node.policy, node.version].filter(Boolean).join(" · ");
  if ($("node").textContent !== text) $("node").textContent = text;
  document.title = `${node.host} – cri-resmgr`;
  const wrong = [awayText(), ...oldTexts(), ...node.degraded, ...node.warnings].filter(Boolean);
  document.body.dataset.old = Object.keys(old()).join(" ");
  $("banner").hidden = !wrong.length;
  const said = wrong.join(" – ");
  if ($("banner").textContent !== said) $("banner").textContent = said;
  drawEmpty();
}

// What to do about a picture with nothing in it.
function drawEmpty() {
  const isBare = known?.machine.boxes.length === 0;
  const isEmpty = known && !isBare && !Object.keys(known.containers).length;
  $("empty").hidden = known !== null && !isBare && !isEmpty;
  const sign = isBare ? "bare" : isEmpty ? "empty" : "";
  if ($("empty").dataset.sign === sign) return;
  $("empty").dataset.sign = sign;
  const next = (command, what) => element("p", {}, element("code", {}, command), ` ${what}`);
  if (isBare) $("empty").replaceChildren(element("p", {}, "The daemon has no machine to show yet."), next("cri-resmgr doctor", "says why."));
  else if (isEmpty) $("empty").replaceChildren(element("p", {}, "No container is on this node yet, or none has come by cri-resmgr."),
    next("cri-resmgr doctor", "says whether kubelet's containers come this way."), next("cri-resmgr adopt --all", "places those that ran before."));
}

// The boxes that hold the CPUs of a container in several, while it is pointed at or chosen.
function outline() {
  const looked = shown[view.hovered] ?? shown[view.chosen];
  const held = new Set(looked ? leavesOf(looked.cpus) : []);
  for (const box of boxes.values()) box.at?.classList.toggle("holds", held.size > 1 && held.has(box));
}

const when = (seconds) => clock.format(seconds * 1000);

// Since when nothing that is shown is of now, and why.
function awayText() {
  if (document.body.dataset.link !== "away") return "";
  const why = trouble || `The page's server is not heard: ${$("link-text").textContent}.`;
  return `${why} ${known ? `What is shown is of ${when(looks.at(-1).at)}; it` : "It"} is asked again.`;
}

const OLD = { traffic: "Traffic is", containers: "Containers' states are", plan: "What the last plan has found is" };

function oldTexts() {
  return Object.entries(old()).map(([what, { since, why }]) => `${OLD[what] ?? what} of ${since === null ? "before the daemon's start" : when(since)}: ${why}.`);
}

// ---------------------------------------------------------------------- hands

function look(words) {
  view.words = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (known) draw("chips", "lines", "moment");
}

function turn(theme) {
  document.documentElement.dataset.theme = theme;
  repaint();
  if (known) draw("lines", "past");
}

const isDark = matchMedia("(prefers-color-scheme: dark)");
let themeChosen = localStorage.getItem("cri-resmgr-theme");
turn(themeChosen ?? (isDark.matches ? "dark" : "light"));
isDark.addEventListener("change", () => themeChosen ?? turn(isDark.matches ? "dark" : "light"));

function otherTheme() {
  themeChosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("cri-resmgr-theme", themeChosen);
  turn(themeChosen);
}

function lines() {
  view.lines = !view.lines;
  $("lines").setAttribute("aria-pressed", String(view.lines));
  draw("lines");
}

function toTable(name) {
  view.table = name;
  view.chosen = "";
  openPanel(true);
  draw("chips", "lines");
}

$("search").addEventListener("input", (event) => look(event.target.value));
$("scrub").addEventListener("input", (event) => show(Number(event.target.value)));
$("back").addEventListener("click", () => stepBy(-1));
$("forth").addEventListener("click", () => stepBy(1));
$("live").addEventListener("click", () => show(-1));
$("theme").addEventListener("click", otherTheme);
$("lines").addEventListener("click", lines);
$("drawer").addEventListener("click", () => openPanel(document.body.dataset.drawer !== "open"));
$("help-button").addEventListener("click", () => $("help").showModal());
$("namespaces").addEventListener("click", (event) => {
  const name = event.target.dataset?.space;
  if (name === undefined) return;
  if (!view.spaces.delete(name)) view.spaces.add(name);
  draw("chips", "lines", "moment");
});
document.querySelector("[role=tablist]").addEventListener("click", (event) => event.target.dataset.view && toTable(event.target.dataset.view));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const names = Object.keys(TABLES);
  toTable(names[(names.indexOf(view.table) + by + names.length) % names.length]);
  $(`tab-${view.table}`).focus();
});
$("machine").addEventListener("click", (event) => {
  const id = event.target.closest(".chip")?.dataset.id ?? "";
  choose(id === view.chosen ? "" : id);
});

// From chip to chip by where they are.
$("machine").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const from = chips.get(event.target.dataset?.id);
  if (!way || !from) return;
  event.preventDefault();
  let best = null;
  for (const chip of chips.values()) {
    const along = (chip.x - from.x) * way[0] + (chip.y - from.y) * way[1];
    const aside = Math.abs((chip.x - from.x) * way[1]) + Math.abs((chip.y - from.y) * way[0]);
    if (along > 2 && (!best || along + aside * 3 < best[0])) best = [along + aside * 3, chip];
  }
  if (!best) return;
  from.at.tabIndex = -1;
  best[1].at.tabIndex = 0;
  best[1].at.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || $("help").open || !$("gate").hidden) return;
  const isTyping = event.target.matches?.("input[type=search]");
  if (event.key === "Escape") {
    if (isTyping) { event.target.value = ""; look(""); event.target.blur(); }
    else if (view.chosen) choose("");
    else if (view.spaces.size || view.words.length) { view.spaces.clear(); $("search").value = ""; look(""); }
    else show(-1);
    return;
  }
  if (isTyping) {
    if (event.key === "Enter") {
      const first = [...chips.entries()].filter(([, chip]) => matches(chip.row)).sort((a, b) => natural(path(a[1].row), path(b[1].row)))[0];
      if (first) choose(first[0]);
    }
    return;
  }
  const tables = Object.keys(TABLES);
  const keys = {
    "/": () => { $("search").focus(); $("search").select(); }, "?": () => $("help").showModal(),
    "[": () => stepBy(-1), "]": () => stepBy(1), l: () => show(-1), t: otherTheme, e: lines,
    p: () => openPanel(document.body.dataset.drawer !== "open"),
  };
  if (event.key in tables.map((_, index) => index + 1).reduce((all, one) => ({ ...all, [one]: true }), {})) toTable(tables[event.key - 1]);
  else if (keys[event.key] && known) keys[event.key]();
  else return;
  event.preventDefault();
});

// What a chip, a CPU or the lines in an L3 are, beside the pointer or the focus.
function tip(target) {
  const chip = chips.get(target?.closest?.(".chip")?.dataset.id);
  const cpu = target?.dataset?.cpu;
  const fill = target?.closest?.(".fill, .divided")?.dataset.texts;
  const texts = chip ? [path(chip.row), `${chip.row.box || "several sockets"}, ${chip.row.own ? "exclusive " : ""}CPUs ${chip.row.cpus || "all"}, request ${chip.row.milli}m`, chip.row.unsure ? "Where it was at that time is not kept." : chip.row.gone ? "It has gone since; when is not kept." : chip.row.why]
    : cpu !== undefined ? [`CPU ${cpu}`, `load ${percent(loadsAt()[cpu])}`] : fill ? fill.split("\n") : [];
  const box = $("tip");
  box.hidden = !texts.length;
  if (!texts.length) return;
  box.replaceChildren(...texts.filter(Boolean).map((text) => element("p", {}, text)));
  const near = target.getBoundingClientRect();
  box.style.left = `${Math.max(6, Math.min(near.left, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${near.bottom + 8 + box.offsetHeight > innerHeight ? near.top - box.offsetHeight - 6 : near.bottom + 6}px`;
}
function point(target) {
  tip(target);
  const id = target?.closest?.(".chip")?.dataset.id ?? "";
  if (id === view.hovered) return;
  view.hovered = id;
  if (known) draw("lines");
}
$("stage").addEventListener("pointerover", (event) => point(event.target));
$("stage").addEventListener("pointerleave", () => point(null));
$("stage").addEventListener("focusin", (event) => point(event.target));
$("stage").addEventListener("focusout", () => point(null));

// What a box scrolls is elsewhere then. Scrolling does not bubble.
$("machine").addEventListener("scroll", () => draw("room"), { capture: true, passive: true });

new ResizeObserver(() => {
  if (!known) return;
  arrange();
  draw("chips", "lines", "moment");
}).observe($("stage"));

openPanel(innerWidth > 1000);
setInterval(() => known && view.explained && !view.explained.problem && view.at < 0 && explain(view.chosen), 5000);
link("away", "connecting");
follow();
