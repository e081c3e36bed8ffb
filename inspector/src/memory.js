// What agents know: search with reasons, provenance, history, duplicates, forget with a receipt.
import { useState } from "preact/hooks";
import { mayWrite, read, write } from "./api.js";
import { plain, short, when } from "./format.js";
import { Ago, Copy, Dialog, Empty, Facts, LongList, Problem, Section, Typed, html, useLoad } from "./parts.js";
import { go, link, refine, route } from "./route.js";

const KINDS = ["fact", "preference", "event", "decision", "skill", "policy", "case"];
const VIEWS = [["", "memories"], ["duplicates", "duplicates"]];

export function Memory({ id }) {
  const { q = "", user = "", kind = "", view = "" } = route.value.query;
  const [forgets, forget] = useState(null);
  const [receipt, show] = useState(null);
  const found = useLoad(
    async (signal) => {
      if (view === "duplicates") return { pairs: await read("memory duplicates", { user }, { signal }) };
      if (q) return { hits: await read("memory search", { query: q, user, kind, k: 50 }, { signal }) };
      return { rows: await read("memory list", { user, kind, limit: 1000 }, { signal }) };
    },
    [q, user, kind, view],
  );
  const one = useLoad(async (signal) => (id ? { memory: await read("memory show", { memory: id }, { signal }), history: await read("memory history", { memory: id }, { signal }) } : null), [id]);
  const { pairs, hits, rows } = found.data ?? {};
  const listed = hits ?? (rows ? [...rows].reverse() : []);
  const here = route.value.query;
  return html`<div class="page memory">
    <header class="head"><h1>Memory</h1>
      <${Typed} data-search type="search" placeholder="Ask as an agent would: which seat?" aria-label="Search memories" value=${q} onValue=${(text) => refine({ q: text.trim() })} />
      <${Typed} class="narrow" placeholder="of user; empty: everyone’s" aria-label="Of this user" value=${user} onValue=${(text) => refine({ user: text.trim() })} />
    </header>
    <div class="filters"><div class="chips" role="group" aria-label="Kind">${["", ...KINDS].map((word) => html`<button type="button" aria-pressed=${kind === word} onClick=${() => refine({ kind: word })}>${word || "all kinds"}</button>`)}</div>
      <div class="chips" role="group" aria-label="View">${VIEWS.map(([name, word]) => html`<button type="button" aria-pressed=${view === name} onClick=${() => refine({ view: name })}>${word}</button>`)}</div></div>
    <${Problem} error=${found.error} />
    <div class="two wide ${id ? "picked" : ""}">
      <div>
        ${pairs && (pairs.length ? html`<ul class="cards">${pairs.map((pair) => html`<li class="card"><small>${Math.round(pair.share * 100)} % of the words are common</small>${[pair.first, pair.second].map((memory) => html`<p><a href=${link("memory", [memory.id], here)}>${short(memory.text, 200)}</a> <small><${Ago} at=${memory.learned_at} /></small></p>`)}</li>`)}</ul>` : html`<${Empty} title="No two say almost the same" />`)}
        ${found.data && !pairs && !listed.length && html`<${Empty} title=${q ? "Nothing was found" : "No memories here"}><p>${user ? "" : "Without a user, only memories of the whole tenant are shown."}</p></${Empty}>`}
        ${!pairs && html`<${LongList} kind="ul" label="Memories" count=${listed.length} estimate=${74} render=${(at) => {
          const memory = listed[at];
          return html`<li key=${memory.id} data-index=${at} class="spaced"><a class="card" data-row aria-current=${memory.id === id ? "true" : undefined} href=${link("memory", [memory.id], here)}><b>${short(memory.text, 220)}</b><small><span>${memory.kind}</span>${memory.user && html`<span>of <bdi>${short(memory.user, 40)}</bdi></span>`}<span><${Ago} at=${memory.learned_at} /></span><span>said by ${memory.trust}</span>${memory.why && html`<span class="why">recalled: ${short(memory.why, 120)}</span>`}</small></a></li>`;
        }} />`}
      </div>
      ${id && html`<aside class="detail" aria-label="Memory"><a class="back" href=${link("memory", [], here)}>All memories</a><${Problem} error=${one.error} />${one.data && html`<${Detail} ...${one.data} forget=${() => forget(one.data.memory)} />`}</aside>`}
    </div>
    ${forgets && html`<${Forget} memory=${forgets} onClose=${() => forget(null)} done=${(given) => (forget(null), show(given), go("memory", [], here), found.reload())} />`}
    ${receipt && html`<${Dialog} title="Forgotten" onClose=${() => show(null)}><p>This was removed, from every layer:</p><${Facts} of=${Object.entries(receipt).map(([name, value]) => [name.replaceAll("_", " "), typeof value === "object" ? JSON.stringify(value) : String(value)])} /><div class="row end"><${Copy} label="Copy the receipt" text=${JSON.stringify(receipt, null, 2)} /></div></${Dialog}>`}
  </div>`;
}

