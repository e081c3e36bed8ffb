// One run: its waterfall, what each step did, and what can be done about it.
import { useEffect, useState } from "preact/hooks";
import { follow, key, mayWrite, read, write } from "./api.js";
import { ago, money, plain, plural, short, shown, took, when } from "./format.js";
import { AnswerForm } from "./answer.js";
import { Act, Ago, Badge, Confirm, Copy, Dialog, Facts, Problem, Section, Value, html, notify, now, useLoad } from "./parts.js";
import { go, link, refine, route } from "./route.js";
import { script } from "./script.js";
import { Waterfall, standing, stepKey, stepName } from "./waterfall.js";

const OVER = ["completed", "cancelled"];

export function RunPage({ id }) {
  const [asks, ask] = useState(null);
  const found = useLoad(
    async (signal) => {
      const [run, history] = await Promise.all([read("runs show", { run: id }, { signal }), read("runs history", { run: id }, { signal })]);
      const question = run.waits_for.find(([kind]) => kind === "question")?.[1];
      return { run, history, question: question && (await read("inbox show", { question }, { signal }).catch(() => null)) };
    },
    [id],
    (change) => !change || change.id === id || change.kind === "question",
  );
  const { run, history = [], question } = found.data || {};
  const ends = run && !OVER.includes(run.status);
  // A run that works writes a line for each step: its own stream, while it is open here.
  useEffect(() => (ends ? follow("runs follow", { run: id, after: history.at(-1)?.number }, () => found.reload()) : undefined), [id, ends, key.value]);
  if (!run) return html`<div class="page"><${Problem} error=${found.error} />${!found.error && html`<p class="dim" role="status">loading…</p>`}</div>`;
  const chosen = run.steps.find((step) => stepKey(step) === route.value.query.step) ?? null;
  const cause = run.steps.findLast((step) => step.status === "failed");
  // What left the run may only say that a step failed: the step has the error itself.
  const error = run.error && cause && run.error.type === "StepFailed" ? cause.error : run.error;
  const choose = (key) => refine({ step: route.value.query.step === key ? "" : key });
  const end = ["running", "waiting", "in_doubt"].includes(run.status) ? now.value / 1000 : Date.parse(run.updated_at) / 1000;
  const asked = question?.status === "pending" || question?.status === "acknowledged";
  const status = asked && run.status !== "in_doubt" ? "person" : run.status;
  return html`<div class="page run">
    <header class="head">
      <div class="title"><a class="up" data-up href=${link("runs")}>Runs</a><h1><bdi>${short(run.id, 120)}</bdi></h1><${Badge} status=${status} /></div>
      <div class="row actions">
        ${mayWrite() && ["failed", "cancelled"].includes(run.status) && html`<${Act} operation="runs retry" args=${{ run: id }} said="Queued again: a worker, or the same call, continues it." done=${found.reload}>Retry</${Act}>`}
        ${mayWrite() && run.steps.length > 0 && html`<button type="button" onClick=${() => ask("fork")}>Fork…</button>`}
        ${mayWrite() && ends && run.status !== "failed" && html`<button type="button" onClick=${() => ask("cancel")}>Cancel…</button>`}
        <${Copy} label="Copy as script" text=${() => script(run)} />
        ${run.forked_from && html`<a class="button" href=${link("compare", [run.forked_from, run.id])}>Compare with original</a>`}
      </div>
    </header>
    <p class="line">
      ${run.function && html`<span><code>${plain(run.function)}</code></span>`}
      ${run.user && html`<span>for <bdi>${short(run.user, 60)}</bdi></span>`}
      <span>${plural(run.steps.length, "step")}</span>
      <span>${took(run.steps.reduce((sum, step) => sum + step.seconds, 0))} of work</span>
      ${run.cost > 0 && html`<span>${money(run.cost)}</span>`}
      ${run.resumes.length > 0 && html`<span>resumed ${run.resumes.length === 1 ? "once" : `${run.resumes.length} times`}</span>`}
      <span>started <${Ago} at=${run.created_at} /></span>
      <span>changed <${Ago} at=${run.updated_at} /></span>
      ${run.forked_from && html`<span>fork of <a href=${link("run", [run.forked_from])}><bdi>${short(run.forked_from, 60)}</bdi></a></span>`}
      ${run.parent && html`<span>started by <a href=${link("run", [run.parent])}><bdi>${short(run.parent, 60)}</bdi></a></span>`}
      ${run.due && html`<span>due: ${plain(run.due)}</span>`}
    </p>
    <${Problem} error=${found.error} />
    ${run.error && html`<div class="cause" role="group" aria-label="Cause">
      <p><b>${plain(error.type)}</b> ${short(error.message, 600)}</p>
      ${cause && html`<p class="dim">in step <button type="button" class="link" onClick=${() => refine({ step: stepKey(cause) })}>${short(stepName(cause), 60)}</button>${cause.attempts > 1 && `, after ${cause.attempts} attempts`}${cause.ended && `, ${ago(cause.ended, now.value)}`}</p>`}
      ${error.traceback && !chosen?.error && html`<details><summary>Traceback</summary><pre tabindex="0">${plain(error.traceback)}</pre></details>`}
    </div>`}
    ${asked && html`<div class="asked"><${AnswerForm} question=${question} done=${found.reload} /></div>`}
    ${run.status === "waiting" && !asked && html`<p class="hint">Waits for ${run.waits_for.map(([kind, ref]) => `${kind} ${short(ref, 60)}`).join(", ") || "a time"}${run.wakes && html`, until ${when(run.wakes)}`}.</p>`}
    ${run.status === "interrupted" && html`<p class="hint">Its process died. A worker, <code>tenuto runs recover</code>, or the same call again continues it from its last step.</p>`}
    ${run.status === "queued" && html`<p class="hint">Queued: a worker, or the same call with this id, executes it.</p>`}
    <div class="split">
      <div class="done">
        <${Waterfall} run=${run} end=${end} chosen=${chosen && stepKey(chosen)} onChoose=${choose} />
        <${Log} lines=${chosen ? history.filter((one) => one.step_number === chosen.number) : history} of=${chosen && stepName(chosen)} />
      </div>
      <aside class="panel" aria-label="Details">
        ${chosen ? html`<${StepPanel} key=${chosen.number} step=${chosen} run=${run} history=${history} fork=${() => ask("fork")} />` : html`<${RunPanel} run=${run} />`}
      </aside>
    </div>
    ${asks === "fork" && html`<${Fork} run=${run} step=${chosen ?? cause ?? run.steps.at(-1)} onClose=${() => ask(null)} />`}
    ${asks === "cancel" && html`<${Confirm} title="Cancel this run?" text="No further step starts, and its child runs are cancelled too. What it has recorded stays; it can be retried later." word="Cancel the run" operation="runs cancel" args=${{ run: id }} said="Cancelled." onClose=${() => ask(null)} done=${found.reload} />`}
  </div>`;
}

