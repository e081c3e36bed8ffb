// The place in the inspector is in the fragment, with its filters: an address can be kept, sent and opened again.
import { signal } from "@preact/signals";

export const route = signal(parsed());
addEventListener("hashchange", () => (route.value = parsed()));

function parsed() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: page || "runs", rest, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

export function link(page, rest = [], query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(set).toString();
  return `#/${[page, ...rest].map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const go = (...to) => (location.hash = link(...to));

// Change filters in place: typing into a search field leaves one entry in the browser's history, not one a letter.
export function refine(changes) {
  const { page, rest, query } = route.value;
  history.replaceState(null, "", link(page, rest, { ...query, ...changes }));
  route.value = parsed();
}
