// The node as a picture. What there is comes as events (state, delta, trouble) over one request; nothing is ever sent
// but questions. Everything of the node is written as text (textContent): the policy of this page allows no other way.
//
// Parts, in this order: what is known; the stream; moments of the past; the machine; lines; timeline; panel; keys.

const $ = (id) => document.getElementById(id);

// A hub has more peers than this: its lines are drawn one a box, not one a peer.
const HUB = 8;
// So many pairs have a line of their own; the others are told by one line between their boxes, as wide as all of them.
const MOST_LINES = 48;
// Rows of a table that are shown; a search narrows it.
const MOST_ROWS = 150;
// Looks that are remembered for the loads of the past: as many seconds, with the interval as it comes.
const MOST_LOOKS = 900;
const ENDS = new Set(["exit", "removal", "end of the pod", "end of a hold", "refused request"]);
const FAR = ["same L3", "same NUMA node", "same socket", "farther"];

// ---------------------------------------------------------------------- what is known

let known = null; // sections of rows by id, as the server has them
let looks = []; // {at, cpus}: loads of the last looks
const view = {
  chosen: "", hovered: "", words: [], spaces: new Set(), at: -1, // at: index of a decision, -1 = live
  table: "overview", sort: {}, lines: true, explained: null,
};

function apply(change) {
  for (const [section, keys] of Object.entries(change.gone ?? {}))
    for (const key of keys) delete known[section][key];
  for (const [section, rows] of Object.entries(change.set ?? {})) Object.assign(known[section], rows);
}

function element(tag, properties = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "role") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...inside.filter((one) => one !== null));
  return made;
}

const path = (row) => `${row.namespace}/${row.pod}/${row.name}`;
const short = (row) => (row.name === "app" || row.pod.includes(row.name) ? row.pod : row.name);
const percent = (part) => (part === null || part === undefined ? "–" : `${Math.round(part * 100)} %`);
const cores = (milli) => `${+(milli / 1000).toFixed(1)}`;
const byPath = (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const natural = new Intl.Collator("en", { numeric: true }).compare;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

function bytes(rate) {
  for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]])
    if (rate >= size) return `${(rate / size).toFixed(1)} ${unit}`;
  return `${Math.round(rate)} B/s`;
}

function memory(size) {
  const gib = size / 2 ** 30;
  return gib >= 10 || gib === 0 ? gib.toFixed(0) : gib.toFixed(1);
}

function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
}

// A list of CPUs as the kernel writes it: "0-3,64".
function cpusOf(text) {
  const found = [];
  for (const part of text.split(",")) {
    if (!part) continue;
    const [first, last] = part.split("-").map(Number);
    for (let cpu = first; cpu <= (last ?? first); cpu++) found.push(cpu);
  }
  return found;
}

// ---------------------------------------------------------------------- the stream

const TOKEN = "cri-resmgr-token";

function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", location.pathname); // not in the history, nor in a picture of the window
  }
  return sessionStorage.getItem(TOKEN) ?? "";
}

function link(state, text) {
  document.body.dataset.link = state;
  if ($("link-text").textContent !== text) $("link-text").textContent = text;
}

let waits = 250;
let trouble = ""; // why the daemon is not heard

// EventSource can send no header, and a token in an address would be logged: the same format, by fetch.
async function follow() {
  for (;;) {
    try {
      const answer = await fetch("/api/events", { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" });
      if (answer.status === 401) return gate(token() ? "That is not the token of this server." : "");
      if (!answer.ok) throw new Error((await answer.text()).trim());
      await read(answer.body);
      link("away", "connection lost, trying again");
    } catch (error) {
      link("away", error instanceof TypeError ? "no connection, trying again" : error.message);
    }
    await new Promise((done) => setTimeout(done, waits));
    waits = Math.min(waits * 2, 5000);
  }
}

async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const found = /^event: (\w+)\ndata: (.*)$/.exec(event);
      if (found) heard(found[1], JSON.parse(found[2]));
    }
  }
}

function heard(name, data) {
  waits = 250;
  if (name === "trouble") {
    link("away", "daemon away");
    trouble = data.text;
    drawHead();
    return;
  }
  trouble = "";
  const { at, ...change } = data;
  const before = known && known.node.instance;
  if (name === "state") {
    // A page that has looked back stays where it is, as far as that is still known.
    const number = view.at < 0 || !known ? "" : decisions()[view.at];
    known = change;
    changed = { machine: true, chips: true, lines: true, past: true };
    view.at = number ? decisions().indexOf(number) : -1;
  } else {
    apply(change);
    note(change);
  }
  if (before && known.node.instance !== before) say("The daemon was started anew.");
  looks.push({ at, cpus: { ...known.cpus } });
  if (looks.length > MOST_LOOKS) looks.shift();
  link("live", "live");
  draw();
}

// ---------------------------------------------------------------------- what has to be drawn anew

