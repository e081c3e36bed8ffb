// The store: its health, size and growth, what works on it, its queues, and the last audit.
import { useState } from "preact/hooks";
import { may, read } from "./api.js";
import { bytes, count, plain, plural, roughly, short } from "./format.js";
import { Ago, Problem, Section, html, now, useLoad } from "./parts.js";
import { link } from "./route.js";

const SAMPLES = "tenuto:sizes:" + new URL("..", document.baseURI).pathname;

// Sizes as this browser saw them: growth needs two looks at different times.
function growth(stats) {
  let known = [];
  try {
    known = JSON.parse(localStorage.getItem(SAMPLES) || "[]");
  } catch {
    known = [];
  }
  known = known.filter((one) => one.store === stats.path || one.store === stats.backend);
  const own = { store: stats.path ?? stats.backend, at: Date.now(), bytes: stats.bytes, entries: stats.entries };
  if (!known.length || own.at - known.at(-1).at > 3_600_000) localStorage.setItem(SAMPLES, JSON.stringify([...known, own].slice(-200)));
  const first = known[0];
  return first && own.at - first.at > 60_000 ? { ...first, grown: own.bytes - first.bytes, more: own.entries - first.entries } : null;
}

export function Store() {
  const [checks, check] = useState(0);
  const admin = may("admin");
  const found = useLoad(async (signal) => (admin ? read("stats", {}, { signal }) : null), [admin]);
  const queues = useLoad((signal) => read("tasks queues", {}, { signal }), []);
  const workers = useLoad((signal) => read("workers", {}, { signal }), [], (change) => change?.kind !== "question");
  const checked = useLoad(async (signal) => (checks ? { findings: await read("check", {}, { signal }), at: Date.now() } : null), [checks]);
  const [audits, showAudit] = useState(0);
  const audit = useLoad(async (signal) => (audits ? read("audit last", {}, { signal }) : null), [audits]);
  const stats = found.data;
  const grown = stats && growth(stats);
  const rest = stats ? Object.entries(stats).filter(([name]) => !["backend", "durability", "survives", "writable", "bytes", "records", "entries", "commits"].includes(name)) : [];
  return html`<div class="page store">
    <header class="head"><h1>Store</h1></header>
    <${Problem} error=${found.error} />
    ${stats && html`<dl class="tiles">
      <div><dt>Backend</dt><dd>${plain(stats.backend)}<small>${plain(stats.version ?? "")}</small></dd></div>
      <div><dt>Survives</dt><dd>${plain(stats.survives ?? stats.durability)}<small>durability ${plain(stats.durability ?? "")}</small></dd></div>
      ${stats.bytes !== undefined && html`<div><dt>Size</dt><dd>${bytes(stats.bytes)}<small>${grown ? `${grown.grown >= 0 ? "+" : "−"}${bytes(Math.abs(grown.grown))} in ${roughly((now.value - grown.at) / 1000)}` : "growth shows from the second visit on"}</small></dd></div>`}
      ${stats.records !== undefined && html`<div><dt>Records</dt><dd>${count(stats.records)}<small>${plural(stats.entries ?? 0, "entry").replace("entrys", "entries")}</small></dd></div>`}
      ${stats.commits !== undefined && html`<div><dt>Commits</dt><dd>${count(stats.commits)}<small>${stats.writable ? "writable" : "read-only"}</small></dd></div>`}
    </dl>`}
    ${!admin && html`<p class="hint">Size and health are of the whole store, all tenants: they need a key with the scope <code>admin</code>.</p>`}
    <div class="split even">
      <${Section} title="Queues"><${Problem} error=${queues.error} />
        ${queues.data && (queues.data.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Queues"><table><thead><tr><th>Queue</th>${["ready", "later", "running", "dead"].map((word) => html`<th class="num">${word}</th>`)}</tr></thead>
          <tbody>${queues.data.map((one) => html`<tr><th scope="row"><bdi>${short(one.queue, 60)}</bdi></th>${["ready", "later", "running", "dead"].map((word) => html`<td class="num ${word === "dead" && one.dead ? "bad" : ""}">${count(one[word])}</td>`)}</tr>`)}</tbody></table></div>` : html`<p class="dim">No tasks are queued.</p>`)}
      </${Section}>
      <${Section} title="Working now"><${Problem} error=${workers.error} />
        ${workers.data && (workers.data.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Working now"><table><thead><tr><th>Process</th><th>Executes</th><th>Since</th></tr></thead>
          <tbody>${workers.data.map((one) => html`<tr><th scope="row">${short(one.by, 80)}</th><td>${one.kind === "run" ? html`<a href=${link("run", [one.id])}><bdi>${short(one.id, 60)}</bdi></a>` : html`<bdi>${short(one.id, 60)}</bdi>`} <small>${short(one.what ?? "", 40)}</small></td><td><${Ago} at=${one.since} /></td></tr>`)}</tbody></table></div>` : html`<p class="dim">No process executes a run or a task now.</p>`)}
      </${Section}>
    </div>
    ${admin && html`<${Section} title="Integrity" aside=${html`<button type="button" disabled=${checked.busy && checks > 0} onClick=${() => check(checks + 1)}>${checked.busy && checks ? "checking…" : "Check everything"}</button>`}>
      <${Problem} error=${checked.error} />
      ${checked.data ? (checked.data.findings.length ? html`<ul>${checked.data.findings.map((one) => html`<li class="bad"><b>${plain(one.kind)}</b> ${short(one.detail, 300)}</li>`)}</ul>` : html`<p>No damage found: every checksum and every digest chain is right.</p>`) : html`<p class="dim">Reads every record and verifies its checksum and its chain; it takes a while on a large store.</p>`}
    </${Section}>
    ${rest.length > 0 && html`<${Section} title="Details"><dl class="facts">${rest.map(([name, value]) => html`<div><dt>${short(name.replaceAll("_", " "), 40)}</dt><dd class="break">${short(typeof value === "object" ? JSON.stringify(value) : String(value), 200)}</dd></div>`)}</dl></${Section}>`}`}
    <${Section} title="Last audit" aside=${html`<button type="button" onClick=${() => showAudit(audits + 1)}>Show the last audit</button>`}><${Problem} error=${audit.error} />${audit.data ? html`<${Audit} report=${audit.data} />` : html`<p class="dim">What <code>tenuto audit</code> found last: whether this store's state survives production.</p>`}</${Section}>
  </div>`;
}

const ORDER = ["failed", "not tested", "not offered", "passed"];

function Audit({ report }) {
  const rows = [...report.findings].sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status));
  const bad = rows.filter((one) => one.status !== "passed");
  return html`<p class="line"><span><${Ago} at=${report.at} /></span><span><bdi>${short(report.target, 80)}</bdi></span>${Object.entries(report.counts).map(([status, number]) => html`<span>${count(number)} ${plain(status)}</span>`)}</p>
    ${bad.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Findings"><table><thead><tr><th>Rule</th><th>Finding</th><th>Evidence</th></tr></thead>
      <tbody>${bad.map((one) => html`<tr><th scope="row">${plain(one.code)}<small> ${plain(one.severity)}</small></th><td class=${one.status === "failed" ? "bad" : ""}>${plain(one.status)}: ${short(one.title, 160)}</td><td>${short(one.evidence, 300)}</td></tr>`)}</tbody></table></div>`}
    ${rows.length > bad.length && html`<details><summary>${plural(rows.length - bad.length, "rule")} passed</summary><ul class="log">${rows.filter((one) => one.status === "passed").map((one) => html`<li><b>${plain(one.code)}</b> ${short(one.title, 160)}</li>`)}</ul></details>`}`;
}
