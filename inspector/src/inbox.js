// The questions to people: open ones first; what each is about, who answered, and what happened to it.
import { useEffect } from "preact/hooks";
import { read } from "./api.js";
import { plain, short, shown, when } from "./format.js";
import { AnswerForm, Countdown, isOpen } from "./answer.js";
import { Ago, Badge, Empty, Problem, Section, html, useLoad } from "./parts.js";
import { link, refine, route } from "./route.js";

const STATUSES = ["pending", "answered", "expired", "cancelled"];

// What an event says beyond the question itself, which stands above it.
function details({ what, details }) {
  if (what === "asked" || !details) return "";
  const told = Object.entries(details).filter(([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length));
  return told.map(([name, value]) => `${name.replaceAll("_", " ")}: ${shown(value, 80)}`).join(", ");
}

export function Inbox({ id }) {
  const { status = "pending" } = route.value.query;
  const list = useLoad((signal) => read("inbox list", { status, limit: 500 }, { signal }), [status], (change) => change?.kind !== "run");
  const rows = list.data ?? [];
  const chosen = id ?? rows[0]?.id;
  const one = useLoad(
    async (signal) => (chosen ? { question: await read("inbox show", { question: chosen }, { signal }), history: await read("inbox history", { question: chosen }, { signal }) } : null),
    [chosen],
    (change) => change?.kind !== "run",
  );
  useEffect(() => {
    document.querySelector(".inbox .detail")?.scrollIntoView?.({ block: "nearest" });
  }, [id]);
  return html`<div class="page inbox">
    <header class="head"><h1>Inbox</h1></header>
    <div class="filters"><div class="chips" role="group" aria-label="Status">${STATUSES.map((word) => html`<button type="button" aria-pressed=${status === word} onClick=${() => refine({ status: word === "pending" ? "" : word })}>${word}</button>`)}</div></div>
    <${Problem} error=${list.error} />
    ${list.data && !rows.length && !id && html`<${Empty} title=${status === "pending" ? "No open questions" : `No ${status} questions`}><p>A run asks with <code>run.ask("…")</code>, and waits here without a process.</p></${Empty}>`}
    ${(rows.length > 0 || id) && html`<div class="two ${id ? "picked" : ""}">
      <ul class="cards" aria-label="Questions">${rows.map((question) => html`<li key=${question.id}><a data-row class="card" aria-current=${question.id === chosen ? "true" : undefined} href=${link("inbox", [question.id], { status: status === "pending" ? "" : status })}>
        <b>${short(question.text, 140)}</b>
        <small>${question.to && html`<span>to <bdi>${short(question.to, 40)}</bdi></span>`}<span><${Ago} at=${question.asked_at} /></span>
        ${isOpen(question) ? html`<${Countdown} to=${question.deadline ?? question.expires_at} from=${question.asked_at} />` : html`<span>${shown(question.answer ?? question.status, 40)}${question.by && ` · ${short(question.by, 30)}`}</span>`}
        ${question.status === "acknowledged" && html`<${Badge} status="acknowledged" label=${question.acknowledged_by} />`}</small>
      </a></li>`)}</ul>
      <div class="detail">
        <a class="back" href=${link("inbox", [], { status: status === "pending" ? "" : status })}>All questions</a>
        <${Problem} error=${one.error} />
        ${one.data && one.data.question && html`<${AnswerForm} key=${one.data.question.id} question=${one.data.question} done=${() => (list.reload(), one.reload())} full />
          <${Section} title="What happened to it"><ol class="log">${one.data.history.map((event) => html`<li><time>${when(event.at)}</time> <b>${plain(event.what)}</b> ${event.by && html`by <bdi>${short(event.by, 40)}</bdi> `}<span class="dim">${details(event)}</span></li>`)}</ol></${Section}>`}
      </div>
    </div>`}
  </div>`;
}