function StepPanel({ step, run, history, fork }) {
  const trace = history.find((one) => one.step_number === step.number && one.correlation_id)?.correlation_id;
  return html`
    <header class="panel-head"><h2><bdi>${short(stepName(step), 120)}</bdi></h2><${Badge} status=${standing(step, run)} /><button type="button" class="quiet" aria-label="Show the run" onClick=${() => refine({ step: "" })}>✕</button></header>
    ${step.error && html`<div class="cause"><p><b>${plain(step.error.type)}</b> ${short(step.error.message, 600)}</p>${step.error.traceback && html`<details><summary>Traceback</summary><pre tabindex="0">${plain(step.error.traceback)}</pre></details>`}</div>`}
    ${mayWrite() && ["step", "map", "ask"].includes(step.kind) && html`<p><button type="button" class="main" onClick=${fork}>Fork from here…</button></p>`}
    ${step.question && step.status !== "completed" && html`<p class="hint">It asks a person: <a href=${link("inbox", [step.question])}>open the question</a>.</p>`}
    ${step.given !== null && html`<${Value} title="Input, edited for this fork" value=${step.given} />`}
    <${Value} title=${step.given === null ? "Input" : "Input that its code passed"} value=${step.args} none=${step.key ? "It is known by its key; its arguments are not recorded." : "No arguments."} />
    <${Value} title="Output" value=${step.result} none=${step.status === "completed" ? "It returned nothing." : step.status === "failed" ? "None: it failed." : "Nothing yet."} />
    <${Section} title="Facts"><${Facts} of=${[
      ["started", when(step.started)],
      ["ended", when(step.ended)],
      ["took", took(step.seconds)],
      ["cost", money(step.cost)],
      ["effect", step.effect],
      ["attempts", step.attempts > 1 && step.attempts],
      ["reused by", step.reused > 0 && plural(step.reused, "resumed run")],
      ["until", when(step.until)],
      ["verified by", step.verified_by],
      ["reported", step.heartbeat && html`<${Ago} at=${step.heartbeat} /> ${shown(step.detail, 80)}`],
      ["idempotency key", step.idempotency_key && html`<code class="break">${step.idempotency_key}</code>`],
      ["correlation id", trace && html`<code class="break">${plain(trace)}</code>`],
    ]} /></${Section}>
    ${step.repeats.length > 0 && html`<${Section} title="Attempts"><ol class="attempts">
      <li>1 · <time>${when(step.started)}</time></li>
      ${step.repeats.map((one) => html`<li>${one.attempt} · <time>${when(one.at)}</time> · ${WHY[one.why] || one.why}${one.said_by && html`, said by <bdi>${short(one.said_by, 40)}</bdi>`}</li>`)}
    </ol></${Section}>`}`;
}

const WHY = {
  doubt: "the outcome of the one before was unknown",
  "not happened": "the one before did not happen",
  retry: "retried",
  failed: "the run was resumed after an error",
  halted: "the run was resumed after a pause",
};

