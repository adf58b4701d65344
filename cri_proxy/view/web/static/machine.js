// The machine as boxes in boxes: where each lies, its colour, and where everything is drawn.

import { chips, tintOf } from "/chips.js";
import { loadsAt } from "/past.js";
import { known, looks, view } from "/state.js";
import { $, cores, cpusOf, element, memory, mib, path, percent, plural } from "/words.js";

// The least height of a smallest box: its name, its CPUs and two lines of containers.
const LEAST_HIGH = 84;

export const boxes = new Map(); // id -> {row, cpus: Set, at, head, cores, chips, load, asked: elements, x, y}
const cells = new Map(); // CPU -> element

export function buildMachine() {
  boxes.clear(); cells.clear(); chips.clear();
  const siblings = new Map();
  for (const core of known.machine.cores) for (const cpu of core) siblings.set(cpu, core);
  const loose = element("div", { class: "chips" });
  const whole = element("div", { class: "inside" }, ...known.machine.boxes.map((box) => build(box, siblings, 0)));
  $("machine").replaceChildren(loose, whole);
  boxes.set("", { row: null, cpus: new Set(), chips: loose });
  arrange();
}

function build(row, siblings, depth) {
  const cpus = new Set(cpusOf(row.cpus));
  const load = element("span", { class: "load" });
  const asked = element("span", { class: "asked" });
  const more = element("span", { class: "more" });
  const held = element("div", { class: "chips" });
  const fill = element("div", { class: "fill", hidden: true });
  const divided = element("span", { class: "divided", hidden: true }, "shared");
  const head = element("div", { class: "head" }, element("b", {}, row.names.join(" = ")), load, divided, more, asked);
  const at = element("section", { class: `box depth${depth}${row.inside.length ? "" : " leaf"}`, role: "group", "aria-label": row.names.join(", ") }, head);
  if (row.inside.length) {
    at.append(held, element("div", { class: "inside" }, ...row.inside.map((one) => build(one, siblings, depth + 1))));
  } else {
    const drawn = new Set();
    const all = element("div", { class: "cores", "aria-hidden": "true" });
    for (const cpu of cpus) {
      if (drawn.has(cpu)) continue;
      const core = element("span", { class: "core" });
      for (const one of siblings.get(cpu) ?? [cpu]) {
        if (!cpus.has(one)) continue;
        drawn.add(one);
        const cell = element("i", { class: "cpu" });
        cell.dataset.cpu = one;
        cells.set(one, cell);
        core.append(cell);
      }
      all.append(core);
    }
    at.append(all, fill, held);
  }
  boxes.set(row.id, { row, cpus, at, head, cores: at.querySelector(":scope > .cores"), chips: held, load, more, asked, fill, divided });
  return at;
}

// Whose lines fill an L3: a part for each container, the most first, then all others; the rest of the bar is empty. Of the past
// it is not known.
function drawFill(box) {
  const cache = view.at < 0 ? known.caches[box.row.id] : undefined;
  const sign = cache ? JSON.stringify(cache) : "";
  if (box.fill.dataset.sign === sign) return;
  box.fill.dataset.sign = sign;
  box.fill.hidden = !cache;
  if (!cache) { box.fill.replaceChildren(); return; }
  const all = cache.shares.reduce((sum, [, size]) => sum + size, cache.others ?? 0);
  const whole = Math.max(cache.size, all, 1e-9);
  const part = (size, name) => element("i", { class: name, style: { "--part": String(size / whole) } });
  const parts = cache.shares.map(([id, size]) => part(size, known.containers[id] ? `c${tintOf(known.containers[id].namespace)}` : "others"));
  box.fill.replaceChildren(...parts, ...(cache.others ? [part(cache.others, "others")] : []));
  box.fill.dataset.texts = fillTexts(cache).join("\n");
}

// "12 of 32 MiB filled", then the containers that fill most.
const MOST_TOLD = 6;

function fillTexts(cache) {
  const all = cache.shares.reduce((sum, [, size]) => sum + size, cache.others ?? 0);
  const named = cache.shares.slice(0, MOST_TOLD).map(([id, size]) => `${mib(size)} MiB ${known.containers[id] ? path(known.containers[id]) : id.slice(0, 13)}`);
  const left = cache.shares.length - named.length;
  return [`${fillText(all, cache.size)} filled`, ...named, ...(left > 0 ? [`and ${plural(left, "container")}`] : []), ...(cache.others ? [`${mib(cache.others)} MiB others`] : [])];
}

