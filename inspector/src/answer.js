// A question with its context, and a form from its choices or its schema.
import { useState } from "preact/hooks";
import { mayAnswer, me, useName, write } from "./api.js";
import { plain, roughly, short, shown, took, when } from "./format.js";
import { Act, Ago, Badge, Confirm, Facts, Json, Problem, Section, html, notify, now } from "./parts.js";
import { link } from "./route.js";

export const isOpen = (question) => ["pending", "acknowledged"].includes(question.status);

export function Countdown({ to, from }) {
  if (!to) return null;
  const left = (Date.parse(to) - now.value) / 1000;
  const all = (Date.parse(to) - Date.parse(from)) / 1000;
  const used = Math.min(1, Math.max(0, 1 - left / all));
  const kind = left < 0 ? "over" : used > 0.9 ? "late" : used > 0.5 ? "half" : "";
  return html`<span class="countdown ${kind}" title=${when(to)}>
    <span class="meter" aria-hidden="true"><span style=${{ width: `${used * 100}%` }}></span></span>
    ${left < 0 ? `overdue by ${roughly(-left)}` : `${left < 120 ? took(Math.floor(left)) : roughly(left)} left`}
  </span>`;
}

export function AnswerForm({ question, done, full = false }) {
  const [asks, ask] = useState(false);
  const open = isOpen(question);
  const doubt = question.step !== null;
  return html`<div class="question">
    <h2>${plain(question.text)}</h2>
    <p class="line">
      ${question.to && html`<span>to <b><bdi>${short(question.to, 60)}</bdi></b></span>`}
      <span>asked <${Ago} at=${question.asked_at} />${question.asked_by && html` by <bdi>${short(question.asked_by, 40)}</bdi>`}</span>
      ${open && html`<${Countdown} to=${question.deadline ?? question.expires_at} from=${question.asked_at} />`}
      ${question.run && full && html`<span>run <a href=${link("run", [question.run])}><bdi>${short(question.run, 80)}</bdi></a></span>`}
      ${question.acknowledged_by && html`<span>looked after by <bdi>${short(question.acknowledged_by, 40)}</bdi></span>`}
    </p>
    ${question.policy && html`<p class="hint">Rule: ${plain(question.policy)}</p>`}
    ${question.context !== null && html`<div class="json bare boxed"><${Json} value=${question.context} bare /></div>`}
    ${question.evidence.length > 0 && html`<${Section} title="Evidence"><div class="json"><${Json} value=${question.evidence} /></div></${Section}>`}
    ${question.remembered.length > 0 && html`<${Section} title="What memory says"><ul>${question.remembered.map((one) => html`<li>${short(one, 400)}</li>`)}</ul></${Section}>`}
    ${question.last && html`<p class="hint">Last time: <b>${shown(question.last.answer ?? question.last.status, 120)}</b>${question.last.by && ` by ${short(question.last.by, 40)}`} on “${short(question.last.text, 120)}”.</p>`}
    ${question.blocks && html`<p class="hint">Until it is answered, <code>${plain(question.blocks)}</code> is blocked.</p>`}
    ${question.votes.length > (open ? 0 : 1) && html`<ul>${question.votes.map((one) => html`<li><b>${short(one.by, 40)}</b>: ${shown(one.answer, 120)}</li>`)}</ul>`}
    ${open && mayAnswer() && html`
      <${Form} question=${question} doubt=${doubt} done=${done} />
      <p class="row">
        ${question.status === "pending" && html`<${Act} kind="quiet" operation="inbox acknowledge" args=${() => ({ question: question.id, by: named() })} said="Yours: it is not escalated any further." done=${done}>I look after it</${Act}>`}
        <button type="button" class="quiet" onClick=${() => ask(true)}>Cancel the question…</button>
      </p>`}
    ${open && !mayAnswer() && html`<p class="hint">This key only reads. Answering needs one with the scope <code>answer</code>.</p>`}
    ${!open && html`<p class="outcome"><${Badge} status=${question.status} /> ${question.status === "answered" && html`<b>${shown(question.answer, 400)}</b>`} ${question.by && html`by <b><bdi>${short(question.by, 60)}</bdi></b>`} ${question.answered_at && html`<${Ago} at=${question.answered_at} />`}</p>`}
    ${asks && html`<${Confirm} title="Cancel this question?" text="Its run resumes with an error." word="Cancel the question" operation="inbox cancel" args=${{ question: question.id, by: me.value || undefined }} onClose=${() => ask(false)} done=${done} />`}
  </div>`;
}

// The name of who answers; without one the field asks for it.
function named() {
  if (me.value.trim()) return me.value.trim();
  document.querySelector(".by input")?.focus();
  throw new Error("Say who you are: it is on record with your name. Nothing was written.");
}