let changed = { machine: true, chips: true, lines: true, past: true };
let isDrawn = true; // a frame is not asked for yet

function note(change) {
  const sections = new Set([...Object.keys(change.set ?? {}), ...Object.keys(change.gone ?? {})]);
  if (sections.has("machine")) changed.machine = true;
  if (sections.has("containers")) changed.chips = true;
  if (sections.has("edges")) changed.lines = true;
  if (sections.has("decisions")) changed.past = true;
}

function draw(...parts) {
  for (const part of parts) changed[part] = true;
  if (!isDrawn) return;
  isDrawn = false;
  requestAnimationFrame(frame);
}

function frame() {
  isDrawn = true;
  if (!known) return;
  const began = performance.now();
  if (changed.past) { pastOf = null; }
  if (changed.machine) buildMachine();
  if (changed.machine || changed.chips || (changed.past && view.at >= 0)) placeChips();
  colour();
  if (changed.machine || changed.chips || changed.lines || changed.past) drawLines();
  if (changed.past || changed.moment) drawTimeline();
  changed = {};
  drawHead();
  drawPanel();
  // For the bench: how long each of the last frames took here.
  (window.frames_ms ??= []).push(performance.now() - began);
  if (window.frames_ms.length > 2000) window.frames_ms.shift();
}
window.draw_now = frame;

function drawHead() {
  const node = known?.node ?? { host: "cri-resmgr", degraded: [], warnings: [] };
  const text = [node.host, node.mode, node.policy, node.version].filter(Boolean).join(" · ");
  if ($("node").textContent !== text) $("node").textContent = text;
  document.title = `${node.host} – cri-resmgr`;
  const away = trouble && `${trouble} ${known ? "What is shown is what was last seen; it" : "It"} is asked again.`;
  const wrong = [away, ...node.degraded, ...node.warnings].filter(Boolean);
  $("banner").hidden = !wrong.length;
  const said = wrong.join(" – ");
  if ($("banner").textContent !== said) $("banner").textContent = said;
  const isEmpty = known?.machine.boxes.length === 0;
  $("empty").hidden = known !== null && !isEmpty;
  if (isEmpty) $("empty").textContent = "The daemon has no machine to show yet.";
}

// ---------------------------------------------------------------------- moments of the past

let pastOf = null; // {numbers: keys of decisions in the order of time, events: Map of container id -> [[index, operation, cpus, level, why]]}

function decisions() {
  return history_().numbers;
}

function history_() {
  if (pastOf) return pastOf;
  const rows = known.decisions;
  const numbers = Object.keys(rows).sort((a, b) => rows[a].at - rows[b].at || rows[a].number - rows[b].number);
  const named = new Map(); // path -> the container of that name that was created last
  const events = new Map();
  const add = (id, ...event) => (events.get(id) ?? events.set(id, []).get(id)).push(event);
  numbers.forEach((number, index) => {
    const row = rows[number];
    if (row.operation === "create" && row.container) {
      const before = named.get(row.container);
      if (before && before !== row.id) add(before, index, "exit"); // its next attempt
      named.set(row.container, row.id);
    }
    for (const change of row.changes) for (const id of change.ids) add(id, index, change.operation, change.cpus, change.level, change.why);
    const isOwn = row.changes.some((change) => change.ids.includes(row.id));
    if (row.id && !isOwn) add(row.id, index, row.operation, row.cpus, row.level, row.why, row.container);
  });
  pastOf = { numbers, events };
  return pastOf;
}

// Which containers there were after a decision, and where. Of a container that was there before all that is kept the
// place is not known until it first changes: it is shown where it is now, as unsure; one that has gone without a
// decision of its own is shown as gone, since its end is not known.
function containersAt(index) {
  const found = {};
  const { numbers, events } = history_();
  const boot = known.decisions[numbers[index]].boot;
  for (const [id, row] of Object.entries(known.containers)) {
    const own = events.get(id);
    if (!own) { found[id] = row; continue; }
    const last = own.filter(([when]) => when <= index).at(-1);
    if (last) { if (!ENDS.has(last[1])) found[id] = moved(row, last); }
    else if (own[0][1] !== "create") found[id] = { ...row, unsure: true };
  }
  for (const [id, own] of events) {
    if (id in known.containers) continue;
    const last = own.filter(([when]) => when <= index).at(-1);
    const named = own.find((event) => event[5]);
    if (!last || !named || ENDS.has(last[1])) continue;
    if (known.decisions[numbers[last[0]]].boot !== boot) continue; // a reboot ends all
    const [namespace, pod, ...name] = named[5].split("/");
    const hasEnd = own.some(([when, operation]) => when > index && ENDS.has(operation));
    const row = { namespace, pod, name: name.join("/"), own: false, milli: 0, mems: "", qos: "", state: "gone", gone: !hasEnd };
    found[id] = moved(row, last);
  }
  return found;
}

