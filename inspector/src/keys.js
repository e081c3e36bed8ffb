// The keyboard: j and k move among what is marked with data-row, whatever page it is on.
import { go } from "./route.js";

const PLACES = { r: "runs", i: "inbox", t: "threads", m: "memory", s: "store" };
let after = "";

export function keyboard(help) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing && !typing.closest("dialog")) {
      event.preventDefault(); // a search field would empty itself
      return typing.blur();
    }
    if (typing || document.querySelector("dialog[open]")) return;
    const place = after === "g" && PLACES[event.key];
    after = event.key;
    if (place) return go(place);
    const act = {
      j: () => step(1),
      k: () => step(-1),
      "/": () => document.querySelector("[data-search]")?.focus(),
      "?": () => help(),
      u: () => document.querySelector("[data-up]")?.click(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest("[data-row]"));
  const chosen = rows.findIndex((one) => one.getAttribute("aria-current") === "true" || one.getAttribute("aria-pressed") === "true");
  const from = at >= 0 ? at : chosen;
  const next = rows[Math.max(0, Math.min(rows.length - 1, from < 0 ? 0 : from + by))];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  if (next.dataset.row === "choose") next.click(); // what the row is about is shown next to the list
}