function Form({ question, doubt, done }) {
  const [value, set] = useState(() => initial(question.schema));
  const [result, setResult] = useState("");
  const [error, fail] = useState(null);
  const [busy, hold] = useState(false);
  const send = async (answer, more = {}) => {
    hold(true);
    fail(null);
    try {
      await write("inbox answer", { question: question.id, answer, by: named(), ...more });
      notify(question.run ? "Answered: its run can continue." : "Answered.");
      done?.();
    } catch (wrong) {
      fail(wrong);
    }
    hold(false);
  };
  const name = html`<label class="by">You are<input value=${me.value} autocomplete="name" placeholder="your name" onInput=${(event) => useName(event.target.value)} /></label>`;
  if (doubt) {
    const happened = () => {
      if (!result.trim()) return send("happened");
      try {
        return send("happened", { result: JSON.parse(result) });
      } catch {
        return send("happened", { result });
      }
    };
    return html`<div class="form">
      <label>Its result, if it happened<textarea rows="2" class="code" placeholder="JSON or text" value=${result} onInput=${(event) => setResult(event.target.value)}></textarea></label>
      <${Problem} error=${error} />
      <div class="row">${name}<button type="button" class="main" disabled=${busy} onClick=${happened}>It happened</button><button type="button" disabled=${busy} onClick=${() => send("not happened")}>It did not happen</button></div>
    </div>`;
  }
  if (question.choices) {
    return html`<div class="form"><${Problem} error=${error} /><div class="row">${name}${question.choices.map((one, at) => html`<button type="button" class=${at ? "" : "main"} disabled=${busy} onClick=${() => send(one)}>${shown(one, 80)}</button>`)}</div></div>`;
  }
  const submit = (event) => {
    event.preventDefault();
    try {
      send(question.schema ? sent(question.schema, value) : free(value));
    } catch (wrong) {
      fail(wrong);
    }
  };
  return html`<form class="form" onSubmit=${submit}>
    ${question.schema ? html`<${Field} schema=${question.schema} value=${value} set=${set} name="" root=${question.schema} required />` : html`<label>Answer<textarea rows="3" required value=${value ?? ""} onInput=${(event) => set(event.target.value)}></textarea></label>`}
    <${Problem} error=${error} />
    <div class="row">${name}<button class="main" disabled=${busy}>Answer</button></div>
  </form>`;
}

const free = (text) => text;

// -- JSON Schema: what people answer with; anything else is a field for JSON -------------------

function resolved(schema, root) {
  if (schema?.$ref?.startsWith("#/")) return schema.$ref.slice(2).split("/").reduce((found, part) => found?.[part], root) ?? {};
  const any = schema?.anyOf ?? schema?.oneOf;
  const real = any?.filter((one) => one.type !== "null");
  return real?.length === 1 ? { ...schema, anyOf: undefined, oneOf: undefined, ...resolved(real[0], root) } : (schema ?? {});
}

function initial(schema) {
  if (!schema) return "";
  const one = resolved(schema, schema);
  if (one.default !== undefined) return one.type === "object" || one.type === "array" ? one.default : String(one.default);
  if (one.type === "object" && one.properties) return {};
  return one.type === "boolean" ? false : "";
}

function Field({ schema, value, set, name, root, required }) {
  const one = resolved(schema, root);
  const title = one.title || name.replaceAll("_", " ") || "Answer";
  const hint = one.description && html`<small class="dim">${plain(one.description)}</small>`;
  if (one.type === "object" && one.properties) {
    return html`<fieldset><legend>${name ? title : html`<span class="vh">Answer</span>`}</legend>${hint}
      ${Object.entries(one.properties).map(([part, inner]) => html`<${Field} key=${part} name=${part} schema=${inner} root=${root} required=${one.required?.includes(part)} value=${value?.[part] ?? initial({ ...inner, ...resolved(inner, root) })} set=${(given) => set({ ...value, [part]: given })} />`)}
    </fieldset>`;
  }
  if (one.enum) {
    return html`<label>${title}${hint}<select required=${required} value=${value} onChange=${(event) => set(event.target.value)}><option value="">choose…</option>${one.enum.map((choice) => html`<option value=${JSON.stringify(choice)}>${shown(choice, 80)}</option>`)}</select></label>`;
  }
  if (one.type === "boolean") return html`<label class="check"><input type="checkbox" checked=${value === true || value === "true"} onChange=${(event) => set(event.target.checked)} /> ${title}${hint}</label>`;
  if (one.type === "number" || one.type === "integer") {
    return html`<label>${title}${hint}<input type="number" required=${required} step=${one.type === "integer" ? 1 : "any"} min=${one.minimum} max=${one.maximum} value=${value} onInput=${(event) => set(event.target.value)} /></label>`;
  }
  if (one.type === "string") {
    const long = !one.format && (one.maxLength ?? 1000) > 200;
    return long
      ? html`<label>${title}${hint}<textarea rows="2" required=${required} minlength=${one.minLength} maxlength=${one.maxLength} value=${value} onInput=${(event) => set(event.target.value)}></textarea></label>`
      : html`<label>${title}${hint}<input required=${required} type=${{ date: "date", email: "email" }[one.format] || "text"} pattern=${one.pattern} value=${value} onInput=${(event) => set(event.target.value)} /></label>`;
  }
  return html`<label>${title} (JSON)${hint}<textarea rows="3" class="code" required=${required} value=${typeof value === "string" ? value : JSON.stringify(value)} onInput=${(event) => set(event.target.value)}></textarea></label>`;
}

function sent(schema, value, root = schema) {
  const one = resolved(schema, root);
  if (one.type === "object" && one.properties) {
    const found = {};
    for (const [part, inner] of Object.entries(one.properties)) {
      const given = value?.[part] ?? initial({ ...inner, ...resolved(inner, root) });
      if (given === "" && !one.required?.includes(part)) continue;
      found[part] = sent(inner, given, root);
    }
    return found;
  }
  if (one.enum) return JSON.parse(value);
  if (one.type === "number" || one.type === "integer") return Number(value);
  if (one.type === "boolean") return value === true || value === "true";
  if (one.type === "string") return value;
  return typeof value === "string" ? JSON.parse(value) : value;
}

export { Facts };
