// The store: its health, size and growth, what works on it, its queues, its alerts, the last audit, and the API keys for admins.
import { useState } from "preact/hooks";
import { may, read, write } from "./api.js";
import { bytes, count, plain, plural, roughly, short, shown, when } from "./format.js";
import { ApiKeys } from "./access.js";
import { Ago, Badge, Facts, Icon, Problem, Section, html, now, useLoad } from "./parts.js";
import { link } from "./route.js";

const TILES = ["backend", "version", "durability", "survives", "writable", "bytes", "records", "entries", "commits"];
const SIZES = ["page_bytes", "free_bytes", "wal_bytes"];

export function Store() {
  const admin = may("admin");
  const found = useLoad(async (signal) => (admin ? read("stats", {}, { signal }) : null), [admin]);
  const queues = useLoad((signal) => read("tasks queues", {}, { signal }), []);
  const workers = useLoad((signal) => read("workers", {}, { signal }), [], (change) => change?.kind !== "question");
  // This also takes the hourly sample, as workers do: without one there is no growth to show.
  const grown = useLoad(async () => (admin ? write("growth") : null), [admin]);
  const alerts = useLoad((signal) => read("alerts list", {}, { signal }), []);
  const audits = useLoad((signal) => read("audit list", { limit: 12 }, { signal }), []);
  const stats = found.data;
  const rest = stats ? Object.entries(stats).filter(([name]) => !TILES.includes(name)) : [];
  return html`<div class="page store">
    <header class="head"><h1>Store</h1>${stats?.path && html`<code class="dim" title=${plain(stats.path)}>${short(stats.path.split(/[\\/]/).at(-1), 60)}</code>`}</header>
    <${Problem} error=${found.error} />
    <div class="health">
      ${stats && html`<dl class="tiles">
        <div><dt>Backend</dt><dd>${plain(stats.backend)}<small>${[stats.version && plain(stats.version), stats.writable === false && "read-only"].filter(Boolean).join(" · ")}</small></dd></div>
        <div><dt>Survives</dt><dd>${plain(stats.survives ?? stats.durability ?? "")}<small>durability ${plain(stats.durability ?? "")}</small></dd></div>
        ${stats.records !== undefined && html`<div><dt>Records</dt><dd>${count(stats.records)}<small>${count(stats.entries ?? 0)} in the journals</small></dd></div>`}
        ${stats.commits !== undefined && html`<div><dt>Commits</dt><dd>${count(stats.commits)}<small>since it was created</small></dd></div>`}
      </dl>`}
      <${Growing} growth=${grown.data} error=${grown.error} size=${stats?.bytes} />
    </div>
    ${!admin && html`<p class="hint">Figures and health are of the whole store, all tenants: they need a key with the scope <code>admin</code>.</p>`}
    <div class="split even">
      <${Section} title="Queues"><${Problem} error=${queues.error} />
        ${queues.data && (queues.data.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Queues"><table><thead><tr><th>Queue</th>${["ready", "later", "running", "dead"].map((word) => html`<th class="num">${word}</th>`)}</tr></thead>
          <tbody>${queues.data.map((one) => html`<tr><th scope="row"><bdi>${short(one.queue, 60)}</bdi></th>${["ready", "later", "running", "dead"].map((word) => html`<td class="num ${word === "dead" && one.dead ? "bad" : ""} ${one[word] ? "" : "dim"}">${count(one[word])}</td>`)}</tr>`)}</tbody></table></div>` : html`<p class="dim">No tasks are queued.</p>`)}
      </${Section}>
      <${Section} title="Working now"><${Problem} error=${workers.error} />
        ${workers.data && (workers.data.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Working now"><table><thead><tr><th>Process</th><th>Executes</th><th>Since</th></tr></thead>
          <tbody>${workers.data.map((one) => html`<tr><th scope="row">${short(one.by, 80)}</th><td>${one.kind === "run" ? html`<a href=${link("run", [one.id])}><bdi>${short(one.id, 60)}</bdi></a>` : html`<bdi>${short(one.id, 60)}</bdi>`} <small>${short(one.what ?? "", 40)}</small></td><td><${Ago} at=${one.since} /></td></tr>`)}</tbody></table></div>` : html`<p class="dim">No process executes a run or a task now.</p>`)}
      </${Section}>
    </div>
    <${Section} title="Audit"><${Problem} error=${audits.error} />
      ${audits.data && (audits.data.length ? html`<${Audit} report=${audits.data[0]} past=${audits.data} />` : html`<p class="dim">It was not audited yet: <code>tenuto audit</code> tests whether this store's state survives production.</p>`)}
    </${Section}>
    <div class="split even">
      <${Section} title="Alerts"><${Problem} error=${alerts.error} />
        ${alerts.data && (alerts.data.length ? html`<ul class="rows">${alerts.data.map((one) => html`<li><span class=${one.since ? "s-failed" : "s-completed"}><span class="badge"><${Icon} name=${one.since ? "cross" : "check"} /></span></span><span><code>${short(one.when, 120)}</code><small>to ${one.to.map((name) => short(name, 40)).join(", ")}${one.since && html` · holds since <${Ago} at=${one.since} />`}</small></span>${one.question && html`<a href=${link("inbox", [one.question])}>question</a>`}</li>`)}</ul>` : html`<p class="dim">None. <code>tenuto alerts add "runs.in_doubt > 0" ops</code> tells a person.</p>`)}
      </${Section}>
      ${admin && html`<${Integrity} />`}
    </div>
    ${admin && html`<${ApiKeys} />`}
    ${rest.length > 0 && html`<${Section} title="Details"><${Facts} of=${rest.map(([name, value]) => [short(name.replaceAll("_", " "), 40), SIZES.includes(name) ? bytes(value) : shown(value, 200)])} /></${Section}>`}
  </div>`;
}

const limit = (growth) => `${count(Math.round(growth.limit / 1024 ** 3))} GB`;

// The size of the store by the hourly samples, and where it leads.
function Growing({ growth, error, size }) {
  const samples = growth?.samples ?? [];
  const last = samples.at(-1);
  if (error || (!last && size === undefined)) return null; // what was refused is said above
  const rate = growth?.bytes_per_day;
  return html`<section class="growing" aria-label="Size and growth">
    <p class="dim">Size</p>
    <p class="figure">${bytes(size ?? last.bytes)} ${rate !== null && rate !== undefined && html`<span class="dim">${rate >= 0 ? "+" : "−"}${bytes(Math.abs(Math.round(rate)))} a day</span>`}</p>
    ${samples.length > 1 && html`<${Line} samples=${samples} />`}
    <small>${growth?.full_at ? html`At this rate ${limit(growth)} are reached ${when(growth.full_at)}, in ${roughly((Date.parse(growth.full_at) - now.value) / 1000)}.` : samples.length > 1 && rate > 0 ? `At this rate ${limit(growth)} are more than 100 years away.` : samples.length > 1 && rate !== null ? "It does not grow." : "It is sampled once an hour: growth shows after two samples."}</small>
  </section>`;
}

function Line({ samples }) {
  const [wide, high] = [300, 56];
  const times = samples.map((one) => Date.parse(one.at));
  const sizes = samples.map((one) => one.bytes);
  const [first, span] = [times[0], times.at(-1) - times[0] || 1];
  const [low, most] = [Math.min(...sizes), Math.max(...sizes)];
  const points = samples.map((one, at) => [((times[at] - first) / span) * wide, high - 4 - ((one.bytes - low) / (most - low || 1)) * (high - 10)]);
  const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  return html`<svg class="line-chart" viewBox="0 0 ${wide} ${high}" preserveAspectRatio="none" role="img" aria-label="Size from ${when(samples[0].at)} to ${when(samples.at(-1).at)}: ${bytes(sizes[0])} to ${bytes(sizes.at(-1))}">
    <polygon points="0,${high} ${line} ${wide},${high}" /><polyline points=${line} /></svg>
    <p class="ends" aria-hidden="true"><span>${roughly((now.value - first) / 1000)} ago</span><span>now</span></p>`;
}

function Integrity() {
  const [checks, check] = useState(0);
  const checked = useLoad(async (signal) => (checks ? read("check", {}, { signal }) : null), [checks]);
  const busy = checked.busy && checks > 0;
  return html`<${Section} title="Integrity" aside=${html`<button type="button" disabled=${busy} onClick=${() => check(checks + 1)}>${busy ? "Checking…" : "Check everything"}</button>`}>
    <${Problem} error=${checked.error} />
    ${checked.data ? (checked.data.length ? html`<ul>${checked.data.map((one) => html`<li class="bad"><b>${plain(one.kind)}</b> ${short(one.detail, 300)}</li>`)}</ul>` : html`<p class="s-completed"><span class="badge"><${Icon} name="check" /> No damage found</span> Every checksum and every digest chain is right.</p>`) : html`<p class="dim">Reads every record and verifies its checksum and its chain; it takes a while on a large store.</p>`}
  </${Section}>`;
}

const ORDER = ["failed", "not tested", "not offered", "known", "passed"];
const KIND = { failed: "failed", passed: "completed" };

function Audit({ report, past }) {
  const rows = [...report.findings].sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status));
  const bad = rows.filter((one) => one.status !== "passed");
  const good = rows.filter((one) => one.status === "passed");
  return html`<p class="line">${ORDER.filter((status) => report.counts[status]).map((status) => html`<span><b class=${status === "failed" ? "bad" : ""}>${count(report.counts[status])}</b> ${status}</span>`)}<span><${Ago} at=${report.at} /></span><span><bdi>${short(report.target, 80)}</bdi></span>
      ${past.length > 1 && html`<span>findings before: ${past.slice(1).map((one) => count(one.counts.failed ?? 0)).join(", ")}</span>`}</p>
    ${bad.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Findings"><table class="findings"><thead><tr><th>Rule</th><th>Outcome</th><th>What</th><th>Evidence</th></tr></thead>
      <tbody>${bad.map((one) => html`<tr><th scope="row">${plain(one.code)}</th><td class="s-${KIND[one.status] ?? "queued"}"><${Badge} status=${KIND[one.status] ?? "queued"} label=${one.status} /><small>${plain(one.severity)}</small></td><td>${one.status === "failed" && html`<span class="bad">Not so:</span> `}${short(one.title, 160)}</td><td>${short(one.evidence, 300)}</td></tr>`)}</tbody></table></div>`}
    ${good.length > 0 && html`<details class="passed"><summary>${plural(good.length, "rule")} passed</summary><ul class="log">${good.map((one) => html`<li><b>${plain(one.code)}</b> ${short(one.title, 160)}</li>`)}</ul></details>`}`;
}
