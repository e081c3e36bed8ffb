// The runs: what waits on a person first, then failed and in doubt, then the rest.
import { useEffect, useMemo, useState } from "preact/hooks";
import { read } from "./api.js";
import { count, money, plural, short } from "./format.js";
import { Aged, Badge, Empty, LongList, Problem, Typed, html, now, useLoad } from "./parts.js";
import { link, refine, route } from "./route.js";

const HEAD = 100;
const NEAR = 60;
const STATUSES = ["person", "failed", "in_doubt", "running", "queued", "waiting", "interrupted", "completed", "cancelled"];
const DAYS = [["", "any time"], ["today", "today"], ["yesterday", "yesterday"], ["week", "7 days"]];
const GROUPS = { person: "Waiting on a person", failed: "Failed or in doubt", rest: "Everything else" };
const groupOf = (run) => (run.attention === "person" ? "person" : run.attention ? "failed" : "rest");

// Seconds that a day of this place's calendar covers, back from now.
function span(day) {
  const midnight = new Date(now.peek());
  midnight.setHours(0, 0, 0, 0);
  const today = Math.ceil((now.peek() - midnight) / 1000);
  if (day === "today") return { since: `${today}s` };
  if (day === "yesterday") return { since: `${today + 86400}s`, before: `${today}s` };
  return day === "week" ? { since: "7d" } : {};
}

// The runs in pages: the next one is loaded when the reader comes near the end. What changes is in the first ones: they are read again.
function useRuns(search, status, day) {
  const asked = `${search}|${status}|${day}`;
  const [rest, setRest] = useState({ asked, rows: [], more: false, error: null });
  const [left, reach] = useState(Infinity);
  const head = useLoad((signal) => read("runs overview", { search, status, ...span(day), limit: HEAD }, { signal, page: true }), [search, status, day], () => true);
  const tail = rest.asked === asked ? rest : { rows: [], more: head.data?.more ?? false, error: null };
  const first = head.data?.rows ?? [];
  const rows = useMemo(() => {
    const known = new Set(first.map((one) => one.id));
    return [...first, ...tail.rows.filter((one) => !known.has(one.id))];
  }, [first, tail.rows]);
  const more = tail.rows.length ? tail.more : (head.data?.more ?? false);
  useEffect(() => {
    if (!more || left > NEAR || !rows.length) return undefined;
    const gone = new AbortController();
    const limit = rows.length > 1000 ? 1000 : 200;
    read("runs overview", { search, status, ...span(day), limit, after: rows.at(-1).id }, { signal: gone.signal, page: true }).then(
      (page) => setRest({ asked, rows: [...tail.rows, ...page.rows], more: page.more && page.rows.length > 0, error: null }),
      (error) => error.name !== "AbortError" && setRest({ ...tail, asked, more: false, error }),
    );
    return () => gone.abort();
  }, [asked, more, left <= NEAR, rows.length]);
  return { rows, more, error: head.error ?? tail.error, ready: head.data !== undefined, reach };
}

export function Runs() {
  const { q = "", status = "", day = "" } = route.value.query;
  const counts = useLoad((signal) => read("runs counts", {}, { signal }), [], (change) => change?.kind === "run" || change === null);
  const list = useRuns(q, status, day);
  const { rows, more } = list;
  const items = useMemo(() => {
    const found = [];
    rows.forEach((run, at) => {
      if (!at || groupOf(run) !== groupOf(rows[at - 1])) found.push({ heading: GROUPS[groupOf(run)] });
      found.push({ run });
    });
    return found;
  }, [rows]);
  const filtered = q || status || day;
  return html`<div class="page runs">
    <header class="head">
      <h1>Runs</h1>
      <div class="chips" role="group" aria-label="When it last changed">
        ${DAYS.map(([value, word]) => html`<button type="button" aria-pressed=${day === value} onClick=${() => refine({ day: value })}>${word}</button>`)}
      </div>
      <${Typed} data-search type="search" placeholder="Find by id, function or user" aria-label="Find runs" value=${q} onValue=${(text) => refine({ q: text.trim() })} />
    </header>
    <div class="filters">
      <div class="chips" role="group" aria-label="Status">
        <button type="button" aria-pressed=${!status} onClick=${() => refine({ status: "" })}>all</button>
        ${STATUSES.filter((one) => counts.data?.[one] || one === status || one === "person" || one === "failed").map(
          (one) => html`<button type="button" class="s-${one}" aria-pressed=${status === one} onClick=${() => refine({ status: status === one ? "" : one })}>
            <${Badge} status=${one} /> <b>${count(counts.data?.[one] ?? 0)}</b>
          </button>`,
        )}
      </div>
    </div>
    <${Problem} error=${list.error} />
    ${list.ready && !rows.length && (filtered
      ? html`<${Empty} title="No run fits these filters"><p><button type="button" onClick=${() => refine({ q: "", status: "", day: "" })}>Show all runs</button></p></${Empty}>`
      : html`<${Empty} title="No runs yet"><p>Runs appear here as soon as an agent starts one: <code>tenuto demo</code> does.</p></${Empty}>`)}
    ${rows.length > 0 && html`<div class="run-cols" aria-hidden="true"><span>Status</span><span>Run</span><span>Last step</span><span>Steps</span><span>Cost</span><span>Changed</span></div>
      <${LongList} count=${items.length} estimate=${(at) => (items[at].heading ? 44 : 57)} label="Runs" kind="ul"
        onRange=${(_, last) => list.reach(items.length - last)}
        render=${(at) => (items[at].heading ? html`<li key=${items[at].heading} data-index=${at} class="group"><h2>${items[at].heading}</h2></li>` : html`<${Row} key=${items[at].run.id} at=${at} run=${items[at].run} />`)} />
      ${more && html`<p class="dim center" role="status">loading more…</p>`}
      ${!more && rows.length > 20 && html`<p class="dim center">${plural(rows.length, "run")}</p>`}`}
    ${!list.ready && !list.error && html`<p class="dim center" role="status">loading…</p>`}
  </div>`;
}

function Row({ run, at }) {
  const status = run.attention === "person" && run.status !== "in_doubt" ? "person" : run.status;
  const under = [run.function, run.user && `for ${run.user}`, run.forked_from && `fork of ${run.forked_from}`].filter(Boolean);
  return html`<li data-index=${at}>
    <a class="run-row" data-row href=${link("run", [run.id])}>
      <span class="c-status"><${Badge} status=${status} /></span>
      <span class="c-run"><b><bdi>${short(run.id, 80)}</bdi></b>${under.length > 0 && html`<small>${under.map((one) => html`<bdi>${short(one, 60)}</bdi>`)}</small>`}</span>
      <span class="c-step"><bdi>${short(run.step ?? "", 60)}</bdi>${run.error ? html`<small class="bad"><bdi>${short(run.error, 110)}</bdi></small>` : run.asks && html`<small class="asks-for"><bdi>${short(run.asks, 110)}</bdi></small>`}</span>
      <span class="c-count">${run.steps ? `${count(run.done)}/${count(run.steps)}` : ""}</span>
      <span class="c-cost">${money(run.cost)}</span>
      <span class="c-when"><${Aged} at=${run.updated_at} /></span>
    </a>
  </li>`;
}
