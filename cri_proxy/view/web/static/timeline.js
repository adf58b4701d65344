// The decisions over time, and the moment that is shown.

import { ink } from "/lines.js";
import { decisions } from "/past.js";
import { draw, isFiltered, known, ofAll, view } from "/state.js";
import { $, clock, element, plural } from "/words.js";

export function kindOf(row) {
  if (/taken back|refused|mend/.test(row.operation) || /failed|refused/.test(row.outcome)) return "alarm";
  if (row.operation === "rebalance" || row.changes.some((change) => ["moved", "shrunk", "grown"].includes(change.operation))) return "warm";
  return ["create", "adopt"].includes(row.operation) ? "accent" : "dim";
}

// Whether a decision is about what is searched for.
export function isAbout(row) {
  if (!isFiltered()) return true;
  const text = `${row.container} ${row.operation} ${row.why}`.toLowerCase();
  return view.words.every((word) => text.includes(word)) && (!view.spaces.size || view.spaces.has(row.container.split("/")[0]));
}

export function drawTimeline() {
  const numbers = decisions();
  const found = numbers.filter((number) => isAbout(known.decisions[number])).length;
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
    pen.globalAlpha = isAbout(row) ? (view.at >= 0 && index > view.at ? 0.3 : 0.9) : 0.12;
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
    $("moment").textContent = numbers.length ? `Now. ${ofAll(found, plural(numbers.length, "decision"))} kept; drag back to see where containers were.` : known.node.decisions_note || "No decisions yet.";
  }
}

export function sentence(row) {
  const others = row.changes.reduce((sum, change) => sum + change.ids.length, 0);
  const about = row.container ? `${row.operation} ${row.container}` : row.operation;
  const where = row.cpus ? ` → ${row.level} ${row.cpus}` : "";
  return `${about}${where}${others ? `, ${plural(others, "other")} changed` : ""}${row.why ? `: ${row.why}` : ""}`;
}

export function show(at) {
  const numbers = known ? decisions() : [];
  view.at = at < 0 || at >= numbers.length ? -1 : at;
  draw("chips", "moment", "lines");
}

export const stepBy = (by) => show(view.at < 0 ? (by < 0 ? decisions().length - 1 : -1) : Math.max(0, view.at + by));
