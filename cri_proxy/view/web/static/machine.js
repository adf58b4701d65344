// The machine as boxes in boxes, and containers as chips in them.

import { containersAt, loadsAt } from "/past.js";
import { isFiltered, known, matches, view } from "/state.js";
import { $, byPath, cores, cpusOf, element, memory, natural, path, percent, short } from "/words.js";

// A hub has more peers than this: its lines are drawn one a box, not one a peer.
export const HUB = 8;

export let shown = {}; // the containers of the moment that is shown
export const boxes = new Map(); // id -> {row, cpus: Set, at: element, chips: element, load: element, asked: element}
export const cells = new Map(); // CPU -> element
export const chips = new Map(); // container id -> {at: element, row, box, x, y}

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
  const held = element("div", { class: "chips" });
  const at = element("section", { class: `box depth${depth}${row.inside.length ? "" : " leaf"}`, role: "group", "aria-label": row.names.join(", ") },
    element("div", { class: "head" }, element("b", {}, row.names.join(" = ")), load, asked));
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
    at.append(all, held);
  }
  boxes.set(row.id, { row, cpus, at, chips: held, load, asked });
  return at;
}

// How boxes lie side by side: all ways are tried, and the one whose smallest boxes have the best shape is taken.
export function arrange() {
  const levels = [];
  let inside = known.machine.boxes;
  for (let level = inside; level.length; level = level.flatMap((box) => box.inside)) levels.push(level);
  const most = levels.map((level, depth) => (depth ? Math.max(...levels[depth - 1].map((box) => box.inside.length)) : level.length));
  if (!most.length) return;
  const width = $("stage").clientWidth - 20;
  const height = $("stage").clientHeight - 20;
  let best = [-1, most.map(() => 1)];
  const tried = (chosen) => {
    const depth = chosen.length;
    if (depth < most.length) {
      for (let columns = 1; columns <= most[depth]; columns++)
        if (most[depth] % columns === 0 || columns * Math.ceil(most[depth] / columns) - most[depth] < columns / 2) tried([...chosen, columns]);
      return;
    }
    let wide = width, high = height;
    chosen.forEach((columns, at) => {
      wide = wide / columns - 16;
      high = high / Math.ceil(most[at] / columns) - (at < most.length - 1 ? 34 : 10);
    });
    const score = wide < 60 ? wide - 1000 : Math.min(wide / 150, Math.max(high, 20) / 92);
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

const spaces = new Map(); // namespace -> index of its colour

function tintOf(namespace) {
  if (!spaces.has(namespace)) spaces.set(namespace, spaces.size % 8);
  return spaces.get(namespace);
}

function drawNamespaces() {
  const counts = new Map();
  for (const row of Object.values(shown)) counts.set(row.namespace, (counts.get(row.namespace) ?? 0) + 1);
  const names = [...counts.keys()].sort(natural);
  names.forEach(tintOf);
  const sign = names.map((name) => `${name} ${counts.get(name)}`).join() + [...view.spaces];
  if ($("namespaces").dataset.sign === sign) return;
  $("namespaces").dataset.sign = sign;
  const held = document.activeElement?.dataset?.space;
  $("namespaces").replaceChildren(...names.map((name) => {
    const button = element("button", { type: "button", class: `c${tintOf(name)}`, "aria-pressed": String(view.spaces.has(name)) }, `${name} ${counts.get(name)}`);
    button.dataset.space = name;
    return button;
  }));
  if (held) document.querySelector(`[data-space="${CSS.escape(held)}"]`)?.focus();
}

export function placeChips(isNew) {
  shown = view.at < 0 ? known.containers : containersAt(view.at);
  // 1. Chips of containers that are not there.
  for (const [id, chip] of chips) if (!(id in shown)) { chip.at.remove(); chips.delete(id); }
  drawNamespaces();
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const wanted = new Map(); // box id -> [[sort key, chip]]
  const left = []; // chips that are in another box now: where they were
  for (const [id, row] of Object.entries(shown)) {
    const box = boxes.has(row.box) ? row.box : "";
    let chip = chips.get(id);
    if (!chip) {
      const at = element("button", { type: "button", tabIndex: -1 });
      at.dataset.id = id;
      chips.set(id, (chip = { at, box: null }));
    } else if (chip.box !== box && !isStill) left.push([chip, chip.at.getBoundingClientRect()]);
    if (chip.row !== row) {
      chip.row = row;
      if (chip.at.textContent !== short(row)) chip.at.textContent = short(row);
      chip.at.setAttribute("aria-label", `${path(row)}, ${row.box || "several sockets"}, ${row.cpus || "all"} CPUs${row.own ? ", exclusive" : ""}`);
    }
    chip.box = box;
    (wanted.get(box) ?? wanted.set(box, []).get(box)).push([`${row.own ? 0 : 1} ${path(row)}`, chip.at]);
  }
  // 2. Each box has its own, in order.
  for (const [id, box] of boxes) {
    const ordered = (wanted.get(id) ?? []).sort(byPath).map(([, one]) => one);
    const now = box.chips.children;
    if (ordered.length !== now.length || ordered.some((one, index) => now[index] !== one)) box.chips.replaceChildren(...ordered);
  }
  mark();
  fit(isNew);
  // 3. A container that was moved is seen to move.
  for (const [chip, was] of left) {
    const now = chip.at.getBoundingClientRect();
    chip.at.animate([{ transform: `translate(${was.x - now.x}px, ${was.y - now.y}px)`, zIndex: 3 }, { transform: "none" }], { duration: 450, easing: "ease-in-out" });
    chip.at.animate([{ outline: "3px solid var(--accent)" }, { outline: "3px solid transparent" }], { duration: 3000 });
  }
  const current = chips.get(view.chosen) ?? chips.values().next().value;
  for (const chip of chips.values()) chip.at.tabIndex = chip === current ? 0 : -1;
}

// Classes that follow from what is chosen and searched.
function mark() {
  const near = new Set();
  const peers = new Map();
  for (const edge of Object.values(known.edges)) {
    peers.set(edge.a, (peers.get(edge.a) ?? 0) + 1);
    peers.set(edge.b, (peers.get(edge.b) ?? 0) + 1);
    if (edge.a === view.chosen) near.add(edge.b);
    if (edge.b === view.chosen) near.add(edge.a);
  }
  let count = 0;
  for (const [id, chip] of chips) {
    const row = chip.row;
    const isFound = matches(row);
    if (isFound) count++;
    const isNear = id === view.chosen || near.has(id);
    const isDim = !isNear && (!isFound || (view.chosen in shown && near.size > 0 && !isFiltered()));
    const classes = `chip c${tintOf(row.namespace)}${row.own ? " own" : ""}${isDim ? " dim" : ""}${id === view.chosen ? " chosen" : ""}` +
      `${near.has(id) ? " peer" : ""}${(peers.get(id) ?? 0) > HUB ? " hub" : ""}${row.gone ? " gone" : ""}${row.unsure ? " unsure" : ""}`;
    if (chip.at.className !== classes) chip.at.className = classes;
  }
  $("found").textContent = isFiltered() ? `${count} of ${chips.size}` : "";
}

// As many words as there is room for: whole names, short ones, their beginnings, a square each. Looked at anew where
// the room or the number of containers is another one; not while the past is gone through, where it would flicker.
const DENSITIES = ["full", "short", "brief", "stub", "tiny", "dense"];

function fit(isNew) {
  const stage = $("stage");
  const sign = `${stage.clientWidth} ${stage.clientHeight} ${Math.round(chips.size / 5)}`;
  const isOver = () => stage.scrollHeight > stage.clientHeight + 2;
  if (isNew || (view.at < 0 && stage.dataset.sign !== sign)) {
    stage.dataset.sign = sign;
    for (const density of DENSITIES) {
      stage.dataset.density = density;
      if (!isOver()) break;
    }
  } else if (stage.dataset.density !== "dense" && isOver()) {
    stage.dataset.density = "dense";
  }
  measure();
}

// Where each chip is, in the picture's own coordinates: read once, after all was written.
export let room = { width: 0, height: 0 };

function measure() {
  const stage = $("stage");
  const origin = stage.getBoundingClientRect();
  const left = origin.left - stage.scrollLeft, top = origin.top - stage.scrollTop;
  for (const chip of chips.values()) {
    const rect = chip.at.getBoundingClientRect();
    chip.x = rect.left - left + rect.width / 2;
    chip.y = rect.top - top + rect.height / 2;
    chip.wide = rect.width / 2;
  }
  for (const box of boxes.values()) {
    if (!box.at) continue;
    const rect = box.at.getBoundingClientRect();
    box.x = rect.left - left + rect.width / 2;
    box.y = rect.top - top + rect.height / 2;
  }
  room = { width: $("machine").offsetWidth + 20, height: Math.max(stage.clientHeight, $("machine").offsetHeight + 20) };
}

export function colour() {
  const isPast = view.at >= 0;
  document.body.toggleAttribute("data-past", isPast);
  const now = loadsAt();
  const has = Object.keys(now).length > 0;
  const own = new Set(cpusOf(known.node.exclusive)), reserved = new Set(cpusOf(known.node.reserved));
  for (const [cpu, cell] of cells) {
    const load = String(now[cpu] ?? 0);
    if (cell.dataset.load !== load) { cell.dataset.load = load; cell.style.setProperty("--load", load); }
    const classes = `cpu${!isPast && own.has(cpu) ? " own" : ""}${reserved.has(cpu) ? " reserved" : ""}`;
    if (cell.className !== classes) cell.className = classes;
  }
  for (const [id, box] of boxes) {
    const zone = known.zones[id];
    if (!zone || !box.at) continue;
    let load = zone.load;
    if (isPast) {
      const all = [...box.cpus].map((cpu) => now[cpu]).filter((one) => one !== undefined);
      load = all.length ? all.reduce((sum, one) => sum + one, 0) / all.length : null;
    }
    const text = has ? percent(load) : "";
    if (box.load.textContent !== text) {
      box.load.textContent = text;
      box.at.style.setProperty("--load", String(load ?? 0));
    }
    const more = box.row.inside.length && zone.memory && box.at.classList.contains("depth0") ? ` · ${memory(zone.memory_charged)} / ${memory(zone.memory)} GiB` : "";
    const asked = isPast ? "" : `${cores(zone.charged)} / ${cores(zone.allocatable)}${box.at.classList.contains("depth0") ? " CPUs" : ""}${more}`;
    if (box.asked.textContent !== asked) {
      box.asked.textContent = asked;
      box.at.setAttribute("aria-label", `${box.row.names.join(", ")}: load ${percent(zone.load)}, ${asked} CPUs asked for`);
    }
  }
}
