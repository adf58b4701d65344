// The stream of events (state, delta, trouble) over one request. Nothing is ever sent but questions.

import { decisions, forgetPast } from "/past.js";
import { draw, known, take, view } from "/state.js";
import { $, say } from "/words.js";

const TOKEN = "cri-resmgr-token";

export function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", location.pathname); // not in the history, nor in a picture of the window
  }
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function link(state, text) {
  const isNews = document.body.dataset.link !== state;
  document.body.dataset.link = state;
  if ($("link-text").textContent !== text) $("link-text").textContent = text;
  if (isNews) draw(); // what is shown is old from now on, or is not any more
}

// A server that says nothing for so long, and three intervals, is away as well: its connection may stay open.
const SILENT_MS = 20000;
let interval = 1000;
let heardAt = 0;

setInterval(() => {
  if (document.body.dataset.link === "live" && performance.now() - heardAt > SILENT_MS + 3 * interval) link("away", "nothing is heard");
}, 1000);

let waits = 250;
export let trouble = ""; // why the daemon is not heard

// EventSource can send no header, and a token in an address would be logged: the same format, by fetch.
export async function follow() {
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
  heardAt = performance.now();
  if (data.interval) interval = data.interval * 1000;
  if (name === "trouble") {
    link("away", "daemon away");
    trouble = data.text;
    draw();
    return;
  }
  trouble = "";
  const before = known && known.node.instance;
  // A page that has looked back stays where it is, as far as that is still known.
  const number = view.at < 0 || !known ? "" : decisions()[view.at];
  take(name, data);
  if (name === "state") {
    forgetPast();
    view.at = number ? decisions().indexOf(number) : -1;
  }
  if (before && known.node.instance !== before) say("The daemon was started anew.");
  link("live", "live");
  draw();
}

// ---------------------------------------------------------------------- the token

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
