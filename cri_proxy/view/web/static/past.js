// Moments of the past: which containers there were after a decision, and where.

import { boxes } from "/machine.js";
import { known, looks, view } from "/state.js";
import { cpusOf } from "/words.js";

const ENDS = new Set(["exit", "removal", "end of the pod", "end of a hold", "refused request"]);

let pastOf = null; // {numbers: keys of decisions in the order of time, events: Map of container id -> [[index, operation, cpus, level, why]]}

export function decisions() {
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
export function containersAt(index) {
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

export function loadsAt() {
  if (view.at < 0) return known.cpus;
  const at = known.decisions[decisions()[view.at]].at;
  const after = looks.find((look) => look.at >= at);
  return after && after.at - at < 5 ? after.cpus : {};
}

export function forgetPast() { pastOf = null; }
