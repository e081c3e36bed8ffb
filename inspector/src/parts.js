// What several pages use: lists that render what is in view, values as trees, dialogs, notices.
import { html } from "htm/preact";
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { follow, key, live, write } from "./api.js";
import { STATUS, ago, bytes, clock, plain, shown, when } from "./format.js";

export { html };

// -- loading and live updates ----------------------------------------------------------------

export const now = signal(Date.now());
setInterval(() => (now.value = Date.now()), 1000);

const heard = new Set();
let stop = null;
export function listen() {
  stop?.();
  live.value = "connecting";
  stop = follow("watch", {}, (change) => heard.forEach((one) => one(change)), (state) => {
    live.value = state;
    if (state === "live") heard.forEach((one) => one(null)); // what happened while the connection was lost
  });
}

// Load something, and again when what it depends on changes; keep showing the last value meanwhile.
export function useLoad(load, on, concerns = null) {
  const [found, set] = useState({ data: undefined, error: null, busy: true });
  const again = useRef(() => {});
  useEffect(() => {
    const gone = new AbortController();
    let [busy, wanted, timer] = [false, false, 0];
    const run = async () => {
      if (busy) return (wanted = true);
      [busy, wanted] = [true, false];
      set((old) => ({ ...old, busy: true }));
      try {
        const data = await load(gone.signal);
        if (!gone.signal.aborted) set({ data, error: null, busy: false });
      } catch (error) {
        if (!gone.signal.aborted) set((old) => ({ data: old.data, error, busy: false }));
      }
      busy = false;
      if (wanted && !gone.signal.aborted) timer = setTimeout(run, 150);
    };
    again.current = run;
    run();
    const onChange = (change) => {
      if (!concerns || !(change === null || concerns(change))) return;
      clearTimeout(timer);
      timer = setTimeout(run, 120);
    };
    if (concerns) heard.add(onChange);
    return () => {
      heard.delete(onChange);
      clearTimeout(timer);
      gone.abort();
    };
  }, [key.value, ...on]);
  return { ...found, reload: () => again.current() };
}

// -- small parts -----------------------------------------------------------------------------

// Drawn, not typed: the glyphs of a font differ or are missing.
const SHAPES = {
  person: "M7 6.6a2.6 2.6 0 1 0 0-5.2 2.6 2.6 0 0 0 0 5.2ZM1.8 12.6a5.2 5.2 0 0 1 10.4 0",
  cross: "m3 3 8 8m0-8-8 8",
  check: "m2.4 7.4 3 3 6.2-6.8",
  doubt: "M4.6 5a2.4 2.4 0 1 1 3.5 2.1c-.8.4-1.1.9-1.1 1.7M7 11.6v.1",
  run: "M4 2.6v8.8L11 7Z",
  pause: "M4.6 3v8m4.8-8v8",
  ring: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Z",
  clock: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm0-7.6V7l1.8 1.4",
  dash: "M3 7h8",
  moon: "M11.4 8.6A5 5 0 0 1 5.4 2.6a5 5 0 1 0 6 6Z",
  flag: "M3.4 12.4V2.2h7L9 5l1.4 2.8h-7",
};
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 14 14" width="13" height="13" aria-hidden="true"><path d=${SHAPES[name] ?? SHAPES.dash} /></svg>`;

export const Badge = ({ status, label }) => {
  const [icon, word] = STATUS[status] || ["dash", status];
  return html`<span class="badge s-${status}"><${Icon} name=${icon} /> ${label || word}</span>`;
};

export const Ago = ({ at }) => html`<time datetime=${at} title=${when(at)}>${ago(at, now.value)}</time>`;

// When it was by the clock as well, once "1 d ago" no longer says it.
export const Aged = ({ at }) => html`<${Ago} at=${at} />${now.value - Date.parse(at) > 6 * 3_600_000 && html`<small>${clock(at)}</small>`}`;
export const Problem = ({ error }) => error && html`<p class="problem" role="alert">${plain(error.message)}</p>`;
export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

