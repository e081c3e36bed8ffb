// Conversations: the list, one as people read it, and what the model sees of it next turn.
import { useEffect, useRef, useState } from "preact/hooks";
import { read } from "./api.js";
import { count, plain, plural, short, shown } from "./format.js";
import { Aged, Copy, Empty, Json, LongList, Problem, Section, Text, Typed, html, useLoad } from "./parts.js";
import { link, refine, route } from "./route.js";
import { Travel } from "./travel.js";

const PAGE = 100;

export function Threads() {
  const { q = "", user = "" } = route.value.query;
  const [pages, more] = useState(1);
  const list = useLoad((signal) => read("thread overview", { user, limit: pages * 100 }, { signal, page: true }), [user, pages]);
  const all = list.data?.rows ?? [];
  const rows = q ? all.filter((one) => one.id.toLowerCase().includes(q.toLowerCase())) : all;
  return html`<div class="page">
    <header class="head"><h1>Threads</h1>
      <${Typed} data-search type="search" placeholder="Open or find a thread by id" aria-label="Find threads" value=${q} onValue=${(text) => refine({ q: text.trim() })} onKeyDown=${(event) => event.key === "Enter" && q && (location.hash = link("thread", [rows[0]?.id ?? q]))} />
      <${Typed} class="narrow" placeholder="of user" aria-label="Of this user" value=${user} onValue=${(text) => refine({ user: text.trim() })} />
    </header>
    <${Problem} error=${list.error} />
    ${list.data && !rows.length && html`<${Empty} title=${all.length ? "None of those loaded fits" : "No threads yet"}><p>A conversation is kept with <code>agent.thread("id").append(…)</code>.</p></${Empty}>`}
    <${LongList} kind="ul" label="Threads" count=${rows.length} estimate=${57} onRange=${(_, last) => !list.busy && last > all.length - 40 && all.length >= pages * 100 && more(pages + 1)}
      render=${(at) => html`<li key=${rows[at].id} data-index=${at}><${Row} thread=${rows[at]} /></li>`} />
  </div>`;
}

const Row = ({ thread }) => html`<a class="plain-row" data-row href=${link("thread", [thread.id])}>
  <span class="c-run"><b><bdi>${short(thread.id, 90)}</bdi></b>${(thread.user || thread.forked_from) && html`<small>${thread.user && html`<bdi>of ${short(thread.user, 40)}</bdi>`}${thread.forked_from && html`<bdi>fork of ${short(thread.forked_from, 40)}</bdi>`}</small>`}</span>
  <span class="c-last">${thread.last && html`<span class="dim">${short(thread.role ?? "", 20)}</span> <bdi>${short(thread.last, 120)}</bdi>`}</span>
  <span class="c-count">${plural(thread.messages, "message")}</span>
  <span class="c-when"><${Aged} at=${thread.created_at} /></span>
</a>`;

const TABS = [["", "Conversation"], ["next", "What the model sees next"], ["travel", "Time travel"]];

export function ThreadPage({ id }) {
  const { view = "" } = route.value.query;
  return html`<div class="page thread">
    <header class="head"><div class="title"><a class="up" data-up href=${link("threads")}>Threads</a><h1><bdi>${short(id, 120)}</bdi></h1></div></header>
    <div class="chips tabs" role="group" aria-label="View">${TABS.map(([name, word]) => html`<button type="button" aria-pressed=${view === name} onClick=${() => refine({ view: name })}>${word}</button>`)}</div>
    ${view === "next" ? html`<${Context} id=${id} />` : view === "travel" ? html`<${Travel} thread=${id} />` : html`<${Conversation} id=${id} />`}
  </div>`;
}

// -- as people read it: parts are loaded where the reader looks ---------------------------------

function Conversation({ id }) {
  const info = useLoad((signal) => read("thread info", { thread: id }, { signal }), [id], () => true);
  const total = info.data?.messages ?? 0;
  const parts = useRef(new Map());
  const [, draw] = useState(0);
  const [range, look] = useState([0, 0]);
  useEffect(() => {
    parts.current.delete(Math.floor((total - 1) / PAGE)); // the last part may have grown
    draw((n) => n + 1);
  }, [total]);
  useEffect(() => {
    if (!total) return;
    for (let part = Math.floor(range[0] / PAGE); part <= Math.floor(Math.max(0, range[1] - 1) / PAGE); part++) {
      if (parts.current.has(part)) continue;
      parts.current.set(part, []);
      read("thread read", { thread: id, after: part * PAGE, limit: PAGE }).then(
        (rows) => (parts.current.set(part, rows), draw((n) => n + 1)),
        () => parts.current.delete(part),
      );
    }
  }, [id, total, range[0], range[1], parts.current.size]);
  if (info.error) return html`<${Problem} error=${info.error} />`;
  if (info.data && !total) return html`<${Empty} title="No messages"><p>This thread is empty, or there is none of this id. It may still have checkpoints: see time travel.</p></${Empty}>`;
  return html`<p class="line"><span>${plural(total, "message")}</span>${info.data?.decisions > 0 && html`<span>${plural(info.data.decisions, "decision")}</span>`}<button type="button" class="link" onClick=${() => scrollTo(0, 0)}>to the first</button></p>
    ${total > 0 && html`<${LongList} label="Messages" count=${total} estimate=${86} from="end" onRange=${(first, last) => look([first, last])}
      render=${(at) => {
        const one = parts.current.get(Math.floor(at / PAGE))?.[at % PAGE];
        return html`<li key=${at} data-index=${at} id=${`m${at + 1}`}>${one ? html`<${Message} number=${one.number} message=${one.message} />` : html`<div class="message"><p class="dim">message ${count(at + 1)}…</p></div>`}</li>`;
      }} />`}`;
}

