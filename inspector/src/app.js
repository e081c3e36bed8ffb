// The page around the pages: navigation, the key, the keyboard.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { key, live, mayWrite, read, scopes, useKey } from "./api.js";
import { Compare } from "./compare.js";
import { Inbox } from "./inbox.js";
import { keyboard } from "./keys.js";
import { Memory } from "./memory.js";
import { Dialog, Notices, html, listen, useLoad } from "./parts.js";
import { RunPage } from "./run.js";
import { link, route } from "./route.js";
import { Runs } from "./runs.js";
import { Store } from "./store.js";
import { ThreadPage, Threads } from "./threads.js";

const PAGES = {
  runs: () => html`<${Runs} />`,
  run: ([id]) => html`<${RunPage} key=${id} id=${id} />`,
  compare: ([a, b]) => html`<${Compare} a=${a} b=${b} />`,
  threads: () => html`<${Threads} />`,
  thread: ([id]) => html`<${ThreadPage} key=${id} id=${id} />`,
  memory: ([id]) => html`<${Memory} id=${id} />`,
  store: () => html`<${Store} />`,
  inbox: ([id]) => html`<${Inbox} id=${id} />`,
};
const TABS = [["runs", "Runs", ["run", "compare"]], ["inbox", "Inbox", []], ["threads", "Threads", ["thread"]], ["memory", "Memory", []], ["store", "Store", []]];
const LIVE = { live: "live", connecting: "connecting…", lost: "connection lost, trying again", denied: "not live: this key cannot watch" };
const HELP = [["j  k", "next, previous"], ["Enter", "open"], ["/", "search"], ["g r", "runs"], ["g i", "inbox"], ["g t", "threads"], ["g m", "memory"], ["g s", "store"], ["u", "up"], ["Esc", "leave a field or a dialog"], ["?", "this list"]];

let showHelp = () => {};
keyboard(() => showHelp());

function App() {
  const [help, set] = useState(false);
  showHelp = () => set(true);
  if (!key.value) return html`<${Enter} />`;
  return html`<${Shell} />${help && html`<${Dialog} title="Keyboard" onClose=${() => set(false)}><dl class="keys">${HELP.map(([keys, what]) => html`<div><dt>${keys.split(/  | /).map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl></${Dialog}>`}<${Notices} />`;
}

function Shell() {
  const { page, rest } = route.value;
  useEffect(listen, [key.value]);
  const open = useLoad((signal) => read("inbox list", { limit: 100 }, { signal }), [], (change) => change?.kind !== "run");
  const waiting = open.data?.length ?? 0;
  useEffect(() => {
    const name = { run: rest[0], thread: rest[0] }[page] ?? page;
    document.title = `${waiting ? `(${waiting}) ` : ""}${name} · tenuto`;
  }, [page, rest.join("/"), waiting]);
  useEffect(() => { if (page !== "memory" && page !== "inbox") scrollTo(0, 0); }, [page, rest[0]]);
  const shown = PAGES[page] ?? PAGES.runs;
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <nav aria-label="Main">
      <a class="brand" href=${link("runs")}><${Logo} />tenuto</a>
      ${TABS.map(([name, word, also]) => html`<a class="tab" href=${link(name)} aria-current=${page === name || also.includes(page) ? "page" : undefined}>${word}${name === "inbox" && waiting > 0 && html`<span class="count" aria-label="${waiting} open">${waiting >= 100 ? "99+" : waiting}</span>`}</a>`)}
      <div class="foot">
        ${scopes.value && !mayWrite() && html`<span class="readonly">${scopes.value.includes("answer") ? "answers only" : "read-only"}</span>`}
        <span class="live ${live.value}" title=${LIVE[live.value]}><span class="vh">${LIVE[live.value]}</span><span aria-hidden="true">${live.value === "live" ? "live" : live.value === "lost" ? "reconnecting" : ""}</span></span>
        <button type="button" class="quiet" aria-label="Keyboard" onClick=${() => showHelp()}>?</button>
      </div>
    </nav>
    <main id="main" tabindex="-1">${shown(rest)}</main>`;
}

const Logo = () => html`<svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true"><rect x="4" y="5" width="16" height="3.4" rx="1.7" /><circle cx="12" cy="15.5" r="4.6" /></svg>`;

function Enter() {
  const [text, set] = useState("");
  return html`<main class="enter"><form onSubmit=${(event) => (event.preventDefault(), useKey(text.trim()))}>
    <h1 class="brand"><${Logo} />tenuto</h1>
    <p><code>tenuto serve</code> prints an address of this page with a key in it. Open that, or paste an API key:</p>
    <label>API key<input type="password" autocomplete="off" required value=${text} onInput=${(event) => set(event.target.value)} /></label>
    <button class="main">Open</button>
  </form></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
