// Elements, and values as texts. Everything of the node is written as text (textContent): the policy of this page allows
// no other way.

export const $ = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...inside) {
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

export const path = (row) => `${row.namespace}/${row.pod}/${row.name}`;
export const percent = (part) => (part === null || part === undefined ? "–" : `${Math.round(part * 100)} %`);
export const cores = (milli) => `${+(milli / 1000).toFixed(1)}`;
export const byPath = (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
export const natural = new Intl.Collator("en", { numeric: true }).compare;
export const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export function bytes(rate) {
  for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]])
    if (rate >= size) return `${(rate / size).toFixed(1)} ${unit}`;
  return `${Math.round(rate)} B/s`;
}

export function memory(size) {
  const gib = size / 2 ** 30;
  return gib >= 10 || gib === 0 ? gib.toFixed(0) : gib.toFixed(1);
}

export const mib = (size) => (size >= 10 ? size.toFixed(0) : `${+size.toFixed(1)}`);

export function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
}

// A list of CPUs as the kernel writes it: "0-3,64".
export function cpusOf(text) {
  const found = [];
  for (const part of text.split(",")) {
    if (!part) continue;
    const [first, last] = part.split("-").map(Number);
    for (let cpu = first; cpu <= (last ?? first); cpu++) found.push(cpu);
  }
  return found;
}

export function say(text) { $("said").textContent = text; }

// A container's name as the part that may be cut and the one that stays: of a pod's only container the pod's, of others
// their own behind it. Where a name is cut, its beginning and its end tell it from others; generated names end alike.
export function nameParts(row, isAlone) {
  const whole = isAlone ? row.pod : `${row.pod}/${row.name}`;
  const kept = isAlone ? 3 : Math.min(row.name.length + 1, 11);
  return whole.length <= 9 ? ["", whole] : [whole.slice(0, -kept), whole.slice(-kept)];
}

export const cutInside = ([front, back]) => [element("span", { class: "front" }, front), element("span", { class: "back" }, back)];
