// The panel beside the picture: tables, and the sheet of a container.

import { choose, sheet } from "/container.js";
import { chips, shown } from "/chips.js";
import { boxes, filledOf, leavesOf } from "/machine.js";
import { decisions, loadsAt } from "/past.js";
import { draw, isFiltered, known, matches, ofAll, rate, view } from "/state.js";
import { isAbout, kindOf, show } from "/timeline.js";
import { $, clock, cores, cpusOf, cutInside, element, natural, path, percent, plural } from "/words.js";

// Rows of a table that are shown; a search narrows it.
const MOST_ROWS = 150;
const FAR = ["same L3", "same NUMA node", "same socket", "farther"];

export function openPanel(isOpen) {
  document.body.dataset.drawer = isOpen ? "open" : "closed";
  $("drawer").setAttribute("aria-expanded", String(isOpen));
  draw();
}

export function drawPanel() {
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

export function linkTo(id, text) {
  if (!(id in shown)) return element("span", {}, text);
  const made = element("button", { class: "link", type: "button", onclick: () => choose(id) }, text);
  made.dataset.key = `to ${id} ${text}`;
  return made;
}

// A name in one line, cut in its middle.
function shortLink(id) {
  const made = linkTo(id, "");
  made.classList.add("cut");
  made.title = nameOf(id);
  made.append(...cutInside(chips.get(id)?.name ?? ["", "?"]));
  return made;
}

export const nameOf = (id) => (shown[id] ? path(shown[id]) : id.slice(0, 13));

function foundEdges() {
  const isThere = ({ a, b }) => view.at < 0 || (a in shown && b in shown); // traffic is of now: not of those that came later
  const found = Object.values(known.edges).filter((edge) => isThere(edge) && [edge.a, edge.b].some((id) => shown[id] && matches(shown[id])));
  return found.sort((a, b) => b.bytes - a.bytes);
}

function foundDecisions() {
  return decisions().map((number, index) => ({ number, index, ...known.decisions[number] })).filter(isAbout).reverse();
}

export const TABLES = {
  overview() {
    const rows = Object.values(shown);
    const found = rows.filter(matches);
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
        tile(ofAll(found.length, rows.length), rows.length === 1 ? "container" : "containers"),
        tile(all.length ? percent(all.reduce((one, other) => one + other, 0) / all.length) : "–", "load"),
        tile(isPast ? "–" : ofAll(new Set(found.filter((row) => row.own).flatMap((row) => cpusOf(row.cpus))).size, cpusOf(known.node.exclusive).length), "exclusive CPUs"),
        tile(isPast ? "–" : `${cores(isFiltered() ? found.reduce((all, row) => all + row.milli, 0) : sum("charged"))} / ${cores(sum("allocatable"))}`, "CPUs requested"),
        tile(rate(traffic), isPast ? "traffic, now" : "traffic"),
        tile(traffic ? percent(shares[0] / traffic) : "–", "of it in one L3")),
      element("h3", {}, "How far traffic goes"),
      traffic ? element("div", { class: "bar", "aria-hidden": "true" }, ...shares.map((part, far) => element("i", { class: `far${far}b`, style: { "--part": String(part / traffic) } })))
        : element("p", { class: "note" }, known.node.traffic_note || "None."),
      traffic ? element("ul", { class: "shares" }, ...shares.map((part, far) => element("li", {}, element("i", { class: `far${far}b` }), `${FAR[far]} ${percent(part / traffic)}`))) : null,
      traffic ? element("h3", {}, "Heaviest traffic") : null,
      element("ul", { class: "rows" }, ...edges.slice(0, 7).map((edge) => element("li", {},
        element("span", { class: "what pair" }, shortLink(edge.a), " – ", shortLink(edge.b)),
        element("span", { class: "number" }, `${rate(edge.bytes)}, ${edge.where}`)))),
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
    return table("containers", ofAll(rows.length, plural(Object.keys(shown).length, "container")), rows, [
      ["Container", ([id, row]) => linkTo(id, path(row)), ([, row]) => path(row)],
      ["Place", ([, row]) => `${row.box || "machine"}${row.own ? ", exclusive" : ""}`, ([, row]) => row.box],
      ["CPUs", ([, row]) => cores(row.milli), ([, row]) => -row.milli, true],
      ["Traffic", ([id]) => (rates.has(id) ? rate(rates.get(id)) : "–"), ([id]) => -(rates.get(id) ?? 0), true],
    ], ([id]) => id === view.chosen);
  },
  places() {
    const all = [...boxes].filter(([id]) => id in known.zones);
    const count = new Map();
    const held = new Set(); // boxes that have some of the CPUs of what is found
    for (const row of Object.values(shown).filter(matches)) {
      count.set(row.box, (count.get(row.box) ?? 0) + 1);
      for (const leaf of leavesOf(row.cpus)) held.add(leaf.at);
    }
    const rows = all.filter(([, box]) => !isFiltered() || [...held].some((leaf) => box.at.contains(leaf)));
    return table("places", `${ofAll(rows.length, plural(all.length, "place"))}; containers that are in no smaller one`, rows, [
      ["Place", ([, box]) => box.row.names.join(" = "), ([id]) => id],
      ["CPUs", ([, box]) => box.row.cpus, ([, box]) => -box.cpus.size],
      ["Load", ([id]) => percent(known.zones[id].load), ([id]) => -(known.zones[id].load ?? 0), true],
      ["Requested", ([id]) => `${cores(known.zones[id].charged)} / ${cores(known.zones[id].allocatable)}`, ([id]) => -known.zones[id].charged, true],
      ["Exclusive", ([id]) => known.zones[id].exclusive || "–", ([id]) => -cpusOf(known.zones[id].exclusive).length],
      ["Containers", ([id]) => String(count.get(id) ?? 0), ([id]) => -(count.get(id) ?? 0), true],
      ...(Object.keys(known.caches).length ? [["L3 filled", ([id]) => filledOf(id) || "–", ([id]) => -parseFloat(filledOf(id) || "-1"), true]] : []),
    ]);
  },
  traffic() {
    const rows = foundEdges();
    if (!rows.length) return element("p", { class: "note" }, known.node.traffic_note || "None of what is searched.");
    return table("traffic", `${ofAll(rows.length, plural(Object.keys(known.edges).length, "pair"))} that exchange traffic, both directions`, rows, [
      ["Between", (edge) => element("span", {}, linkTo(edge.a, nameOf(edge.a)), element("br"), linkTo(edge.b, nameOf(edge.b))), (edge) => nameOf(edge.a)],
      ["Bytes", (edge) => rate(edge.bytes), (edge) => -edge.bytes, true],
      ["Msg/s", (edge) => String(edge.messages), (edge) => -edge.messages, true],
      ["Where", (edge) => edge.where, (edge) => edge.far],
    ]);
  },
  decisions() {
    const rows = foundDecisions();
    if (!rows.length) return element("p", { class: "note" }, known.node.decisions_note || "None of what is searched.");
    return table("decisions", `${ofAll(rows.length, plural(decisions().length, "decision"))}, the last first; the time goes there`, rows, [
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