function Detail({ memory, history, forget }) {
  const { source } = memory;
  return html`<h2>${plain(memory.text)}</h2>
    <${Section} title="Where it comes from"><${Facts} of=${[
      ["said by", memory.trust],
      ["written by", short(memory.writer, 60)],
      ["message", source?.thread && html`<a href=${link("thread", [source.thread])}><bdi>${short(source.thread, 60)}</bdi></a>${source.message !== null && `, message ${source.message}`}`],
      ["run", source?.run && html`<a href=${link("run", [source.run], source.step ? { step: source.step } : {})}><bdi>${short(source.run, 60)}</bdi></a>`],
      ["file", source?.file && `${short(source.file, 120)}${source.heading ? ` · ${short(source.heading, 80)}` : ""}`],
      ["learned", when(memory.learned_at)],
      ["correlation id", memory.correlation_id && html`<code class="break">${short(memory.correlation_id, 60)}</code>`],
    ]} /></${Section}>
    <${Section} title="What it is"><${Facts} of=${[
      ["kind", memory.kind], ["of user", memory.user && short(memory.user, 60)], ["about", memory.about && short(memory.about, 60)], ["predicate", memory.predicate && short(memory.predicate, 60)],
      ["remembered", memory.seen > 1 && `${memory.seen} times`], ["true from", when(memory.valid_from)], ["true until", when(memory.valid_until)], ["review by", when(memory.review_by)], ["expires", when(memory.expires_at)],
      ["superseded", memory.superseded_at && html`<a href=${link("memory", [memory.superseded_by])}>${when(memory.superseded_at)}</a>`],
    ]} /></${Section}>
    ${history.length > 1 && html`<${Section} title="History"><ol class="log">${history.map((one) => html`<li><time>${when(one.learned_at)}</time> ${one.id === memory.id ? html`<b>${short(one.text, 120)}</b>` : html`<a href=${link("memory", [one.id])}>${short(one.text, 120)}</a>`}</li>`)}</ol></${Section}>`}
    ${mayWrite() && html`<p class="row"><button type="button" onClick=${forget}>Forget…</button></p>`}`;
}

function Forget({ memory, onClose, done }) {
  const [reason, set] = useState("");
  const [error, fail] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      done(await write("memory forget", { id: memory.id, reason }));
    } catch (wrong) {
      fail(wrong);
    }
  };
  return html`<${Dialog} title="Forget this memory?" onClose=${onClose}><form onSubmit=${submit}>
    <p>“${short(memory.text, 200)}” is removed for good: from the search, the journal, and everything derived from it.</p>
    <label>Why<input value=${reason} placeholder="for the journal" onInput=${(event) => set(event.target.value)} /></label>
    <${Problem} error=${error} />
    <div class="row end"><button type="button" onClick=${onClose}>Keep it</button><button class="danger">Forget</button></div>
  </form></${Dialog}>`;
}

