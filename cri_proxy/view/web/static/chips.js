// Containers as chips, each in the smallest box that holds its CPUs.

import { boxes, measure, partsOf } from "/machine.js";
import { containersAt } from "/past.js";
import { hasWords, isFiltered, known, matches, ofAll, view } from "/state.js";
import { $, byPath, cutInside, element, nameParts, natural, path, plural } from "/words.js";

// A hub has more peers than this: its lines are drawn one a box, not one a peer.
export const HUB = 8;
// A smallest box with more containers than this shows a square each: names are for those that can be read in it.
const MOST_NAMES = 24;

export let shown = {}; // the containers of the moment that is shown
export const chips = new Map(); // container id -> {at: element, row, box, name, x, y}

const spaces = new Map(); // namespace -> index of its colour

export function tintOf(namespace) {
  if (!spaces.has(namespace)) spaces.set(namespace, spaces.size % 8);
  return spaces.get(namespace);
}

function drawNamespaces() {
  const counts = new Map(); // namespace -> [found by the words of the search, all]
  for (const row of Object.values(shown)) {
    const count = counts.get(row.namespace) ?? counts.set(row.namespace, [0, 0]).get(row.namespace);
    count[0] += hasWords(row);
    count[1]++;
  }
  const names = [...counts.keys()].sort(natural);
  names.forEach(tintOf);
  const told = (name) => `${name} ${ofAll(...counts.get(name))}`;
  const sign = names.map(told).join() + [...view.spaces];
  if ($("namespaces").dataset.sign === sign) return;
  $("namespaces").dataset.sign = sign;
  const held = document.activeElement?.dataset?.space;
  $("namespaces").replaceChildren(...names.map((name) => {
    const button = element("button", { type: "button", class: `c${tintOf(name)}`, "aria-pressed": String(view.spaces.has(name)) }, told(name));
    button.dataset.space = name;
    return button;
  }));
  if (held) document.querySelector(`[data-space="${CSS.escape(held)}"]`)?.focus();
}

export function placeChips() {
  shown = view.at < 0 ? known.containers : containersAt(view.at);
  // 1. Chips of containers that are not there.
  for (const [id, chip] of chips) if (!(id in shown)) { chip.at.remove(); chips.delete(id); }
  drawNamespaces();
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const wanted = new Map(); // box id -> [[sort key, chip]]
  const alone = new Map(); // pod -> its containers
  for (const row of Object.values(shown)) alone.set(`${row.namespace}/${row.pod}`, (alone.get(`${row.namespace}/${row.pod}`) ?? 0) + 1);
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
      chip.at.setAttribute("aria-label", `${path(row)}, ${row.box || "several sockets"}, ${row.cpus || "all"} CPUs${row.own ? ", exclusive" : ""}`);
    }
    chip.box = box;
    chip.name = nameParts(row, alone.get(`${row.namespace}/${row.pod}`) === 1);
    const parts = partsOf(row);
    const label = [...chip.name, parts].join("\n");
    if (chip.label !== label) {
      chip.label = label;
      chip.at.replaceChildren(...cutInside(chip.name), ...(parts ? [element("span", { class: "parts" }, ` ${parts}`)] : []));
    }
    (wanted.get(box) ?? wanted.set(box, []).get(box)).push([`${matches(row) ? 0 : 1} ${row.own ? 0 : 1} ${path(row)}`, chip.at]); // found ones first
  }
  // 2. Each box has its own, in order.
  for (const [id, box] of boxes) {
    const ordered = (wanted.get(id) ?? []).sort(byPath).map(([, one]) => one);
    const now = box.chips.children;
    if (ordered.length !== now.length || ordered.some((one, index) => now[index] !== one)) box.chips.replaceChildren(...ordered);
  }
  mark();
  fit();
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
  $("found").textContent = isFiltered() ? `${count} of ${plural(chips.size, "container")}` : "";
}

// As many words as each box has room for, box by box: whole names, names in narrow lines, in columns, which are scrolled
// where there are still more. Names are cut in their middle. All is written before any is measured.
const DENSITIES = ["full", "lines", "columns"];

function fit() {
  // A box with the same names in the same room stays as it is, as far as it is scrolled, too.
  const signOf = (one) => [one.clientWidth, one.closest(".leaf") && one.clientHeight, one.textContent].join();
  const held = [...boxes.values()].map((box) => box.chips).filter((one) => one.childElementCount && one.dataset.sign !== signOf(one));
  const overOf = (some) => some.filter((one) => one.scrollHeight > one.clientHeight + 1);
  const many = held.filter((one) => one.closest(".leaf") && one.childElementCount > MOST_NAMES);
  for (const one of many) one.dataset.density = "squares";
  let left = held.filter((one) => !many.includes(one));
  for (const density of DENSITIES) {
    for (const one of left) one.dataset.density = density;
    left = overOf(left);
  }
  const isOver = new Set(overOf([...boxes.values()].map((box) => box.chips)));
  for (const box of boxes.values()) {
    box.chips.classList.toggle("over", isOver.has(box.chips));
    const more = isOver.has(box.chips) ? `${box.chips.childElementCount} ▾` : "";
    if (box.more && box.more.textContent !== more) box.more.textContent = more;
  }
  for (const one of held) one.dataset.sign = signOf(one);
  measure();
}
