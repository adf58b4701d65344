// One container: why it is where it is, as the daemon explains it.

import { chips, shown } from "/chips.js";
import { draw, rate, view } from "/state.js";
import { token } from "/stream.js";
import { linkTo, nameOf, openPanel } from "/tables.js";
import { ago, cores, element, path, say } from "/words.js";

export function choose(id) {
  view.chosen = id;
  view.explained = null;
  if (id) {
    openPanel(true);
    say(`${nameOf(id)} is explained.`);
    explain(id);
    chips.get(id)?.at.scrollIntoView({ block: "nearest" }); // a box may have scrolled it away
  }
  draw("chips", "lines");
}

let asked = 0;

export async function explain(id) {
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

export function sheet() {
  const row = shown[view.chosen];
  const close = element("button", { type: "button", onclick: () => choose("") }, "Close");
  close.dataset.key = "close";
  const name = element("p", { class: "name", id: "sheet-name" }, row ? row.name : "It is gone");
  const top = element("div", { class: "rows" }, element("li", {}, name, close));
  const made = element("div", { class: "sheet" }, top);
  if (row) {
    made.append(element("p", { class: "where" }, `${row.namespace} / ${row.pod}`), element("p", { class: "reason" }, row.why || "No reason is kept."));
    made.append(facts([
      ["place", `${row.box || "several sockets"} (${row.level})`], ["CPUs", row.cpus || "all"], ["exclusive", row.claims ? `${row.claimed}, with its claims' other containers` : row.own ? "yes, no other container has these" : "no"],
      ["memory nodes", row.mems || "not set"], ["request", `${row.milli}m`], ["class", row.qos], ["state", row.state],
    ]));
  }
  const more = view.explained;
  if (!more) { made.append(element("p", { class: "note" }, "asking …")); return made; }
  if (more.problem) { made.append(element("p", { class: "note" }, more.problem)); return made; }
  const names = new Map(Object.entries(shown).map(([id, row]) => [path(row), id]));
  for (const one of more.containers.filter((one) => one.id === view.chosen)) {
    made.append(element("h3", {}, "Room around it"), facts(one.domains.map((domain) => [domain.name, `${cores(domain.charged_milli)} CPUs requested, ${cores(domain.free_milli)} left (${domain.cpus})`])));
    if (one.claim_rows) made.append(element("h3", {}, "Claims"), element("ul", { class: "rows" }, ...one.claim_rows.map((claim) => element("li", {},
      claim.is_prepared ? `${claim.name}, ${claim.request}: CPUs ${claim.cpus} of ${claim.devices.join(", ")}` : `${claim.name} is not prepared here`))));
    if (one.caches) made.append(element("h3", {}, "Caches"), element("ul", { class: "rows" }, ...one.caches.texts.map((text) => element("li", {}, text))));
    if (one.isolation) made.append(element("h3", {}, "Isolation"), element("ul", { class: "rows" },
      ...[`${one.isolation} (${one.isolation_why})`, ...(one.treatment ?? [])].map((text) => element("li", {}, text))));
    made.append(element("h3", {}, "Talks to"));
    made.append(one.peers.length ? element("ul", { class: "rows" }, ...one.peers.map((peer) => element("li", {},
      element("span", { class: "what" }, linkTo(names.get(peer.container) ?? peer.id, peer.container || peer.id.slice(0, 13))),
      element("span", { class: "number" }, `${rate(peer.bytes_per_s)}, ${peer.where}`)))) : element("p", { class: "note" }, "No traffic is known."));
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