function moved(row, [, , cpus, level, why]) {
  return cpus === row.cpus ? row : { ...row, cpus, level, why: why || row.why, box: boxAround(cpus) };
}

function boxAround(text) {
  const cpus = cpusOf(text);
  let around = "";
  let inside = known.machine.boxes;
  for (;;) {
    const box = inside.find((one) => cpus.length && cpus.every((cpu) => boxes.get(one.id).cpus.has(cpu)));
    if (!box) return around;
    around = box.id;
    inside = box.inside;
  }
}

let shown = {}; // the containers of the moment that is shown

function loadsAt() {
  if (view.at < 0) return known.cpus;
  const at = known.decisions[decisions()[view.at]].at;
  const after = looks.find((look) => look.at >= at);
  return after && after.at - at < 5 ? after.cpus : {};
}

// ---------------------------------------------------------------------- the machine

const boxes = new Map(); // id -> {row, cpus: Set, at: element, chips: element, load: element, asked: element}
const cells = new Map(); // CPU -> element
const chips = new Map(); // container id -> {at: element, row, box, x, y}

function buildMachine() {
  boxes.clear(); cells.clear(); chips.clear(); distances.clear();
  const siblings = new Map();
  for (const core of known.machine.cores) for (const cpu of core) siblings.set(cpu, core);
  const loose = element("div", { class: "chips" });
  const whole = element("div", { class: "inside" }, ...known.machine.boxes.map((box) => build(box, siblings, 0)));
  $("machine").replaceChildren(loose, whole);
  boxes.set("", { row: null, cpus: new Set(), chips: loose });
  arrange();
  changed.chips = true;
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
function arrange() {
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

function matches(row) {
  if (view.spaces.size && !view.spaces.has(row.namespace)) return false;
  if (!view.words.length) return true;
  const text = `${path(row)} ${row.box || "machine"} ${row.level} ${row.state}`.toLowerCase();
  return view.words.every((word) => text.includes(word));
}

const isFiltered = () => view.words.length > 0 || view.spaces.size > 0;

function placeChips() {
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
  $("found").textContent = isFiltered() ? `${count} of ${chips.size}` : "";
}

// As many words as there is room for: whole names, short ones, their beginnings, a square each. Looked at anew where
// the room or the number of containers is another one; not while the past is gone through, where it would flicker.
const DENSITIES = ["full", "short", "brief", "stub", "tiny", "dense"];

function fit() {
  const stage = $("stage");
  const sign = `${stage.clientWidth} ${stage.clientHeight} ${Math.round(chips.size / 5)}`;
  const isOver = () => stage.scrollHeight > stage.clientHeight + 2;
  if (changed.machine || (view.at < 0 && stage.dataset.sign !== sign)) {
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
let room = { width: 0, height: 0 };

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

function colour() {
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

// ---------------------------------------------------------------------- lines

let inks = null; // colours of the theme

function ink() {
  if (inks) return inks;
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  inks = { far: [0, 1, 2, 3].map((far) => of(`--far${far}`)), accent: of("--accent"), dim: of("--dim"), text: of("--text"), warm: of("--far2"), alarm: of("--alarm"), edge: of("--edge") };
  return inks;
}

// What lines are drawn. A service map dies of its hubs, and of being one ball: of a hub there is one line a box, and past
// the heaviest pairs one line between two boxes, as wide as all of its pairs. A container that is chosen or pointed at
// shows each of its own.
function foldedLines() {
  const looked = view.chosen in shown ? view.chosen : view.hovered;
  const count = new Map();
  const found = [];
  for (const edge of Object.values(known.edges)) {
    const a = chips.get(edge.a), b = chips.get(edge.b);
    if (!a || !b) continue;
    count.set(edge.a, (count.get(edge.a) ?? 0) + 1);
    count.set(edge.b, (count.get(edge.b) ?? 0) + 1);
    const isLooked = edge.a === looked || edge.b === looked;
    if (isLooked || !isFiltered() || matches(a.row) || matches(b.row)) found.push({ a, b, edge, isLooked });
  }
  found.sort((one, other) => other.edge.bytes - one.edge.bytes);
  const isHub = (id) => count.get(id) > HUB;
  const lines = [];
  const bundles = new Map();
  const bundle = (from, to, key, edge) => {
    const line = bundles.get(key) ?? { a: from, b: to, bytes: 0, far: 0, folded: 0 };
    line.bytes += edge.bytes; line.folded++; line.far = Math.max(line.far, edge.far);
    bundles.set(key, line);
  };
  const middle = (id, chip) => (boxes.get(id)?.at ? boxes.get(id) : chip);
  let alone = 0;
  for (const { a, b, edge: now, isLooked } of found) {
    // In the past both ends may have been elsewhere.
    const edge = view.at < 0 ? now : { ...now, far: farBetween(a.box, b.box) };
    const isOne = { a, b, bytes: edge.bytes, far: edge.far, isLooked };
    if (isLooked || a.box === b.box) lines.push(isOne);
    else if (isHub(edge.a) !== isHub(edge.b)) {
      const [hub, other] = isHub(edge.a) ? [a, b] : [b, a];
      bundle(hub, middle(other.box, other), `${hub.at.dataset.id} ${other.box}`, edge);
    } else if (alone < MOST_LINES) { alone++; lines.push(isOne); }
    else {
      const [one, other] = a.box < b.box ? [a, b] : [b, a];
      bundle(middle(one.box, one), middle(other.box, other), `${one.box} ${other.box}`, edge);
    }
  }
  lines.push(...bundles.values());
  return lines.sort((one, other) => (one.isLooked ?? false) - (other.isLooked ?? false) || one.bytes - other.bytes);
}

// How far it is from one box to another, as edges have it: by the smallest box that holds both.
function farBetween(one, other) {
  const pair = `${one} ${other}`;
  if (!distances.has(pair)) distances.set(pair, measureFar(one, other));
  return distances.get(pair);
}

const distances = new Map(); // of two boxes

function measureFar(one, other) {
  let far = 3;
  for (let inside = known.machine.boxes; ; ) {
    const box = inside.find(({ id }) => [one, other].every((name) => name && (name === id || isWithin(name, id))));
    if (!box) return far;
    far = box.names.some((name) => name.startsWith("l3")) ? 0 : box.names.some((name) => name.startsWith("numa")) ? 1 : 2;
    inside = box.inside;
  }
}

function isWithin(inner, outer) {
  const cpus = boxes.get(outer).cpus;
  return [...boxes.get(inner).cpus].every((cpu) => cpus.has(cpu));
}

let drawn = { lines: 0, folded: 0 };

function drawLines() {
  const canvas = $("edges");
  const sharp = devicePixelRatio || 1;
  const { width, height } = room;
  if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
    canvas.width = Math.round(width * sharp); canvas.height = Math.round(height * sharp);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  const lines = view.lines ? foldedLines() : [];
  drawn = { lines: lines.length, folded: lines.filter((line) => line.folded).length };
  canvas.dataset.lines = drawn.lines; canvas.dataset.folded = drawn.folded;
  const most = Math.max(...lines.map((line) => line.bytes), 1);
  const { far } = ink();
  const hasLooked = lines.some((line) => line.isLooked);
  const fade = view.at < 0 ? 1 : 0.5;
  pen.lineCap = "round";
  for (const line of lines) {
    const share = Math.max(0, 1 + Math.log10(line.bytes / most + 1e-9) / 5); // five decades from thin to thick
    pen.lineWidth = 0.6 + 4.4 * share ** 2;
    pen.globalAlpha = hasLooked ? (line.isLooked ? 0.95 : 0.08) : (0.16 + 0.7 * share ** 1.5) * fade;
    pen.strokeStyle = far[line.far];
    pen.setLineDash(line.far === 3 ? [6, 4] : []);
    const dx = line.b.x - line.a.x, dy = line.b.y - line.a.y;
    const bend = Math.min(46, Math.hypot(dx, dy) * 0.16) / (Math.hypot(dx, dy) || 1);
    pen.beginPath();
    pen.moveTo(line.a.x, line.a.y);
    pen.quadraticCurveTo(line.a.x + dx / 2 - dy * bend, line.a.y + dy / 2 + dx * bend, line.b.x, line.b.y);
    pen.stroke();
    if (line.folded) { // where a bundle ends in a box
      pen.setLineDash([]);
      pen.beginPath();
      pen.arc(line.b.x, line.b.y, 2 + 2.5 * share, 0, 7);
      pen.fillStyle = pen.strokeStyle;
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
}

// ---------------------------------------------------------------------- timeline

function kindOf(row) {
  if (/taken back|refused|mend/.test(row.operation) || /failed|refused/.test(row.outcome)) return "alarm";
  if (row.operation === "rebalance" || row.changes.some((change) => ["moved", "shrunk", "grown"].includes(change.operation))) return "warm";
  return ["create", "adopt"].includes(row.operation) ? "accent" : "dim";
}

function drawTimeline() {
  const numbers = decisions();
  const scrub = $("scrub");
  scrub.max = String(numbers.length); // the last one is now
  if (view.at >= numbers.length) view.at = -1;
  scrub.value = String(view.at < 0 ? numbers.length : view.at);
  const canvas = $("ticks");
  const sharp = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.round(width * sharp); canvas.height = Math.round(height * sharp);
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  const inkwell = ink();
  const low = height - 14;
  pen.fillStyle = inkwell.edge;
  pen.fillRect(0, low, width, 1);
  // Each decision is as wide as any other: an hour in which nothing happens takes no room.
  const step = (width - 3) / Math.max(1, numbers.length);
  pen.font = "10.5px system-ui, sans-serif";
  pen.textBaseline = "bottom";
  let free = 0, told = "";
  numbers.forEach((number, index) => {
    const row = known.decisions[number];
    const changedCount = 1 + row.changes.reduce((sum, change) => sum + change.ids.length, 0);
    const tall = Math.min(low - 2, 6 + 7 * Math.log2(changedCount));
    const x = 1.5 + index * step;
    pen.fillStyle = inkwell[kindOf(row)];
    pen.globalAlpha = view.at >= 0 && index > view.at ? 0.3 : 0.9;
    pen.fillRect(x, low - tall, Math.max(0.7, Math.min(9, step - (step > 3 ? 1 : 0))), tall);
    if (x < free || x > width - 52) return;
    const time = clock.format(row.at * 1000);
    if (time === told) return;
    pen.globalAlpha = 1;
    pen.fillStyle = inkwell.dim;
    pen.fillText(time, x, height);
    free = x + 92;
    told = time;
  });
  pen.globalAlpha = 1;
  $("live").setAttribute("aria-pressed", String(view.at < 0));
  $("back").disabled = !numbers.length || view.at === 0;
  $("forth").disabled = view.at < 0;
  const row = view.at < 0 ? null : known.decisions[numbers[view.at]];
  scrub.setAttribute("aria-valuetext", row ? `decision ${view.at + 1} of ${numbers.length}, ${sentence(row)}` : "now");
  if (row) {
    $("moment").replaceChildren(element("b", {}, `${clock.format(row.at * 1000)} `), sentence(row));
  } else {
    $("moment").textContent = numbers.length ? `Now. ${plural(numbers.length, "decision")} kept; drag back to see where containers were.` : known.node.decisions_note || "No decisions yet.";
  }
}

function sentence(row) {
  const others = row.changes.reduce((sum, change) => sum + change.ids.length, 0);
  const about = row.container ? `${row.operation} ${row.container}` : row.operation;
  const where = row.cpus ? ` → ${row.level} ${row.cpus}` : "";
  return `${about}${where}${others ? `, ${plural(others, "other")} changed` : ""}${row.why ? `: ${row.why}` : ""}`;
}

function show(at) {
  const numbers = known ? decisions() : [];
  view.at = at < 0 || at >= numbers.length ? -1 : at;
  if (view.at < 0) $("stage").dataset.sign = "";
  draw("chips", "moment", "lines");
}

const stepBy = (by) => show(view.at < 0 ? (by < 0 ? decisions().length - 1 : -1) : Math.max(0, view.at + by));

// ---------------------------------------------------------------------- panel

function drawPanel() {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isOn = tab.dataset.view === view.table && !view.chosen;
    tab.setAttribute("aria-selected", String(isOn));
    tab.tabIndex = tab.dataset.view === view.table ? 0 : -1;
  }
  const held = $("view");
  held.setAttribute("aria-labelledby", view.chosen ? "sheet-name" : `tab-${view.table}`);
  const inside = view.chosen ? sheet() : TABLES[view.table]();
  if (!inside) return;
  // What is the same stays, so that a reader, a selection or a focus in it does.
  const sign = inside.textContent + view.chosen;
  if (held.dataset.sign === sign) return;
  held.dataset.sign = sign;
  const focus = held.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const top = held.dataset.of === (view.chosen || view.table) ? held.scrollTop : 0;
  held.dataset.of = view.chosen || view.table;
  held.replaceChildren(inside);
  held.scrollTop = top;
  if (focus) held.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
}

const tile = (value, word) => element("div", { class: "tile" }, element("b", {}, value), element("span", {}, word));

function linkTo(id, text) {
  if (!(id in shown)) return element("span", {}, text);
  const made = element("button", { class: "link", type: "button", onclick: () => choose(id) }, text);
  made.dataset.key = `to ${id} ${text}`;
  return made;
}

function byName() {
  return new Map(Object.entries(shown).map(([id, row]) => [path(row), id]));
}

const nameOf = (id) => (shown[id] ? path(shown[id]) : id.slice(0, 13));

function foundEdges() {
  const found = Object.values(known.edges).filter((edge) => [edge.a, edge.b].some((id) => shown[id] && matches(shown[id])));
  return found.sort((a, b) => b.bytes - a.bytes);
}

function foundDecisions() {
  const isFound = (row) => {
    if (!isFiltered()) return true;
    const text = `${row.container} ${row.operation} ${row.why}`.toLowerCase();
    return view.words.every((word) => text.includes(word)) && (!view.spaces.size || view.spaces.has(row.container.split("/")[0]));
  };
  return decisions().map((number, index) => ({ number, index, ...known.decisions[number] })).filter(isFound).reverse();
}

const TABLES = {
  overview() {
    const rows = Object.values(shown);
    const outer = known.machine.boxes.map((box) => known.zones[box.id]);
    const sum = (key) => outer.reduce((all, zone) => all + (zone[key] ?? 0), 0);
    const isPast = view.at >= 0;
    const all = Object.values(loadsAt());
    const edges = foundEdges();
    const shares = [0, 0, 0, 0];
    for (const edge of edges) shares[edge.far] += edge.bytes;
    const traffic = shares.reduce((one, other) => one + other, 0);
    const moves = foundDecisions().filter((row) => kindOf(row) !== "accent" && kindOf(row) !== "dim").slice(0, 8);
    return element("div", {},
      element("div", { class: "tiles" },
        tile(String(rows.length), rows.length === 1 ? "container" : "containers"),
        tile(all.length ? percent(all.reduce((one, other) => one + other, 0) / all.length) : "–", "load"),
        tile(isPast ? "–" : String(cpusOf(known.node.exclusive).length), "exclusive CPUs"),
        tile(isPast ? "–" : `${cores(sum("charged"))} / ${cores(sum("allocatable"))}`, "CPUs asked for"),
        tile(bytes(traffic), isPast ? "traffic, now" : "traffic"),
        tile(traffic ? percent(shares[0] / traffic) : "–", "of it in one L3")),
      element("h3", {}, "How far traffic goes"),
      traffic ? element("div", { class: "bar", "aria-hidden": "true" }, ...shares.map((part, far) => element("i", { class: `far${far}b`, style: { "--part": String(part / traffic) } })))
        : element("p", { class: "note" }, known.node.traffic_note || "None."),
      traffic ? element("ul", { class: "shares" }, ...shares.map((part, far) => element("li", {}, element("i", { class: `far${far}b` }), `${FAR[far]} ${percent(part / traffic)}`))) : null,
      traffic ? element("h3", {}, "Heaviest traffic") : null,
      element("ul", { class: "rows" }, ...edges.slice(0, 7).map((edge) => element("li", {},
        element("span", { class: "what" }, linkTo(edge.a, short(shown[edge.a] ?? { name: "?", pod: "?" })), " – ", linkTo(edge.b, short(shown[edge.b] ?? { name: "?", pod: "?" }))),
        element("span", { class: "number" }, `${bytes(edge.bytes)}, ${edge.where}`)))),
      element("h3", {}, "Last moves, and why"),
      moves.length ? element("ul", { class: "rows" }, ...moves.map((row) => element("li", {},
        element("span", { class: "what" }, `${row.operation} `, row.container ? linkTo(row.id, row.container) : ""),
        element("span", { class: "when" }, at(row.index)),
        element("span", { class: "why short", title: movesText(row) }, movesText(row)))))
        : element("p", { class: "note" }, "Nothing has moved."));
  },
  containers() {
    const rows = Object.entries(shown).filter(([, row]) => matches(row));
    const rates = new Map();
    for (const edge of Object.values(known.edges)) for (const id of [edge.a, edge.b]) rates.set(id, (rates.get(id) ?? 0) + edge.bytes);
    return table("containers", `${plural(rows.length, "container")}`, rows, [
      ["Container", ([id, row]) => linkTo(id, path(row)), ([, row]) => path(row)],
      ["Place", ([, row]) => `${row.box || "machine"}${row.own ? ", exclusive" : ""}`, ([, row]) => row.box],
      ["CPUs", ([, row]) => cores(row.milli), ([, row]) => -row.milli, true],
      ["Traffic", ([id]) => (rates.has(id) ? bytes(rates.get(id)) : "–"), ([id]) => -(rates.get(id) ?? 0), true],
    ], ([id]) => id === view.chosen);
  },
  places() {
    const rows = [...boxes].filter(([id]) => id in known.zones);
    const count = new Map();
    for (const row of Object.values(shown)) count.set(row.box, (count.get(row.box) ?? 0) + 1);
    return table("places", `${plural(rows.length, "place")}; containers that are in no smaller one`, rows, [
      ["Place", ([, box]) => box.row.names.join(" = "), ([id]) => id],
      ["CPUs", ([, box]) => box.row.cpus, ([, box]) => -box.cpus.size],
      ["Load", ([id]) => percent(known.zones[id].load), ([id]) => -(known.zones[id].load ?? 0), true],
      ["Asked", ([id]) => `${cores(known.zones[id].charged)} / ${cores(known.zones[id].allocatable)}`, ([id]) => -known.zones[id].charged, true],
      ["Exclusive", ([id]) => known.zones[id].exclusive || "–", ([id]) => -cpusOf(known.zones[id].exclusive).length],
      ["Containers", ([id]) => String(count.get(id) ?? 0), ([id]) => -(count.get(id) ?? 0), true],
    ]);
  },
  traffic() {
    const rows = foundEdges();
    if (!rows.length) return element("p", { class: "note" }, known.node.traffic_note || "None of what is searched.");
    return table("traffic", `${plural(rows.length, "pair")} that exchange traffic, both directions`, rows, [
      ["Between", (edge) => element("span", {}, linkTo(edge.a, nameOf(edge.a)), element("br"), linkTo(edge.b, nameOf(edge.b))), (edge) => nameOf(edge.a)],
      ["Bytes", (edge) => bytes(edge.bytes), (edge) => -edge.bytes, true],
      ["Msg/s", (edge) => String(edge.messages), (edge) => -edge.messages, true],
      ["Where", (edge) => edge.where, (edge) => edge.far],
    ]);
  },
  decisions() {
    const rows = foundDecisions();
    if (!rows.length) return element("p", { class: "note" }, known.node.decisions_note || "None of what is searched.");
    return table("decisions", `${plural(rows.length, "decision")}, the last first; the time goes there`, rows, [
      ["When", (row) => at(row.index), (row) => -row.index],
      ["What", (row) => element("span", {}, `${row.operation} `, row.container ? linkTo(row.id, row.container) : "", element("br"), movesText(row), row.outcome ? ` – ${row.outcome}` : ""), (row) => row.operation],
    ], (row) => row.index === view.at);
  },
};

function movesText(row) {
  const texts = row.cpus && row.container ? [`${row.level} ${row.cpus}`] : [];
  for (const change of row.changes) texts.push(`${plural(change.ids.length, "container")} ${change.operation} to ${change.cpus || "all CPUs"}`);
  return `${texts.join("; ")}${row.why ? ` – ${row.why}` : ""}`;
}

function at(index) {
  const made = element("button", { class: "link time", type: "button", title: "Show this moment", onclick: () => show(index) }, clock.format(known.decisions[decisions()[index]].at * 1000));
  made.dataset.key = `at ${decisions()[index]}`;
  return made;
}

function table(name, caption, rows, columns, isChosen = () => false) {
  const sort = view.sort[name];
  if (sort) {
    const key = columns[sort.column][2];
    rows = [...rows].sort((a, b) => (typeof key(a) === "number" ? key(a) - key(b) : natural(key(a), key(b))) * (sort.isReversed ? -1 : 1));
  }
  const head = columns.map(([title, , , isNumber], column) => {
    const button = element("button", { type: "button", onclick: () => sortBy(name, column) }, title);
    button.dataset.key = `sort ${column}`;
    const order = sort?.column === column ? (sort.isReversed ? "descending" : "ascending") : "none";
    return element("th", { scope: "col", class: isNumber ? "number" : "", "aria-sort": order }, button);
  });
  const body = rows.slice(0, MOST_ROWS).map((row) => element("tr", { class: isChosen(row) ? "chosen" : "" },
    ...columns.map(([, cell, , isNumber]) => element("td", { class: isNumber ? "number" : "" }, cell(row)))));
  const more = rows.length > MOST_ROWS ? element("p", { class: "note" }, `${rows.length - MOST_ROWS} more; a search narrows it.`) : null;
  return element("div", {}, element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)), ...(more ? [more] : []));
}

function sortBy(name, column) {
  const sort = view.sort[name];
  view.sort[name] = { column, isReversed: sort?.column === column && !sort.isReversed };
  $("view").dataset.sign = "";
  draw();
}

// ---------------------------------------------------------------------- one container

function choose(id) {
  view.chosen = id;
  view.explained = null;
  if (id) {
    open(true);
    say(`${nameOf(id)} is explained.`);
    explain(id);
  }
  draw("chips", "lines");
}

let asked = 0;

async function explain(id) {
  const turn = ++asked;
  let found;
  try {
    const answer = await fetch(`/api/explain?container=${encodeURIComponent(id)}`, { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store" });
    found = answer.ok ? await answer.json() : { problem: (await answer.text()).trim() };
  } catch {
    found = { problem: "No connection." };
  }
  if (turn !== asked || id !== view.chosen) return;
  view.explained = found;
  draw();
}

function sheet() {
  const row = shown[view.chosen];
  const close = element("button", { type: "button", onclick: () => choose("") }, "Close");
  close.dataset.key = "close";
  const name = element("p", { class: "name", id: "sheet-name" }, row ? row.name : "It is gone");
  const top = element("div", { class: "rows" }, element("li", {}, name, close));
  const made = element("div", { class: "sheet" }, top);
  if (row) {
    made.append(element("p", { class: "where" }, `${row.namespace} / ${row.pod}`), element("p", { class: "reason" }, row.why || "No reason is kept."));
    made.append(facts([
      ["place", `${row.box || "several sockets"} (${row.level})`], ["CPUs", row.cpus || "all"], ["exclusive", row.own ? "yes, no other container has these" : "no"],
      ["memory nodes", row.mems || "not set"], ["request", `${row.milli}m`], ["class", row.qos], ["state", row.state],
    ]));
  }
  const more = view.explained;
  if (!more) { made.append(element("p", { class: "note" }, "asking …")); return made; }
  if (more.problem) { made.append(element("p", { class: "note" }, more.problem)); return made; }
  const names = byName();
  for (const one of more.containers.filter((one) => one.id === view.chosen)) {
    made.append(element("h3", {}, "Room around it"), facts(one.domains.map((domain) => [domain.name, `${cores(domain.charged_milli)} CPUs asked for, ${cores(domain.free_milli)} left (${domain.cpus})`])));
    made.append(element("h3", {}, "Talks to"));
    made.append(one.peers.length ? element("ul", { class: "rows" }, ...one.peers.map((peer) => element("li", {},
      element("span", { class: "what" }, linkTo(names.get(peer.container) ?? peer.id, peer.container || peer.id.slice(0, 13))),
      element("span", { class: "number" }, `${bytes(peer.bytes_per_s)}, ${peer.where}`)))) : element("p", { class: "note" }, "No traffic is known."));
  }
  const past = more.history.slice(-12).reverse();
  made.append(element("h3", {}, "Decisions"), element("ul", { class: "rows" }, ...past.map((one) => element("li", {},
    element("span", { class: "what" }, `${one.operation} → ${one.level} ${one.cpus}`),
    element("span", { class: "when" }, ago(one.age_s)),
    element("span", { class: "why" }, [one.for ? `for ${one.for}` : "", one.why, one.outcome].filter(Boolean).join(" – "))))));
  return made;
}

function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// ---------------------------------------------------------------------- hands

function say(text) { $("said").textContent = text; }

function open(isOpen) {
  document.body.dataset.drawer = isOpen ? "open" : "closed";
  $("drawer").setAttribute("aria-expanded", String(isOpen));
  draw();
}

function look(words) {
  view.words = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (known) draw("chips", "lines");
}

function turn(theme) {
  document.documentElement.dataset.theme = theme;
  inks = null;
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
  open(true);
  draw("chips", "lines");
}

function gate(text) {
  link("away", "no token");
  $("gate").hidden = false;
  $("gate-said").textContent = text;
  $("token").focus();
}

$("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim().replace(/^.*#token=/, ""));
  $("token").value = "";
  $("gate").hidden = true;
  follow();
});
$("search").addEventListener("input", (event) => look(event.target.value));
$("scrub").addEventListener("input", (event) => show(Number(event.target.value)));
$("back").addEventListener("click", () => stepBy(-1));
$("forth").addEventListener("click", () => stepBy(1));
$("live").addEventListener("click", () => show(-1));
$("theme").addEventListener("click", otherTheme);
$("lines").addEventListener("click", lines);
$("drawer").addEventListener("click", () => open(document.body.dataset.drawer !== "open"));
$("help-button").addEventListener("click", () => $("help").showModal());
$("namespaces").addEventListener("click", (event) => {
  const name = event.target.dataset?.space;
  if (name === undefined) return;
  if (!view.spaces.delete(name)) view.spaces.add(name);
  draw("chips", "lines");
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
      if (first) { choose(first[0]); first[1].at.scrollIntoView({ block: "nearest" }); }
    }
    return;
  }
  const tables = Object.keys(TABLES);
  const keys = {
    "/": () => { $("search").focus(); $("search").select(); }, "?": () => $("help").showModal(),
    "[": () => stepBy(-1), "]": () => stepBy(1), l: () => show(-1), t: otherTheme, e: lines,
    p: () => open(document.body.dataset.drawer !== "open"),
  };
  if (event.key in tables.map((_, index) => index + 1).reduce((all, one) => ({ ...all, [one]: true }), {})) toTable(tables[event.key - 1]);
  else if (keys[event.key] && known) keys[event.key]();
  else return;
  event.preventDefault();
});

// What a chip, a box or a CPU is, beside the pointer or the focus.
function tip(target) {
  const chip = chips.get(target?.closest?.(".chip")?.dataset.id);
  const cpu = target?.dataset?.cpu;
  const texts = chip ? [path(chip.row), `${chip.row.box || "several sockets"}, ${chip.row.own ? "exclusive " : ""}CPUs ${chip.row.cpus || "all"}, request ${chip.row.milli}m`, chip.row.unsure ? "Where it was at that time is not kept." : chip.row.gone ? "It has gone since; when is not kept." : chip.row.why]
    : cpu !== undefined ? [`CPU ${cpu}`, `load ${percent(loadsAt()[cpu])}`] : [];
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

new ResizeObserver(() => {
  if (!known) return;
  arrange();
  draw("chips", "lines", "moment");
}).observe($("stage"));

open(innerWidth > 1000);
setInterval(() => known && view.explained && !view.explained.problem && view.at < 0 && explain(view.chosen), 5000);
link("away", "connecting");
follow();