export function Message({ message, number }) {
  const role = String(message.role ?? message.type ?? "message");
  const content = message.content ?? message.text ?? message.output ?? null;
  const calls = message.tool_calls ?? (Array.isArray(content) ? content.filter((one) => one?.type === "tool_use") : []);
  const texts = typeof content === "string" ? [content] : Array.isArray(content) ? content.filter((one) => typeof one?.text === "string").map((one) => one.text) : [];
  const others = Array.isArray(content) ? content.filter((one) => typeof one?.text !== "string" && one?.type !== "tool_use") : content !== null && typeof content === "object" ? [content] : [];
  const tool = role === "tool" || role === "function" || others.some((one) => one?.type === "tool_result");
  return html`<article class="message r-${["user", "assistant", "system", "tool"].includes(role) ? role : "other"}">
    <header><b>${short(role, 20)}</b>${number !== undefined && html`<span class="dim">${count(number)}</span>`}</header>
    ${tool
      ? html`<details><summary>result${message.name ? ` of ${short(message.name, 40)}` : ""} <span class="dim">${shown(content, 100)}</span></summary><div class="json"><${Json} value=${parsed(content)} open=${true} /></div></details>`
      : html`${texts.map((text) => html`<p class="said"><${Text} text=${text} /></p>`)}${others.map((one) => html`<div class="json"><${Json} value=${one} /></div>`)}`}
    ${Array.isArray(calls) && calls.map((call) => html`<details><summary>calls <b>${short(call?.function?.name ?? call?.name ?? "a tool", 60)}</b> <span class="dim">${shown(call?.function?.arguments ?? call?.input ?? call?.args, 100)}</span></summary><div class="json"><${Json} value=${parsed(call?.function?.arguments ?? call?.input ?? call?.args ?? call)} open=${true} /></div></details>`)}
  </article>`;
}

function parsed(value) {
  if (typeof value !== "string" || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

// -- what the model sees next turn -------------------------------------------------------------

function Context({ id }) {
  const { user = "", query = "", budget = "8000" } = route.value.query;
  const found = useLoad((signal) => read("thread context", { thread: id, user, query, budget: Number(budget) || 8000 }, { signal }), [id, user, query, budget], () => true);
  const built = found.data;
  const whole = Number(budget) || 8000;
  const parts = merged(built?.parts ?? []);
  return html`<form class="asks" onSubmit=${(event) => event.preventDefault()}>
      <label>Query<${Typed} value=${query} placeholder="the last message of the user" onValue=${(text) => refine({ query: text.trim() })} /></label>
      <label>User<${Typed} value=${user} placeholder="nobody’s memories" onValue=${(text) => refine({ user: text.trim() })} /></label>
      <label>Budget, tokens<${Typed} type="number" min="1" value=${budget} onValue=${(text) => refine({ budget: text.trim() })} /></label>
    </form>
    <${Problem} error=${found.error} />
    ${built && html`
      <p class="line"><span><b>${count(built.tokens)}</b> of ${count(whole)} tokens</span><span>${plural(built.messages.length, "message")}</span><span>a preview: nothing is stored</span></p>
      <div class="budget" role="img" aria-label="${count(built.tokens)} of ${count(whole)} tokens">${parts.map((part, at) => html`<span class="part-${at % 5}" style=${{ width: `${(part.tokens / whole) * 100}%` }} title="${plain(part.name)}: ${count(part.tokens)} tokens"></span>`)}</div>
      <div class="scroll" tabindex="0" role="region" aria-label="Parts"><table><thead><tr><th>Part</th><th class="num">Tokens</th><th>Why it is there</th></tr></thead>
        <tbody>${built.parts.map((part) => html`<tr><th scope="row"><span class="swatch part-${parts.findIndex((one) => one.name === part.name) % 5}" aria-hidden="true"></span>${short(part.name, 60)}</th><td class="num">${count(part.tokens)}</td><td>${short(part.why, 200)}</td></tr>`)}</tbody></table></div>
      ${built.left_out.length > 0 && html`<${Section} title="Left out"><div class="scroll" tabindex="0" role="region" aria-label="Left out"><table><thead><tr><th>What</th><th class="num">Tokens</th><th>Why not</th></tr></thead><tbody>${built.left_out.map((one) => html`<tr><th scope="row">${short(one.what, 160)}</th><td class="num">${count(one.tokens)}</td><td>${short(one.why, 200)}</td></tr>`)}</tbody></table></div></${Section}>`}
      <${Section} title="Exactly this is sent" aside=${html`<${Copy} quiet text=${() => JSON.stringify(built.messages, null, 2)} />`}>
        ${built.system && html`<${Message} message=${{ role: "system", content: built.system }} />`}
        <ol>${built.messages.map((message, at) => html`<li key=${at}><${Message} message=${message} /></li>`)}</ol>
      </${Section}>`}`;
}

function merged(parts) {
  const found = new Map();
  for (const part of parts) found.set(part.name, (found.get(part.name) ?? 0) + part.tokens);
  return [...found].map(([name, tokens]) => ({ name, tokens }));
}

