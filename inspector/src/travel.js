// Time travel: the checkpoints of a thread on a slider, what changed between any two, the history of one key, restore.
import { useState } from "preact/hooks";
import { mayWrite, read, write } from "./api.js";
import { bytes, count, plural, short, shown, when } from "./format.js";
import { Ago, Dialog, Empty, Json, Problem, Section, html, notify, useLoad } from "./parts.js";
import { go, refine, route } from "./route.js";

export function Travel({ thread }) {
  const { a, b, key = "" } = route.value.query;
  const [asks, ask] = useState(false);
  const list = useLoad((signal) => read("checkpoint list", { thread, limit: 500 }, { signal }), [thread], () => true);
  const all = [...(list.data ?? [])].reverse();
  const at = (id, otherwise) => {
    const found = all.findIndex((one) => one.id === id);
    return found >= 0 ? found : otherwise;
  };
  const right = at(b, all.length - 1);
  const left = at(a, Math.max(0, right - 1));
  const [from, to] = [all[left], all[right]];
  const both = useLoad(
    async (signal) => (from && to ? { state: await read("checkpoint show", { checkpoint: to.id, thread }, { signal }), diff: await read("checkpoint diff", { before: from.id, after: to.id, thread }, { signal }) } : null),
    [thread, from?.id, to?.id],
  );
  if (list.data && !all.length) return html`<${Empty} title="No checkpoints of this thread"><p>They are saved with <code>agent.checkpoint.create("name", state, thread=…)</code>.</p></${Empty}>`;
  if (!to) return html`<${Problem} error=${list.error} />`;
  const pick = (name, index) => refine({ [name]: all[index].id });
  const slider = (name, word, index) => html`<label class="slide"><span>${word} <b><bdi>${short(all[index].id, 50)}</bdi></b> <small>${short(all[index].name, 30)} · ${when(all[index].created_at)} · ${bytes(all[index].size)}</small></span>
    <input type="range" min="0" max=${all.length - 1} value=${index} aria-valuetext="${all[index].id}, ${index + 1} of ${all.length}" onInput=${(event) => pick(name, Number(event.target.value))} /></label>`;
  return html`
    <div class="sliders">${slider("a", "From", left)}${slider("b", "To", right)}</div>
    <p class="row">
      <span class="dim">${plural(all.length, "checkpoint")}, the newest <${Ago} at=${all.at(-1).created_at} /></span>
      ${mayWrite() && html`<button type="button" onClick=${() => ask(true)}>Restore “To” into a new thread…</button>`}
    </p>
    <${Problem} error=${both.error} />
    <div class="split even">
      <section class="boxed-part"><header><h2>What changed</h2><span class="dim">${both.data && plural(both.data.diff.length, "change")}</span></header>
        ${both.data && (both.data.diff.length ? html`<${Tree} changes=${both.data.diff} onKey=${(path) => refine({ key: path })} />` : html`<p class="dim">Nothing: both are the same.</p>`)}</section>
      <section class="boxed-part"><header><h2>State at “To”</h2></header>
        ${both.data && html`<div class="json bare"><${Json} value=${both.data.state} bare /></div>`}
        <${KeyHistory} thread=${thread} path=${key} /></section>
    </div>
    ${asks && html`<${Restore} checkpoint=${to.id} thread=${thread} onClose=${() => ask(false)} />`}`;
}

// The changes as a tree of the state: only the branches in which something changed.
function Tree({ changes, onKey }) {
  const root = { inner: new Map() };
  for (const change of changes.slice(0, 2000)) {
    let node = root;
    for (const part of change.path) {
      const name = String(part);
      if (!node.inner.has(name)) node.inner.set(name, { inner: new Map(), path: [...(node.path ?? []), name] });
      node = node.inner.get(name);
    }
    (node.changes ??= []).push(change);
  }
  return html`<div class="json diff" role="group" aria-label="Changes">${root.changes?.map((one) => html`<${Change} change=${one} />`)}${[...root.inner].map(([name, node]) => html`<${Branch} name=${name} node=${node} onKey=${onKey} />`)}</div>
    ${changes.length > 2000 && html`<p class="dim">… ${count(changes.length - 2000)} more</p>`}`;
}

function Branch({ name, node, onKey }) {
  return html`<div class="limb"><button type="button" class="link name" title="History of this key" onClick=${() => onKey(node.path.join("/"))}><bdi>${short(name, 80)}</bdi></button>
    ${node.changes?.map((one) => html`<${Change} change=${one} />`)}
    ${node.inner.size > 0 && html`<div class="inner">${[...node.inner].map(([inner, one]) => html`<${Branch} name=${inner} node=${one} onKey=${onKey} />`)}</div>`}
  </div>`;
}

const Change = ({ change }) => html`<div class="change k-${change.kind}">
  ${change.kind !== "added" && html`<div class="old"><span aria-hidden="true">−</span><span class="vh">before: </span><${Json} value=${change.old} depth=${1} /></div>`}
  ${change.kind !== "removed" && html`<div class="new"><span aria-hidden="true">+</span><span class="vh">after: </span><${Json} value=${change.new} depth=${1} /></div>`}
</div>`;

function KeyHistory({ thread, path }) {
  const [text, set] = useState(path);
  const found = useLoad(async (signal) => (path ? read("checkpoint history", { key: path, thread, limit: 500 }, { signal }) : null), [thread, path]);
  return html`<${Section} title="History of one key">
    <form class="row" onSubmit=${(event) => (event.preventDefault(), refine({ key: text.trim() }))}>
      <input class="code narrow" aria-label="Key, with / for inner ones" placeholder="budget or plan/0/step" value=${text || path} onInput=${(event) => set(event.target.value)} /><button>Show</button>
    </form>
    <${Problem} error=${found.error} />
    ${found.data && html`<ol class="log">${found.data.map((one) => html`<li><button type="button" class="link" onClick=${() => refine({ b: one.checkpoint })}>${short(one.checkpoint, 40)}</button> <span class="dim"><${Ago} at=${one.created_at} /></span> ${one.present ? html`<code>${shown(one.value, 120)}</code>` : html`<span class="dim">absent</span>`}</li>`)}</ol>`}
  </${Section}>`;
}

function Restore({ checkpoint, thread, onClose }) {
  const [id, set] = useState(`${thread}-restored`);
  const [error, fail] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await write("checkpoint fork", { checkpoint, thread: id });
    } catch (wrong) {
      return fail(wrong);
    }
    notify(`Restored into ${id}.`);
    onClose();
    go("thread", [id], { view: "travel" });
  };
  return html`<${Dialog} title="Restore into a new thread" onClose=${onClose}><form onSubmit=${submit}>
    <p class="dim">The state of <b>${short(checkpoint, 60)}</b> becomes the first checkpoint of another thread. This one does not change.</p>
    <label>Id of the new thread<input required value=${id} onInput=${(event) => set(event.target.value)} /></label>
    <${Problem} error=${error} />
    <div class="row end"><button type="button" onClick=${onClose}>Not now</button><button class="main">Restore</button></div>
  </form></${Dialog}>`;
}
