// The API keys of the server: who may do what, when each was last used, and how to end one.
import { useState } from "preact/hooks";
import { read } from "./api.js";
import { short, when } from "./format.js";
import { Ago, Badge, Confirm, Problem, Section, html, now, useLoad } from "./parts.js";

const state = (key) => (key.revoked_at ? "revoked" : key.expires_at && Date.parse(key.expires_at) < now.value ? "expired" : "valid");
const BADGE = { valid: "completed", expired: "queued", revoked: "cancelled" };

export function ApiKeys() {
  const found = useLoad((signal) => read("keys list", {}, { signal }), []);
  const [ends, end] = useState(null);
  const keys = [...(found.data ?? [])].sort((a, b) => Object.keys(BADGE).indexOf(state(a)) - Object.keys(BADGE).indexOf(state(b)));
  return html`<${Section} title="API keys"><${Problem} error=${found.error} />
    ${found.data && (keys.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="API keys"><table><thead><tr><th>Key</th><th>May</th><th>Last used</th><th>Expires</th><th><span class="vh">Action</span></th></tr></thead>
      <tbody>${keys.map((key) => html`<tr class=${state(key) === "valid" ? "" : "gone"}><th scope="row"><bdi>${short(key.name, 60)}</bdi><small class="below"><code>${key.id}</code></small></th>
        <td>${key.scopes.join(", ")}${key.prefix && html`<small class="below">scopes that begin with <bdi>${short(key.prefix, 40)}</bdi></small>`}</td>
        <td>${key.last_used_at ? html`<${Ago} at=${key.last_used_at} />` : html`<span class="dim">never</span>`}</td>
        <td>${state(key) === "valid" ? (key.expires_at ? html`<time title=${when(key.expires_at)}><${Ago} at=${key.expires_at} /></time>` : html`<span class="dim">never</span>`) : html`<${Badge} status=${BADGE[state(key)]} label=${state(key)} />`}</td>
        <td class="num">${state(key) === "valid" && html`<button type="button" onClick=${() => end(key)}>Revoke…</button>`}</td></tr>`)}</tbody></table></div>` : html`<p class="dim">None: only the key that <code>tenuto serve</code> prints opens this server.</p>`)}
    <p class="dim after">A new key is made where the store is: <code>tenuto keys create NAME --scope read</code>.</p>
    ${ends && html`<${Confirm} title="Revoke ${short(ends.name, 60)}?" text="Every server process refuses it from now on. Whoever uses it needs a new key." word="Revoke" operation="keys revoke" args=${{ key: ends.id }} said="Revoked." onClose=${() => end(null)} done=${found.reload} />`}
  </${Section}>`;
}
