// What is known of the node, what of it is looked at, and what has to be drawn anew.

import { bytes, path } from "/words.js";

// Looks that are remembered for the loads of the past: as many seconds, with the interval as it comes.
const MOST_LOOKS = 900;

export let known = null; // sections of rows by id, as the server has them
export const looks = []; // {at, cpus}: loads of the last looks
export const view = {
  chosen: "", hovered: "", words: [], spaces: new Set(), at: -1, // at: index of a decision, -1 = live
  table: "overview", sort: {}, lines: true, explained: null,
};

function apply(change) {
  for (const [section, keys] of Object.entries(change.gone ?? {}))
    for (const key of keys) delete known[section][key];
  for (const [section, rows] of Object.entries(change.set ?? {})) Object.assign(known[section], rows);
}

// Take in an event: all that is known, or what has changed of it.
export function take(name, { at, interval, ...change }) {
  if (name === "state") {
    known = change;
    draw("machine", "chips", "lines", "past");
  } else {
    apply(change);
    note(change);
  }
  looks.push({ at, cpus: { ...known.cpus } });
  if (looks.length > MOST_LOOKS) looks.shift();
}

// What is not of now, by the daemon's word: traffic, containers, plan -> {since, why}.
export const old = () => known?.node.old ?? {};

// Bytes a second as text. It says itself that it is old: where it stands may be all that is read.
export const rate = (one) => `${bytes(one)}${old().traffic ? " (old)" : ""}`;

export const matches = (row) => (!view.spaces.size || view.spaces.has(row.namespace)) && hasWords(row);

export function hasWords(row) {
  if (!view.words.length) return true;
  const text = `${path(row)} ${row.box || "machine"} ${row.level} ${row.state}`.toLowerCase();
  return view.words.every((word) => text.includes(word));
}

export const isFiltered = () => view.words.length > 0 || view.spaces.size > 0;

// How many of how many, where something is searched for.
export const ofAll = (found, all) => (isFiltered() ? `${found} of ${all}` : String(all));

// ---------------------------------------------------------------------- what has to be drawn anew

let changed = {};
let isAsked = false; // for a frame
let frame = () => {};

export function drawnBy(one) { frame = one; }

function note(change) {
  const sections = new Set([...Object.keys(change.set ?? {}), ...Object.keys(change.gone ?? {})]);
  if (sections.has("machine")) draw("machine");
  if (sections.has("containers")) draw("chips");
  if (sections.has("edges")) draw("lines");
  if (sections.has("decisions")) draw("past");
}

export function draw(...parts) {
  for (const part of parts) changed[part] = true;
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    const now = changed;
    changed = {};
    frame(now);
  });
}
