// The JSON API of the server, and nothing else: operations by name, with the key of this tab.
//
// The key comes in the fragment of the address that `tenuto serve` prints. It is kept for this tab alone, is removed from the
// address at once, and travels in a header: never in a cookie, a query or a log.
import { signal } from "@preact/signals";

const base = new URL("..", document.baseURI);
const stored = "tenuto:key:" + base.pathname;

function takenKey() {
  const found = /^#key=([^&]+)/.exec(location.hash);
  if (!found) return sessionStorage.getItem(stored) || "";
  sessionStorage.setItem(stored, decodeURIComponent(found[1]));
  history.replaceState(null, "", location.pathname + location.search + "#/runs");
  return decodeURIComponent(found[1]);
}

export const key = signal(takenKey());
export const scopes = signal(null); // of the key, as the last reply named them
export const live = signal("connecting");
export const me = signal(localStorage.getItem("tenuto:name") || "");

export const may = (scope) => scopes.value?.includes("admin") || scopes.value?.includes(scope) || false;
export const mayWrite = () => may("write");
export const mayAnswer = () => may("write") || may("answer");

export function useKey(text) {
  sessionStorage.setItem(stored, text);
  key.value = text;
}

export function useName(text) {
  localStorage.setItem("tenuto:name", text);
  me.value = text;
}

export class Problem extends Error {
  constructor(status, detail, title) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

const at = (operation) => new URL("v1/" + operation.replaceAll(" ", "/"), base);
const headers = (more) => ({ Authorization: `Bearer ${key.value}`, ...more });

async function replied(request) {
  let reply;
  try {
    reply = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer. Is `tenuto serve` still running? Nothing was changed.", "Unreachable");
  }
  const named = reply.headers.get("Tenuto-Scopes");
  if (named !== null && named !== scopes.value?.join(" ")) scopes.value = named.split(" ");
  if (reply.ok) return reply;
  if (reply.status === 401) key.value = "";
  const said = await reply.json().catch(() => ({}));
  throw new Problem(reply.status, said.detail || `The server replied ${reply.status}.`, said.title);
}

const given = (args) => Object.entries(args).filter(([, value]) => value !== undefined && value !== null && value !== "");

export async function read(operation, args = {}, options = {}) {
  const url = at(operation);
  url.search = new URLSearchParams(given(args)).toString();
  const reply = await replied(fetch(url, { headers: headers(), signal: options.signal, cache: "no-store" }));
  const found = await reply.json();
  return options.page ? { rows: found, more: reply.headers.get("Link") !== null } : found;
}

export async function write(operation, args = {}) {
  const sent = {
    method: "POST",
    headers: headers({ "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) }),
    body: JSON.stringify(Object.fromEntries(Object.entries(args).filter(([, value]) => value !== undefined))),
  };
  return (await replied(fetch(at(operation), sent))).json();
}

// A stream of server-sent events, by fetch: an EventSource could not send the key. It reconnects and resumes by itself.
export function follow(operation, args, onItem, onState = () => {}) {
  const stop = new AbortController();
  let last = null;
  (async () => {
    let pause = 500;
    while (!stop.signal.aborted) {
      try {
        const url = at(operation);
        url.search = new URLSearchParams(given(args)).toString();
        const more = last === null ? {} : { "Last-Event-ID": last };
        const reply = await replied(fetch(url, { headers: headers(more), signal: stop.signal, cache: "no-store" }));
        onState("live");
        pause = 500;
        for await (const event of events(reply.body)) {
          if (event.id !== null) last = event.id;
          if (event.data !== null && event.kind !== "error") onItem(JSON.parse(event.data));
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        onState(error.status === 403 || error.status === 404 ? "denied" : "lost");
        if (error.status >= 400 && error.status < 500 && error.status !== 429) return;
      }
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 15_000);
    }
  })();
  return () => stop.abort();
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = { id: null, data: null, kind: "message" };
      for (const line of part.split("\n")) {
        if (line.startsWith("id: ")) event.id = line.slice(4);
        if (line.startsWith("event: ")) event.kind = line.slice(7);
        if (line.startsWith("data: ")) event.data = (event.data === null ? "" : event.data + "\n") + line.slice(6);
      }
      yield event;
    }
  }
}