// Of an L3, "12 / 32 MiB"; "" = it is not known.
export function filledOf(id) {
  const cache = known.caches[id];
  return cache ? fillText(cache.shares.reduce((sum, [, size]) => sum + size, cache.others ?? 0), cache.size) : "";
}

const fillText = (filled, size) => (size ? `${mib(filled)} / ${mib(size)} MiB` : `${mib(filled)} MiB`);

// How boxes lie side by side: all ways are tried, and the one whose smallest boxes have the best shape is taken.
export function arrange() {
  const levels = [];
  let inside = known.machine.boxes;
  for (let level = inside; level.length; level = level.flatMap((box) => box.inside)) levels.push(level);
  const most = levels.map((level, depth) => (depth ? Math.max(...levels[depth - 1].map((box) => box.inside.length)) : level.length));
  if (!most.length) return;
  const width = $("stage").clientWidth - 20;
  const height = $("stage").clientHeight - 20;
  let best = [-Infinity, most.map(() => 1)];
  const tried = (chosen) => {
    const depth = chosen.length;
    if (depth < most.length) {
      for (let columns = 1; columns <= most[depth]; columns++)
        if (most[depth] % columns === 0 || columns * Math.ceil(most[depth] / columns) - most[depth] < columns / 2) tried([...chosen, columns]);
      return;
    }
    let wide = width, high = height, needed = LEAST_HIGH;
    chosen.forEach((columns, at) => {
      wide = wide / columns - 16;
      high = high / Math.ceil(most[at] / columns) - (at < most.length - 1 ? 34 : 10);
    });
    for (let at = most.length - 1; at >= 0; at--) needed = needed * Math.ceil(most[at] / chosen[at]) + (at ? 34 : 0);
    // What is higher than the picture is scrolled: it costs, but not as much as names that cannot be read.
    const below = Math.max(0, needed / height - 1);
    const score = Math.min(wide / 150, Math.max(high, LEAST_HIGH) / 92) - Math.min(below, 4) / 8;
    if (score > best[0]) best = [score, chosen];
  };
  tried([]);
  const set = (parent, depth) => {
    parent.style.gridTemplateColumns = `repeat(${best[1][depth]}, minmax(0, 1fr))`;
    for (const box of parent.children) {
      const within = box.querySelector(":scope > .inside");
      if (within) set(within, depth + 1);
    }
  };
  set($("machine").lastElementChild, 0);
}

// Where chips, words and CPUs are, in the picture's own coordinates: read once, after all was written. A chip that its box
// has scrolled away is at the edge where it left.
export let room = { width: 0, height: 0, words: [] };

export function measure() {
  const stage = $("stage");
  const origin = stage.getBoundingClientRect();
  const left = origin.left - stage.scrollLeft, top = origin.top - stage.scrollTop;
  const within = (rect) => ({ x: rect.left - left, y: rect.top - top, wide: rect.width, high: rect.height });
  const words = [];
  const windows = new Map(); // box id -> what of its chips is to be seen
  for (const [id, box] of boxes) {
    windows.set(id, within(box.chips.getBoundingClientRect()));
    if (!box.at) continue;
    const rect = within(box.at.getBoundingClientRect());
    box.x = rect.x + rect.wide / 2;
    box.y = rect.y + rect.high / 2;
    for (const one of [...box.head.children].filter((word) => word.textContent)) words.push(within(one.getBoundingClientRect()));
    if (box.cores) words.push(within(box.cores.getBoundingClientRect()));
    if (!box.fill.hidden) words.push(within(box.fill.getBoundingClientRect()));
  }
  for (const chip of chips.values()) {
    const rect = within(chip.at.getBoundingClientRect()), seen = windows.get(chip.box);
    const first = Math.max(rect.y, seen.y), last = Math.min(rect.y + rect.high, seen.y + seen.high);
    chip.x = rect.x + rect.wide / 2;
    chip.y = Math.max(seen.y, Math.min(seen.y + seen.high, rect.y + rect.high / 2));
    if (last > first) words.push({ ...rect, y: first, high: last - first });
  }
  room = { width: $("machine").offsetWidth + 20, height: Math.max(stage.clientHeight, $("machine").offsetHeight + 20), words };
}

// ---------------------------------------------------------------------- load

// What the colour of a box says, by its legend.
const SCALES = { load: "load, measured", filled: "filled by requests (load is not measured)", none: "load: not kept of that time" };
// From here on a box is hatched.
const FULL = 0.9;