export const Copy = ({ text, label = "Copy", quiet }) => {
  const [done, set] = useState(false);
  const copy = async () => {
    await copied(typeof text === "function" ? text() : text);
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<button type="button" class=${quiet ? "quiet" : ""} onClick=${copy}>${done ? "Copied" : label}</button>`;
};

async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // without TLS, other machines have no clipboard API
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function Facts({ of }) {
  const rows = of.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export const Section = ({ title, children, aside }) =>
  html`<section class="part"><header><h2>${title}</h2>${aside}</header>${children}</section>`;

// A field whose value is in the address: what is typed is kept here, and goes there after a short rest.
export function Typed({ value, onValue, ...more }) {
  const [text, set] = useState(value);
  const timer = useRef(0);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) set((sent.current = value)); // it was changed elsewhere: back, a link
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const send = (given) => {
    clearTimeout(timer.current);
    if (given !== sent.current) onValue((sent.current = given));
  };
  const onInput = (event) => {
    const given = event.target.value;
    set(given);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => send(given), 250);
  };
  return html`<input ...${more} value=${text} onInput=${onInput} onChange=${(event) => send(event.target.value)} />`;
}

// -- notices ---------------------------------------------------------------------------------

const notices = signal([]);
export function notify(text, bad = false) {
  const one = { text, bad };
  notices.value = [...notices.value.slice(-2), one];
  setTimeout(() => (notices.value = notices.value.filter((other) => other !== one)), bad ? 12_000 : 5_000);
}
export const Notices = () =>
  html`<div class="notices" role="status" aria-live="polite">
    ${notices.value.map((one) => html`<p class=${one.bad ? "problem" : "notice"}>${plain(one.text)}</p>`)}
  </div>`;

// A button that writes. It cannot be pressed twice, and says what went wrong.
export function Act({ operation, args, children, done, said, kind = "", ...more }) {
  const [busy, set] = useState(false);
  const press = async () => {
    set(true);
    try {
      const found = await write(operation, typeof args === "function" ? args() : args);
      if (said) notify(typeof said === "function" ? said(found) : said);
      done?.(found);
    } catch (error) {
      notify(error.message, true);
    }
    set(false);
  };
  return html`<button type="button" class=${kind} disabled=${busy} onClick=${press} ...${more}>${children}</button>`;
}

// -- dialogs ---------------------------------------------------------------------------------

export function Dialog({ title, onClose, children }) {
  const box = useRef();
  useEffect(() => {
    box.current.showModal();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose} onClick=${(event) => event.target === box.current && onClose()}>
    <header><h2>${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    <div class="inside">${children}</div>
  </dialog>`;
}

export function Confirm({ title, text, operation, args, word, said, onClose, done }) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${text}</p>
    <div class="row end">
      <button type="button" onClick=${onClose}>Keep it</button>
      <${Act} kind="danger" operation=${operation} args=${args} said=${said} done=${(found) => (onClose(), done?.(found))}>${word}</${Act}>
    </div>
  </${Dialog}>`;
}

// -- values ----------------------------------------------------------------------------------

const TEXT = 1_200;
const MANY = 60;

export function Text({ text }) {
  const [most, set] = useState(TEXT);
  const rest = text.length - most;
  return html`<span class="text"><bdi>${plain(text.slice(0, most))}</bdi>${rest > 0 &&
    html`<button type="button" class="more" onClick=${() => set(Math.min(most * 10, most + 200_000))}>… ${bytes(rest)} more</button>`}</span>`;
}

// A value as a tree. Closed branches are not rendered, long lists and texts in parts: nothing freezes the page.
// With `bare`, the outermost level has no line of its own: its fields alone say what it is.
export function Json({ value, name, depth = 0, open = depth < 2, bare = false }) {
  const [is, set] = useState(open);
  const [most, more] = useState(MANY);
  const label = name !== undefined && html`<span class="key"><bdi>${plain(String(name).slice(0, 200))}</bdi></span>`;
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return html`<div class="leaf">${label}<span class="v-${kind}">${kind === "string" ? html`<${Text} text=${value} />` : String(value)}</span></div>`;
  }
  const list = Array.isArray(value);
  const size = list ? value.length : Object.keys(value).length;
  if (!size) return html`<div class="leaf">${label}<span class="v-null">${list ? "[ ]" : "{ }"}</span></div>`;
  if (bare && size <= MANY) return html`${(list ? [...value.keys()] : Object.keys(value)).map((one) => html`<${Json} key=${one} name=${one} value=${value[one]} depth=${depth + 1} open=${size <= 40} />`)}`;
  const names = is ? (list ? [...Array(Math.min(size, most)).keys()] : Object.keys(value).slice(0, most)) : [];
  return html`<div class="branch">
    <button type="button" class="fold" aria-expanded=${is} onClick=${() => set(!is)}>
      <span class="turn" aria-hidden="true">▸</span>${label}<span class="size">${list ? `list of ${size}` : `${size} ${size === 1 ? "field" : "fields"}`}</span>${!is && html`<span class="peek">${shown(value, 80)}</span>`}
    </button>
    ${is && html`<div class="inner">
      ${names.map((one) => html`<${Json} key=${one} name=${one} value=${value[one]} depth=${depth + 1} open=${depth < 2 && size <= 40} />`)}
      ${size > most && html`<button type="button" class="more" onClick=${() => more(most + 500)}>… ${size - most} more</button>`}
    </div>`}
  </div>`;
}

export const Value = ({ title, value, none = "nothing" }) =>
  html`<${Section} title=${title} aside=${value !== null && value !== undefined && html`<${Copy} quiet text=${() => JSON.stringify(value, null, 2)} />`}>
    ${value === null || value === undefined ? html`<p class="dim">${none}</p>` : html`<div class="json bare"><${Json} value=${value} bare /></div>`}
  </${Section}>`;

// -- long lists ------------------------------------------------------------------------------

// Renders the items in view and a few around them. Heights are estimated, then measured. The page itself scrolls.
export function LongList({ count: total, estimate, render, onRange, label, from = "start", kind = "ol" }) {
  const box = useRef();
  const heights = useRef(new Map());
  const [view, set] = useState({ first: 0, last: Math.min(total, 30) });
  const [, redraw] = useState(0);
  const height = (index) => heights.current.get(index) ?? (typeof estimate === "function" ? estimate(index) : estimate);
  const tops = useRef({ total: -1, at: [0] });
  const measure = () => {
    const at = new Array(total + 1);
    at[0] = 0;
    for (let index = 0; index < total; index++) at[index + 1] = at[index] + height(index);
    tops.current = { total, at };
  };
  if (tops.current.total !== total) measure();
  const look = () => {
    if (!box.current) return;
    const { at } = tops.current;
    const top = -box.current.getBoundingClientRect().top;
    const first = Math.max(0, below(at, top - 600));
    const last = Math.min(total, below(at, top + innerHeight + 600) + 1);
    set((old) => (old.first === first && old.last === last ? old : { first, last }));
  };
  useLayoutEffect(() => {
    look();
    let last = -1;
    const onScroll = () => {
      // Only a reader who scrolls up leaves the end: the page also moves as what is shown is measured.
      const ends = innerHeight + scrollY >= document.documentElement.scrollHeight - 8;
      pinned.current = from === "end" && (ends || (pinned.current && scrollY >= last));
      last = scrollY;
      look();
    };
    addEventListener("scroll", onScroll, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", onScroll);
      removeEventListener("resize", look);
    };
  }, [total]);
  const placed = useRef(false);
  const pinned = useRef(from === "end"); // it stays at the end while what is shown there grows
  useLayoutEffect(() => {
    if (from !== "end" || placed.current || !total) return;
    placed.current = true;
    scrollTo(0, document.documentElement.scrollHeight);
    look();
  }, [total]);
  useLayoutEffect(() => {
    let moved = 0;
    const visible = -box.current.getBoundingClientRect().top;
    for (const one of box.current.children) {
      const index = one.dataset.index === undefined ? -1 : Number(one.dataset.index);
      if (index < 0) continue;
      const real = one.getBoundingClientRect().height;
      if (Math.abs(real - height(index)) > 0.5) {
        if (tops.current.at[index + 1] <= visible) moved += real - height(index);
        heights.current.set(index, real);
        moved ||= 0.001;
      }
    }
    if (moved) {
      measure();
      if (Math.abs(moved) > 1 && !pinned.current) scrollBy(0, moved);
      look();
      redraw((n) => n + 1);
    } else if (pinned.current && placed.current) {
      scrollTo(0, document.documentElement.scrollHeight);
    }
  });
  const { at } = tops.current;
  const first = Math.min(view.first, total);
  const last = Math.min(view.last, total);
  useEffect(() => onRange?.(first, last), [first, last, total]);
  const items = [];
  for (let index = first; index < last; index++) items.push(render(index));
  return html`<${kind} ref=${box} class="long" aria-label=${label} style=${{ paddingTop: `${at[first]}px`, paddingBottom: `${at[total] - at[last]}px` }}>${items}</${kind}>`;
}

function below(at, y) {
  let [low, high] = [0, at.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at[middle] <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}
