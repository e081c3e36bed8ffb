// Values as people read them. Everything from the store is data: it is shown as text, and text that would change how other text
// is shown (bidirectional controls, zero-width and control characters) is shown by its number.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff]/g;
const code = (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

export const plain = (text) => String(text).replace(HIDDEN, code);
export const short = (text, most = 120) => {
  const line = plain(String(text).slice(0, most + 1).replace(/\s+/g, " "));
  return line.length > most ? line.slice(0, most) + "…" : line;
};
export const shown = (value, most) => short(typeof value === "string" ? value : safeJson(value, most), most);

function safeJson(value, most = 120) {
  if (value === undefined) return "";
  // A preview needs no more than its length: large values are not rendered whole for it.
  let left = most * 2;
  const cut = (one, depth) => {
    if (left <= 0) return "…";
    if (typeof one === "string") return (left -= Math.min(one.length, most)), one.length > most ? one.slice(0, most) + "…" : one;
    if (one === null || typeof one !== "object") return (left -= 4), one;
    if (depth > 4) return "…";
    if (Array.isArray(one)) return one.slice(0, 20).map((item) => cut(item, depth + 1));
    return Object.fromEntries(Object.entries(one).slice(0, 20).map(([name, item]) => ((left -= name.length), [name, cut(item, depth + 1)])));
  };
  return JSON.stringify(cut(value, 0));
}

export function took(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  const s = Math.max(0, seconds);
  if (s < 0.0005) return "0 ms";
  if (s < 0.9995) return `${s < 0.01 ? (s * 1000).toFixed(1) : Math.round(s * 1000)} ms`;
  if (s < 59.95) return `${s.toFixed(1)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => s >= size - 0.5);
  const [unit, size] = units[first];
  const rounded = units[first + 1] ? Math.round(s / units[first + 1][1]) * units[first + 1][1] : s;
  const whole = Math.floor(rounded / size);
  const rest = units[first + 1] ? Math.round((rounded - whole * size) / units[first + 1][1]) : 0;
  return rest ? `${whole} ${unit} ${rest} ${units[first + 1][0]}` : `${whole} ${unit}`;
}

export function ago(iso, now) {
  if (!iso) return "";
  const seconds = (now - Date.parse(iso)) / 1000;
  if (seconds < -5) return `in ${roughly(-seconds)}`;
  return seconds < 5 ? "just now" : `${roughly(seconds)} ago`;
}

export function roughly(s) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (s >= size) return s < size * 10 && unit === "h" ? `${Math.floor(s / size)} h` : `${Math.floor(s / size)} ${unit}`;
  }
  return `${Math.floor(s)} s`;
}

export const when = (iso) => (iso ? new Date(iso).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "");
export const clock = (iso) => {
  const at = new Date(iso);
  return `${at.toLocaleDateString(undefined, { day: "numeric", month: "short" })} ${at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" })}`;
};
export const money = (dollars) =>
  !dollars ? "" : dollars >= 0.01 ? `$${dollars.toFixed(2)}` : `$${dollars.toPrecision(2).replace(/0+$/, "")}`;
export const count = (number) => number.toLocaleString("en").replaceAll(",", " ");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  for (const [unit, one] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= one) return `${(size / one).toFixed(size >= one * 10 ? 0 : 1)} ${unit}`;
  }
}

// The icon and the words of a status.
export const STATUS = {
  person: ["person", "waits on a person"],
  queued: ["ring", "queued"],
  running: ["run", "running"],
  waiting: ["clock", "waiting"],
  interrupted: ["pause", "interrupted"],
  in_doubt: ["doubt", "in doubt"],
  failed: ["cross", "failed"],
  completed: ["check", "completed"],
  cancelled: ["dash", "cancelled"],
  pending: ["person", "pending"],
  acknowledged: ["person", "acknowledged"],
  answered: ["check", "answered"],
  expired: ["cross", "expired"],
};
