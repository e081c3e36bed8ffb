// Two runs side by side: an original and its fork, step by step.
import { read } from "./api.js";
import { short, shown, took } from "./format.js";
import { Badge, Json, Problem, html, useLoad } from "./parts.js";
import { link } from "./route.js";
import { stepName } from "./waterfall.js";

const input = (step) => step?.given ?? step?.args; // what it worked with: a fork may have replaced it
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export function Compare({ a, b }) {
  const found = useLoad(
    (signal) => Promise.all([a, b].map((run) => read("runs show", { run }, { signal }))),
    [a, b],
    (change) => !change || [a, b].includes(change.id),
  );
  if (!found.data) return html`<div class="page"><${Problem} error=${found.error} /></div>`;
  const [left, right] = found.data;
  const names = [...new Set([...left.steps, ...right.steps].map(stepName))];
  const rows = names.map((name) => [name, left.steps.find((one) => stepName(one) === name), right.steps.find((one) => stepName(one) === name)]);
  return html`<div class="page compare">
    <header class="head"><div class="title"><a class="up" data-up href=${link("run", [b])}><bdi>${short(b, 60)}</bdi></a><h1>Original and fork</h1></div></header>
    <div class="scroll" tabindex="0" role="region" aria-label="Comparison"><table>
      <thead><tr><th>Step</th>${[left, right].map((run) => html`<th><a href=${link("run", [run.id])}><bdi>${short(run.id, 60)}</bdi></a> <${Badge} status=${run.status} /></th>`)}</tr></thead>
      <tbody>
        ${rows.map(([name, one, other]) => {
          const state = !one || !other ? "only" : !same(input(one), input(other)) || !same(one.result, other.result) || one.status !== other.status ? "differs" : "same";
          return html`<tr class=${state}><th scope="row"><bdi>${short(name, 60)}</bdi>${state !== "same" && html`<small class="tag">${state === "only" ? "in one of them" : "differs"}</small>`}</th>${[one, other].map((step, at) => html`<td>${step ? html`<${Cell} step=${step} against=${at ? one : other} />` : html`<span class="dim">not reached</span>`}</td>`)}</tr>`;
        })}
        <tr class=${same(left.result, right.result) ? "same" : "differs"}><th scope="row">Result</th>${[left, right].map((run) => html`<td>${run.error ? html`<span class="bad">${short(`${run.error.type}: ${run.error.message}`, 200)}</span>` : html`<div class="json"><${Json} value=${run.result} /></div>`}</td>`)}</tr>
      </tbody>
    </table></div>
  </div>`;
}

const Cell = ({ step, against }) => html`
  <div class="row"><${Badge} status=${step.status} /> <span class="dim">${took(step.seconds)}</span></div>
  ${!same(input(step), input(against)) && html`<div class="json"><${Json} name="input" value=${input(step)} /></div>`}
  ${step.error ? html`<p class="bad">${short(`${step.error.type}: ${step.error.message}`, 200)}</p>` : same(step.result, against?.result) ? html`<p class="dim">${shown(step.result, 80)}</p>` : html`<div class="json"><${Json} name="output" value=${step.result} /></div>`}`;