// Where a load is measured the colour says that; where not, how much of the box requests fill. The first look at a node
// has no load yet, and the past has that of the looks that are remembered.
function scaleOf(loads) {
  if (Object.keys(loads).length || looks.length < 2) return "load";
  return view.at < 0 ? "filled" : "none";
}

function partOf(box, zone, scale, loads) {
  if (scale === "filled") return zone.allocatable ? zone.charged / zone.allocatable : null;
  if (view.at < 0) return zone.load;
  const all = [...box.cpus].map((cpu) => loads[cpu]).filter((one) => one !== undefined);
  return all.length ? all.reduce((sum, one) => sum + one, 0) / all.length : null;
}

export function colour() {
  const isPast = view.at >= 0;
  document.body.toggleAttribute("data-past", isPast);
  const loads = loadsAt();
  const scale = scaleOf(loads);
  if ($("scale").textContent !== SCALES[scale]) $("scale").textContent = SCALES[scale];
  $("fill-key").hidden = isPast || !Object.keys(known.caches).length;
  const own = new Set(cpusOf(known.node.exclusive)), reserved = new Set(cpusOf(known.node.reserved));
  for (const [cpu, cell] of cells) {
    const load = String(loads[cpu] ?? 0);
    if (cell.dataset.load !== load) { cell.dataset.load = load; cell.style.setProperty("--load", load); }
    const classes = `cpu${!isPast && own.has(cpu) ? " own" : ""}${reserved.has(cpu) ? " reserved" : ""}`;
    if (cell.className !== classes) cell.className = classes;
  }
  for (const [id, box] of boxes) {
    const zone = known.zones[id];
    if (!zone || !box.at) continue;
    const part = partOf(box, zone, scale, loads);
    const text = part === null ? "" : percent(part);
    const isOuter = box.at.classList.contains("depth0");
    const more = box.row.inside.length && zone.memory && isOuter ? ` · ${memory(zone.memory_charged)} / ${memory(zone.memory)} GiB` : "";
    const asked = isPast ? "" : `${cores(zone.charged)} / ${cores(zone.allocatable)}${isOuter ? " CPUs" : ""}${more}`;
    if (box.load.textContent !== text) box.load.textContent = text;
    if (box.asked.textContent !== asked) box.asked.textContent = asked;
    const sign = String(part);
    if (box.sign !== sign) {
      box.sign = sign;
      box.at.style.setProperty("--load", String(Math.min(1, part ?? 0)));
      box.at.classList.toggle("full", part >= FULL);
    }
    const load = part === null ? "load not known" : scale === "filled" ? `${percent(part)} filled by requests, load not measured` : `load ${percent(part)}`;
    const requested = isPast ? "" : `, ${cores(zone.charged)} of ${cores(zone.allocatable)} CPUs requested`;
    drawFill(box);
    const lines = !isPast && filledOf(id) ? `, ${filledOf(id)} of the L3 filled` : "";
    // Of the past it is not known.
    const texts = isPast ? [] : zone.divided ?? [];
    box.divided.hidden = !texts.length;
    box.divided.dataset.texts = texts.join("\n");
    const divided = texts.length ? `, shared: ${texts.join("; ")}` : "";
    const label = `${box.row.names.join(", ")}: ${load}${requested}${lines}${divided}, ${plural(box.chips.childElementCount, "container")}`;
    if (box.at.getAttribute("aria-label") !== label) box.at.setAttribute("aria-label", label);
  }
}

// ---------------------------------------------------------------------- where a container's CPUs are

// The smallest boxes that hold some of these CPUs.
export function leavesOf(cpus) {
  const wanted = new Set(cpusOf(cpus));
  return [...boxes.values()].filter((box) => box.at && !box.row.inside.length && [...box.cpus].some((cpu) => wanted.has(cpu)));
}

// Of a container in a box with others inside, which of those it has: "l3-0 – l3-2"; "" = all of them.
export function partsOf(row) {
  const box = boxes.get(row.box);
  if (!row.cpus || (box?.row && !box.row.inside.length)) return "";
  const all = [...boxes.values()].filter((one) => one.at && !one.row.inside.length && (!box?.at || box.at.contains(one.at)));
  const held = leavesOf(row.cpus);
  if (held.length === all.length) return "";
  const runs = [];
  for (const leaf of held) {
    const at = all.indexOf(leaf);
    if (runs.at(-1)?.last === at - 1) runs.at(-1).last = at;
    else runs.push({ first: at, last: at });
  }
  return runs.map(({ first, last }) => [all[first], all[last]].slice(0, last > first ? 2 : 1).map((leaf) => leaf.row.names[0]).join(" – ")).join(", ");
}
