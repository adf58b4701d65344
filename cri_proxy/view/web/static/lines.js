// Traffic as lines between containers.

import { HUB, chips, shown } from "/chips.js";
import { boxes, room } from "/machine.js";
import { isFiltered, known, matches, view } from "/state.js";
import { $ } from "/words.js";

// So many pairs have a line of their own; the others are told by one line between their boxes, as wide as all of them.
const MOST_LINES = 48;

let inks = null; // colours of the theme

export function ink() {
  if (inks) return inks;
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  inks = { far: [0, 1, 2, 3].map((far) => of(`--far${far}`)), accent: of("--accent"), dim: of("--dim"), text: of("--text"), warm: of("--far2"), alarm: of("--alarm"), edge: of("--edge"), face: of("--face") };
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
  if (distances.of !== known.machine) distances = { of: known.machine, pairs: new Map() };
  const pair = `${one} ${other}`;
  if (!distances.pairs.has(pair)) distances.pairs.set(pair, measureFar(one, other));
  return distances.pairs.get(pair);
}

let distances = { of: null, pairs: new Map() }; // of two boxes of a machine

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

export function drawLines() {
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
  canvas.dataset.lines = lines.length; canvas.dataset.folded = lines.filter((line) => line.folded).length;
  const most = Math.max(...lines.map((line) => line.bytes), 1);
  const { far, face } = ink();
  const hasLooked = lines.some((line) => line.isLooked);
  const fade = view.at < 0 ? 1 : 0.5;
  pen.lineCap = "round";
  for (const line of lines) {
    const share = Math.max(0, 1 + Math.log10(line.bytes / most + 1e-9) / 5); // five decades from thin to thick
    pen.lineWidth = 0.6 + 4.4 * share ** 2;
    pen.globalAlpha = hasLooked ? (line.isLooked ? 0.95 : 0.08) : (0.16 + 0.7 * share ** 1.5) * fade;
    const dx = line.b.x - line.a.x, dy = line.b.y - line.a.y;
    const bend = Math.min(46, Math.hypot(dx, dy) * 0.16) / (Math.hypot(dx, dy) || 1);
    pen.beginPath();
    pen.moveTo(line.a.x, line.a.y);
    pen.quadraticCurveTo(line.a.x + dx / 2 - dy * bend, line.a.y + dy / 2 + dx * bend, line.b.x, line.b.y);
    // A rim of the ground's colour: a line is seen on a box of its own colour, too.
    const [thin, strong] = [pen.lineWidth, pen.globalAlpha];
    pen.setLineDash([]);
    pen.strokeStyle = face; pen.lineWidth = thin + 2; pen.globalAlpha = strong * 0.7;
    pen.stroke();
    pen.setLineDash(line.far === 3 ? [6, 4] : []);
    pen.strokeStyle = far[line.far]; pen.lineWidth = thin; pen.globalAlpha = strong;
    pen.stroke();
    if (line.folded) { // where a bundle ends in a box
      pen.setLineDash([]);
      pen.beginPath();
      pen.arc(line.b.x, line.b.y, 2 + 2.5 * share, 0, 7);
      pen.fillStyle = pen.strokeStyle;
      pen.fill();
    }
  }
  // No line crosses a name: where words, CPUs and chips are, there is none.
  pen.globalAlpha = 1;
  pen.fillStyle = "#000";
  pen.globalCompositeOperation = "destination-out";
  for (const { x, y, wide, high } of room.words) pen.fillRect(x - 1, y - 1, wide + 2, high + 2);
  pen.globalCompositeOperation = "source-over";
}

export function repaint() { inks = null; }
