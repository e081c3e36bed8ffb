// The waterfall of a run: a row a step, its attempts as bars, time without work folded to a mark.
import { useMemo } from "preact/hooks";
import { STATUS, clock, plain, roughly, short, took, when } from "./format.js";
import { Icon, LongList, html } from "./parts.js";

const KINDS = { sleep: "moon", wait: "flag", ask: "person" };
const seconds = (iso) => Date.parse(iso) / 1000;

// When a step worked or waited: one interval for each attempt.
export function intervals(step, end) {
  const begins = [seconds(step.started), ...step.repeats.map((one) => seconds(one.at))];
  const over = step.ended ? seconds(step.ended) : end;
  const waits = ["sleep", "wait", "ask"].includes(step.kind);
  const last = begins.length - 1;
  return begins.map((begun, at) => {
    let from = begun;
    // An attempt that the next one follows ended somewhere in between; its own duration is known only of the last.
    let to = at < last ? Math.min(begins[at + 1], from + Math.max(step.seconds, 0.001)) : over;
    if (at === last && step.ended && !waits) from = step.attempts === 1 ? from : Math.max(from, over - step.seconds);
    if (at === last && step.ended && !waits && step.attempts === 1) to = from + step.seconds;
    return { from, to: Math.max(from, to), waits, bad: at < last || step.status === "failed", open: at === last && !step.ended };
  });
}

// A scale on which idle time takes little room. Returns x in per cent for a time, and the folds.
export function scale(all, start, end) {
  const busy = all.filter((one) => !one.waits).map(({ from, to }) => [from, to]).sort((a, b) => a[0] - b[0]);
  const parts = [];
  for (const [from, to] of busy) {
    const last = parts.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else parts.push([from, to]);
  }
  const work = parts.reduce((sum, [from, to]) => sum + to - from, 0) || (end - start) / 10 || 1;
  const most = work * 0.12;
  const knots = [[start, 0]];
  const folds = [];
  let [at, x] = [start, 0];
  const idle = (until) => {
    const gap = until - at;
    if (gap <= 0) return;
    const shown = Math.min(gap, most);
    if (gap > most * 2) folds.push({ from: at, seconds: gap, x, wide: shown });
    [at, x] = [until, x + shown];
    knots.push([at, x]);
  };
  for (const [from, to] of parts) {
    idle(from);
    if (to > at) [at, x] = [to, x + to - at];
    knots.push([at, x]);
  }
  idle(end);
  const total = x || 1;
  const place = (time) => {
    if (time <= knots[0][0]) return 0;
    for (let one = 1; one < knots.length; one++) {
      const [[t0, x0], [t1, x1]] = [knots[one - 1], knots[one]];
      if (time <= t1) return ((t1 > t0 ? x0 + ((time - t0) / (t1 - t0)) * (x1 - x0) : x1) / total) * 100;
    }
    return 100;
  };
  return { place, folds: folds.map((one) => ({ ...one, x: (one.x / total) * 100, wide: (one.wide / total) * 100 })) };
}

function lasted(step, end) {
  const spanned = (step.ended ? seconds(step.ended) : end) - seconds(step.started);
  if (["ask", "wait", "sleep"].includes(step.kind)) return took(spanned);
  if (step.ended) return took(step.seconds);
  return step.status === "running" ? took(spanned) : "";
}

// A step with an effect that raised is in doubt until someone says what happened, whatever its last line is.
export const standing = (step, run) => (run.status === "in_doubt" && step.status === "failed" && step.question ? "in_doubt" : step.status);

export const stepKey = (step) => `${step.number}`;
export const stepName = (step) => `${step.name}${step.key ? ` [${step.key}]` : step.occurrence > 1 ? ` #${step.occurrence}` : ""}`;

export function Waterfall({ run, chosen, onChoose, end }) {
  const { place, folds, rows, first, last } = useMemo(() => {
    const rows = run.steps.map((step) => ({ step, bars: intervals(step, end) }));
    const all = rows.flatMap((one) => one.bars);
    const start = Math.min(seconds(run.created_at), ...all.map((one) => one.from));
    const first = Math.min(...all.map((one) => one.from), start + 1e9);
    const last = Math.max(end, ...all.map((one) => one.to));
    return { rows, first, last, ...scale(all, first, last) };
  }, [run, end]);
  if (!rows.length) return html`<p class="dim pad">No step has begun.</p>`;
  return html`<div class="waterfall">
    <div class="folds" aria-hidden="true">${folds.map((one) => html`<span class="fold-mark" style=${{ left: `${one.x}%`, width: `${one.wide}%` }} title="nothing was done for ${took(one.seconds)}"><span>${folded(one.seconds, one.wide)}</span></span>`)}</div>
    <${LongList} count=${rows.length} estimate=${37} label="Steps" render=${(at) => {
      const { step, bars } = rows[at];
      return html`<li key=${step.number} data-index=${at}>
        <button type="button" class="step-row" data-row="choose" aria-pressed=${chosen === stepKey(step)} onClick=${() => onChoose(stepKey(step))}>
          <span class="w-name"><${Mark} step=${step} status=${standing(step, run)} /><bdi title=${plain(step.name)}>${short(stepName(step), 60)}</bdi>
            ${step.attempts > 1 && html`<small class="tag">${step.attempts} attempts</small>`}
            ${step.reused > 0 && html`<small class="tag reuse">reused${step.reused > 1 ? ` ${step.reused}×` : ""}</small>`}
          </span>
          <span class="w-bars" aria-hidden="true">${bars.map((one) => {
            const left = place(one.from);
            const wide = place(one.to) - left;
            return html`<span class="bar ${one.waits ? "waits" : one.bad && standing(step, run) !== "in_doubt" ? "bad" : `b-${standing(step, run)}`} ${step.reused ? "reused" : ""} ${one.open ? "open" : ""}" style=${{ left: `${Math.min(left, 99)}%`, width: `max(4px, ${wide}%)` }}></span>`;
          })}</span>
          <span class="w-time">${lasted(step, end)}</span>
        </button>
      </li>`;
    }} />
    <p class="axis" aria-hidden="true">${[first, null, last].map((at) => (at === null ? html`<span>${took(last - first)}</span>` : html`<time title=${when(at * 1000)}>${last - first > 43_200 ? clock(at * 1000) : new Date(at * 1000).toLocaleTimeString()}</time>`))}</p>
  </div>`;
}

// The length of a fold, as long as its mark is wide.
const folded = (seconds, wide) => (wide > 12 ? took(seconds) : wide > 4 && seconds >= 1 ? roughly(seconds) : "");

const Mark = ({ step, status }) => {
  const [icon, word] = STATUS[status] ?? STATUS.waiting;
  const shown = KINDS[step.kind] && status !== "failed" ? KINDS[step.kind] : icon;
  return html`<span class="mark s-${step.kind === "ask" && status === "waiting" ? "person" : status}" title=${word}><${Icon} name=${shown} /><span class="vh">${word}: </span></span>`;
};