// Who wrote a line of the log, and for which request: shown where it changes.
const said = (line) => line && [short(line.writer, 30), line.correlation_id && short(line.correlation_id, 36)].filter(Boolean).join(" · ");

const Log = ({ lines, of }) =>
  html`<${Section} title=${of ? `Log of ${short(of, 60)}` : "Log"}>${lines.length ? html`<ol class="log">${lines.slice(-300).map((one, at, all) => html`<li><time title=${when(one.at)}>${new Date(one.at).toLocaleTimeString()}</time> <b>${one.what}</b> ${one.step && html`<bdi>${short(one.step, 40)}</bdi> `}<span class="dim">${said(one) !== said(all[at - 1]) && said(one)}</span></li>`)}</ol>` : html`<p class="dim">No lines.</p>`}</${Section}>`;

// The arguments of a durable function: the positional ones alone, if it has no others.
function given(args) {
  const [positional, named] = Array.isArray(args) && args.length === 2 ? args : [];
  if (!Array.isArray(positional) || named === null || typeof named !== "object") return args;
  return Object.keys(named).length ? { args: positional, kwargs: named } : positional;
}

function RunPanel({ run }) {
  return html`
    <header class="panel-head"><h2>The run</h2></header>
    <${Value} title="Input" value=${given(run.args)} none="No arguments are recorded: it was opened with agent.run(id)." />
    <${Value} title="Result" value=${run.result} none=${run.status === "completed" ? "It returned nothing." : "Nothing yet."} />
    ${Object.keys(run.state).length > 0 && html`<${Value} title="State" value=${run.state} />`}
    <${Section} title="Facts"><${Facts} of=${[
      ["started", when(run.created_at)],
      ["changed", when(run.updated_at)],
      ["deadline", when(run.deadline)],
      ["priority", run.priority || null],
      ["failures", run.failures || null],
      ["executed by", run.holder && `${run.holder.writer}, process ${run.holder.pid} on ${run.holder.machine}`],
      ["thread", html`<a href=${link("thread", [run.id])}>its conversation</a>`],
    ]} /></${Section}>
    ${run.notes.length > 0 && html`<${Section} title="Also recorded"><ol class="log">${run.notes.slice(0, 200).map((one) => html`<li><b>${one.kind}</b> <bdi>${short(one.name, 40)}</bdi> <span class="dim">${shown(one.result, 60)}</span></li>`)}</ol></${Section}>`}`;
}

function Fork({ run, step, onClose }) {
  const [at, setAt] = useState(stepKey(step));
  const chosen = run.steps.find((one) => stepKey(one) === at);
  const [id, setId] = useState(`${run.id}-fork`);
  const recorded = Array.isArray(chosen?.args) || (chosen?.args && typeof chosen.args === "object");
  const [args, setArgs] = useState(recorded ? JSON.stringify(chosen.given ?? chosen.args, null, 2) : "");
  const [error, setError] = useState(null);
  const pick = (key) => {
    const other = run.steps.find((one) => stepKey(one) === key);
    setAt(key);
    setArgs(other?.args && typeof other.args === "object" ? JSON.stringify(other.args, null, 2) : "");
  };
  const submit = async (event) => {
    event.preventDefault();
    let given;
    try {
      given = args.trim() && args !== JSON.stringify(chosen.args, null, 2) ? JSON.parse(args) : undefined;
    } catch (wrong) {
      return setError(new Error(`The input is not JSON: ${wrong.message}. Nothing was written.`));
    }
    const occurrence = chosen.key ?? String(chosen.occurrence);
    try {
      await write("runs fork", { run: run.id, new: id, at: chosen.name, occurrence, args: given });
    } catch (wrong) {
      return setError(wrong);
    }
    notify("Forked. A worker, or the same call with the new id, executes it from that step.");
    onClose();
    go("run", [id]);
  };
  return html`<${Dialog} title="Fork this run" onClose=${onClose}>
    <form onSubmit=${submit}>
      <p class="dim">A new run keeps the recorded results before the chosen step and executes from there. The original does not change.</p>
      <label>From step<select value=${at} onChange=${(event) => pick(event.target.value)}>${run.steps.map((one) => html`<option value=${stepKey(one)}>${short(stepName(one), 80)}</option>`)}</select></label>
      <label>Input of that step<textarea rows="7" spellcheck=${false} class="code" value=${args} disabled=${!recorded} placeholder=${recorded ? "" : "its input is not recorded"} onInput=${(event) => setArgs(event.target.value)}></textarea></label>
      <label>Id of the new run<input required value=${id} onInput=${(event) => setId(event.target.value)} /></label>
      <${Problem} error=${error} />
      <div class="row end"><button type="button" onClick=${onClose}>Not now</button><button class="main">Fork</button></div>
    </form>
  </${Dialog}>`;
}
